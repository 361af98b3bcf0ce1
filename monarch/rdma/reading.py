"""Plans of reading weights: what goes where in this process, and from which of the owners.

A plan knows the reader's tensors and stays what it is. The route, which owner gives what, is chosen anew when an owner ends.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from monarch._devices.memory import interface
from monarch._errors import RDMAMemoryError, RDMAReadOnlyError, StateDictMismatchError
from monarch.rdma.block_gather import BlockGather, Target
from monarch.rdma.buffer_handle import this_host
from monarch.rdma.entries import TensorEntry, device_of
from monarch.rdma.layout import Balance, Block, Box, assign, block, shown, size_of
from monarch.rdma.local_memory import LocalMemory, memory_of
from monarch.rdma.published import Published, PublishedTensor


class WantedTensor(NamedTuple):
    """One of the reader's tensors: the part of the whole that it is to hold, its bytes, and where they go: an address, or a
    flat tensor on a device.
    """

    name: str
    box: Box
    item: int
    size: int
    address: int
    flat: Any


def sources_of(owners: Sequence[Published], name: str) -> list[Any]:
    """Equal for names of the same bytes."""
    held = [(owner, published.places.get(name)) for owner, published in enumerate(owners)]
    return [(owner, one.buffer, one.offset, one.shape, one.start) for owner, one in held if one is not None]


class WeightsPlan:
    """A plan: which bytes are wanted, and what is to be done when they are there."""

    def __init__(self, owners: Sequence[Published]) -> None:
        self._owners = owners
        self._keep: list[Any] = []
        self._wanted: list[WantedTensor] = []
        self._staged: list[tuple[TensorEntry, Any]] = []
        self._taken: dict[tuple[str, int], tuple[str, Any]] = {}
        self._devices: dict[str, Any] = {}  # a tensor on each that is read into
        self._gone: frozenset[int] = frozenset()
        self._route: ReadRoute | None = None
        self.nbytes = 0  # that are wanted
        self._moved: Callable[[], int] = lambda: 0  # in the read that is under way

    def far(self) -> tuple[int, int]:
        """Returns the bytes of the read that have begun to move, and all. What was overtaken by an update begins anew."""
        return self._moved(), self.nbytes

    def gathers(self, route: ReadRoute, version: int) -> list[BlockGather]:
        """Returns what reads that version, from one owner each."""
        found = [route.gather(owner, version) for owner in route.owners]
        self._moved = lambda: sum(
            int(route.bytes_of(owner) * gather.part()) for owner, gather in zip(route.owners, found, strict=True)
        )
        return found

    def add(self, entry: TensorEntry, box: Box, staged: bool) -> None:
        """`box` of the whole tensor of that name goes into `entry`, which has its shape."""
        size = size_of(box) * entry.item
        if not size:
            return
        memory = self._memory(entry, size, staged)
        source = box, sources_of(self._owners, entry.name)
        place_here = (device_of(entry), memory.address)
        name, other = self._taken.setdefault(place_here, (entry.name, source))
        if other != source:
            raise StateDictMismatchError(f"{name!r} and {entry.name!r} are one tensor here and two at the owner")
        if name == entry.name:
            flat = None if memory.device is None else memory.keep
            self.nbytes += size
            self._wanted.append(WantedTensor(name, box, entry.item, size, memory.address, flat))

    def _memory(self, entry: TensorEntry, size: int, staged: bool) -> LocalMemory:
        """Returns where the bytes are to go: the tensor's own memory, or spare memory."""
        memory = None
        try:
            memory = entry.memory()
        except RDMAMemoryError:
            if not entry.strided():
                raise
        if memory is not None and not memory.writable:
            raise RDMAReadOnlyError(f"{entry.name!r} is read-only ({memory.shown})")
        if memory is None or staged:
            memory = self._spare(entry, size, memory is not None and memory.device is not None)
        if memory.device is not None:
            self._devices.setdefault(device_of(entry), memory.keep)
        self._keep.append(memory.keep)
        return memory

    def _spare(self, entry: TensorEntry, size: int, on_device: bool) -> LocalMemory:
        if on_device:
            flat = interface().empty(size, device_of(entry))
            self._staged.append((entry, flat))
            return memory_of(flat)
        spare = bytearray(size)
        self._staged.append((entry, entry.array(memoryview(spare))))
        return memory_of(spare)

    def marks(self) -> list[Any]:
        """Returns marks of what this thread has given the devices that are read into to do: the reads come after that."""
        return [interface().mark(flat) for flat in self._devices.values()]

    @property
    def route(self) -> ReadRoute:
        """Decides who gives what. StateDictMismatchError, naming the tensors and the parts of them that no owner has."""
        if self._route is None:
            self._route = ReadRoute(self._owners, self._wanted, self._gone, self._keep)
        return self._route

    def leave_out(self, owner: int) -> None:
        """Reads nothing from that owner from here on: what it has the others have to give, if they can."""
        self._gone |= {owner}
        self._route = None

    def finish(self, after: Sequence[Any]) -> None:
        """Puts what was staged into its place. Done when it returns."""
        copies = []
        for entry, spare in self._staged:
            if device_of(entry) and device_of(entry) == str(getattr(spare, "device", "")):
                copies.append((interface().flat(entry.data), spare))
            else:
                entry.copy_from(spare)
        if copies:
            interface().begin_all(copies, after)()


