"""Spans and metrics of the runtime and of programs, passed on to OpenTelemetry when the program uses it, and recorded while
telemetry runs (`recorder`).

The backend is whatever `opentelemetry` the program has imported itself (found in `sys.modules`; nothing is
imported here), so a program without it pays one dict lookup where it reports, and nothing in endpoints.
Where spans and metrics go from there is for the program's OpenTelemetry providers; this module knows no
exporters.

The settings `enable_otel_tracing` and `enable_otel_metrics` switch either off.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, NoReturn, ParamSpec, TypeVar, overload

from monarch._runtime import recorder as recording
from monarch._runtime.functions import is_async
from monarch._runtime.recorder import RecordedSpan
from monarch.config import settings

P = ParamSpec("P")
R = TypeVar("R")

_SCOPE = "monarch"  # the name under which OpenTelemetry shows what comes from here

_no_span: AbstractContextManager[Any] = contextlib.nullcontext()


def _api(module: str) -> Any:
    """A module of the OpenTelemetry API if the program has imported it."""
    return sys.modules.get(module)


# --- spans


# (API module, its tracer for us), kept because a provider makes a new tracer each time it is asked.
_tracer_of: tuple[Any, Any] = (None, None)


def tracer() -> Any:
    """OpenTelemetry's tracer for spans of this process; None when the program does not use it."""
    global _tracer_of
    api = _api("opentelemetry.trace")
    if api is None or not settings.enable_otel_tracing():
        return None
    known, found = _tracer_of
    if known is not api:
        make = getattr(api, "get_tracer", None)
        if make is None:  # another thread is importing it just now
            return None
        found = make(_SCOPE)
        _tracer_of = (api, found)
    return found


def span(name: str) -> AbstractContextManager[Any]:
    """A context manager whose body is one span called `name`; spans inside it become its children.

    An exception that leaves the body is recorded in the span and goes on. Recorded by OpenTelemetry if the program uses
    it, and by telemetry if that runs. TypeError when `name` is no string.
    """
    if not isinstance(name, str):
        raise TypeError(f"the name of a span is a string, got {name!r}")
    backend = tracer()
    if recording.active is None:
        return _no_span if backend is None else _started(backend, name)
    if backend is None:
        return RecordedSpan(name)
    both = contextlib.ExitStack()
    both.enter_context(RecordedSpan(name))
    both.enter_context(_started(backend, name))
    return both


def _started(backend: Any, name: str) -> AbstractContextManager[Any]:
    found: AbstractContextManager[Any] = backend.start_as_current_span(name)
    return found


@overload
def traced(function: Callable[P, R], /) -> Callable[P, R]: ...
@overload
def traced(*, name: str | None = None) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def traced(function: Any = None, /, *, name: str | None = None) -> Any:
    """Makes each call of a function (sync or async) one span, called `name` or else by its qualified name.

    Name, docstring and signature stay. A generator's span covers only the making of the generator. On an
    endpoint it goes below `@endpoint`. TypeError for what is no function.
    """
    if name is not None and not isinstance(name, str):
        raise TypeError(f"the name of a span is a string, got {name!r}")

    def decorate(function: Any) -> Any:
        if not callable(function):
            raise TypeError(f"@traced decorates a function, got {function!r} (@endpoint goes above @traced)")
        return _wrapped(function, name or str(getattr(function, "__qualname__", type(function).__name__)))

    return decorate if function is None else decorate(function)


