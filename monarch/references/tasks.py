"""Tasks: functions on the processes of a mesh, with references in and out."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Generic, ParamSpec, TypeVar, overload

from monarch._linux.locks import Lock
from monarch.actor import Actor, Future, ProcMesh, ValueMesh, concurrent_endpoint
from monarch.actor import as_completed as futures_as_completed
from monarch.actor.lowlevel import Blocking, Sealed, explain_unsendable, watch_processes, when_ready
from monarch.references.keep import KeptEndpoint
from monarch.references.object_ref import ObjectRef
from monarch.references.outcomes import no_room_for_task
from monarch.references.scheduling import TaskSchedule
from monarch.references.store import Answered, store

P = ParamSpec("P")
R = TypeVar("R")

_EACH = 4096  # bytes that a task which waits is counted with besides its arguments

ErrorTypes = type[BaseException] | tuple[type[BaseException], ...]


class TaskFunction(Generic[P, R]):
    """A function that says how it is run as a task. Called, it runs here, as ever.

    Since 0.2.0.
    """

    def __init__(self, function: Callable[P, R], retries: int, retry_on: tuple[type[BaseException], ...]) -> None:
        self.function, self.retries, self.retry_on = function, retries, retry_on
        functools.update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def submit(self, procs: ProcMesh, *args: Any, **kwargs: Any) -> ObjectRef[R]:
        """Runs it in a process of the mesh: see `submit`."""
        return submit(procs, self, *args, **kwargs)

    def __reduce__(self) -> Any:
        return TaskFunction, (self.function, self.retries, self.retry_on)


@overload
def task(function: Callable[P, R], /) -> TaskFunction[P, R]: ...
@overload
def task(*, retries: int = 0, retry_on: ErrorTypes = Exception) -> Callable[[Callable[P, R]], TaskFunction[P, R]]: ...
def task(function: Any = None, /, *, retries: int = 0, retry_on: ErrorTypes = Exception) -> Any:
    """Says how a function is run as a task. Written `@task`, or with keywords.

        @task(retries=3, retry_on=OSError)
        def load(path: str) -> list[str]: ...

        lines = load.submit(procs, "a.txt")

    `retries`: how often it is run again, in the same process when it raises a `retry_on`, in another of the mesh when its
    process ends before it has returned. Whoever says so says that it may run more than once. (Errors that a process met
    before it ended are not counted any more.) Without retries a task whose process ends is lost, as is one that has used
    them up: its reference raises ReferenceLost, which says how the process ended. A value that was made and is lost later is
    not made again: see `ObjectRef.pin`. What a task with retries gives is known by where this process says it is: its
    reference is lost with either.

    Since 0.2.0.
    """
    if isinstance(retries, bool) or not isinstance(retries, int) or retries < 0:
        raise ValueError(f"retries is how often a task is run again, 0 or more, got {retries!r}")
    kinds = retry_on if isinstance(retry_on, tuple) else (retry_on,)
    if not all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds):
        raise TypeError(f"retry_on is an exception class, or a tuple of them, got {retry_on!r}")

    def decorate(function: Any) -> TaskFunction[Any, Any]:
        return TaskFunction(function, retries, kinds)

    return decorate if function is None else decorate(function)


def submit(procs: ProcMesh, function: Callable[..., R], /, *args: Any, **kwargs: Any) -> ObjectRef[R]:
    """Runs `function(*args, **kwargs)` in a process of the mesh; at once a reference to its result, which stays there.

    An argument that is an ObjectRef is replaced by its value before the function runs; those within other arguments stay
    references. A process of the mesh has one task of this process at a time. A task is handed to a free one, if it can to
    one that has an argument of it; as long as none is free, or its arguments are not made, it waits in this process, and
    others go before it if theirs are. So short tasks do not queue behind a long one, tasks are written one after another
    without waiting in between, and what waits is not lost with a process that ends. Arguments are pickled now.
    What waited is known by where this process says it is: its reference is lost with either.

    `async def` functions run on the event loop of their process. `get()` of the reference raises an ActorError with what the
    function raised, ReferenceLost when its process ended (see `task` for retries). Raises here what pickling raises,
    TypeError where the arguments do not fit the function, and RuntimeError when the mesh was stopped. What waits counts
    towards `reference_bytes` of this process, each task with 4 KiB besides its arguments: ReferenceLimitError beyond that,
    and nothing was submitted.

    Since 0.2.0.
    """
    if not isinstance(procs, ProcMesh):
        raise TypeError(f"submit takes a mesh of processes, such as spawn_procs() gives, got {procs!r}")
    procs._check_alive()
    _check_call(function, args, kwargs)
    return _workers(procs).submit(function, args, kwargs)


def _check_call(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    plain = function.function if isinstance(function, TaskFunction) else function
    if not callable(plain):
        raise TypeError(f"submit runs a function, got {plain!r}")
    try:
        signature = inspect.signature(plain)
    except (TypeError, ValueError):  # of a built-in function that does not say
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as exc:
        shown = inspect.Signature([one.replace(annotation=one.empty) for one in signature.parameters.values()])
        raise TypeError(f"submit of {getattr(plain, '__qualname__', plain)}{shown}: {exc}") from None


class TaskWorker(Actor):
    """Runs tasks in its process, one at a time."""

    _is_system_actor = True

    def __init__(self) -> None:
        self._turn: asyncio.Lock | None = None

    @concurrent_endpoint
    async def run(self, call: Sealed | None, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs a function once its arguments are there. `call`: all three, of a task that has waited to be sent."""
        if call is not None:
            function, args, kwargs = call.open()
        if self._turn is None:
            self._turn = asyncio.Lock()
        args = tuple([await _value_of(arg, function, place) for place, arg in enumerate(args)])
        kwargs = {name: await _value_of(arg, function, name) for name, arg in kwargs.items()}
        retries, retry_on = (function.retries, function.retry_on) if isinstance(function, TaskFunction) else (0, ())
        plain = function.function if isinstance(function, TaskFunction) else function
        async with self._turn:
            while True:
                try:
                    if inspect.iscoroutinefunction(plain):
                        return await plain(*args, **kwargs)
                    return await asyncio.to_thread(plain, *args, **kwargs)
                except retry_on:
                    if not retries:
                        raise
                    retries -= 1


