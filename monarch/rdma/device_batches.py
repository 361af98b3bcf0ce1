"""Many blocks between memory of devices and the host, or between devices, in few copies that are waited for.

Waiting for a device costs more than copying a small tensor. So blocks are put together: between devices one wait serves up
to COPIES of them; to and from the host, small ones and those whose bytes do not lie together go through a bucket on the
device, which crosses the bus in one copy.
"""

from __future__ import annotations

import ctypes
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

from monarch._devices.memory import interface
from monarch._devices.pinned import PIECE, Piece
from monarch.rdma.buffer_handle import BufferHandle
from monarch.rdma.layout import Block
from monarch.rdma.local_memory import LocalMemory

COPIES = 1024  # blocks that are waited for together
BETWEEN = 64 << 20  # bytes between two looks at the clock, from device to device
SMALL = 256 << 10  # bytes: from here on a copy of its own is worth it

_ALIGNED = 64

Lend = Callable[[], AbstractContextManager[LocalMemory]]


class DeviceBatch:
    """Blocks of an owner's buffers on devices, copied by them: to the host, through one piece of pinned memory, or to flat
    tensors on devices.

    `lends` are the buffers, by number: their bytes for a `with` block in which the owner does not release them. `handle`
    is the one that errors name, `device` where all of them are.
    """

    path = "device_ipc"

    def __init__(self, lends: Sequence[Lend], to_host: bool, handle: BufferHandle, device: str) -> None:
        self.handle = handle
        self._lends = lends
        self._device = device
        self._to_host = to_host
        self._blocks: list[tuple[int, Block, Any]] = []
        self.total = 0

    def full(self, block: Block) -> bool:
        """True if there is no room for one more."""
        limit = PIECE if self._to_host else BETWEEN
        return len(self._blocks) >= COPIES or (bool(self._blocks) and self.total + room([block]) > limit)

    def add(self, number: int, block: Block, target: Any) -> None:
        """A block of buffer `number`; `here` counts from the start of `target`, and is an address if that is None."""
        self._blocks.append((number, block, target))
        self.total += room([block])

    def read(self, after: Sequence[Any] = ()) -> None:
        """Done when it returns. Raises what the buffers' owner or the device raises."""
        with interface().on(self._device) if self._device else nullcontext():
            try:
                self._read(after)
            except Exception as exc:
                traceback.clear_frames(exc.__traceback__)  # an error that is kept keeps no memory of the device
                raise

    def _read(self, after: Sequence[Any]) -> None:
        if self._to_host:
            piece = Piece()
            try:
                self._copy(lambda parts: bucket(parts, piece.bytes, to_device=False), after)
                spread([block for _, block, _ in self._blocks], piece.address)
            finally:
                piece.close()
        else:
            self._copy(lambda parts: [between(target, source, block) for source, block, target in parts], after)

    def _copy(
        self, plan: Callable[[list[tuple[Any, Block, Any]]], list[tuple[Any, Any]]], after: Sequence[Any]
    ) -> None:
        with ExitStack() as used:
            lent = {number: used.enter_context(self._lends[number]()) for number, _, _ in _once(self._blocks)}
            copies = plan([(lent[number].keep, block, target) for number, block, target in self._blocks])
            interface().begin_all(copies, after)()


def batches(
    lends: Sequence[Lend],
    blocks: Iterable[tuple[int, Block, Any]],
    to_host: bool,
    handle: BufferHandle,
    device: str = "",
) -> list[DeviceBatch]:
    """All of the blocks, as (number of the buffer, block, target); large ones are cut."""
    result: list[DeviceBatch] = []
    for number, whole, target in blocks:
        for block in whole.cut(PIECE if to_host else BETWEEN):
            if not result or result[-1].full(block):
                result.append(DeviceBatch(lends, to_host, handle, device))
            result[-1].add(number, block, target)
    return result


def between(target: Any, source: Any, block: Block) -> tuple[Any, Any]:
    """One copy from a flat tensor to another."""
    unit = _unit(block, source.storage_offset() + block.there, target.storage_offset() + block.here)
    return (
        _boxed(target, block.here, block, block.steps_here, unit),
        _boxed(source, block.there, block, block.steps_there, unit),
    )


