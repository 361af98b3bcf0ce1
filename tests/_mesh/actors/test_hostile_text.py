"""Text of programs that UTF-8 does not have, exceptions whose own methods fail, texts of megabytes: wherever they enter a
message, whoever waits gets an answer."""

from __future__ import annotations

import logging
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import monarch.config
from monarch._text import TEXT_LIMIT
from monarch.actor import (
    Accumulator,
    Actor,
    ActorError,
    Channel,
    MeshFailure,
    Port,
    SupervisionError,
    concurrent_endpoint,
    context,
    endpoint,
    get_or_spawn_controller,
    this_host,
    wait_graph,
)
from monarch.testing import InProcessCluster, Local
from tests.support.actors import TIMEOUT, fails

pytestmark = pytest.mark.usefixtures("no_leaks")


@pytest.fixture(autouse=True)
def _unlogged() -> Iterator[None]:
    """pytest keeps what is logged, and pytest-xdist cannot send such text to the process that prints it."""
    logger = logging.getLogger("monarch")
    logger.addFilter(_drop)
    yield
    logger.removeFilter(_drop)


def _drop(record: logging.LogRecord) -> bool:
    return False


LONE = os.fsdecode(b"caf\xe9")  # a str that has no UTF-8
SEEN = "caf\\udce9"


# --- exceptions of which something is wrong