async def _value_of(arg: Any, function: Any, place: int | str) -> Any:
    if not isinstance(arg, ObjectRef):
        return arg
    try:
        return await arg
    except Exception as exc:
        exc.add_note(f"{_named(function)} did not run: its argument {place}, {arg}, could not be fetched")
        raise


class _Workers:
    """The workers of a mesh, and what runs and waits of this process's tasks."""

    def __init__(self, procs: ProcMesh) -> None:
        actors: Any = procs.spawn("tasks", TaskWorker)
        one = actors.flatten("rank")
        self._workers = [one.slice(rank=rank) for rank in range(len(one))]
        addresses = [worker._plan.addresses[0] for worker in self._workers]
        self._store = store()
        self._lock = Lock()
        self._schedule: TaskSchedule[_HeldTask] = TaskSchedule(addresses)
        self._end_watch = watch_processes(dict.fromkeys(addresses, -1), self._process_ended)

    def submit(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ObjectRef[Any]:
        refs = [arg for arg in (*args, *kwargs.values()) if isinstance(arg, ObjectRef)]
        missing = [ref for ref in refs if not self._store.reader.is_here(ref)]
        if not missing and not (isinstance(function, TaskFunction) and function.retries):
            with self._lock:
                rank = self._schedule.begin([ref.owner for ref in refs])
            if rank is not None:
                try:
                    return self.send(rank, None, _named(function), None, function, args, kwargs)
                except BaseException:
                    self._finished(rank, True)
                    raise
        held = _HeldTask(self, function, args, kwargs)
        try:
            return held.begin(refs, missing)
        except BaseException:
            held.give_back()
            raise

    def send(self, rank: int, answered: Answered | None, name: str, *call: Any) -> ObjectRef[Any]:
        """Runs a task in a process that was free; `answered` as in `KeptEndpoint.call_one_then`."""

        def finished(lives: bool) -> None:
            if answered is not None:
                answered(lives)
            self._finished(rank, lives)

        return KeptEndpoint(self._workers[rank].run).call_one_then(finished, name, *call)

    def wait(self, held: _HeldTask, owners: Collection[str], first: bool = False) -> None:
        """Runs a task when a process is free."""
        with self._lock:
            self._schedule.wait(held, owners, first)
        self._store.dropped.put(self._send_next)

    def not_sent(self, rank: int) -> None:
        """The process is free after all."""
        with self._lock:
            self._schedule.finished(rank, True)

    def _finished(self, rank: int, lives: bool) -> None:
        """Runs on the thread of references, or where a task is submitted."""
        with self._lock:
            self._schedule.finished(rank, lives)
        self._send_next()

    def _send_next(self) -> None:
        while True:
            with self._lock:
                found = self._schedule.next()
            if found is None:
                return
            found[1].run(found[0])

    def _process_ended(self, address: str, how: str, stopped: bool) -> None:
        """Runs on the I/O thread."""
        with self._lock:
            self._schedule.ended(address)
            over = self._schedule.has_ended
        if over:
            self._end_watch()


class _HeldTask:
    """A task that waits in this process, or may run again when its own ends. Its reference is named by this process, which
    learns where the value is in the end."""

    def __init__(self, workers: _Workers, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Raises what pickling raises; ReferenceLimitError where there is no room."""
        self._workers = workers
        self._name = _named(function)
        self._left = function.retries if isinstance(function, TaskFunction) else 0
        try:
            self._call = _copied((function, args, kwargs))
        except Exception as exc:
            given = {"the function": function, **{f"argument {place}": arg for place, arg in enumerate(args)}, **kwargs}
            explain_unsendable(exc, self._name, given, _copied)
            raise
        self._store = store()
        self._size = size = self._call.nbytes + _EACH
        self._store.take(size, lambda used, limit: no_room_for_task(self._name, size, used, limit))
        self._lock = Lock()
        self._missing: dict[int, Future[None]] = {}  # of its arguments
        self._owners: set[str] = set()
        self._there: ObjectRef[Any] | None = None  # of the run under way
        self._lives: bool | None = None  # whether its process does, once it has answered

    def begin(self, refs: Sequence[ObjectRef[Any]], missing: Sequence[ObjectRef[Any]]) -> ObjectRef[Any]:
        """Returns its reference. `missing`: which of its arguments may not be made yet."""
        ref = self._store.named(self._name)
        self._ref = ref._facts.ref
        self._refs = refs
        asked = self._missing = {place: self._store.reader.made(one) for place, one in enumerate(missing)}
        if not asked:
            self._wait()
        for place, future in list(asked.items()):
            when_ready(future, functools.partial(self._store.dropped.put, functools.partial(self._came, place)))
        return ref

    def _came(self, place: int) -> None:
        """Runs on the thread of references, perhaps more than once for each."""
        if (future := self._missing.pop(place, None)) is None:
            return
        future.exception()  # the task raises it when it takes the value
        if not self._missing:
            self._wait()

    def _wait(self) -> None:
        self._owners = {self._store.owner_of(ref) for ref in self._refs}
        self._refs = ()
        self._workers.wait(self, self._owners)

    def run(self, rank: int) -> None:
        """Sends it to a process that is free."""
        try:
            there = self._workers.send(rank, self._answered, self._name, self._call, None, (), {})
        except Exception as exc:  # whoever reads the reference is told
            self._end(exc)
            self._workers.not_sent(rank)
        else:
            self._settle(there=there)

    def _end(self, there: ObjectRef[Any] | Exception) -> None:
        self.give_back()
        self._store.forward(self._ref, there)

    def give_back(self) -> None:
        """It takes no room any more."""
        size, self._size = self._size, 0
        self._store.give_back(size)

    def _answered(self, lives: bool) -> None:
        self._settle(lives=lives)

    def _settle(self, there: ObjectRef[Any] | None = None, lives: bool | None = None) -> None:
        """Goes on once both are known; the answer may come before the reference."""
        with self._lock:
            self._there = there or self._there
            self._lives = self._lives if lives is None else lives
            if self._there is None or self._lives is None:
                return
            there, lives, self._there, self._lives = self._there, self._lives, None, None
        if lives or not self._left or not self._store.is_wanted(self._ref):
            self._end(there)
            return
        self._left -= 1
        self._workers.wait(self, self._owners, first=True)


def _named(function: Any) -> str:
    return f"task {getattr(function, '__name__', 'function')}"


def _copied(call: Any) -> Sealed:
    return Sealed(call, carried=True, copied=True)


_known: weakref.WeakKeyDictionary[ProcMesh, _Workers] = weakref.WeakKeyDictionary()
_spawning = Lock()


def _workers(procs: ProcMesh) -> _Workers:
    with _spawning:
        found = _known.get(procs)
        if found is None:
            found = _known[procs] = _Workers(procs)
        return found


def _references(function: str, refs: Iterable[Any]) -> list[ObjectRef[Any]]:
    """Returns each once, in their order. TypeError for what is no reference."""
    if isinstance(refs, ObjectRef):
        raise TypeError(f"{function} takes several references: {function}([ref])")
    given = list(refs)
    for each in given:
        if not isinstance(each, ObjectRef):
            raise TypeError(f"{function} takes ObjectRefs, got {each!r}")
    return list(dict.fromkeys(given))


class CompletedReferences(Generic[R]):
    """The references of `as_completed`: an iterator and an async iterator."""

    def __init__(self, refs: list[ObjectRef[R]], timeout: float | None) -> None:
        self._refs = {ref._store.reader.made(ref): ref for ref in refs}
        self._futures = futures_as_completed(list(self._refs), timeout=timeout)

    def __iter__(self) -> CompletedReferences[R]:
        return self

    def __aiter__(self) -> CompletedReferences[R]:
        return self

    def __next__(self) -> ObjectRef[R]:
        with Blocking("as_completed() was iterated", "Use `async for` here"):
            future = next(self._futures)
            future.exception()  # `get` of the reference raises it again
        return self._refs[future]

    async def __anext__(self) -> ObjectRef[R]:
        future = await anext(self._futures)
        with contextlib.suppress(Exception):
            await future
        return self._refs[future]


def as_completed(refs: Iterable[ObjectRef[R]], timeout: float | None = None) -> CompletedReferences[R]:
    """Gives the references in the order in which their values, or errors in their places, are made, to `for` or `async for`.
    Nothing is fetched. TimeoutError once `timeout` seconds have passed.

    Since 0.2.0.
    """
    return CompletedReferences(_references("as_completed", refs), timeout)


def wait(
    refs: Iterable[ObjectRef[R]], count: int | None = None, timeout: float | None = None
) -> tuple[list[ObjectRef[R]], list[ObjectRef[R]]]:
    """Waits until `count` of the values are made (all, without one), or `timeout` seconds have passed; returns the references
    whose values are, and those whose are not, both in the order given. In an event loop use `async for` of `as_completed`.

    Since 0.2.0.
    """
    given = _references("wait", refs)
    wanted = len(given) if count is None else count
    if not 0 <= wanted <= len(given):
        raise ValueError(f"count is how many of the {len(given)} references are waited for, got {count!r}")
    done: set[ObjectRef[R]] = set()
    blocking = Blocking("wait() was called", "Use `async for ref in as_completed(refs)` here")
    with contextlib.suppress(TimeoutError), blocking:
        if wanted:
            for ref in as_completed(given, timeout):
                done.add(ref)
                if len(done) >= wanted:
                    break
    return [ref for ref in given if ref in done], [ref for ref in given if ref not in done]


def values(refs: ValueMesh[ObjectRef[R]], timeout: float | None = None) -> ValueMesh[R]:
    """Returns the values of a mesh of references, fetched side by side. TypeError for anything but a ValueMesh of them.

    Since 0.2.0.
    """
    if not isinstance(refs, ValueMesh):
        raise TypeError(
            f"values takes a ValueMesh of references, which keep.call(...) gives, and got a {type(refs).__name__}: of a list "
            f"write [ref.get() for ref in refs]"
        )
    _references("values", refs.values())
    futures = [ref._store.reader.fetch(ref) for ref in refs.values()]
    return ValueMesh(refs._shape, [future.get(timeout) for future in futures])