def _wrapped(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    if is_async(function):

        @functools.wraps(function)
        async def traced_async(*args: Any, **kwargs: Any) -> Any:
            with span(name):
                return await function(*args, **kwargs)

        return traced_async

    @functools.wraps(function)
    def traced_sync(*args: Any, **kwargs: Any) -> Any:
        with span(name):
            return function(*args, **kwargs)

    return traced_sync


def instrumented(method: Callable[..., Any], name: str) -> Callable[..., Any]:
    """`method` as an endpoint runs it: in a span when the program uses OpenTelemetry by now, else as it is.

    Asked once for each endpoint of an actor, at its first message: by then the actor's module is imported and
    the actor constructed. So calls pay nothing where nobody listens.
    """
    return method if tracer() is None else _wrapped(method, name)


# --- metrics


def _text(attributes: Mapping[Any, Any] | None) -> dict[str, str] | None:
    """Attributes as OpenTelemetry takes them; None for none."""
    return {str(key): str(value) for key, value in attributes.items()} if attributes else None


class _Instrument:
    """The part that instruments share. The backend's is made at the first report after the program imported it."""

    _create = ""  # the method of OpenTelemetry's Meter

    def __init__(self, name: str, unit: str = "", description: str = "") -> None:
        if not isinstance(name, str) or not name:
            raise ValueError(f"an instrument needs a name (a string that is not empty), got {name!r}")
        self.name = name
        self.unit = unit
        self.description = description
        self._made: tuple[Any, Any] = (None, None)  # (API module, its instrument)

    def _backend(self) -> Any:
        api = _api("opentelemetry.metrics")
        if api is None or not settings.enable_otel_metrics():
            return None
        known, found = self._made
        if known is not api:
            make = getattr(api, "get_meter", None)
            if make is None:
                return None
            create = getattr(make(_SCOPE), self._create)
            found = create(self.name, unit=self.unit, description=self.description)
            self._made = (api, found)
        return found

    def __reduce__(self) -> Any:
        return type(self), (self.name, self.unit, self.description)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"


class Counter(_Instrument):
    """An instrument whose sum only grows."""

    _create = "create_counter"
    _only_grows = True

    def add(self, amount: float, attributes: Mapping[Any, Any] | None = None) -> None:
        """Adds `amount`, cut to a whole number; raises what `int(amount)` does.

        Keys and values of `attributes` become text.
        """
        whole = int(amount)
        if recording.active is not None:
            recording.active.metrics.count(self.name, self.unit, whole, attributes, self._only_grows)
        backend = self._backend()
        if backend is not None:
            backend.add(whole, _text(attributes))


class UpDownCounter(Counter):
    """A sum that grows and shrinks."""

    _create = "create_up_down_counter"
    _only_grows = False


class Histogram(_Instrument):
    """An instrument that counts values by their size."""

    _create = "create_histogram"

    def record(self, amount: float, attributes: Mapping[Any, Any] | None = None) -> None:
        """Records one value; raises what `float(amount)` does. `attributes` become text, as in a Counter."""
        value = float(amount)
        if recording.active is not None:
            recording.active.metrics.observe(self.name, self.unit, value, attributes)
        backend = self._backend()
        if backend is not None:
            backend.record(value, _text(attributes))


class Gauge(_Instrument):
    """A value at a time: the last one counts."""

    _create = "create_gauge"

    def set(self, amount: float, attributes: Mapping[Any, Any] | None = None) -> None:
        """The value is `amount` from now on; raises what `float(amount)` does. `attributes` become text, as in a Counter."""
        value = float(amount)
        if recording.active is not None:
            recording.active.metrics.set(self.name, self.unit, value, attributes)
        backend = self._backend()
        if backend is not None:
            backend.set(value, _text(attributes))


class Meter:
    """Makes instruments, as OpenTelemetry's Meter does. Those that report when asked are not supported."""

    def create_counter(self, name: str, unit: str = "", description: str = "") -> Counter:
        return Counter(name, unit, description)

    def create_up_down_counter(self, name: str, unit: str = "", description: str = "") -> UpDownCounter:
        return UpDownCounter(name, unit, description)

    def create_histogram(
        self, name: str, unit: str = "", description: str = "", *, explicit_bucket_boundaries_advisory: Any = None
    ) -> Histogram:
        """The advisory is taken and not passed on: buckets are for the program's OpenTelemetry views."""
        return Histogram(name, unit, description)

    def create_gauge(self, name: str, unit: str = "", description: str = "") -> Gauge:
        return Gauge(name, unit, description)

    def create_observable_counter(self, name: str, *args: Any, **kwargs: Any) -> NoReturn:
        """Raises NotImplementedError."""
        _not_observable("create_observable_counter", name)

    def create_observable_up_down_counter(self, name: str, *args: Any, **kwargs: Any) -> NoReturn:
        """Raises NotImplementedError."""
        _not_observable("create_observable_up_down_counter", name)

    def create_observable_gauge(self, name: str, *args: Any, **kwargs: Any) -> NoReturn:
        """Raises NotImplementedError."""
        _not_observable("create_observable_gauge", name)


def _not_observable(what: str, name: str) -> NoReturn:
    raise NotImplementedError(
        f"{what}({name!r}): instruments that are observed through callbacks are not supported; report values "
        f"with create_counter, create_up_down_counter, create_histogram or create_gauge"
    )


_meter = Meter()


def get_meter() -> Meter:
    """The Meter of this process. What its instruments report goes to telemetry while that runs, and to OpenTelemetry once the
    program has imported it.

        steps = get_meter().create_counter("steps")
        steps.add(1, {"rank": current_rank().rank})

    It has `create_counter`, `create_up_down_counter`, `create_histogram` and `create_gauge`, each of (name, unit="",
    description=""). Instruments that are asked by a callback are a NotImplementedError.
    """
    return _meter
