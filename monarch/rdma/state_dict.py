"""StateDict: the weights of a model, published for others to read whole."""

from __future__ import annotations

import bisect
import ctypes
import functools
import operator
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NoReturn

from monarch._devices import pinned
from monarch._devices.memory import interface
from monarch._errors import RDMAMemoryError, StateDictMismatchError
from monarch._linux.locks import Lock
from monarch.actor import Future, NotSendableError
from monarch.rdma import manager
from monarch.rdma.buffer import RDMABuffer
from monarch.rdma.entries import TensorEntry, device_of, entries_of, shorten, shown_on
from monarch.rdma.local_memory import LocalMemory
from monarch.rdma.published import Published, PublishedTensor
from monarch.rdma.shards import covering, ranges_of, shape_of
from monarch.rdma.state_dict_handle import StateDictHandle

_ALIGNED = 64  # bytes: tensors in a copy begin at multiples, which every dtype and vector unit likes


class StateDict:
    """The tensors of a model (or of a dict, nested as you like), registered once, for others to read while they change.

        weights = StateDict(model)                  # in the trainer; send weights.handle to those who read
        with weights.updating():                    # around whatever writes to the tensors
            optimizer.step()
        version = await handle.read_into(model)     # in a reader: all tensors of one version, or an error

    `source` is anything with `state_dict()`, or a dict of tensors on the CPU or a GPU, numpy arrays, bytearrays and
    memoryviews. Everything else in it is a value: it travels in the handle as it is now (a number that changes belongs in a
    0-d tensor). One storage is registered once, whatever number of names it has; nothing is registered for empty tensors.

    **Parts.** Of a DTensor (FSDP2's `fully_shard`, tensor parallel plans) this rank's local tensor is registered, and its
    placements say which part of the whole that is. For other tensors `shards` says so: by name, the shape of the whole and
    the part, a slice, a tuple of slices or a Shard: `shards={"weight": ((1024, 512), Shard(0, rank, 2))}`.
    `StateDictHandle.combine` makes one handle of those of all ranks.

    **Versions** count finished updates from 0. A reader gets one version, whole, or an error.

    - By default tensors are read where they stand, on the CPU or a GPU. An update costs the owner two stores, and where
      weights are on a GPU it waits for that at the end. Readers that meet an update try again until their timeout (a
      sequence lock; see `versions`). Every write to the tensors belongs into `updating()`.
    - With `double_buffer=True` (or "host") there are two copies in the host's memory, made and registered here; `publish()`
      fills the one that is not shown and shows it. Costs a copy an update and twice the memory; a reader tries again only
      when a second `publish` begins while it reads. The tensors themselves may be written to at any time, on any device,
      and need not be contiguous. `double_buffer="device"` keeps the copies on the device of each tensor.

    Use the default where updates take little of the time. Prefer two copies where the owner writes most of the time, or
    where reads take longer (over a network) than the pauses between updates.

    **Lifetime.** Storages are kept alive until `drop()` or the end of the process, as by RDMABuffer.

    Raises at once: RDMAMemoryError, naming the tensor, for those that are not contiguous or on a device whose memory
    others cannot read (without `double_buffer`), for tensors in lists, and for a DTensor whose local tensor is no part of the
    whole (Partial); TypeError, ValueError; RDMAUnavailableError.
    """

    def __init__(
        self,
        source: Any,
        *,
        shards: Mapping[str, tuple[Sequence[int], Any]] | None = None,
        double_buffer: bool | Literal["host", "device"] = False,
    ) -> None:
        if double_buffer not in (False, True, "host", "device"):
            raise ValueError(f"invalid double_buffer {double_buffer!r}: expected False, True, 'host' or 'device'")
        self._source = source
        self._lock = Lock()
        self._writer = False  # somebody is in `updating` or `publish`
        self._counters = (ctypes.c_uint64 * 2)()  # begun, published: see `versions`
        tensors, values = entries_of(source)
        tensors = _with_parts(tensors, shards or {})
        self._places: dict[str, PublishedTensor] = {}
        self._addresses: dict[str, int] = {}
        self._devices: list[str] = []  # that weights are read from where they stand
        self._copies: list[dict[str, Any]] = []  # with double_buffer: what to copy into, by name
        regions = self._own_copies(tensors, double_buffer == "device") if double_buffer else [self._in_place(tensors)]
        if double_buffer:
            self._fill(tensors, 0)
        made: list[RDMABuffer] = []
        try:
            buffers = tuple(tuple(_registered(region, made) for region in copy) for copy in regions)
            header = RDMABuffer(memoryview(self._counters))
        except BaseException:
            for buffer in made:
                buffer.drop()
            raise
        self._handle = StateDictHandle((Published(header, buffers, self._places, values),))

    @property
    def handle(self) -> StateDictHandle:
        """The handle that readers need. Small; can be sent anywhere, as an argument or a result."""
        return self._handle

    @property
    def version(self) -> int:
        """The last published version."""
        return int(self._counters[1])

    @contextmanager
    def updating(self) -> Iterator[None]:
        """Around all writes to the tensors; at its end there is a new version.

        If the body raises, the weights may be half of an update: they are not published, and without `double_buffer`
        readers get StateDictBusyError until an `updating()` ends well. With `double_buffer` the end is a `publish()`.

        RuntimeError if an update is under way, on whichever thread. At the end RDMAMemoryError when a tensor is no longer
        where it was registered (`param.data = ...`, `model.to(...)`): write into it (`copy_`) instead.
        """
        self._enter()
        try:
            if not self._copies:
                self._begin()
            yield
            if self._copies:
                self._copy_out()
            else:
                self._check_places()
                self._end()
        finally:
            self._leave()

    def publish(self) -> int:
        """Copies the tensors as they are now and shows the copies; needs `double_buffer`. Returns the new version.

        Runs in the calling thread. RuntimeError without `double_buffer`, and while an update is under way;
        StateDictMismatchError when names, shapes or dtypes are not those of the beginning.
        """
        if not self._copies:
            raise RuntimeError(
                "publish() needs StateDict(..., double_buffer=True); without, use `with weights.updating():`"
            )
        self._enter()
        try:
            self._copy_out()
        finally:
            self._leave()
        return self.version

    def drop(self) -> Future[None]:
        """Readers get BufferDroppedError from here on, and the memory is the program's alone once the Future is done."""
        buffers = self._handle.registered()
        drops = [buffer.drop() for buffer in buffers]

        async def wait() -> None:
            for drop in drops:
                await drop

        return manager.run(wait)

    # --- versions

    def _enter(self) -> None:
        with self._lock:
            if self._writer:
                raise RuntimeError(f"version {self._counters[0]} of these weights is already being made")
            self._writer = True

    def _leave(self) -> None:
        with self._lock:
            self._writer = False

    def _begin(self) -> None:
        self._counters[0] = self._counters[1] + 1
        _fence()

    def _end(self) -> None:
        for device in self._devices:  # what it has still to write belongs to this version
            interface().drain(device)
        _fence()
        self._counters[1] = self._counters[0]

    def _copy_out(self) -> None:
        tensors, _ = entries_of(self._source)
        self._check_same(tensors)
        self._begin()
        self._fill(tensors, self._counters[0] % 2)
        self._end()

    def _fill(self, tensors: dict[str, TensorEntry], number: int) -> None:
        """Done when it returns, on devices as well."""
        for device in {device_of(entry) for entry in tensors.values()} - {""}:
            interface().drain(device)  # what it has still to write belongs to this version
        on_device = []
        for name, target in self._copies[number].items():
            entry = tensors[name]
            if device_of(entry) and target.device.type != "cpu":
                on_device.append((target, entry.data.detach()))
            elif device_of(entry) and entry.data.is_contiguous():
                pinned.to_host(interface().flat(entry.data), target.data_ptr())
            else:
                entry.copy_to(target)
        if on_device:
            interface().begin_all(on_device)()

    def _check_same(self, tensors: dict[str, TensorEntry]) -> None:
        changed = [name for name in tensors.keys() | self._places.keys() if not self._fits(name, tensors.get(name))]
        if changed:
            raise StateDictMismatchError(
                f"these names, shapes or dtypes have changed since the StateDict was made: {shorten(changed)}"
            )

    def _fits(self, name: str, entry: TensorEntry | None) -> bool:
        place = self._places.get(name)
        return entry is not None and place is not None and (entry.dtype, entry.shape) == (place.dtype, place.shape)

    def _check_places(self) -> None:
        tensors, _ = entries_of(self._source)
        self._check_same(tensors)
        moved = [name for name, address in self._addresses.items() if not tensors[name].at(address)]
        if moved:
            raise RDMAMemoryError(
                f"tensors are not where they were registered, so readers would never see them: {shorten(moved)}. Write into "
                "them (copy_) instead of replacing them, or use StateDict(..., double_buffer=True)"
            )

    # --- memory

    def _in_place(self, tensors: dict[str, TensorEntry]) -> list[Any]:
        """Registers what is there: ranges of memory, which keep the storages alive."""
        regions: list[Any] = []
        for device in sorted({device_of(entry) for entry in tensors.values()}):
            here = {name: entry for name, entry in tensors.items() if device_of(entry) == device}
            regions += self._in_place_on(device, here, len(regions))
        return regions

    def _in_place_on(self, device: str, tensors: dict[str, TensorEntry], first: int) -> list[Any]:
        """The ranges on one device; "" is the host. Their numbers begin with `first`."""
        memories = {name: entry.memory() for name, entry in tensors.items()}
        filled = {name: memory for name, memory in memories.items() if memory.size}
        ranges = covering((tensors[name].storage(), one.address, one.size) for name, one in filled.items())
        within: list[list[LocalMemory]] = [[] for _ in ranges]
        for name, entry in tensors.items():
            memory = memories[name]
            number, offset = _find(ranges, memory.address) if memory.size else (-1, 0)
            if number >= 0:
                within[number].append(memory)
                self._addresses[name] = memory.address
                number += first
            self._places[name] = _place(entry, number, offset, memory.size)
        if device:
            if ranges:
                self._devices.append(device)
            return [_on_device(*one) for one in zip(ranges, within, strict=True)]
        return [_view(*one) for one in zip(ranges, within, strict=True)]

    def _own_copies(self, tensors: dict[str, TensorEntry], on_device: bool) -> list[list[Any]]:
        """Two pieces of memory a device with room for every tensor; names of the same elements share theirs."""
        ends: dict[str, int] = {}
        known: dict[Any, tuple[str, int]] = {}
        first: list[str] = []
        for name, entry in tensors.items():
            size = _size(entry)
            key = _identity(entry) if size else None
            if size and key not in known:
                device = device_of(entry) if on_device else ""
                known[key] = device, ends.get(device, 0)
                ends[device] = known[key][1] + -(-size // _ALIGNED) * _ALIGNED
                first.append(name)
            device, offset = known[key] if size else ("", 0)
            self._places[name] = _place(entry, list(ends).index(device) if size else -1, offset, size)
        copies = [[_room(size, device) for device, size in ends.items()] for _ in range(2)]
        for copy in copies:
            self._copies.append({name: self._target(tensors[name], copy) for name in first})
        return copies

    def _target(self, entry: TensorEntry, copy: list[Any]) -> Any:
        place = self._places[entry.name]
        memory = copy[place.buffer][place.offset : place.offset + place.size]
        return entry.array(memory) if isinstance(memory, memoryview) else shown_on(memory, entry)

    def __reduce__(self) -> NoReturn:
        raise NotSendableError("a StateDict belongs to the process that made it; send its `handle`")

    def __repr__(self) -> str:
        return f"<StateDict of {len(self._places)} tensors, version {self.version}>"


def _registered(view: memoryview, made: list[RDMABuffer]) -> RDMABuffer:
    buffer = RDMABuffer(view)
    made.append(buffer)
    return buffer


def _with_parts(
    tensors: dict[str, TensorEntry], shards: Mapping[str, tuple[Sequence[int], Any]]
) -> dict[str, TensorEntry]:
    """The same entries, those that are parts of larger tensors told so."""
    unknown = shards.keys() - tensors.keys()
    if unknown:
        raise StateDictMismatchError(f"shards of tensors that are not there: {shorten(unknown)}")
    result = dict(tensors)
    for name, spec in shards.items():
        entry = tensors[name]
        if entry.whole is not None:
            raise ValueError(f"the shard of {name!r}: it is a DTensor, whose placements say it already")
        try:
            shape, part = spec
            whole = tuple(map(operator.index, shape))
            ranges = ranges_of(whole, part)
        except (TypeError, ValueError) as exc:
            raise ValueError(
                f"the shard of {name!r}: {exc}. Expected the shape of the whole and the part, as in "
                "((1024, 512), Shard(0, rank, 2))"
            ) from None
        if shape_of(ranges) != entry.shape:
            raise StateDictMismatchError(
                f"{name!r} has shape {list(entry.shape)}, and that part of {list(whole)} has {list(shape_of(ranges))}"
            )
        result[name] = entry._replace(whole=whole, start=tuple(low for low, _ in ranges))
    return result


def _place(entry: TensorEntry, buffer: int, offset: int, size: int) -> PublishedTensor:
    where = entry.path, entry.kind, entry.dtype, entry.shape, entry.item, buffer, offset, size
    if entry.whole is None or entry.whole == entry.shape:
        return PublishedTensor(*where)
    return PublishedTensor(*where, entry.whole, entry.start)


def _room(size: int, device: str) -> Any:
    return interface().empty(size, device) if device else memoryview(bytearray(size))


def _size(entry: TensorEntry) -> int:
    size = entry.item
    for one in entry.shape:
        size *= one
    return size


def _identity(entry: TensorEntry) -> Any:
    """Equal for names of the same elements."""
    if entry.kind == "torch":
        data = entry.data
        return "torch", data.device, data.data_ptr(), data.dtype, data.shape, data.stride()
    if entry.kind == "numpy":
        return "numpy", entry.data.__array_interface__["data"][0], entry.dtype, entry.shape, entry.data.strides
    return "buffer", id(entry.data)


def _find(ranges: Sequence[tuple[int, int]], address: int) -> tuple[int, int]:
    """The last range that begins at or before the address, and how far into it the address lies."""
    number = bisect.bisect_right(ranges, address, key=lambda one: one[0]) - 1
    return number, address - ranges[number][0]


def _view(span: tuple[int, int], within: Sequence[LocalMemory]) -> memoryview:
    """The memory between two addresses, as long as anybody has the view."""
    array = (ctypes.c_char * (span[1] - span[0])).from_address(span[0])
    array.keep = [memory.keep for memory in within]  # type: ignore[attr-defined]
    view = memoryview(array).cast("B")
    return view if all(memory.writable for memory in within) else view.toreadonly()


def _on_device(span: tuple[int, int], within: Sequence[LocalMemory]) -> Any:
    """The memory of a storage on a device between two addresses, as a flat tensor."""
    flat = within[0].keep
    start = within[0].address - flat.storage_offset()
    return interface().whole(flat.untyped_storage())[span[0] - start : span[1] - start]


_MEMBARRIER = 283  # the number of the call on every machine but x86
_REGISTER, _EXPEDITED = 16, 8  # MEMBARRIER_CMD_[REGISTER_]PRIVATE_EXPEDITED


def _fence() -> None:
    """Others see this thread's stores of before earlier than those of after.

    x86 keeps the order of stores by itself. Elsewhere membarrier(2) does it; that has never been run.
    """
    if not _ordered():
        ctypes.CDLL(None).syscall(_MEMBARRIER, _EXPEDITED, 0, 0)


@functools.cache
def _ordered() -> bool:
    if platform.machine() in ("x86_64", "AMD64", "i686"):
        return True
    ctypes.CDLL(None).syscall(_MEMBARRIER, _REGISTER, 0, 0)
    return False
