"""A replica in its process: the user's class, with endpoints by which the router calls the user's ones.

Arguments and results travel sealed, so that the router unpickles neither.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Hashable, Iterator
from typing import Any, Literal

from monarch._errors import ActorError
from monarch.actor import Actor, Channel, EndpointProperty, Port, PortReceiver, concurrent_endpoint, endpoint
from monarch.actor.lowlevel import Sealed, argument_fetcher, explain_unsendable, watch_processes

# How an endpoint is run. plain: `def`. async: `async def`, to its end before the next. beside: a `@concurrent_endpoint`.
# makes, makes_async: a generator, an async one. port: it answers through a port, which no service calls.
EndpointKind = Literal["plain", "async", "beside", "makes", "makes_async", "port"]

Item = tuple[bool, Sealed]  # of a batch: whether it is a result, else an exception


@functools.cache
def kinds_of(cls: type) -> dict[str, EndpointKind]:
    """Returns the endpoints of an actor class, and how each is run."""
    found: dict[str, EndpointKind] = {}
    for name in dir(cls):
        prop: Any = inspect.getattr_static(cls, name, None)
        if not isinstance(prop, EndpointProperty) or name.startswith("_service_"):
            continue
        method: Any = prop.__wrapped__  # type: ignore[attr-defined]  # of functools.update_wrapper
        if prop._user_port:
            found[name] = "port"
        elif prop._concurrent:
            found[name] = "beside"
        elif inspect.isasyncgenfunction(method):
            found[name] = "makes_async"
        elif inspect.isgeneratorfunction(method):
            found[name] = "makes"
        else:
            found[name] = "async" if inspect.iscoroutinefunction(method) else "plain"
    return found


class ServiceReplica(Actor):
    """The endpoints that every replica has beside those of its class."""

    _service_prepared: tuple[int, Any] | None = None  # the update that is not used yet, and what was made for it
    _service_refused = 0  # the last update that was stopped
    _service_error: Exception | None = None  # that the constructor raised

    @endpoint
    def _service_made(self) -> None:
        """Raises what the constructor raised, as itself: of an actor that could not be made only the text goes anywhere."""
        if self._service_error is not None:
            raise self._service_error

    @endpoint
    def _service_plain(self, name: str, calls: list[Sealed], batch: bool) -> Any:
        """Runs an endpoint that is `def`."""
        method: Callable[..., Any] = getattr(self, name)
        args, kwargs = _with_values(self, name, *_arguments(calls, batch))
        return _sealed(name, method(*args, **kwargs), len(calls) if batch else 0)

    @endpoint
    async def _service_async(self, name: str, calls: list[Sealed], batch: bool) -> Any:
        """Runs an endpoint that is `async def`."""
        return await self._awaited(name, calls, batch)

    @concurrent_endpoint
    async def _service_beside(self, name: str, calls: list[Sealed], batch: bool) -> Any:
        """Runs a concurrent endpoint."""
        return await self._awaited(name, calls, batch)

    async def _awaited(self, name: str, calls: list[Sealed], batch: bool) -> Any:
        method: Callable[..., Any] = getattr(self, name)
        args, kwargs = await _with_values_later(self, name, *_arguments(calls, batch))
        return _sealed(name, await method(*args, **kwargs), len(calls) if batch else 0)

    @concurrent_endpoint
    async def _service_prepare(self, name: str, call: Sealed, version: int, threaded: bool) -> None:
        """Runs an endpoint beside requests, one that is `def` in a thread, and keeps what it returns."""
        args, kwargs = await _with_values_later(self, name, *call.open())
        method: Callable[..., Any] = getattr(self, name)
        made = await (asyncio.to_thread(method, *args, **kwargs) if threaded else method(*args, **kwargs))
        if version > self._service_refused:
            self._service_prepared = version, made

    @concurrent_endpoint
    async def _service_forget(self, version: int) -> None:
        """Drops what was prepared for an update that was stopped, also what will be."""
        self._service_refused = version
        if self._service_prepared is not None and self._service_prepared[0] <= version:
            self._service_prepared = None

    @endpoint
    def _service_use_plain(self, name: str, version: int) -> None:
        """Gives what was prepared to an endpoint that is `def`."""
        getattr(self, name)(self._take_prepared(version))

    @endpoint
    async def _service_use_async(self, name: str, version: int) -> None:
        """Gives what was prepared to an `async` endpoint."""
        await getattr(self, name)(self._take_prepared(version))

    def _take_prepared(self, version: int) -> Any:
        assert self._service_prepared is not None and self._service_prepared[0] == version
        (_version, made), self._service_prepared = self._service_prepared, None
        return made

    @endpoint
    def _service_makes(self, name: str, call: Sealed, reader: StreamReader) -> int:
        """Runs a generator; returns how many values it made."""
        (args, kwargs), made = _with_values(self, name, *call.open()), 0
        method: Callable[..., Any] = getattr(self, name)
        values: Iterator[Any] = method(*args, **kwargs)
        with reader.writing() as credits:
            room = reader.window
            while True:
                while room <= 0:
                    room = _more(room, credits.recv().get())
                if room == _LEFT:
                    values.close()  # type: ignore[attr-defined]  # a generator
                    return made
                try:
                    value = next(values)
                except StopIteration:
                    return made
                reader.port.send(("item", value))
                made, room = made + 1, room - 1

    @concurrent_endpoint
    async def _service_makes_async(self, name: str, call: Sealed, reader: StreamReader) -> int:
        """Runs an async generator, beside other requests; returns how many values it made."""
        (args, kwargs), made = await _with_values_later(self, name, *call.open()), 0
        method: Callable[..., Any] = getattr(self, name)
        values = method(*args, **kwargs)
        with reader.writing() as credits:
            room = reader.window
            while True:
                while room <= 0:
                    room = _more(room, await credits.recv())
                if room == _LEFT:
                    await values.aclose()
                    return made
                try:
                    value = await anext(values)
                except StopAsyncIteration:
                    return made
                reader.port.send(("item", value))
                made, room = made + 1, room - 1


_LEFT = 1 << 60  # no room, and no reader any more


def _more(room: int, credit: int) -> int:
    return _LEFT if credit < 0 else room + credit


class StreamReader:
    """The reader of a stream as it travels to the replica: where values go, how many at first, in which process it is."""

    def __init__(self, port: Port[Any], window: int, process: tuple[str, int]) -> None:
        self.port = port
        self.window = window
        self.process = process

    def writing(self) -> _Writing:
        return _Writing(self)


class _Writing:
    """The block in which values are written: it has the credits that come back, and a -1 when the reader's process ends."""

    def __init__(self, reader: StreamReader) -> None:
        self._reader = reader
        self._end_watch: Callable[[], None] = lambda: None

    def __enter__(self) -> PortReceiver[int]:
        port: Port[int]
        port, credits = Channel[int].open()
        port.return_undeliverable = False
        address, incarnation = self._reader.process
        self._end_watch = watch_processes({address: incarnation}, lambda *_how: port.send(-1))
        self._reader.port.send(("begin", port))
        return credits

    def __exit__(self, *exc: object) -> None:
        self._end_watch()


