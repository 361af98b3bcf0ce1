"""StateDictHandle: weights that another process keeps, read whole."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Coroutine, Mapping
from time import monotonic
from typing import Any, NamedTuple

from monarch._errors import (
    RDMAMemoryError,
    RDMAReadOnlyError,
    RDMATimeoutError,
    StateDictBusyError,
    StateDictMismatchError,
)
from monarch.actor import Future, Promise
from monarch.rdma import manager
from monarch.rdma.buffer import TIMEOUT, RDMABuffer
from monarch.rdma.entries import Entry, Value, entries_of, shorten, shown
from monarch.rdma.gather import Gather
from monarch.rdma.memory import memory_of
from monarch.rdma.shards import Piece, Range, joined, ranges_of, runs, shape_of
from monarch.rdma.transfer import check_timeout
from monarch.rdma.versions import Header, whole

_FIRST_PAUSE, _LONGEST_PAUSE = 50e-6, 10e-3  # seconds between two looks at the counters


class Place(NamedTuple):
    """A tensor of the owner's: what it is, and where its `size` bytes are in buffer number `buffer` (-1: it is empty)."""

    path: tuple[Any, ...]
    kind: str
    dtype: str
    shape: tuple[int, ...]
    item: int
    buffer: int
    offset: int
    size: int


