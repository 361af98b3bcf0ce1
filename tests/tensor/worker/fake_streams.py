"""A device that is not there, whose streams order memory as a real one's do.

Each stream has a vector clock: how far along every stream it is known to be behind. An event carries the clock of the stream
that recorded it to the one that waits. Memory goes back to the stream that allocated it when its tensor is let go of, and
is given out again there at once, as by torch's caching allocator: `faults` has every case in which another stream may still
be at it. Memory that was marked by `record_stream` is not given out again.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
import torch


class Stream:
    def __init__(self, name: str) -> None:
        self.name = name
        self.clock: dict[Stream, int] = {self: 0}
        self.pool: list[Block] = []

    def work(self, *blocks: Block) -> None:
        """An operation that uses `blocks`."""
        self.clock[self] += 1
        for block in blocks:
            block.uses[self] = self.clock[self]

    def wait(self, clock: dict[Stream, int]) -> None:
        for stream, time in clock.items():
            self.clock[stream] = max(time, self.clock.get(stream, 0))

    def is_behind(self, other: Stream) -> bool:
        """Returns whether it has waited for anything of `other`."""
        return self.clock.get(other, 0) > 0

    def __repr__(self) -> str:
        return self.name


class Block:
    def __init__(self, owner: Stream) -> None:
        self.owner = owner
        self.uses: dict[Stream, int] = {}
        self.marked: set[Stream] = set()


class OnDevice(torch.Tensor):
    """A tensor of the device: its numbers are on the host, its memory is a Block."""

    __torch_function__ = torch._C._disabled_torch_function_impl
    block: Block
    home: Device

    @property
    def device(self) -> torch.device:
        return torch.device("cuda", 0)

    def record_stream(self, stream: Any) -> None:
        self.block.marked.add(stream)

    def clone(self, **options: Any) -> Any:
        made = self.home.tensor(self.shape, self.dtype)
        torch.Tensor.copy_(made, self)
        self.home.current().work(self.block, made.block)
        return made

    def view(self, *shape: Any) -> Any:
        return self


class Device:
    """Its streams, and what went wrong."""

    def __init__(self) -> None:
        self.default = Stream("default")
        self.faults: list[str] = []
        self._here = threading.local()
        self._names = itertools.count(1)
        self._lock = threading.RLock()
        self._empty = torch.empty

    def current(self) -> Stream:
        found: Stream = getattr(self._here, "stream", self.default)
        return found

    def enter(self, stream: Stream) -> None:
        self._here.stream = stream

    def stream(self) -> Stream:
        return Stream(f"side {next(self._names)}")

    def tensor(self, shape: Any, dtype: Any = torch.float32) -> Any:
        """A fresh one, of the current stream."""
        stream = self.current()
        with self._lock:
            block = stream.pool.pop() if stream.pool else Block(stream)
            for user, time in block.uses.items():
                if stream.clock.get(user, 0) < time:
                    self.faults.append(f"{stream} reuses memory that {user} may still be at")
            block.uses, block.marked = {}, set()
        made: Any = self._empty(shape, dtype=dtype).as_subclass(OnDevice)
        made.block, made.home = block, self
        weakref.finalize(made, self._free, block)
        stream.work(block)
        return made

    def _free(self, block: Block) -> None:
        with self._lock:
            if not block.marked - {block.owner}:
                block.owner.pool.append(block)

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """In place of torch's accelerator."""
        device = self

        class Event:
            def __init__(self, where: Any = None) -> None:
                self.clock: dict[Stream, int] = {}

            def record(self, stream: Any = None) -> None:
                self.clock = dict((stream or device.current()).clock)

            def wait(self, stream: Any = None) -> None:
                (stream or device.current()).wait(self.clock)

        def empty(*shape: Any, **options: Any) -> Any:
            where = options.get("device")
            if where is not None and torch.device(where).type == "cuda":
                return device.tensor(shape[0], options.get("dtype"))
            return device._empty(*shape, **options)

        patch.setattr(torch, "Event", Event)
        patch.setattr(torch, "Stream", lambda where=None: device.stream())
        patch.setattr(torch, "empty", empty)
        patch.setattr(torch.accelerator, "current_stream", lambda where=None: device.current())
        patch.setattr(torch.accelerator, "set_stream", device.enter)
        patch.setattr(torch.accelerator, "set_device_index", lambda index: None)


class Group:
    """A group of two ranks as nccl has it: a stream of its own on which sends and receives are done one after another, but
    for those in a group call, which are done at once. `wait` makes the current stream wait, and no thread."""

    def __init__(self, device: Device, rank: int, network: Network) -> None:
        self.device = device
        self.rank = rank
        self.stream = Stream(f"nccl of {rank}")
        self.network = network
        self._together: list[tuple[str, int, Any]] | None = None

    def send(self, tensors: Any, place: int, tag: int) -> Any:
        return self._do("send", tensors[0])

    def recv(self, tensors: Any, place: int, tag: int) -> Any:
        return self._do("recv", tensors[0])

    def _start_coalescing(self) -> None:
        self._together = []

    def _end_coalescing(self) -> Any:
        together, self._together = self._together, None
        assert together is not None
        return self._enqueue(together)

    def _do(self, kind: str, tensor: Any) -> Any:
        one = (kind, self.rank, tensor)
        if self._together is not None:
            self._together.append(one)
            return None
        return self._enqueue([one])

    def _enqueue(self, ops: list[Any]) -> Any:
        self.stream.wait(self.device.current().clock)
        self.stream.work(*(tensor.block for _, _, tensor in ops))
        self.network.put(self.rank, ops)
        clock = dict(self.stream.clock)
        return SimpleNamespace(wait=lambda: self.device.current().wait(clock))


class Network:
    """The commands that two ranks have enqueued. `step` carries out what can be: the heads of both queues, as far as
    they fit."""

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self.queues: dict[int, list[list[Any]]] = {0: [], 1: []}
        self.sizes: list[tuple[int, list[str]]] = []

    def put(self, rank: int, ops: list[Any]) -> None:
        with self._lock:
            self.queues[rank].append(ops)
            self.sizes.append((rank, [kind for kind, _, _ in ops]))
            while self._step():
                pass
            self._lock.notify_all()

    def _step(self) -> bool:
        for rank in (0, 1):
            if not self.queues[rank] or not self.queues[1 - rank]:
                continue
            mine, theirs = self.queues[rank][0], self.queues[1 - rank][0]
            for one in mine:
                for other in theirs:
                    if (one[0], other[0]) == ("send", "recv"):
                        torch.Tensor.copy_(other[2], one[2])
                        mine.remove(one)
                        theirs.remove(other)
                        for which in (rank, 1 - rank):
                            if not self.queues[which][0]:
                                del self.queues[which][0]
                        return True
        return False

    def settled(self, seconds: float) -> bool:
        """Waits until everything is carried out."""
        with self._lock:
            return self._lock.wait_for(lambda: not any(self.queues.values()), seconds)