def _arguments(calls: list[Sealed], batch: bool) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns the arguments of one request; of a batch, a list for each parameter."""
    opened = [call.open() for call in calls]
    if not batch:
        only: tuple[tuple[Any, ...], dict[str, Any]] = opened[0]
        return only
    first_args, first_kwargs = opened[0]
    args = tuple([args[place] for args, _ in opened] for place in range(len(first_args)))
    return args, {name: [kwargs[name] for _, kwargs in opened] for name in first_kwargs}


Arguments = tuple[tuple[Any, ...], dict[str, Any]]


@functools.cache
def _fetching(cls: Hashable, name: str) -> Any:
    return argument_fetcher(inspect.getattr_static(cls, name))


def _with_values(replica: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
    fetching = _fetching(replica.__class__, name)
    return (args, kwargs) if fetching is None else fetching.values(args, kwargs)


async def _with_values_later(replica: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
    fetching = _fetching(replica.__class__, name)
    return (args, kwargs) if fetching is None else await fetching.values_later(args, kwargs)


def _sealed(name: str, result: Any, batch: int) -> Sealed | list[Item]:
    if not batch:
        return _carried(name, result)
    if not isinstance(result, (list, tuple)) or len(result) != batch:
        got = f"{len(result)} items" if isinstance(result, (list, tuple)) else f"a {type(result).__name__}"
        raise TypeError(
            f"{name}() is @batched and got {batch} requests, and returned {got}: it has to return a list with one item for "
            f"each, in their order"
        )
    return [_item(name, item) for item in result]


def _item(name: str, item: Any) -> Item:
    """Returns what the caller of one request of a batch gets: its own result, or its own error."""
    if isinstance(item, Exception):
        said = f"{name}() returned an exception for this request of its batch."
    else:
        try:
            return True, _carried(name, item)
        except Exception as exc:
            item, said = (
                exc.with_traceback(None),
                f"{name}() returned for this request of its batch what cannot be sent.",
            )
    return False, Sealed((ActorError(item, said), None))


def _carried(name: str, result: Any) -> Sealed:
    try:
        return Sealed(result, carried=True)
    except Exception as exc:
        explain_unsendable(
            exc, f"the return value of {name}()", {"result": result}, lambda part: Sealed(part, carried=True)
        )
        raise


@functools.cache
def replica_class(cls: type) -> type:
    """Returns the class that replicas of `cls` have."""
    make: Callable[..., None] = cls.__init__  # type: ignore[misc]  # that of the class itself

    @functools.wraps(make)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            make(self, *args, **kwargs)
        except Exception as exc:
            self._service_error = exc

    members = {"__module__": cls.__module__, "__doc__": cls.__doc__, "__init__": __init__}
    return type(cls.__name__, (ServiceReplica, cls), members)