class StateDictHandle:
    """What `StateDict.handle` gives: names, shapes, dtypes and buffers of another process's weights. Can be sent anywhere.

    Reads need no help from the owner's Python code on its own host. Every method begins at once and returns a Future: await
    it, or `get()` it.
    """

    __slots__ = ("_buffers", "_header", "_places", "_values")

    def __init__(
        self,
        header: RDMABuffer,
        buffers: tuple[tuple[RDMABuffer, ...], ...],
        places: dict[str, Place],
        values: dict[str, Value],
    ) -> None:
        self._header = header
        self._buffers = buffers
        self._places = places
        self._values = values

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every tensor by its name."""
        return {name: place.shape for name, place in self._places.items()}

    @property
    def dtypes(self) -> dict[str, str]:
        """The dtype of every tensor by its name: "float32", "bfloat16", ..."""
        return {name: place.dtype for name, place in self._places.items()}

    @property
    def values(self) -> dict[str, Any]:
        """What was no tensor, by name, as it was when the StateDict was made."""
        return {name: value.value for name, value in self._values.items()}

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors; those of several names are counted once."""
        unique = {(place.buffer, place.offset, place.size) for place in self._places.values()}
        return sum(size for _, _, size in unique)

    @property
    def owner(self) -> str:
        """The owning process, for people."""
        return str(self._header._handle.owner)

    @property
    def path(self) -> str:
        """How the bytes would go from here: see `RDMABuffer.path`."""
        return self._header.path

    def registered(self) -> list[RDMABuffer]:
        """All buffers, the counters' first."""
        return [self._header, *(buffer for copy in self._buffers for buffer in copy)]

    def version(self, *, timeout: float = TIMEOUT) -> Future[int]:
        """The last published version: one read of 16 bytes. Raises what RDMABuffer.read_into raises."""
        promise: Promise[int] = Promise()

        def done(header: Header | None, error: BaseException | None) -> None:
            if header is None:
                promise.fail(error or RuntimeError("no counters"))
            else:
                promise.set(header.published)

        self._look(check_timeout(timeout), done)
        return promise.future

    def wait_newer(self, version: int, timeout: float = TIMEOUT) -> Future[int]:
        """The first version seen that is newer than `version`; -1 takes any. It looks every 10 ms, at first more often.

        StateDictBusyError after `timeout` seconds, OwnerEndedError when the owner has ended.
        """
        deadline = monotonic() + check_timeout(timeout)
        return _run(lambda: self._wait_newer(version, deadline, timeout))

    def read_into(
        self,
        target: Any,
        *,
        shards: Mapping[str, Any] | None = None,
        strict: bool = True,
        staged: bool = False,
        timeout: float = TIMEOUT,
    ) -> Future[int]:
        """Reads all tensors of one version into those of `target`, a model or a dict; gives the version.

        Each goes into the tensor of its name, in place (autograd is not told): the same dtype, the same shape or that of its
        shard. `shards` names the part of a tensor that is wanted: a slice or tuple of slices, `(slice(0, 512), slice(None))`,
        or `Shard(dim, index, count)`. With strict=False, names that only one side has are left alone. The reader's values
        (what is no tensor) are left alone too: `values` has the owner's.

        A read that an update came into is begun again until `timeout` seconds are over: then StateDictBusyError, which names
        the owner. OwnerEndedError when the owner died, also in the middle of an update; what it left is never taken for
        weights. **After an error that the Future raises, `target` may hold a mixture** of versions, unless `staged` is
        set: then everything is read into spare memory first and copied when it is whole (costs that memory and a copy).
        Tensors that are not contiguous, or on a device, are staged anyway.

        Raises at once: StateDictMismatchError, naming the keys, RDMAReadOnlyError, RDMAMemoryError, ValueError for shards,
        and for the timeout what RDMABuffer does.
        """
        deadline = monotonic() + check_timeout(timeout)
        plan = self._plan(target, dict(shards or {}), strict, staged)
        return _run(lambda: self._read(plan, deadline, timeout))

    def reader(
        self, target: Any, *, shards: Mapping[str, Any] | None = None, strict: bool = True, staged: bool = False
    ) -> Reader:
        """For reading into the same target again and again: what `read_into` finds out about it is found out once.

        Raises what `read_into` raises at once. The tensors that `target` has now are the ones that will be read into.
        """
        return Reader(self, self._plan(target, dict(shards or {}), strict, staged))

    def read_into_new(
        self, *, shards: Mapping[str, Any] | None = None, timeout: float = TIMEOUT
    ) -> Future[tuple[int, dict[Any, Any]]]:
        """The version, and a new dict like the owner's: nested like it, with its values, and new CPU tensors, arrays or
        bytearrays. Names of one tensor share it. Otherwise as `read_into`.
        """
        deadline = monotonic() + check_timeout(timeout)
        parts = dict(shards or {})
        self._check_parts(parts)
        result: dict[Any, Any] = {}
        flat: dict[str, Any] = {}
        known: dict[Any, Any] = {}
        for name, place in self._places.items():
            shape = shape_of(_ranges(name, place, parts.get(name)))
            key = (place.buffer, place.offset, place.dtype, place.shape, str(parts.get(name)))
            if place.buffer < 0 or key not in known:
                known[key] = _new(place, shape)
            flat[name] = known[key]
            _put(result, place.path, flat[name])
        for value in self._values.values():
            _put(result, value.path, value.value)
        plan = self._plan(flat, parts, True, False)

        async def read() -> tuple[int, dict[Any, Any]]:
            return await self._read(plan, deadline, timeout), result

        return _run(read)

    # --- reading

    def _look(self, timeout: float, done: Callable[[Header | None, BaseException | None], None]) -> None:
        words = (ctypes.c_uint64 * 2)()
        transfer = self._header._reading(memory_of(memoryview(words)), 0, None, timeout)

        def ended(error: BaseException | None) -> None:
            done(None if error else Header(words[0], words[1]), error)

        transfer.ended = ended
        self._header._begin(transfer)

    async def _counters(self, timeout: float) -> Header:
        promise: Promise[Header] = Promise()

        def done(header: Header | None, error: BaseException | None) -> None:
            if header is None:
                promise.fail(error or RuntimeError("no counters"))
            else:
                promise.set(header)

        self._look(timeout, done)
        return await promise.future

    async def _wait_newer(self, version: int, deadline: float, timeout: float) -> int:
        import asyncio

        pause = _FIRST_PAUSE
        while True:
            header = await self._counters(max(deadline - monotonic(), _LONGEST_PAUSE))
            if header.published > version:
                return header.published
            if monotonic() + pause >= deadline:
                raise StateDictBusyError(
                    f"no version newer than {version} within {timeout:g} s: {self.owner} has published "
                    f"{header.published}{' and is making the next' if header.begun > header.published else ''}"
                )
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _read(self, plan: _Plan, deadline: float, timeout: float) -> int:
        import asyncio

        pause, attempt = _FIRST_PAUSE, _Attempt()
        while True:
            try:
                version = await self._once(plan, deadline, attempt)
            except RDMATimeoutError as exc:
                if not attempt.disturbed:
                    raise
                raise self._busy(attempt, timeout) from exc
            if version is not None:
                return version
            if monotonic() + pause >= deadline:
                raise self._busy(attempt, timeout)
            if not attempt.header.readable(len(self._buffers)):
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)

    async def _once(self, plan: _Plan, deadline: float, attempt: _Attempt) -> int | None:
        """The version that was read, None if an update was in the way."""
        copies = len(self._buffers)
        header = attempt.header = await self._counters(max(deadline - monotonic(), 0))
        attempt.disturbed |= not header.readable(copies)
        if not header.readable(copies):
            return None
        place = header.published % copies
        await plan.gather(place, self._buffers[place]).read(max(deadline - monotonic(), 0))
        attempt.header = await self._counters(max(deadline - monotonic(), _LONGEST_PAUSE))
        if not whole(header.published, attempt.header, copies):
            attempt.disturbed = True
            attempt.overtaken += 1
            return None
        plan.finish()
        return header.published

    def _busy(self, attempt: _Attempt, timeout: float) -> StateDictBusyError:
        if attempt.overtaken:
            why = (
                f"each of {attempt.overtaken} reads was overtaken by an update. Pause between updates for longer than a "
                "read takes, or use StateDict(..., double_buffer=True)"
            )
        else:
            begun = attempt.header.begun
            why = f"it is in the middle of making version {begun}, or that update failed (see StateDict.updating)"
        return StateDictBusyError(f"the weights of {self.owner} could not be read whole within {timeout:g} s: {why}")

    # --- planning

    def _check_parts(self, parts: dict[str, Any]) -> None:
        unknown = parts.keys() - self._places.keys()
        if unknown:
            raise StateDictMismatchError(f"shards of tensors that the owner does not have: {shorten(unknown)}")

    def _plan(self, target: Any, parts: dict[str, Any], strict: bool, staged: bool) -> _Plan:
        self._check_parts(parts)
        mine, _ = entries_of(target)
        missing, unexpected = mine.keys() - self._places.keys(), self._places.keys() - mine.keys()
        if strict and (missing or unexpected):
            told = []
            if missing:
                told.append(f"the owner does not have {shorten(missing)}")
            if unexpected:
                told.append(f"only the owner has {shorten(unexpected)}")
            raise StateDictMismatchError(f"{'; '.join(told)} (strict=False ignores them)")
        plan = _Plan(len(self._buffers[0]))
        wrong = []
        for name, entry in mine.items():
            place = self._places.get(name)
            if place is None:
                continue
            part = parts.get(name)
            ranges = None if part is None else _ranges(name, place, part)
            shape = place.shape if ranges is None else shape_of(ranges)
            if (entry.dtype, entry.shape) == (place.dtype, shape):
                plan.add(entry, place, ranges, staged)
            else:
                wrong.append(
                    f"{name!r} is {place.dtype}{list(shape)} at the owner and {entry.dtype}{list(entry.shape)} here"
                )
        if wrong:
            more = f"; and {len(wrong) - 10} more" if len(wrong) > 10 else ""
            raise StateDictMismatchError("; ".join(wrong[:10]) + more)
        return plan

    def __reduce__(self) -> Any:
        return StateDictHandle, (self._header, self._buffers, self._places, self._values)

    def __repr__(self) -> str:
        return f"<StateDictHandle of {len(self._places)} tensors, {self.nbytes} bytes, of {self.owner}>"


