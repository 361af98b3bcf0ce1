"""Spans and metrics, with a stand-in for OpenTelemetry in `sys.modules` where one is needed."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import pickle
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest

from monarch._mesh.actors.behaviour import Method
from monarch.actor import Actor, endpoint, get_meter, span, traced
from monarch.config import configured


class FakeApi:
    """The two modules of the API, and what was reported through them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.spans: list[Any] = []
        self.reports: list[tuple[str, str, Any, Any]] = []
        self.made: list[tuple[str, str, str, str]] = []
        trace = types.ModuleType("opentelemetry.trace")
        trace.get_tracer = lambda scope: types.SimpleNamespace(  # type: ignore[attr-defined]
            start_as_current_span=self._span
        )
        metrics = types.ModuleType("opentelemetry.metrics")
        kinds = ("create_counter", "create_up_down_counter", "create_histogram", "create_gauge")
        metrics.get_meter = lambda scope: types.SimpleNamespace(  # type: ignore[attr-defined]
            **{kind: self._maker(kind) for kind in kinds}
        )
        monkeypatch.setitem(sys.modules, "opentelemetry.trace", trace)
        monkeypatch.setitem(sys.modules, "opentelemetry.metrics", metrics)

    @contextlib.contextmanager
    def _span(self, name: str) -> Iterator[None]:
        self.spans.append(("begin", name))
        try:
            yield
        except BaseException as exc:
            self.spans.append(("raised", name, type(exc).__name__))
            raise
        else:
            self.spans.append(("end", name))

    def _maker(self, kind: str) -> Any:
        def make(name: str, unit: str, description: str) -> Any:
            def report(amount: Any, attributes: Any) -> None:
                self.reports.append((kind, name, amount, attributes))

            self.made.append((kind, name, unit, description))
            return types.SimpleNamespace(add=report, record=report, set=report)

        return make


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> FakeApi:
    return FakeApi(monkeypatch)


@pytest.fixture
def no_api(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "opentelemetry"]:
        monkeypatch.delitem(sys.modules, name)


# --- without OpenTelemetry


@pytest.mark.usefixtures("no_api")
def test_without_a_backend_everything_runs_and_nothing_is_imported() -> None:
    @traced
    def double(x: int) -> int:
        return 2 * x

    with span("outer"), span("inner"):
        assert double(2) == 4
    get_meter().create_counter("jobs").add(1, {"a": 1})
    get_meter().create_histogram("time").record(0.5)
    assert not any(name.partition(".")[0] == "opentelemetry" for name in sys.modules)


@pytest.mark.usefixtures("no_api")
def test_without_a_backend_an_exception_leaves_the_span() -> None:
    with pytest.raises(KeyError), span("outer"):
        raise KeyError("x")


# --- spans


def test_a_span_has_its_name_and_its_end(api: FakeApi) -> None:
    with span("outer"), span("inner"):
        pass
    assert api.spans == [("begin", "outer"), ("begin", "inner"), ("end", "inner"), ("end", "outer")]


def test_a_span_that_is_left_by_an_exception_sees_it(api: FakeApi) -> None:
    with pytest.raises(KeyError), span("outer"):
        raise KeyError("x")
    assert api.spans == [("begin", "outer"), ("raised", "outer", "KeyError")]


def test_the_setting_switches_spans_off(api: FakeApi) -> None:
    with configured(enable_otel_tracing=False), span("outer"):
        pass
    assert api.spans == []


@pytest.mark.parametrize("name", [None, 3, b"x"])
def test_the_name_of_a_span_is_text(name: Any) -> None:
    with pytest.raises(TypeError, match="the name of a span is a string"):
        span(name)


def test_traced_functions_keep_what_they_are(api: FakeApi) -> None:
    @traced
    def plain(x: int, *, y: int = 1) -> int:
        """Adds."""
        return x + y

    @traced(name="other")
    async def later(x: int) -> int:
        return x

    assert (plain.__name__, plain.__doc__) == ("plain", "Adds.")
    assert list(inspect.signature(plain).parameters) == ["x", "y"]
    assert inspect.iscoroutinefunction(later) and not inspect.iscoroutinefunction(plain)
    assert plain(1, y=2) == 3
    assert asyncio.run(later(5)) == 5
    assert [begun[1] for begun in api.spans if begun[0] == "begin"] == [plain.__qualname__, "other"]


