"""Future: one type for everything asynchronous, observed from threads and event loops alike.

A Future holds a Source, which becomes ready once, on any thread; the value is decoded by its first observer, in
that thread. `concurrent.futures.Future` would cost more than sending the message.
"""

from __future__ import annotations

import math
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextvars import ContextVar
from functools import partial
from threading import get_ident
from time import monotonic
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from monarch._errors import ActorError, SupervisionError
from monarch._linux.locks import Lock, RLock
from monarch._runtime.event_loops import is_actors, running_loop, warn_blocking
from monarch._runtime.future_mistakes import not_the_result, teach
from monarch._runtime.leader import WouldBlockRuntime, wait_for, watch, watched
from monarch._runtime.loop import io_threads, wake
from monarch._wire.interrupts import is_interrupt, named

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
E = TypeVar("E", bound=BaseException)
S = TypeVar("S")

# On behalf of which message code runs: a `current.Current`, or None. Defined here because waits are noted with it.
running: ContextVar[Any] = ContextVar("monarch_context", default=None)

# Who waits: thread, asyncio task, since when (time.monotonic), whether with a time limit, on behalf of which message.
Note = tuple[int, Any, float, bool, Any]

_MADE, _PENDING = object(), object()
_creating = RLock()  # queues of wakers: two observers may come first, one a handler of signals
LOOK = ". print(monarch.actor.wait_graph().get()) shows who waits for whom, and where; `monarch doctor` which rank is stuck"
LONG_WAIT = 10.0  # seconds: a wait of so many that ends without result says what kept the program from going on
LOOKING = 3.0  # seconds before its end, in which that is looked for
_TIMEOUT_LIMIT = 1e9  # seconds; what threading accepts is a little over nine billion


class Source:
    """Becomes ready once. Subclasses say how to turn what arrived into a value (`value`)."""

    __slots__ = ("_wakers", "ready")

    def __init__(self) -> None:
        self.ready = False
        self._wakers: deque[Callable[[], Any]] | None = None

    def begin(self) -> None:
        """The first observation; lazy sources start here. May be called again."""

    def start(self) -> None:
        """`begin`, for observers of several sources, none of whom waits for this one itself."""
        self.begin()

    def value(self) -> Any:
        """The result, or raises it. Called once, after `ready`, in the observing thread."""
        raise NotImplementedError

    def awaited(self) -> str:
        """Says, for the text of a timeout, what is missing, and from whom."""
        return ""

    def looks(self) -> Callable[[], None] | None:
        """Returns what begins to look for what keeps it from becoming ready, for `advice` to say; None for nothing."""
        return None

    def advice(self) -> str:
        """Says, for the end of that text, how to find out more."""
        return ""

    def of(self) -> str:
        """Says, for people, what it is the result of; "" when that is not known."""
        return ""

    def progress(self) -> str:
        """Says, for people, behind "pending", for how long and how far it has come; "" when that is not known."""
        return ""

    def missing(self) -> tuple[Sequence[int], int] | None:
        """Returns, for people, which ranks have not answered, and how many were asked; None when that is not known."""
        return None

    def abandon(self) -> None:
        """Nobody will observe it: its only Future was dropped. Any thread, at any point of its work: takes no lock."""

    def set_ready(self) -> None:
        """Any thread: the result is there; wakes every observer."""
        self.ready = True
        wakers = self._wakers
        if wakers:
            try:
                while wakers:
                    try:
                        waker = wakers[-1]
                    except IndexError:
                        return
                    wake(waker)
                    self.discard(waker)  # afterwards: a handler of signals may raise in between
            except BaseException:
                self.set_ready()
                raise

    def is_pending(self) -> bool:
        return not self.ready

    def on_ready(self, wake: Callable[[], Any]) -> None:
        """`wake()` once ready, perhaps at once, perhaps on another thread. May be called more than once."""
        if self._wakers is None:
            made: deque[Callable[[], Any]] = deque()
            with _creating:
                self._wakers = made if self._wakers is None else self._wakers  # one step, for such a handler
        self._wakers.append(wake)
        if self.ready:
            self.set_ready()

    def discard(self, wake: Callable[[], Any]) -> None:
        try:
            if self._wakers is not None:
                self._wakers.remove(wake)
        except ValueError:
            pass

    def noted(self) -> list[tuple[Callable[[], Any], Note, bool]]:
        """Any thread: who waits for it, by what wakes them; and whether nothing else wakes them."""
        found = []
        for waker in list(self._wakers or ()):
            defaults = getattr(waker, "__defaults__", None)
            if defaults and type(defaults[0]) is tuple:
                found.append((waker, defaults[0], True))
            elif (noted := getattr(waker, "noted", None)) is not None:  # one of several that are waited for
                found += noted()
        return found

    def waiting(self) -> list[Note]:
        """Any thread: who waits for it, or for what is made of it."""
        notes = [note for _, note, _ in self.noted()]
        for waker in list(self._wakers or ()):
            above = getattr(getattr(waker, "func", waker), "__self__", None)
            if isinstance(above, Source):
                notes += above.waiting()
        return notes

    def wait_looking(self, timeout: float) -> bool:
        """Does the same as `wait`; looks for the cause, before a long wait ends."""
        look, since = self.looks(), monotonic()
        if look is None:
            return self.wait(timeout)
        if self.wait(timeout - LOOKING):
            return True
        look()
        return self.wait(LOOKING, since)

    def wait(self, timeout: float | None, since: float | None = None) -> bool:
        """Blocks this thread until ready; False after `timeout` seconds. `since`: when the wait began, if not now."""
        if self.ready:
            return True
        ident = get_ident()
        if ident in io_threads:
            raise WouldBlockRuntime("a blocking wait on the runtime's own I/O thread, which would never end")
        lock = threading.Lock()
        lock.acquire()
        now = (ident, None, monotonic() if since is None else since, timeout is not None, running.get())

        def wake(note: Note = now) -> None:
            try:
                lock.release()
            except RuntimeError:  # woken twice
                pass

        try:
            self.on_ready(wake)
            if not wait_for(lock, timeout):
                self.discard(wake)
                return self.ready
        except BaseException:  # Ctrl-C: this thread waits no more
            self.discard(wake)
            raise
        return True

    def wait_async(self, loop: asyncio.AbstractEventLoop) -> Generator[Any, None, None]:
        """Suspends the awaiting task until ready."""
        if self.ready:
            return
        waiter = loop.create_future()
        task = sys.modules["asyncio"].current_task
        now = (get_ident(), task(loop), monotonic(), False, running.get())

        def wake(note: Note = now) -> None:
            try:
                if get_ident() == note[0] and not is_actors(loop):  # this thread leads, in a callback of that loop
                    _finish(waiter)
                else:
                    loop.call_soon_threadsafe(_finish, waiter)
            except RuntimeError:  # the observer's loop is closed; nobody waits there any more
                pass

        self.on_ready(wake)
        try:
            watch(loop, self.is_pending)
            yield from waiter
            watched()
        finally:
            self.discard(wake)
            del wake, now  # a task that is cancelled keeps this frame: it must not keep the task


