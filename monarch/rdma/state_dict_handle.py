"""StateDictHandle: weights that other processes keep, read whole."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

from monarch._errors import (
    BufferDroppedError,
    OwnerEndedError,
    RDMATimeoutError,
    StateDictBusyError,
    StateDictMismatchError,
)
from monarch.actor import Future, Promise, ValueMesh
from monarch.actor.lowlevel import WatchedProgress, show_waits
from monarch.rdma import manager
from monarch.rdma.buffer import TIMEOUT, RDMABuffer
from monarch.rdma.entries import TensorEntry, entries_of, shorten, shown
from monarch.rdma.layout import Box, size_of
from monarch.rdma.published import Published, PublishedTensor
from monarch.rdma.reading import ReadRoute, WantedTensor, WeightsPlan, sources_of
from monarch.rdma.shards import Range, ranges_of, shape_of
from monarch.rdma.transfer import check_timeout
from monarch.rdma.versions import Header, agreed, whole

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")

_SHOWN = 64 << 20  # bytes of weights whose read shows how far it is; fewer are there before anybody would see it
_FIRST_PAUSE, _LONGEST_PAUSE = 50e-6, 10e-3  # seconds between two looks at the counters


class StateDictHandle:
    """A handle to weights: names, shapes, dtypes and buffers of other processes' weights. Can be sent anywhere.

    It has one owner, or several, each with a part of the weights: see `combine`. Reads need no help from the owners' Python
    code on their own hosts. Every method begins at once and returns a Future: await it, or `get()` it.
    """

    __slots__ = ("_owners", "_whole")

    def __init__(self, owners: tuple[Published, ...]) -> None:
        self._owners = owners
        self._whole: dict[str, PublishedTensor] = {}
        for published in owners:
            for name, place in published.places.items():
                self._whole.setdefault(name, place)

    @classmethod
    def combine(cls, handles: Iterable[StateDictHandle] | ValueMesh[StateDictHandle]) -> StateDictHandle:
        """One handle of the weights that the owners of all of these have together, such as the ranks of a trainer mesh: what
        `call()` to all of them gives can be passed as it is.

        Each owner has some tensors, or parts of them, as `StateDict` was told or as its DTensors are placed. Several may have
        the same: a reader takes each byte from one of them, from owners on its own host first, else evenly from all, and
        from the others when one has ended. **A read gives one version of all owners it reads from**: the same number of
        updates. Where two owners differ in what is no tensor (`values`), the first one's counts.

        Nothing is asked of the owners. ValueError without handles, TypeError for what is none; StateDictMismatchError when
        owners differ in the dtype or the whole shape of a tensor, naming it and them.
        """
        each = list(handles.values() if isinstance(handles, ValueMesh) else handles)
        for one in each:
            if not isinstance(one, StateDictHandle):
                raise TypeError(f"combine() takes StateDictHandles, got {type(one).__qualname__}")
        owners = tuple(dict.fromkeys(_Known(published) for one in each for published in one._owners))
        if not owners:
            raise ValueError("combine() needs the handle of at least one owner")
        result = cls(tuple(known.published for known in owners))
        result._check_alike()
        return result

    def _check_alike(self) -> None:
        wrong = []
        for name, first in self._whole.items():
            for number, published in enumerate(self._owners):
                other = published.places.get(name)
                if other is not None and (other.dtype, other.full, other.kind) != (first.dtype, first.full, first.kind):
                    wrong.append(
                        f"{name!r} is {first.dtype}{list(first.full)} at one owner, and "
                        f"{other.dtype}{list(other.full)} at owner {number} ({published.owner})"
                    )
        if wrong:
            raise StateDictMismatchError(_some(wrong))

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every whole tensor by its name."""
        return {name: place.full for name, place in self._whole.items()}

    @property
    def dtypes(self) -> dict[str, str]:
        """The dtype of every tensor by its name: "float32", "bfloat16", ..."""
        return {name: place.dtype for name, place in self._whole.items()}

    @property
    def values(self) -> dict[str, Any]:
        """The values, which are no tensors, by name, as they were when the StateDict was made."""
        return {name: value.value for one in reversed(self._owners) for name, value in one.values.items()}

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors that the owners have; those of several names are counted once, those of several owners at
        each.
        """
        unique = {
            (owner, place.buffer, place.offset, place.size)
            for owner, published in enumerate(self._owners)
            for place in published.places.values()
        }
        return sum(size for _, _, _, size in unique)

    @property
    def owner(self) -> str:
        """The owning process, or processes, for people."""
        if len(self._owners) == 1:
            return str(self._owners[0].owner)
        shown = [str(one.owner) for one in self._owners[:4]]
        return f"{len(self._owners)} owners ({', '.join(shown)}{', ...' if len(self._owners) > 4 else ''})"

    @property
    def path(self) -> str:
        """The path that bytes would take from here, from the first owner: see `RDMABuffer.path`."""
        first = self._owners[0]
        return (first.buffers[0][0] if first.buffers[0] else first.header).path

    def registered(self) -> list[RDMABuffer]:
        """All buffers, each owner's counters first."""
        return [buffer for one in self._owners for buffer in one.registered()]

    def version(self, *, timeout: float = TIMEOUT) -> Future[int]:
        """The last version that all owners have published: one read of 16 bytes of each. Raises what RDMABuffer.read_into
        raises.
        """
        timeout = check_timeout(timeout)
        if len(self._owners) > 1:
            return manager.run(lambda: self._published(timeout))
        promise: Promise[int] = Promise()

        def done(header: Header | None, error: BaseException | None) -> None:
            if header is None:
                promise.fail(error or RuntimeError("no counters"))
            else:
                promise.set(header.published)

        self._owners[0].look(timeout, done)
        return promise.future

    def wait_newer(self, version: int, timeout: float = TIMEOUT) -> Future[int]:
        """The first version seen that is newer than `version`; -1 takes any. It looks every 10 ms, at first more often.

        StateDictBusyError after `timeout` seconds, OwnerEndedError when an owner has ended.
        """
        deadline = monotonic() + check_timeout(timeout)
        return manager.run(lambda: self._wait_newer(version, deadline, timeout))

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
        or `Shard(dim, index, count)`. Of a DTensor that is what its placements say. With strict=False, names that only one
        side has are left alone. The reader's values (what is no tensor) are left alone too: `values` has the owner's.

        A read that an update came into is begun again until `timeout` seconds are over: then StateDictBusyError, which names
        the owner. OwnerEndedError when the owner died, also in the middle of an update, and no other has what it had; what
        it left is never taken for weights. **After an error that the Future raises, `target` may hold a mixture** of
        versions, unless `staged` is set: then everything is read into spare memory first and copied when it is whole (costs
        that memory and a copy).
        Tensors that are not contiguous are staged anyway.

        **Devices.** What goes to a tensor on a device comes after what this thread has given the device to do, and is seen
        by every stream once the Future is done.

        Raises at once: StateDictMismatchError, naming the keys, RDMAReadOnlyError, RDMAMemoryError, ValueError for shards,
        and for the timeout what RDMABuffer does.
        """
        deadline = monotonic() + check_timeout(timeout)
        plan = self._plan(target, dict(shards or {}), strict, staged)
        after = plan.marks()
        return self._shown(plan, lambda: self._read(plan, after, deadline, timeout))

    def reader(
        self, target: Any, *, shards: Mapping[str, Any] | None = None, strict: bool = True, staged: bool = False
    ) -> Reader:
        """Returns a reader into the same target again and again: what `read_into` finds out about it is found out once.

            reader = handle.reader(model)
            version = await reader.read(timeout=30)     # as read_into; begins when the read before it has ended

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
        for name, place in self._whole.items():
            shape = shape_of(_ranges(name, place, parts.get(name)))
            key = (str(sources_of(self._owners, name)), place.dtype, str(parts.get(name)))
            if place.buffer < 0 or key not in known:
                known[key] = _new(place, shape)
            flat[name] = known[key]
            _put(result, place.path, flat[name])
        for one in reversed(self._owners):
            for value in one.values.values():
                _put(result, value.path, value.value)
        plan = self._plan(flat, parts, True, False)

        async def read() -> tuple[int, dict[Any, Any]]:
            return await self._read(plan, (), deadline, timeout), result

        return self._shown(plan, read)

    # --- versions

    async def _published(self, timeout: float) -> int:
        return min(header.published for header in (await self._everywhere(set(), timeout)).values())

    async def _everywhere(self, gone: set[int], timeout: float) -> dict[int, Header]:
        """The counters of all owners but those that are `gone`; more are added to these, as long as the others have all the
        weights."""
        while True:
            owners = [owner for owner in range(len(self._owners)) if owner not in gone]
            try:
                return dict(zip(owners, await self._headers(owners, timeout), strict=True))
            except _GoneError as exc:
                gone.add(exc.owner)
                boxes = ((name, tuple((0, size) for size in place.full)) for name, place in self._whole.items())
                wanted = [WantedTensor(name, box, 1, size_of(box), 0, None) for name, box in boxes]
                if len(gone) == len(self._owners):
                    raise exc.error from None
                try:
                    ReadRoute(self._owners, wanted, frozenset(gone), [])
                except StateDictMismatchError as missing:
                    raise self._lost(exc, missing) from exc.error

    async def _headers(self, owners: Sequence[int], timeout: float) -> list[Header]:
        """The counters of those owners. _GoneError if one has ended or dropped its weights."""
        seen = await _ended([self._owners[owner].counters(timeout) for owner in owners])
        _raise_first(owners, seen)
        return [one for one in seen if isinstance(one, Header)]

    async def _wait_newer(self, version: int, deadline: float, timeout: float) -> int:
        import asyncio

        pause, gone = _FIRST_PAUSE, set[int]()
        while True:
            headers = await self._everywhere(gone, max(deadline - monotonic(), _LONGEST_PAUSE))
            last, owner = min((header.published, owner) for owner, header in headers.items())
            if last > version:
                return last
            if monotonic() + pause >= deadline:
                making = " and is making the next" if headers[owner].begun > last else ""
                raise StateDictBusyError(
                    f"no version newer than {version} within {timeout:g} s: {self._owners[owner].owner} has published "
                    f"{last}{making}"
                )
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    # --- reading

    def _shown(self, plan: WeightsPlan, work: Callable[[], Coroutine[Any, Any, T]]) -> Future[T]:
        """Begins that work, which reads. A wait for it shows how far it is."""
        future = manager.run(work)
        if plan.nbytes < _SHOWN:
            return future
        return show_waits(future, WatchedProgress(f"weights of {self.owner}", plan.far, of_bytes=True))

    async def _read(self, plan: WeightsPlan, after: Sequence[Any], deadline: float, timeout: float) -> int:
        import asyncio

        pause, attempt = _FIRST_PAUSE, _Attempt(plan.route)
        while True:
            try:
                version = await self._once(plan, after, deadline, attempt)
            except _GoneError as exc:
                attempt.reroute(self._without(plan, exc))
                continue
            except RDMATimeoutError as exc:
                if not attempt.disturbed:
                    raise
                raise self._busy(attempt, timeout) from exc
            if version is not None:
                return version
            if monotonic() + pause >= deadline:
                raise self._busy(attempt, timeout)
            if self._agreed(attempt) is None:
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)

    async def _once(self, plan: WeightsPlan, after: Sequence[Any], deadline: float, attempt: _Attempt) -> int | None:
        """The version that was read, None if an update was in the way."""
        owners = attempt.route.owners
        attempt.headers = await self._headers(owners, max(deadline - monotonic(), 0))
        version = self._agreed(attempt)
        if version is None:
            attempt.disturbed = True
            return None
        left = max(deadline - monotonic(), 0)
        gathers = plan.gathers(attempt.route, version)
        _raise_first(owners, await _ended([gather.read(left, after) for gather in gathers]))
        attempt.headers = await self._headers(owners, max(deadline - monotonic(), _LONGEST_PAUSE))
        copies = [self._owners[owner].copies for owner in owners]
        if not all(whole(version, header, count) for header, count in zip(attempt.headers, copies, strict=True)):
            attempt.disturbed = True
            attempt.overtaken += 1
            return None
        plan.finish(after)
        return version

    def _agreed(self, attempt: _Attempt) -> int | None:
        copies = (self._owners[owner].copies for owner in attempt.route.owners)
        return agreed(zip(attempt.headers, copies, strict=True)) if attempt.headers else 0

    def _without(self, plan: WeightsPlan, gone: _GoneError) -> ReadRoute:
        """Another route, now that an owner has ended. Its error if there is none."""
        plan.leave_out(gone.owner)
        if len(self._owners) == 1:
            raise gone.error from None
        try:
            return plan.route
        except StateDictMismatchError as exc:
            raise self._lost(gone, exc) from gone.error

    def _lost(self, gone: _GoneError, missing: StateDictMismatchError) -> Exception:
        where = f"owner {gone.owner} of {len(self._owners)} ({self._owners[gone.owner].owner})"
        text = f"{where} is gone, and {str(missing).replace('no owner', 'no other')}: {gone.error}"
        return type(gone.error)(text)

    def _busy(self, attempt: _Attempt, timeout: float) -> StateDictBusyError:
        if attempt.overtaken:
            why = (
                f"each of {attempt.overtaken} reads was overtaken by an update. Pause between updates for longer than a "
                "read takes, or use StateDict(..., double_buffer=True)"
            )
        else:
            why = self._disagreement(attempt)
        return StateDictBusyError(f"the weights of {self.owner} could not be read whole within {timeout:g} s: {why}")

    def _disagreement(self, attempt: _Attempt) -> str:
        owners, headers = attempt.route.owners, attempt.headers
        if not headers:
            return "others of its owners have ended meanwhile"
        published = {header.published for header in headers}
        if len(published) > 1:
            low = min(range(len(owners)), key=lambda one: headers[one].published)
            high = max(range(len(owners)), key=lambda one: headers[one].published)
            ends = [
                f"owner {owners[one]} ({self._owners[owners[one]].owner}) has published {headers[one].published}"
                for one in (low, high)
            ]
            return f"{' and '.join(ends)}. All owners have to publish every version: one of them is behind, or was restarted"
        number = max(range(len(owners)), key=lambda one: headers[one].begun)
        who = "it" if len(self._owners) == 1 else f"owner {owners[number]} ({self._owners[owners[number]].owner})"
        begun = headers[number].begun
        return f"{who} is in the middle of making version {begun}, or that update failed (see StateDict.updating)"

    # --- planning

    def _check_parts(self, parts: dict[str, Any]) -> None:
        unknown = parts.keys() - self._whole.keys()
        if unknown:
            raise StateDictMismatchError(f"shards of tensors that the owner does not have: {shorten(unknown)}")

    def _plan(self, target: Any, parts: dict[str, Any], strict: bool, staged: bool) -> WeightsPlan:
        self._check_parts(parts)
        mine, _ = entries_of(target)
        missing, unexpected = mine.keys() - self._whole.keys(), self._whole.keys() - mine.keys()
        if strict and (missing or unexpected):
            told = []
            if missing:
                told.append(f"the owner does not have {shorten(missing)}")
            if unexpected:
                told.append(f"only the owner has {shorten(unexpected)}")
            raise StateDictMismatchError(f"{'; '.join(told)} (strict=False ignores them)")
        plan = WeightsPlan(self._owners)
        wrong = []
        for name, entry in mine.items():
            place = self._whole.get(name)
            if place is None:
                continue
            box = _box(entry, place, parts.get(name))
            if box is not None and (entry.dtype, entry.shape) == (place.dtype, shape_of(box)):
                plan.add(entry, box, staged)
                continue
            shape = place.full if box is None or entry.start is not None else shape_of(box)
            here = entry.shape if entry.whole is None else entry.whole
            wrong.append(f"{name!r} is {place.dtype}{list(shape)} at the owner and {entry.dtype}{list(here)} here")
        if wrong:
            raise StateDictMismatchError(_some(wrong))
        plan.route  # noqa: B018 - so that what nobody has is said now
        return plan

    def __reduce__(self) -> Any:
        return StateDictHandle, (self._owners,)

    def __repr__(self) -> str:
        return f"<StateDictHandle of {len(self._whole)} tensors, {self.nbytes} bytes, of {self.owner}>"