def test_the_span_of_an_async_function_lasts_until_it_returns(api: FakeApi) -> None:
    @traced(name="whole")
    async def work() -> None:
        await asyncio.sleep(0)
        api.spans.append("working")

    asyncio.run(work())
    assert api.spans == [("begin", "whole"), "working", ("end", "whole")]


def test_traced_wants_a_function() -> None:
    class Some(Actor):
        @endpoint
        def work(self) -> None: ...

    with pytest.raises(TypeError, match="@endpoint goes above @traced"):
        traced(Some.work)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="the name of a span is a string"):
        traced(name=3)  # type: ignore[call-overload]


# --- endpoints


class Worker(Actor):
    @endpoint
    def plain(self, x: int) -> int:
        return x

    @endpoint
    async def later(self, x: int) -> int:
        return x

    @endpoint(instrument=False)
    def quiet(self, x: int) -> int:
        return x


def test_endpoints_run_in_a_span_named_after_the_method(api: FakeApi) -> None:
    worker = Worker()
    assert Method(worker, "plain").fn(1) == 1
    later = Method(worker, "later")
    assert later.is_async and asyncio.run(later.fn(2)) == 2
    assert Method(worker, "quiet").fn(3) == 3
    assert [begun[1] for begun in api.spans if begun[0] == "begin"] == ["plain", "later"]


@pytest.mark.usefixtures("no_api")
def test_endpoints_are_called_directly_where_nobody_listens() -> None:
    worker = Worker()
    assert Method(worker, "plain").fn == worker.plain


# --- metrics


def test_instruments_pass_on_what_they_are_told(api: FakeApi) -> None:
    meter = get_meter()
    meter.create_counter("jobs", "1", "jobs done").add(2.7, {"rank": 3, 4: None})
    meter.create_up_down_counter("open").add(-1)
    meter.create_histogram("time", unit="s").record(1, {})
    assert api.made == [
        ("create_counter", "jobs", "1", "jobs done"),
        ("create_up_down_counter", "open", "", ""),
        ("create_histogram", "time", "s", ""),
    ]
    assert api.reports == [
        ("create_counter", "jobs", 2, {"rank": "3", "4": "None"}),
        ("create_up_down_counter", "open", -1, None),
        ("create_histogram", "time", 1.0, None),
    ]
    assert [type(amount) for _, _, amount, _ in api.reports] == [int, int, float]


def test_an_instrument_is_made_once_and_when_the_backend_is_there(
    no_api: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    counter = get_meter().create_counter("jobs")
    counter.add(1)
    api = FakeApi(monkeypatch)
    counter.add(2)
    counter.add(3)
    assert [amount for _, _, amount, _ in api.reports] == [2, 3]
    assert len(api.made) == 1


def test_the_setting_switches_metrics_off(api: FakeApi) -> None:
    with configured(enable_otel_metrics=False):
        get_meter().create_counter("jobs").add(1)
    assert api.reports == []


@pytest.mark.parametrize("backend", ["api", "no_api"])
def test_what_is_no_number_is_refused_with_and_without_a_backend(backend: str, request: pytest.FixtureRequest) -> None:
    request.getfixturevalue(backend)
    with pytest.raises(ValueError):
        get_meter().create_counter("jobs").add("many")  # type: ignore[arg-type]
    with pytest.raises(ValueError):
        get_meter().create_histogram("time").record("long")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="needs a name"):
        get_meter().create_counter("")


def test_an_instrument_can_be_sent(api: FakeApi) -> None:
    counter = get_meter().create_counter("jobs", "1", "jobs done")
    counter.add(1)
    copy = pickle.loads(pickle.dumps(counter))
    assert (type(copy), copy.name, copy.unit, copy.description) == (type(counter), "jobs", "1", "jobs done")


def test_a_gauge_passes_its_value_on(api: FakeApi) -> None:
    level = get_meter().create_gauge("level", "%", "how full")
    level.set(1, {"tank": 2})
    assert api.reports == [("create_gauge", "level", 1.0, {"tank": "2"})]
    with pytest.raises(ValueError):
        level.set("much")  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["counter", "up_down_counter", "gauge"])
def test_observable_instruments_are_refused(kind: str) -> None:
    with pytest.raises(NotImplementedError, match="callbacks are not supported"):
        getattr(get_meter(), f"create_observable_{kind}")("x", callbacks=[])