def bucket(parts: Sequence[tuple[Any, Block, Any]], host: Any, to_device: bool) -> list[tuple[Any, Any]]:
    """Copies between `host`, in which the blocks lie packed one after the other, and flat tensors of one device.

    Parts are (source, block, target): to the host from the source at `there`, to the device to the target at `here`.
    """
    places = packed(block for _, block, _ in parts)
    device = str((parts[0][2] if to_device else parts[0][0]).device)
    direct: list[tuple[Any, Any]] = []
    on_device: list[tuple[Any, Any]] = []
    crossing: list[tuple[Any, Any]] = []
    stretch: list[tuple[Any, Block, int]] = []

    def end_stretch() -> None:
        """Small blocks that follow each other: one copy over the bus."""
        if not stretch:
            return
        first = stretch[0][2]
        size = stretch[-1][2] + stretch[-1][1].total - first
        if len(stretch) == 1 and not stretch[0][1].counts:
            flat, block, at = stretch[0]
            start = block.here if to_device else block.there
            direct.append(_way(flat[start : start + size], host[at : at + size], to_device))
        else:
            spare = interface().scratch(size, device)
            crossing.append(_way(spare, host[first : first + size], to_device))
            for flat, block, at in stretch:
                start, steps = (block.here, block.steps_here) if to_device else (block.there, block.steps_there)
                unit = _unit(block._replace(steps_here=steps, steps_there=steps), flat.storage_offset() + start)
                there = _boxed(flat, start, block, steps, unit)
                on_device.append(_way(there, _boxed(spare, at - first, block, dense(block), unit), to_device))
        stretch.clear()

    for (source, block, target), at in zip(parts, places, strict=True):
        alone = block.size >= SMALL and not block.counts
        if alone:
            end_stretch()
        stretch.append((target if to_device else source, block, at))
        if alone:
            end_stretch()
    end_stretch()
    return [*direct, *crossing, *on_device] if to_device else [*direct, *on_device, *crossing]


def _way(device: Any, host: Any, to_device: bool) -> tuple[Any, Any]:
    """Returns a device's and the host's memory as (target, source) of a copy."""
    return (device, host) if to_device else (host, device)


def packed(blocks: Iterable[Block]) -> list[int]:
    """Returns where each begins in a bucket."""
    at, result = 0, []
    for block in blocks:
        result.append(at)
        at += room([block])
    return result


def spread(blocks: Sequence[Block], address: int) -> None:
    """Puts blocks that lie packed at an address of the host to where they belong there."""
    for block, at in zip(blocks, packed(blocks), strict=True):
        start = address + at
        for _, target, size in block.pieces():
            ctypes.memmove(target, start, size)
            start += size


def room(blocks: Iterable[Block]) -> int:
    """The bytes of a bucket that they take."""
    return sum(-(-block.total // _ALIGNED) * _ALIGNED for block in blocks)


def _once(blocks: Sequence[tuple[int, Block, Any]]) -> list[tuple[int, Block, Any]]:
    """Returns one block of each buffer: to lend a buffer, one is enough."""
    return list({one[0]: one for one in blocks}.values())


def dense(block: Block) -> tuple[int, ...]:
    """The steps of the block where its bytes lie together."""
    steps, step = [], block.size
    for count in reversed(block.counts):
        steps.append(step)
        step *= count
    return tuple(reversed(steps))


def _unit(block: Block, *starts: int) -> int:
    """The widest number, in bytes, that the block consists of on both sides: devices copy bytes one by one slowly."""
    every = (*starts, block.size, *block.steps_there, *block.steps_here)
    return next(unit for unit in (8, 4, 2, 1) if not any(one % unit for one in every))


def _boxed(flat: Any, start: int, block: Block, steps: Sequence[int], unit: int) -> Any:
    """The bytes of a block as a tensor with its shape, not copied."""
    if not block.counts:
        return flat[start : start + block.size]
    import torch

    extent = sum((count - 1) * step for count, step in zip(block.counts, steps, strict=True)) + block.size
    wide = flat[start : start + extent].view({8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}[unit])
    return wide.as_strided((*block.counts, block.size // unit), (*(step // unit for step in steps), 1))