class Reader:
    """Weights and one place for them here: see `StateDictHandle.reader`. Belongs to this process."""

    __slots__ = ("_handle", "_lock", "_plan")

    def __init__(self, handle: StateDictHandle, plan: WeightsPlan) -> None:
        self._handle = handle
        self._plan = plan
        self._lock: asyncio.Lock | None = None

    def read(self, *, timeout: float = TIMEOUT) -> Future[int]:
        """Reads as `StateDictHandle.read_into` does. Begins now, or when the read before it has ended."""
        deadline = monotonic() + check_timeout(timeout)
        after = self._plan.marks()
        return self._handle._shown(self._plan, lambda: self._read(after, deadline, timeout))

    async def _read(self, after: Sequence[Any], deadline: float, timeout: float) -> int:
        if self._lock is None:
            import asyncio

            self._lock = asyncio.Lock()  # all of them run on the Mover's loop
        async with self._lock:
            return await self._handle._read(self._plan, after, deadline, timeout)


class _Attempt:
    """The state of a read: the counters seen last, whether updates were in its way, and how many came into it."""

    def __init__(self, route: ReadRoute) -> None:
        self.route = route
        self.headers: list[Header] = []
        self.disturbed = False
        self.overtaken = 0

    def reroute(self, route: ReadRoute) -> None:
        self.route, self.headers = route, []