class _Attempt:
    """What came of a read so far: the counters seen last, whether updates were in its way, and how many came into it."""

    def __init__(self) -> None:
        self.header = Header(0, 0)
        self.disturbed = False
        self.overtaken = 0


class Reader:
    """One owner's weights and one place for them here: see `StateDictHandle.reader`. Belongs to this process."""

    __slots__ = ("_handle", "_lock", "_plan")

    def __init__(self, handle: StateDictHandle, plan: _Plan) -> None:
        self._handle = handle
        self._plan = plan
        self._lock: Any = None

    def read(self, *, timeout: float = TIMEOUT) -> Future[int]:
        """As `StateDictHandle.read_into`. Begins now, or when the read before it has ended."""
        deadline = monotonic() + check_timeout(timeout)
        return _run(lambda: self._read(deadline, timeout))

    async def _read(self, deadline: float, timeout: float) -> int:
        if self._lock is None:
            import asyncio

            self._lock = asyncio.Lock()  # all of them run on the Mover's loop
        async with self._lock:
            return await self._handle._read(self._plan, deadline, timeout)


class _Plan:
    """Which bytes go where, and what is to be done when they are there."""

    def __init__(self, buffers: int) -> None:
        self._keep: list[Any] = []
        self._pieces: list[list[Piece]] = [[] for _ in range(buffers)]
        self._staged: list[tuple[Entry, Any]] = []
        self._taken: dict[int, tuple[str, Any]] = {}
        self._gathers: dict[int, Gather] = {}

    def add(self, entry: Entry, place: Place, ranges: tuple[Range, ...] | None, staged: bool) -> None:
        """`ranges` is None for all of it."""
        if place.buffer < 0:
            return
        parts = [(0, place.size)] if ranges is None else runs(place.shape, place.item, ranges)
        if not parts:
            return
        address = self._address(entry, place.size if ranges is None else sum(size for _, size in parts), staged)
        source = (place.buffer, place.offset, parts[0], len(parts))
        name, other = self._taken.setdefault(address, (entry.name, source))
        if other != source:
            raise StateDictMismatchError(f"{name!r} and {entry.name!r} are one tensor here and two at the owner")
        pieces = self._pieces[place.buffer]
        for offset, size in parts:
            pieces.append((place.offset + offset, address, size))
            address += size

    def _address(self, entry: Entry, size: int, staged: bool) -> int:
        """Where the bytes are to go: the tensor's own memory, or spare memory."""
        memory = None
        try:
            memory = entry.memory()
        except RDMAMemoryError:
            if not entry.strided():
                raise
        if memory is not None and not memory.writable:
            raise RDMAReadOnlyError(f"{entry.name!r} is read-only ({memory.shown})")
        if memory is None or staged:
            spare = bytearray(size)
            self._staged.append((entry, entry.array(memoryview(spare))))
            memory = memory_of(spare)
        self._keep.append(memory.keep)
        return memory.address

    def gather(self, place: int, buffers: tuple[RDMABuffer, ...]) -> Gather:
        """For the weights in that one of the owner's places."""
        known = self._gathers.get(place)
        if known is None:
            reads = [(buffer, joined(pieces)) for buffer, pieces in zip(buffers, self._pieces, strict=True)]
            known = self._gathers[place] = Gather(reads, self._keep)
        return known

    def finish(self) -> None:
        for entry, spare in self._staged:
            entry.copy_from(spare)


def _ranges(name: str, place: Place, spec: Any) -> tuple[Range, ...]:
    if spec is None:
        return tuple((0, size) for size in place.shape)
    try:
        return ranges_of(place.shape, spec)
    except ValueError as exc:
        raise ValueError(f"the shard of {name!r}: {exc}") from None


def _new(place: Place, shape: tuple[int, ...]) -> Any:
    size = place.item
    for one in shape:
        size *= one
    memory = bytearray(size)
    return memory if place.kind == "buffer" else shown(place.kind, place.dtype, shape, memoryview(memory))


def _put(tree: dict[Any, Any], path: tuple[Any, ...], value: Any) -> None:
    for key in path[:-1]:
        tree = tree.setdefault(key, {})
    tree[path[-1]] = value


def _run(work: Callable[[], Coroutine[Any, Any, Any]]) -> Future[Any]:
    """Runs it on this process's Mover."""
    promise: Promise[Any] = Promise()

    async def run() -> None:
        try:
            promise.set(await work())
        except BaseException as exc:
            promise.fail(exc)

    manager.start(run)
    return promise.future