def _finish(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def once(fn: Callable[[], None]) -> Callable[[], None]:
    """Wraps `fn` for `on_ready`, which may call more than once: it runs the first time only."""
    lock = threading.Lock()

    def call() -> None:
        if lock.acquire(False):
            fn()

    return call


class Done(Source):
    """A result that is there already, or an exception."""

    __slots__ = ("_result",)

    def __init__(self, result: Any) -> None:
        super().__init__()
        self.ready = True
        self._result = result

    def value(self) -> Any:
        if isinstance(self._result, BaseException):
            raise self._result
        return self._result


class Slot(Source):
    """A result that some thread of ours will set."""

    __slots__ = ("_error", "_of", "_result")

    def __init__(self, of: str = "") -> None:
        super().__init__()
        self._of = of
        self._result: Any = None
        self._error: BaseException | None = None

    def awaited(self) -> str:
        return f" from {self._of}" if self._of else ""

    def of(self) -> str:
        return self._of

    def set(self, result: Any = None) -> None:
        if not self.ready:
            self._result = result
            self.set_ready()

    def fail(self, error: BaseException) -> None:
        if not self.ready:
            self._error = error
            self.set_ready()

    def value(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._result


class Then(Source):
    """`convert` applied to the value of another source, in the observing thread. `str(of)`: what it is the result of, in
    place of what that says."""

    __slots__ = ("_convert", "_first", "_of")

    def __init__(self, first: Source, convert: Callable[[Any], Any], of: object = None) -> None:
        super().__init__()
        self._first = first
        self._convert = convert
        self._of = of
        first.on_ready(self.set_ready)

    def begin(self) -> None:
        self._first.begin()

    def start(self) -> None:
        self._first.start()

    def awaited(self) -> str:
        return self._first.awaited() if self._of is None else f" from {self._of}"

    def looks(self) -> Callable[[], None] | None:
        return self._first.looks()

    def advice(self) -> str:
        return self._first.advice()

    def of(self) -> str:
        return self._first.of() if self._of is None else str(self._of)

    def progress(self) -> str:
        return self._first.progress()

    def missing(self) -> tuple[Sequence[int], int] | None:
        return self._first.missing()

    def value(self) -> Any:
        return self._convert(self._first.value())


class All(Source):
    """Ready when every source is; its value is the list of theirs, the first failure in order raised."""

    __slots__ = ("_left", "_sources")

    def __init__(self, sources: list[Source]) -> None:
        super().__init__()
        self._sources = sources
        self._left = deque(sources)
        if not sources:
            self.ready = True
        for source in sources:
            source.on_ready(partial(self._one, source))

    def _one(self, source: Source) -> None:
        try:
            self._left.remove(source)
        except ValueError:
            return
        if not self._left:
            self.set_ready()

    def awaited(self) -> str:
        return next((source.awaited() for source in self._sources if not source.ready), "")

    def of(self) -> str:
        return next(filter(None, (source.of() for source in self._sources)), "")

    def progress(self) -> str:
        return f", {len(self._sources) - len(self._left)} of {len(self._sources)} are there"

    def value(self) -> list[Any]:
        return [source.value() for source in self._sources]


@teach
class Future(Generic[T_co]):
    """The result of something under way. Observe it with `get()` or `await`, as often and from where you like.

    The operation runs whether or not anybody observes it (except: `PortReceiver.recv()`, `Accumulator.accumulate()` and
    functions under `returns_future` begin when first observed). A Future that failed raises the same exception object at
    each observation. Dropping a Future is harmless: the operation runs on, its result is dropped when it comes, and nothing
    stays behind here. Not picklable; made by the runtime only.
    """

    __slots__ = ("__weakref__", "_error", "_lock", "_source", "_value")

    def __init__(self, *args: Any) -> None:
        if len(args) != 2 or args[0] is not _MADE:
            raise TypeError("Future objects are returned by Monarch operations: call(), recv(), stop(), ...")
        self._source: Source | None = args[1]
        self._value: Any = _PENDING
        self._error: BaseException | None = None
        self._lock = Lock()

    def __del__(self) -> None:
        try:
            source = self._source
        except AttributeError:  # never made: its constructor raised
            return
        if source is not None:
            source.abandon()

    def get(self, timeout: float | None = None) -> T_co:
        """Blocks until the result is there and returns it, or raises its exception.

        After `timeout` seconds raises TimeoutError; the operation goes on and a later observation still gets its result.
        On the thread of a running event loop it works, blocks that loop and warns.
        """
        if running_loop() is not None:
            warn_blocking("Future.get() was called", "Use `await future` here")
        if self._value is _PENDING and self._error is None:
            if timeout is not None:
                timeout = check_timeout(timeout)
            source = self._source
            if source is not None:
                source.begin()
                try:
                    came = source.ready or (
                        source.wait(timeout) if timeout is None or timeout < LONG_WAIT else source.wait_looking(timeout)
                    )
                except KeyboardInterrupt as exc:
                    raise named(exc, source.awaited())  # noqa: B904
                if not came:
                    raise TimeoutError(
                        f"no result after {timeout} s{source.awaited()}; the operation goes on (observe the Future again)"
                        f"{source.advice()}"
                    )
                self._decode()
            source = None  # it may have the error, which has this frame
        error = self._error
        if error is not None:
            try:
                raise error
            finally:
                del self, error  # the exception has this frame: a circle with all that called
        return self._value  # type: ignore[no-any-return]

    def result(self, timeout: float | None = None) -> T_co:
        """The same as `get`."""
        return self.get(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Waits like `get` and returns the exception, None on success, a TimeoutError after `timeout` seconds."""
        try:
            self.get(timeout)
        except Exception as exc:
            return _cut(exc)
        finally:
            del self  # as in `get`
        return None

    def __await__(self) -> Generator[Any, None, T_co]:
        if self._value is _PENDING and self._error is None:
            loop = running_loop()
            if loop is None:
                raise ValueError("__await__ with no active event loop: use get(), or await it inside asyncio.run(...)")
            source = self._source
            if source is not None:
                source.begin()
                if not source.ready:
                    yield from source.wait_async(loop)
                self._decode()
            source = None  # it may have the error, which has this frame
        error = self._error
        if error is not None:
            try:
                raise error
            finally:
                del self, error  # as in `get`
        return self._value  # type: ignore[no-any-return]

    def as_asyncio(self) -> asyncio.Future[T_co]:
        """An `asyncio.Future` of the running loop with the same result. RuntimeError without a running loop."""
        loop = running_loop()
        if loop is None:
            raise RuntimeError("as_asyncio() needs a running event loop; this Future was not touched")
        import asyncio

        return asyncio.ensure_future(_observe(self), loop=loop)

    def _decode(self) -> None:
        with self._lock:
            if self._value is not _PENDING or self._error is not None:
                return
            source = self._source
            assert source is not None
            try:
                self._value = source.value()
            except BaseException as exc:
                if isinstance(exc, KeyboardInterrupt) or is_interrupt(exc):  # the next observation tries again
                    raise
                # From here to where one of these was raised are frames of ours only.
                ours = isinstance(exc, (ActorError, SupervisionError))
                self._error = exc.with_traceback(None) if ours else _cut(exc)
            self._source = None
            del self, source  # the frames of the error know this one, also those that are cut off: a circle

    def __reduce__(self) -> Any:
        raise TypeError("a Future cannot be pickled: it belongs to this process; send its result")

    def __repr__(self) -> str:
        if self._error is not None:
            return f"<Future failed: {type(self._error).__name__}>"
        if self._value is not _PENDING:
            return f"<Future done: {type(self._value).__name__}>"
        source = self._source
        if source is None:
            return "<Future used up>"
        of = source.of()
        state = "ready" if source.ready else f"pending{source.progress()}"
        return f"<Future{f' of {of},' if of else ''} {state}; .get() or await gives the result>"

    def _repr_html_(self) -> str | None:
        """Draws for a notebook how far it is: what is known of it, without waiting and without observing it."""
        from monarch._runtime.future_drawing import draw  # loaded when a notebook asks

        return draw(self._source, None if self._value is _PENDING else (self._value,), self._error)

    def _of(self) -> str:
        """Says what it is the result of, as far as known."""
        source = self._source
        return "" if source is None else source.of()


def detach(future: Future[Any]) -> Source:
    """Returns what a Future that nobody has observed yet observes; it outlives the Future, which is of no use any
    more."""
    source, future._source = future._source, None
    assert source is not None
    return source


async def _observe(future: Future[T]) -> T:
    return await future


def make_future(source: Source, cls: type[Future[Any]] = Future) -> Future[Any]:
    return cls(_MADE, source)


def _cut(error: E) -> E:
    """Returns an exception without the outer frames that are of this module: one has the Future, which has the exception."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_globals is globals():
        trace = trace.tb_next
    return error.with_traceback(trace)


class _OfActors(Future[T]):
    """The Future of a mesh, from which endpoints are taken by mistake: their names are not known beforehand."""

    __slots__ = ()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(not_the_result(self, f"'Future' object has no attribute {name!r}"))


def future_of_actors(future: Future[T]) -> Future[T]:
    """Returns, for a Future of a mesh that nobody has observed, the same, in whose place it is. Slower to read than
    others."""
    return _OfActors(_MADE, detach(future))


def done_future(result: Any = None) -> Future[Any]:
    return Future(_MADE, Done(result))


def follow(
    future: Future[S], convert: Callable[[S], T], rescue: Callable[[Exception], BaseException] | None = None
) -> Future[T]:
    """The Future of `convert(result)`, called in the thread that observes it; what it raises, the Future raises.

    An exception of `future` itself is replaced by `rescue(it)`, with the first as its cause. For optional packages, and only
    for a Future that nobody has observed: it is used up.
    """
    source = detach(future)
    return make_future(Then(source if rescue is None else Rescued(source, rescue), convert))


class Rescued(Then):
    """Its errors are told in other words."""

    __slots__ = ("_rescue",)

    def __init__(self, first: Source, rescue: Callable[[Exception], BaseException]) -> None:
        super().__init__(first, lambda value: value)
        self._rescue = rescue

    def value(self) -> Any:
        try:
            return super().value()
        except Exception as exc:
            # Its traceback has all that called, and would be kept with it.
            raise self._rescue(exc) from exc.with_traceback(None)


def when_ready(future: Future[Any], act: Callable[[], Any]) -> None:
    """Begins to wait for `future`, which nobody has observed yet; `act()` once it is ready, at once if it is: on any
    thread, and perhaps more than once, so it must be quick and not block. For optional packages."""
    source = future._source
    assert source is not None
    source.begin()
    source.on_ready(act)


def no_value(_value: Any) -> None:
    """Makes nothing of the value of a source: for `Then`."""


def check_timeout(timeout: float) -> float:
    """A timeout in seconds as threading takes it. ValueError for negative, NaN and infinite ones."""
    if not isinstance(timeout, (int, float)) or math.isnan(timeout) or math.isinf(timeout) or timeout < 0:
        raise ValueError(f"invalid timeout {timeout!r}: expected a finite number of seconds, 0 or more, or None")
    return min(float(timeout), _TIMEOUT_LIMIT)
