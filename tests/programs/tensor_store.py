"""A store of tensors, as a library builds one: volumes hold parts of tensors, a strategy says which volume a writer uses, a
controller knows where each part is, and readers put together what they ask for from the parts of several writers.

Weights are published by 4 ranks that hold rows and fetched by 2 that hold columns, version after version.
"""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, field
from typing import Any

import torch

from monarch._src.actor.actor_mesh import Actor, context, current_rank
from monarch._src.actor.endpoint import endpoint
from monarch._src.actor.host_mesh import this_host
from monarch._src.actor.pickle import flatten, unflatten
from monarch._src.actor.proc_mesh import get_or_spawn_controller

Box = tuple[tuple[int, int], ...]  # of each dimension, where it begins and ends


def common(one: Box, other: Box) -> Box | None:
    """Returns what both boxes have; None for nothing."""
    both = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))
    return both if all(begin < end for begin, end in both) else None


def within(box: Box, outer: Box) -> tuple[slice, ...]:
    """Returns where `box` is in a tensor that holds `outer`."""
    return tuple(slice(a - c, b - c) for (a, b), (c, _) in zip(box, outer, strict=True))


@dataclass
class Part:
    """A part of a tensor that is spread over ranks: its values, where it is in the whole, and the whole's shape."""

    values: torch.Tensor
    box: Box
    shape: tuple[int, ...]


class ByRank:
    """Gives each writer a volume by its rank, so that writers do not share one."""

    def volume(self, rank: int, volumes: int) -> int:
        return rank % volumes


class OneVolume:
    """Gives all writers the same volume."""

    def volume(self, rank: int, volumes: int) -> int:
        return 0


class Volume(Actor):
    """Holds parts in memory."""

    def __init__(self) -> None:
        self.parts: dict[tuple[str, Box], torch.Tensor] = {}

    @endpoint
    async def put(self, key: str, box: Box, values: torch.Tensor) -> None:
        self.parts[key, box] = values.clone()

    @endpoint
    async def get(self, key: str, box: Box, wanted: Box) -> torch.Tensor:
        return self.parts[key, box][within(wanted, box)].contiguous()

    @endpoint
    async def delete(self, key: str) -> int:
        gone = [name for name in self.parts if name[0] == key]
        for name in gone:
            del self.parts[name]
        return len(gone)

    @endpoint
    async def count(self) -> int:
        return len(self.parts)


@dataclass
class Entry:
    """The knowledge of a key: its whole shape, and in which volume each box of it is."""

    shape: tuple[int, ...]
    boxes: dict[Box, int] = field(default_factory=dict)
    extra: bytes = b""


class Controller(Actor):
    """Knows the volumes, the strategy, and where everything is."""

    @endpoint
    async def configure(self, volumes: Any, strategy: Any) -> None:
        self.volumes, self.strategy, self.entries = volumes, strategy, {}

    @endpoint
    async def configuration(self) -> tuple[Any, Any]:
        return self.volumes, self.strategy

    @endpoint
    async def record(self, key: str, box: Box, volume: int, shape: tuple[int, ...], extra: bytes = b"") -> None:
        entry = self.entries.setdefault(key, Entry(shape, extra=extra))
        if entry.shape != shape:
            raise ValueError(f"{key} has the shape {entry.shape}, and a part of {shape} came")
        entry.boxes[box] = volume

    @endpoint
    async def locate(self, key: str) -> Entry:
        if key not in self.entries:
            raise KeyError(f"nothing is stored as {key}")
        return self.entries[key]

    @endpoint
    async def keys(self, prefix: str) -> list[str]:
        return sorted(key for key in self.entries if key.startswith(prefix))

    @endpoint
    async def forget(self, key: str) -> None:
        del self.entries[key]