class _GoneError(Exception):
    """An owner has ended, or has dropped its weights."""

    def __init__(self, owner: int, error: Exception) -> None:
        super().__init__(owner, error)
        self.owner = owner
        self.error = error


async def _ended(work: Sequence[Coroutine[Any, Any, Any]]) -> list[Any]:
    """Returns what each gave or raised, once all of it has ended."""
    if len(work) == 1:  # a task of its own would cost more than a small read
        try:
            return [await work[0]]
        except Exception as exc:
            return [exc]
    import asyncio

    return await asyncio.gather(*work, return_exceptions=True)


def _raise_first(owners: Sequence[int], results: Sequence[Any]) -> None:
    """Raises what went wrong with any; owners that are gone before all else."""
    failed = [(owner, one) for owner, one in zip(owners, results, strict=True) if isinstance(one, BaseException)]
    for owner, error in failed:
        if isinstance(error, OwnerEndedError | BufferDroppedError):
            raise _GoneError(owner, error) from error
    for _, error in failed:
        raise error


class _Known:
    """An owner's weights, equal to themselves in whatever handle."""

    def __init__(self, published: Published) -> None:
        self.published = published

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Known) and self.published.header == other.published.header

    def __hash__(self) -> int:
        return hash(self.published.header)


def _box(entry: TensorEntry, place: PublishedTensor, part: Any) -> Box | None:
    """Returns what of the whole belongs into the entry; None if that cannot be."""
    if entry.whole is None or entry.start is None:
        return _ranges(entry.name, place, part)
    if part is not None:
        raise ValueError(f"the shard of {entry.name!r}: it is a DTensor, whose placements say it already")
    if entry.whole != place.full:
        return None
    return tuple((low, low + size) for low, size in zip(entry.start, entry.shape, strict=True))


def _some(wrong: list[str]) -> str:
    more = f"; and {len(wrong) - 10} more" if len(wrong) > 10 else ""
    return "; ".join(wrong[:10]) + more


def _ranges(name: str, place: PublishedTensor, spec: Any) -> tuple[Range, ...]:
    if spec is None:
        return tuple((0, size) for size in place.full)
    try:
        return ranges_of(place.full, spec)
    except ValueError as exc:
        raise ValueError(f"the shard of {name!r}: {exc}") from None


def _new(place: PublishedTensor, shape: tuple[int, ...]) -> Any:
    size = place.item
    for one in shape:
        size *= one
    memory = bytearray(size)
    return memory if place.kind == "buffer" else shown(place.kind, place.dtype, shape, memoryview(memory))


def _put(tree: dict[Any, Any], path: tuple[Any, ...], value: Any) -> None:
    for key in path[:-1]:
        tree = tree.setdefault(key, {})
    tree[path[-1]] = value