class StrRaises(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


class StrExits(Exception):
    def __str__(self) -> str:  # noqa: PLE0307
        sys.exit(3)


class StrIsNone(Exception):
    def __str__(self) -> str:
        given: Any = None
        return given  # type: ignore[no-any-return]


class ReprRaises(Exception):
    def __repr__(self) -> str:
        raise ValueError("no repr")


class ReduceRaises(Exception):
    def __reduce__(self) -> Any:
        raise RuntimeError("not this one")


class ReduceExits(Exception):
    def __reduce__(self) -> Any:
        raise SystemExit(3)


class ReduceGivesAnInt(Exception):
    def __reduce__(self) -> Any:
        return 7


class ReducesToNoException(Exception):
    def __reduce__(self) -> Any:
        return int, (7,)


class ReduceInterrupts(Exception):
    def __reduce__(self) -> Any:
        raise KeyboardInterrupt


class RebuildExits(Exception):
    def __reduce__(self) -> Any:
        return sys.exit, (3,)


class GetattrRaises(Exception):
    def __getattr__(self, name: str) -> Any:
        raise SystemExit(3)


class NotesRaise(Exception):
    @property
    def __notes__(self) -> Any:
        raise SystemExit(3)


def chained() -> Exception:
    error = RuntimeError(f"outer {LONE}")
    error.__cause__ = OSError(2, LONE, LONE)
    return error


def named() -> Exception:
    kind = type("Named", (Exception,), {"__module__": LONE})
    kind.__qualname__ = LONE
    error: Exception = kind("hidden")
    return error


def noted() -> Exception:
    error = RuntimeError("noted")
    error.add_note(LONE)
    return error


def endless() -> Exception:
    error: Exception = RuntimeError("first")
    for number in range(3_000):
        after = RuntimeError(str(number))
        after.__cause__ = error
        error = after
    return error


WRONG: dict[str, Callable[[], Exception]] = {
    "lone surrogate": lambda: RuntimeError(LONE),
    "chained": chained,
    "type of that name": named,
    "note": noted,
    "group": lambda: ExceptionGroup(LONE, [ValueError(LONE), OSError(LONE)]),
    "megabytes": lambda: RuntimeError("x" * (20 << 20)),
    "megabytes of it": lambda: RuntimeError(LONE * (1 << 20)),
    "endless chain": endless,
    "str raises": StrRaises,
    "str exits": StrExits,
    "str is None": StrIsNone,
    "repr raises": lambda: ReprRaises("x"),
    "reduce raises": ReduceRaises,
    "reduce exits": ReduceExits,
    "reduce interrupts": ReduceInterrupts,
    "reduce gives an int": ReduceGivesAnInt,
    "reduces to an int": ReducesToNoException,
    "rebuilding exits": RebuildExits,
    "getattr exits": GetattrRaises,
    "notes exit": NotesRaise,
}


class Thrower(Actor):
    """Raises what is wrong, in the place that its constructor was told."""

    def __init__(self, place: str = "", wrong: str = "") -> None:
        self.place, self.wrong = place, wrong
        self._raise("init")

    def _raise(self, place: str) -> None:
        if self.place == place:
            raise WRONG[self.wrong]()

    @endpoint
    def sync(self, wrong: str) -> None:
        raise WRONG[wrong]()

    @endpoint
    def nothing(self) -> int:
        return 1

    @endpoint
    def give(self, wrong: str) -> Any:
        return WRONG[wrong]()

    @endpoint(explicit_response_port=True)
    def through_port(self, port: Port[Any], wrong: str) -> None:
        port.exception(WRONG[wrong]())

    @endpoint
    def abort(self, reason: str) -> None:
        context().actor_instance.abort(reason)

    @endpoint
    def stop_itself(self, reason: str) -> None:
        context().actor_instance.stop(reason)

    def __cleanup__(self, exc: Exception | None) -> None:
        self._raise("cleanup")


class AsyncThrower(Thrower):
    @endpoint
    async def later(self, wrong: str) -> None:
        raise WRONG[wrong]()

    @concurrent_endpoint
    async def beside(self, wrong: str) -> None:
        raise WRONG[wrong]()


class Owner(Actor):
    def __init__(self, seen: Local[Any]) -> None:
        self.seen = seen

    @endpoint
    def spawn(self, wrong: str) -> None:
        procs = this_host().spawn_procs()
        self.mesh = procs.spawn("thrower", Thrower, "init", wrong)

    def __supervise__(self, failure: MeshFailure) -> bool:
        raise WRONG["lone surrogate"]()


def spawn(*args: Any, kind: type = Thrower, name: str = "thrower") -> Any:
    return this_host().spawn_procs().spawn(name, kind, *args)


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("how", ["sync", "later", "beside"])
def test_an_endpoint_that_raises_it_answers_and_goes_on(cluster: InProcessCluster, wrong: str, how: str) -> None:
    thrower = spawn(kind=AsyncThrower if how != "sync" else Thrower)
    with pytest.raises(ActorError) as caught:
        getattr(thrower, how).call_one(wrong).get(TIMEOUT)
    assert caught.value.exception_formatted
    assert len(caught.value.exception_formatted) <= TEXT_LIMIT + 1_000
    str(caught.value).encode()
    assert thrower.nothing.call_one().get(TIMEOUT) == 1


@pytest.mark.usefixtures("calls_are_in_time")
@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("kind", [Thrower, AsyncThrower])
def test_a_constructor_that_raises_it_fails_its_callers_and_its_owner(
    cluster: InProcessCluster, wrong: str, kind: type
) -> None:
    thrower = spawn("init", wrong, kind=kind)
    with pytest.raises(SupervisionError) as caught:
        thrower.nothing.call_one().get(TIMEOUT)
    str(caught.value).encode()
    report = cluster.next_failure(handled=True).report()
    assert "thrower" in report
    assert len(report) <= TEXT_LIMIT


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("kind", [Thrower, AsyncThrower])
def test_a_cleanup_that_raises_it_ends_the_stop(cluster: InProcessCluster, wrong: str, kind: type) -> None:
    thrower = spawn("cleanup", wrong, kind=kind)
    thrower.nothing.call_one().get(TIMEOUT)
    thrower.stop(LONE).get(TIMEOUT)
    fails(thrower.nothing.call_one())


@pytest.mark.parametrize("wrong", WRONG)
def test_an_endpoint_nobody_waits_for_fails_the_actor(cluster: InProcessCluster, wrong: str) -> None:
    thrower = spawn()
    thrower.sync.broadcast(wrong)
    assert "thrower" in cluster.next_failure().report()
    fails(thrower.nothing.call_one())


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_returned_or_sent_to_a_port_arrives_or_raises(cluster: InProcessCluster, wrong: str) -> None:
    thrower = spawn()
    try:
        thrower.give.call_one(wrong).get(TIMEOUT)
    except Exception:
        pass
    with pytest.raises(Exception):  # noqa: B017
        thrower.through_port.call_one(wrong).get(TIMEOUT)
    assert thrower.nothing.call_one().get(TIMEOUT) == 1


@pytest.mark.parametrize("reason", [LONE, "x" * (5 << 20)])
def test_reasons(cluster: InProcessCluster, reason: str) -> None:
    thrower = spawn()
    thrower.abort.call_one(reason).get(TIMEOUT)
    report = cluster.next_failure().report()
    assert SEEN in report or "characters left out" in report
    stopping = spawn()
    stopping.stop_itself.call_one(reason).get(TIMEOUT)
    fails(stopping.nothing.call_one())
    procs = this_host().spawn_procs()
    other = procs.spawn("other", Thrower)
    other.nothing.call_one().get(TIMEOUT)
    procs.stop(reason).get(TIMEOUT)


def test_names(cluster: InProcessCluster) -> None:
    named: Any = this_host().spawn_procs(name=LONE).spawn(LONE, Thrower)
    assert named.nothing.call_one().get(TIMEOUT) == 1
    assert named.slice().nothing.call_one().get(TIMEOUT) == 1
    fails(named.sync.call_one("lone surrogate"), "caf", error=ActorError)
    long: Any = this_host().spawn_procs().spawn("x" * (20 << 20), Thrower)
    assert long.nothing.call_one().get(TIMEOUT) == 1
    assert get_or_spawn_controller(LONE, Thrower).get(TIMEOUT).nothing.call_one().get(TIMEOUT) == 1
    with cluster.network.hold(target=cluster.address_of(named)):
        called = named.nothing.call_one()
        cluster.kill(named)
        with pytest.raises(SupervisionError) as caught:
            called.get(TIMEOUT)
    str(caught.value)
    assert SEEN in cluster.next_failure(handled=True).report()


def test_names_of_dimensions_and_endpoints_are_refused_where_they_are_given(cluster: InProcessCluster) -> None:
    procs = this_host().spawn_procs({LONE: 2})
    with pytest.raises(ValueError):
        procs.spawn("thrower", Thrower)
    odd = type("Odd", (Thrower,), {})
    setattr(odd, LONE, Thrower.nothing)
    mesh = spawn(kind=odd)
    with pytest.raises(ValueError):
        getattr(mesh, LONE)
    assert mesh.nothing.call_one().get(TIMEOUT) == 1


def test_classes_of_that_name(cluster: InProcessCluster) -> None:
    odd = type("Odd", (Thrower,), {"__module__": __name__})
    odd.__qualname__ = LONE
    mesh = spawn(kind=odd)
    assert mesh.nothing.call_one().get(TIMEOUT) == 1
    cluster.kill(mesh)
    assert SEEN in cluster.next_failure().report()


def test_a_supervise_that_raises_it(cluster: InProcessCluster) -> None:
    owner: Any = this_host().spawn_procs().spawn("owner", Owner, Local(None))
    owner.spawn.call_one("lone surrogate").get(TIMEOUT)
    report = cluster.next_failure().report()
    assert SEEN in report
    assert "while handling" in report


class Waiter(Actor):
    @endpoint
    def hold(self, entered: Local[Any], gate: Local[Any]) -> None:
        entered.value.set()
        gate.value.wait(TIMEOUT)

    @endpoint
    def wait_for(self, other: Any, entered: Local[Any], gate: Local[Any]) -> None:
        other.hold.call_one(entered, gate).get(TIMEOUT)


def test_the_wait_graph_and_timeouts_tell_of_actors_of_that_name(cluster: InProcessCluster) -> None:
    procs = this_host().spawn_procs({"gpus": 2})
    entered, gate = Local(threading.Event()), Local(threading.Event())
    held: Any = procs.slice(gpus=0).spawn(LONE, Waiter)
    waiting: Any = procs.slice(gpus=1).spawn(LONE + "2", Waiter)
    answer = waiting.wait_for.call_one(held, entered, gate)
    entered.value.wait(TIMEOUT)
    graph = wait_graph().get(TIMEOUT)
    assert not graph.silent
    assert SEEN in str(graph)
    with pytest.raises(TimeoutError) as caught:
        held.hold.with_timeout(0.01).call_one(entered, gate).get(TIMEOUT)
    assert "no answer" in str(caught.value)
    gate.value.set()
    answer.get(TIMEOUT)


def test_an_answer_over_the_limit_of_messages_is_replaced(cluster: InProcessCluster) -> None:
    with monarch.config.configured(codec_max_frame_length=20_000):
        thrower = spawn()
        fails(thrower.sync.call_one("megabytes"), error=ActorError)
        failing = spawn("init", "megabytes")
        fails(failing.nothing.call_one())
        cluster.next_failure()


class Hostile:
    """Unpickling it raises."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __reduce__(self) -> Any:
        return _unpickled, (self.kind,)


class Stop(BaseException):
    pass


def _unpickled(kind: str) -> None:
    match kind:
        case "exit":
            sys.exit(3)
        case "interrupt":
            raise KeyboardInterrupt
        case "generator":
            raise GeneratorExit
        case "own":
            raise Stop
        case "str":
            raise StrExits


KINDS = ["exit", "interrupt", "generator", "own", "str"]


class Giver(Actor):
    @endpoint
    def give(self, kind: str) -> Any:
        return Hostile(kind)

    @endpoint
    def take(self, given: Any) -> None:
        raise AssertionError

    @endpoint
    def add(self, a: Any) -> Any:
        return Hostile(a)

    @endpoint(explicit_response_port=True)
    def base(self, port: Port[Any], kind: str) -> None:
        port.exception(KeyboardInterrupt() if kind == "interrupt" else SystemExit(3))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
def test_a_value_whose_unpickling_raises_is_an_exception_of_the_call(cluster: InProcessCluster, kind: str) -> None:
    giver: Any = this_host().spawn_procs().spawn("giver", Giver)
    for future in (giver.give.call_one(kind), giver.give.call(kind), next(giver.give.stream(kind))):
        with pytest.raises(Exception) as caught:
            future.get(TIMEOUT)
        assert isinstance(caught.value, pickle.UnpicklingError) or kind == "str"
    fails(giver.take.call_one(Hostile(kind)), error=ActorError)
    port, receiver = Channel[Any].open()
    port.send(Hostile(kind))
    with pytest.raises(Exception):  # noqa: B017
        receiver.recv().get(TIMEOUT)
    with pytest.raises(Exception):  # noqa: B017
        Accumulator(giver.add, 0, "sum").accumulate(kind).get(TIMEOUT)
    fails(giver.base.call_one(kind), error=ActorError)


def _interrupted() -> None:
    signal.raise_signal(signal.SIGINT)


class Interrupted:
    def __reduce__(self) -> Any:
        return _interrupted, ()


@pytest.mark.parametrize("handler", ["default", "function", "partial", "object"])
def test_ctrl_c_while_a_value_is_unpickled_is_still_one(cluster: InProcessCluster, handler: str) -> None:
    import functools

    def on_signal(*args: Any) -> None:
        raise SystemExit(9)

    class Handler:
        def __call__(self, number: int, frame: Any) -> None:
            on_signal()

    chosen = {
        "default": signal.default_int_handler,
        "function": on_signal,
        "partial": functools.partial(on_signal, 1),
        "object": Handler(),
    }[handler]
    giver: Any = this_host().spawn_procs().spawn("giver", Echo)
    before = signal.signal(signal.SIGINT, chosen)
    try:
        future = giver.give.call_one()
        with pytest.raises(KeyboardInterrupt if handler == "default" else SystemExit):
            future.get(TIMEOUT)
    finally:
        signal.signal(signal.SIGINT, before)


class Echo(Actor):
    @endpoint
    def give(self) -> Any:
        return Interrupted()


class Refusing(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        raise SystemExit(3)


@pytest.mark.parametrize("kind", [Thrower, AsyncThrower])
def test_a_log_filter_that_raises_keeps_nobody_waiting(cluster: InProcessCluster, kind: type) -> None:
    logger = logging.getLogger("monarch")
    refusing = Refusing()
    thrower = spawn("cleanup", "lone surrogate", kind=kind)
    thrower.nothing.call_one().get(TIMEOUT)
    logger.addFilter(refusing)
    try:
        thrower.stop().get(TIMEOUT)
    finally:
        logger.removeFilter(refusing)