class Store:
    """A client's side, in the script or in any actor."""

    def __init__(self, controller: Any, volumes: Any, strategy: Any) -> None:
        self.controller, self.volumes, self.strategy = controller, volumes, strategy

    @classmethod
    async def open(cls) -> Store:
        controller = await get_or_spawn_controller("store", Controller)
        return cls(controller, *await controller.configuration.call_one())

    @staticmethod
    def in_program() -> bool:
        """Tells whether somebody's Context is here, of the script or of an actor, without making the script's."""
        from monarch._src.actor.actor_mesh import _context

        return _context.get(None) is not None

    def _volume(self, number: int) -> Any:
        return self.volumes.slice(volumes=number)

    async def put(self, key: str, given: torch.Tensor | Part, extra: bytes = b"") -> None:
        if isinstance(given, torch.Tensor):
            given = Part(given, tuple((0, size) for size in given.shape), tuple(given.shape))
        number = self.strategy.volume(current_rank().rank if self.in_program() else 0, self.volumes.sizes["volumes"])
        await self._volume(number).put.call_one(key, given.box, given.values)
        await self.controller.record.call_one(key, given.box, number, given.shape, extra)

    async def get(self, key: str, wanted: Box | None = None) -> torch.Tensor:
        entry = await self.controller.locate.call_one(key)
        wanted = tuple((0, size) for size in entry.shape) if wanted is None else wanted
        shared = [(box, both, volume) for box, volume in entry.boxes.items() if (both := common(box, wanted))]
        parts = await asyncio.gather(
            *(self._fetch(volume, key, box, both) for box, both, volume in shared),
        )
        whole = torch.full([end - begin for begin, end in wanted], torch.nan)
        for (_, both, _), part in zip(shared, parts, strict=True):
            whole[within(both, wanted)] = part
        return whole

    async def _fetch(self, volume: int, key: str, box: Box, wanted: Box) -> torch.Tensor:
        return await self._volume(volume).get.call_one(key, box, wanted)

    async def delete(self, key: str) -> None:
        entry = await self.controller.locate.call_one(key)
        await self.controller.forget.call_one(key)
        for volume in sorted(set(entry.boxes.values())):
            await self._volume(volume).delete.call_one(key)

    async def publish(self, name: str, state: dict[str, Any]) -> None:
        """Stores a state dict: its tensors by number, and the rest of it, without them, beside the first."""
        parts, rest = flatten(state, lambda value: isinstance(value, Part | torch.Tensor))
        extra = rest.freeze().read()
        for number, part in enumerate(parts):
            await self.put(f"{name}/{number}", part, extra)

    async def fetch(self, name: str, boxes: list[Box | None]) -> dict[str, Any]:
        keys = [f"{name}/{number}" for number in range(len(boxes))]
        first = await self.controller.locate.call_one(keys[0])
        values = [await self.get(key, box) for key, box in zip(keys, boxes, strict=True)]
        return unflatten(first.extra, values)


ROWS, COLUMNS = 64, 48


def weight(version: int) -> torch.Tensor:
    return torch.arange(ROWS * COLUMNS, dtype=torch.float32).reshape(ROWS, COLUMNS) + 10_000 * version


class Trainer(Actor):
    """Holds rows of the weight."""

    @endpoint
    async def publish(self, version: int) -> None:
        store = await Store.open()
        point = current_rank()
        each = ROWS // point.extent.nelements
        begin = point.rank * each
        rows = Part(weight(version)[begin : begin + each], ((begin, begin + each), (0, COLUMNS)), (ROWS, COLUMNS))
        await store.publish(f"policy/{version}", {"linear": {"weight": rows}, "version": version, "scale": [1.5]})


class Generator(Actor):
    """Holds columns of the weight."""

    @endpoint
    async def update(self, version: int) -> tuple[bool, int, list[float]]:
        store = await Store.open()
        point = current_rank()
        each = COLUMNS // point.extent.nelements
        begin = point.rank * each
        state = await store.fetch(f"policy/{version}", [((0, ROWS), (begin, begin + each))])
        same = torch.equal(state["linear"]["weight"], weight(version)[:, begin : begin + each])
        return same, state["version"], state["scale"]


async def stores_with(volumes: Any, trainers: Any, generators: Any, strategy: Any) -> list[int]:
    """Publishes three versions, of which the generators fetch each. Returns how many parts each volume has at the end."""
    controller = await get_or_spawn_controller("store", Controller)
    await controller.configure.call_one(volumes, strategy)
    store = await Store.open()
    for version in range(3):
        await trainers.publish.call(version)
        for _, answer in await generators.update.call(version):
            assert answer == (True, version, [1.5]), answer
        if version:
            await store.delete(f"policy/{version - 1}/0")
    assert await store.controller.keys.call_one("policy/") == ["policy/2/0"]
    counts = list((await volumes.count.call()).values())
    assert torch.equal(await store.get("policy/2/0"), weight(2))
    try:
        await store.get("policy/7/0")
    except Exception as error:
        assert "nothing is stored as policy/7/0" in str(error)
    else:
        raise AssertionError("a key that is not there was found")
    await store.delete("policy/2/0")
    assert sum((await volumes.count.call()).values()) == 0
    return counts


def from_a_thread(store: Store) -> None:
    """Reads in a thread of a library's own, which takes the Context of the program along."""
    from monarch._src.actor.actor_mesh import _context

    given = context()
    found: list[Any] = []

    def run() -> None:
        token = _context.set(given)
        found.append(store.controller.keys.call_one("").get())
        _context.reset(token)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [[]], found


def main() -> None:
    assert not Store.in_program()
    volumes = this_host().spawn_procs({"volumes": 2}).spawn("volumes", Volume)
    assert Store.in_program()
    trainers = this_host().spawn_procs({"ranks": 4}).spawn("trainers", Trainer)
    generators = this_host().spawn_procs({"ranks": 2}).spawn("generators", Generator)
    for strategy, expected in ((ByRank(), [2, 2]), (OneVolume(), [4, 0])):
        found = asyncio.run(stores_with(volumes, trainers, generators, strategy))
        print(type(strategy).__name__, "parts in each volume:", found)
        assert found == expected
    from_a_thread(asyncio.run(Store.open()))
    print("ok")


if __name__ == "__main__":
    main()