class ReadRoute:
    """Every byte from one owner. `owners` are those that give any, all if nothing is wanted; `gone` are left out."""

    def __init__(
        self, owners: Sequence[Published], wanted: Sequence[WantedTensor], gone: frozenset[int], keep: list[Any]
    ) -> None:
        self._gone = gone
        self._published = owners
        self._keep = keep
        self._targets: dict[int, dict[int, list[Target]]] = {}  # by owner and buffer
        self._gathers: dict[tuple[int, int], BlockGather] = {}
        here = this_host()
        balance = Balance([bool(here) and one.owner.host == here for one in owners], os.getpid())
        missing = []
        # The largest first, or what comes last could not be balanced any more.
        for one in sorted(wanted, key=lambda one: -one.size):
            held = self._held(one.name)
            # Much the most frequent case: one owner has exactly what is wanted.
            if len(held) == 1 and held[0][1].size == one.size and held[0][1].box == one.box:
                owner, place = held[0]
                start = 0 if one.flat is not None else one.address
                self._add(owner, place, Block(place.offset, start, one.size), one)
                continue
            parts, left = assign(one.box, [(owner, place.box) for owner, place in held], balance.pick)
            missing += [f"{one.name!r}{shown(box)}" for box in left]
            places = dict(held)
            for owner, box in parts:
                place = places[owner]
                start = 0 if one.flat is not None else one.address
                piece = block(place.box, one.box, box, one.item).moved(place.offset, start)
                self._add(owner, place, piece, one)
        if missing:
            more = f" and {len(missing) - 10} more" if len(missing) > 10 else ""
            hint = ". StateDictHandle.combine() puts the handles of several owners together" if len(owners) == 1 else ""
            raise StateDictMismatchError(f"no owner has {', '.join(sorted(missing)[:10])}{more}{hint}")
        self.owners = sorted(self._targets) or [one for one in range(len(owners)) if one not in gone]

    def _add(self, owner: int, place: PublishedTensor, piece: Block, wanted: WantedTensor) -> None:
        self._targets.setdefault(owner, {}).setdefault(place.buffer, []).append((piece, wanted.flat))

    def _held(self, name: str) -> list[tuple[int, PublishedTensor]]:
        return [
            (owner, place)
            for owner, published in enumerate(self._published)
            if owner not in self._gone and (place := published.places.get(name)) is not None and place.buffer >= 0
        ]

    def gather(self, owner: int, version: int) -> BlockGather:
        """The reads of that owner's weights, of that version."""
        published = self._published[owner]
        copy = version % published.copies
        known = self._gathers.get((owner, copy))
        if known is None:
            targets = self._targets.get(owner, {})
            reads = [(published.buffers[copy][number], targets[number]) for number in sorted(targets)]
            known = self._gathers[owner, copy] = BlockGather(reads, self._keep)
        return known

    def bytes_of(self, owner: int) -> int:
        """Returns how many come from that owner."""
        every = self._targets.get(owner, {}).values()
        return sum(block.total for targets in every for block, _ in targets)
