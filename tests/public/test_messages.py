"""Tests that a message names the mistake and the way out: each row is a mistake and the words that its message holds.

A message is the exception's text and its notes, as a traceback shows them.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

import monarch
from monarch._mesh.actors import receivers
from monarch.actor import Actor, Channel, concurrent_endpoint, endpoint, get_or_spawn_controller, this_host, wait_graph
from monarch.testing import InProcessCluster, Local
from tests.support.patience import TIMEOUT
from tests.support.scripts import Scripts


class Counter(Actor):
    def __init__(self, start: Any = 0) -> None:
        self.value = start

    @endpoint
    def add(self, n: Any) -> int:
        return 1

    @endpoint
    def lock(self) -> Any:
        return {"a": [1, threading.Lock()]}

    @endpoint
    def numbers(self) -> Any:
        yield 1

    @endpoint
    def debug(self) -> Any:
        import bdb

        raise bdb.BdbQuit

    @endpoint
    def ask(self) -> Any:
        raise EOFError("EOF when reading a line")


class Holder:
    def __init__(self) -> None:
        self.sock = socket.socket()
        self.sock.close()


class Waits(Actor):
    """An async endpoint that another one of the same actor would have to wake."""

    def __init__(self) -> None:
        self.event = asyncio.Event()

    @endpoint
    async def wait(self, begun: Local[threading.Event]) -> None:
        begun.value.set()
        await self.event.wait()

    @endpoint
    async def wake(self) -> None:
        self.event.set()

    @concurrent_endpoint
    async def beside(self) -> None:
        await self.event.wait()


class World(NamedTuple):
    host: Any
    procs: Any
    counters: Any  # on two ranks
    one: Any
    waits: Any


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with InProcessCluster():
        host = this_host()
        procs = host.spawn_procs({"gpus": 2})
        counters = procs.spawn("counters", Counter)
        yield World(host, procs, counters, counters.slice(gpus=1), host.spawn_procs().spawn("waits", Waits))


def said(error: BaseException) -> str:
    return "\n".join([str(error), *getattr(error, "__notes__", ())])


class Guarded:
    """Cannot be pickled because of what is deep inside."""

    __slots__ = ("inner",)

    def __init__(self) -> None:
        self.inner = Holder()


def closed(mode: str) -> Any:
    """A file, closed: it is as little to be sent as an open one."""
    with open(__file__, mode) as file:
        return file


def stopped(mesh: Any) -> Any:
    mesh.stop().get(TIMEOUT)
    return mesh


def on_stopped(procs: Any) -> Any:
    actors = procs.spawn("short", Counter)
    procs.stop().get(TIMEOUT)
    return actors


LOCK = threading.Lock()
RESULT = [".get()", "await"]
FUTURE = ["Future", "counters.add()", *RESULT]

Mistake = Callable[[World], Any]
ROWS: dict[str, tuple[Mistake, type[BaseException], list[str]]] = {
    # a Future taken for its result
    "iterating over a Future": (lambda w: list(w.counters.add.call(1)), TypeError, ["not iterable", *FUTURE]),
    "a ValueMesh's method": (lambda w: w.counters.add.call(1).values(), AttributeError, ["'values'", *FUTURE]),
    "a tensor's attribute": (lambda w: w.one.add.call_one(1).shape, AttributeError, ["'shape'", *FUTURE]),
    "adding to a Future": (lambda w: w.one.add.call_one(1) + 1, TypeError, ["+: 'Future' and 'int'", *FUTURE]),
    "adding a Future": (lambda w: 1 + w.one.add.call_one(1), TypeError, ["+: 'int' and 'Future'", *FUTURE]),
    "comparing": (lambda w: w.one.add.call_one(1) < 1, TypeError, ["<: 'Future' and 'int'", *FUTURE]),
    "subscripting": (lambda w: w.one.add.call_one(1)[0], TypeError, ["not subscriptable", *FUTURE]),
    "formatting": (lambda w: f"{w.one.add.call_one(1):.3f}", TypeError, ["'.3f'", *FUTURE]),
    "float()": (lambda w: float(w.one.add.call_one(1)), TypeError, FUTURE),
    "concurrent.futures' done()": (lambda w: w.one.add.call_one(1).done(), AttributeError, ["get(timeout=0)"]),
    "cancelling": (lambda w: w.one.add.call_one(1).cancel(), AttributeError, ["with_timeout"]),
    "an endpoint of a Future": (
        lambda w: get_or_spawn_controller("c", Counter).add.call_one(1),
        AttributeError,
        ["'add'", *RESULT],
    ),
    # a mesh taken for a list, or for the actors themselves
    "mesh[0]": (lambda w: w.counters[0], TypeError, ["ActorMesh", "gpus: 2", ".slice(gpus=0)"]),
    "mesh[1:]": (lambda w: w.procs[1:], TypeError, ["ProcMesh", ".slice(gpus=slice(1, None, None))"]),
    "for actor in mesh": (lambda w: list(w.counters), TypeError, ["nor iterable", ".slice(gpus=0)"]),
    "a mesh of one rank": (lambda w: w.one[0], TypeError, ["no dimensions", "one rank"]),
    "mesh.slice(0)": (lambda w: w.counters.slice(0), TypeError, ["positional", "mesh.slice(gpus=0)"]),
    "rank + 1": (
        lambda w: next(w.counters.add.call(1).get(TIMEOUT).items())[0] + 1,
        TypeError,
        ["+: 'Point' and 'int'", ".rank", "['gpus']"],
    ),
    "int(rank)": (lambda w: int(monarch.actor.current_rank()), TypeError, ["Point", ".rank"]),
    "values[0]": (lambda w: w.counters.add.call(1).get(TIMEOUT)[0], TypeError, [".values()", ".item(gpus=0)"]),
    "sum(values)": (lambda w: sum(w.counters.add.call(1).get(TIMEOUT)), TypeError, ["pair", "sum(mesh.values())"]),
    "a stopped mesh": (
        lambda w: stopped(w.procs.spawn("short", Counter)).add.call(1).get(TIMEOUT),
        monarch.actor.SupervisionError,
        ["short.add()", "stopped: stopped by client", "spawn it anew"],
    ),
    "a mesh of stopped processes": (
        lambda w: on_stopped(w.host.spawn_procs()).add.call(1).get(TIMEOUT),
        monarch.actor.SupervisionError,
        ["short.add()", "stopped: the process was stopped", "spawn_procs()"],
    ),
    "mesh.value = 3": (
        lambda w: setattr(w.counters, "value", 3),
        AttributeError,
        ["'value'", "'counters'", "other processes", "endpoint of Counter", "spawn"],
    ),
    "procs.value = 3": (lambda w: setattr(w.procs, "value", 3), AttributeError, ["ProcMesh", "variable of your own"]),
    "with procs": (lambda w: contextlib.ExitStack().enter_context(w.procs), TypeError, ["async with", ".stop()"]),
    "an endpoint of the processes": (lambda w: w.procs.add, AttributeError, ["'add'", "spawn()"]),
    # spawning
    "spawn_procs(4)": (lambda w: w.host.spawn_procs(4), TypeError, ['{"gpus": 4}', "got 4"]),
    "spawn_procs(gpus=4)": (
        lambda w: w.host.spawn_procs(gpus=4),
        TypeError,
        ["'gpus'", 'host.spawn_procs({"gpus": 4})'],
    ),
    "spawn_procs('gpus')": (lambda w: w.host.spawn_procs("gpus"), TypeError, ['{"gpus": 4}', "'gpus'"]),
    "host.spawn": (lambda w: w.host.spawn("x", Counter), AttributeError, ["spawn_procs", '.spawn("name", Class)']),
    "spawn(Class, name)": (lambda w: w.procs.spawn(Counter, "x"), TypeError, ["name first", "Counter"]),
    "spawn(Class)": (lambda w: w.procs.spawn(Counter), TypeError, ["a name first, then the class", 'spawn("counters"']),
    # what cannot be sent
    "a lock for __init__": (
        lambda w: w.procs.spawn("x", Counter, start={"a": [LOCK]}),
        TypeError,
        ["Counter", "'x'", "start['a'][0] cannot be sent", "_thread.lock", "make them where they are used"],
    ),
    "a socket in an argument": (
        lambda w: w.counters.add.call(Holder()),
        TypeError,
        ["arguments of counters.add()", "n.sock cannot be sent", "socket.socket"],
    ),
    "an open file": (
        lambda w: w.counters.add.call({"log": closed("r")}),
        TypeError,
        [
            "an open file",
            "test_messages.py",
            "send its path",
            "file.read()",
            "n['log'] cannot be sent",
            "nothing was sent",
        ],
    ),
    "a binary file": (
        lambda w: w.counters.add.call(closed("rb")),
        TypeError,
        ["n cannot be sent", "BufferedReader", "a path"],
    ),
    "a misspelt endpoint": (lambda w: w.counters.ad, AttributeError, ["no endpoint 'ad'", "Did you mean: 'add'?"]),
    "a misspelt dimension": (lambda w: w.counters.slice(gpu=0), TypeError, ["'gpu'", "Did you mean 'gpus'?"]),
    "slots": (lambda w: w.counters.add.call([Guarded()]), TypeError, ["n[0].inner.sock cannot be sent"]),
    "a variable of a function": (
        lambda w: w.counters.add.call(lambda: LOCK),
        TypeError,
        ["LOCK (which n uses) cannot be sent", "_thread.lock"],
    ),
    "a Future as an argument": (
        lambda w: w.counters.add.call({"f": w.one.add.call_one(1)}),
        TypeError,
        ["send its result", "n['f'] cannot be sent"],
    ),
    "a lock as a return value": (
        lambda w: w.counters.lock.call().get(TIMEOUT),
        monarch.actor.ActorError,
        ["the return value of Counter.lock", "result['a'][1] cannot be sent"],
    ),
    "an endpoint that yields": (
        lambda w: w.counters.numbers.call().get(TIMEOUT),
        monarch.actor.ActorError,
        ["the return value of Counter.numbers", "a list of its values"],
    ),
    "a receiver through a Port": (
        lambda w: Channel[Any].open()[0].send([1, Channel[Any].open()[1]]),
        TypeError,
        ["a message for a Port", "obj[1] cannot be sent", "send the Port"],
    ),
    # in the actor's process
    "breakpoint()": (
        lambda w: w.one.debug.call_one().get(TIMEOUT),
        monarch.actor.ActorError,
        ["stdin is /dev/null", "this_proc().spawn", "PYTHONBREAKPOINT"],
    ),
    "input()": (lambda w: w.one.ask.call_one().get(TIMEOUT), monarch.actor.ActorError, ["/dev/null", "argument"]),
    # time limits, and settings
    "call(timeout=3)": (
        lambda w: w.counters.add.call(1, timeout=3),
        TypeError,
        ["Counter.add(", "with_timeout(seconds)"],
    ),
    "get(timeout)": (
        lambda w: w.waits.beside.call_one().get(0),
        TimeoutError,
        ["no result after 0.0 s", "from waits.beside(), rank(s) 0", "the operation goes on", "wait_graph()"],
    ),
    "with_timeout": (
        lambda w: w.waits.beside.with_timeout(0.01).call_one().get(TIMEOUT),
        TimeoutError,
        ["waits.beside()", "rank(s) 0", "wait_graph()"],
    ),
    "a misspelt setting": (
        lambda w: monarch.configure(clenup_timeout="3s"),
        ValueError,
        ["`clenup_timeout`", "did you mean `cleanup_timeout`?", "docs/settings.md"],
    ),
    "an unknown setting": (lambda w: monarch.configure(nope=1), ValueError, ["`nope`", "docs/settings.md"]),
}


@pytest.mark.parametrize("mistake", ROWS)
def test_a_mistake_is_named_with_the_way_out(mistake: str, world: World) -> None:
    make, kind, words = ROWS[mistake]
    with pytest.raises(kind) as caught:
        make(world)
    text = said(caught.value)
    assert [word for word in words if word not in text] == [], text


def test_what_a_future_prints(world: World) -> None:
    future = world.counters.add.call(1)
    assert "Future of counters.add(), " in repr(future) and ".get() or await" in repr(future)
    waiting = world.waits.beside.call_one()
    assert "waits.beside(), pending for 0." in repr(waiting)
    future.get(TIMEOUT)
    assert repr(future) == "<Future done: ValueMesh>"
    stream = list(world.counters.add.stream(1))
    assert "counters.add()" in repr(stream[0])
    assert "a message of a Channel" in repr(Channel[Any].open()[1].recv())


def test_what_is_no_call_says_what_it_is_the_result_of() -> None:
    with InProcessCluster():
        host = this_host()
        procs = host.spawn_procs({"gpus": 3}, name="trainers")
        counters = procs.spawn("counters", Counter)
        futures = {
            "the start of mesh 'trainers'": procs.initialized,
            "healthy() of 'trainers'": procs.healthy(),
            "healthy() of counters-": counters.healthy(),
            "counters.restart(), rank(s) 1": counters.restart(gpus=1),
            "restart() of mesh 'trainers', rank(s) 2": procs.restart(gpus=2),
            "counters.stop()": counters.stop(),
            "stop() of mesh 'trainers'": procs.stop(),
        }
        for of, future in futures.items():
            assert of in repr(future)
        for future in futures.values():
            future.exception(TIMEOUT)


def test_only_calls_are_in_the_wait_graph(world: World) -> None:
    with pytest.raises(TimeoutError, match=r"no result after 0\.0 s from the senders of its Port; .*again\)$"):
        Channel[Any].open()[1].recv().get(0)


def test_how_many_have_answered_is_in_a_future() -> None:
    with InProcessCluster():
        waits = this_host().spawn_procs({"gpus": 3}).spawn("waits", Waits)
        future = waits.beside.call()
        assert "pending for 0.0 s, 0 of 3 rank(s) answered" in repr(future)


def test_futures_offer_no_names_that_they_refuse(world: World) -> None:
    future = world.one.add.call_one(1)
    assert not hasattr(future, "values") and "values" not in dir(future) and "get" in dir(future)
    assert not hasattr(type(future), "values")
    assert bool(future) and future != 1 and future in {future}


def test_a_mock_may_take_the_place_of_an_endpoint(world: World) -> None:
    mesh = world.counters.slice(gpus=0)
    mesh.add = mock = object()
    assert mesh.add is mock


def test_endpoints_that_wait_behind_an_async_one_are_told_of_concurrent_endpoint() -> None:
    with InProcessCluster():
        waits = this_host().spawn_procs().spawn("waits", Waits)
        begun = threading.Event()
        first, second, third = waits.wait.call_one(Local(begun)), waits.beside.call_one(), waits.beside.call_one()
        assert begun.wait(TIMEOUT)
        graph = wait_graph().get(TIMEOUT)
        assert graph.handlers[0].waiting == ["beside"]
        text = str(graph)
        assert "2 message(s) of this actor wait behind it: beside(), because wait() is an @endpoint" in text
        assert "@concurrent_endpoint" in text
        del first, second, third


@pytest.mark.parametrize("limit", ["get", "with_timeout"])
def test_a_call_that_waits_for_an_earlier_one_names_it_when_time_is_up(limit: str) -> None:
    with InProcessCluster():
        waits = this_host().spawn_procs({"gpus": 2}).spawn("waits", Waits)
        one, begun = waits.slice(gpus=0), threading.Event()
        first = waits.wait.call(Local(begun))
        with pytest.raises(TimeoutError) as caught:
            if limit == "get":
                one.beside.call_one().get(0)
            else:
                one.beside.with_timeout(0.01).call_one().get(TIMEOUT)
        assert (
            ". waits.beside() waits because waits.wait() is an @endpoint, was called before and has not returned: "
            "only calls of a @concurrent_endpoint run side by side. print("
        ) in str(caught.value)
        with pytest.raises(TimeoutError) as caught:
            first.get(0)  # nothing was called before it
        assert "because" not in str(caught.value)
        other = waits.slice(gpus=1)
        beside = other.beside.call_one()
        with pytest.raises(TimeoutError) as caught:
            one.beside.call_one().get(0)
        assert "waits because waits.wait()" in str(caught.value)  # not the concurrent one, nor that of the other rank
        del beside


def test_a_call_that_waits_for_no_earlier_one_names_none() -> None:
    with InProcessCluster():
        waits = this_host().spawn_procs({"gpus": 2}).spawn("waits", Waits)
        first, second = (
            waits.slice(gpus=0).wait.call_one(Local(threading.Event())),
            waits.slice(gpus=0).beside.call_one(),
        )
        with pytest.raises(TimeoutError) as caught:
            waits.slice(gpus=1).beside.call_one().get(0)
        assert "because" not in str(caught.value)
        del first, second


@pytest.mark.parametrize("size", [1000, 1 << 18], ids=["in-the-body", "beside-it"])
def test_large_arguments_are_warned_of_once_with_the_way_out(
    size: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(receivers, "_warned", False)
    with monarch.configured(large_argument_bytes=size), InProcessCluster():
        counters = this_host().spawn_procs({"gpus": 2}).spawn("counters", Counter)
        counters.add.call(bytes(size // 2)).get(TIMEOUT)
        assert caplog.messages == []
        for _ in range(2):
            counters.add.call(bytes(size)).get(TIMEOUT)
        this_host().spawn_procs().spawn("more", Counter, bytes(size))
        (text,) = caplog.messages
    assert "the arguments of counters.add() are " in text and "for 2 actors" in text
    assert "RDMABuffer" in text and "docs/how-to/large-data.md" in text and "large_argument_bytes" in text


def test_large_arguments_of_a_constructor_are_warned_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(receivers, "_warned", False)
    with monarch.configured(large_argument_bytes=5000), InProcessCluster():
        this_host().spawn_procs().spawn("more", Counter, bytes(5000))
        (text,) = caplog.messages
    assert "the arguments of 'more' are 5 KiB, for 1 actor:" in text


WRONG_CONSTRUCTOR = """
    import time
    from monarch.actor import Actor, endpoint, this_host

    class Wrong(Actor):
        def __init__(self):
            raise ValueError("no such file")

    this_host().spawn_procs({"gpus": 4}).spawn("wrong", Wrong)
    try:
        time.sleep(30)
    except KeyboardInterrupt:
        pass
"""


@pytest.mark.procs
def test_a_constructor_that_raises_on_every_rank_is_reported_in_full_once(scripts: Scripts) -> None:
    done = scripts.run(WRONG_CONSTRUCTOR, check=False)
    assert done.stderr.count("Wrong.__init__ raised:") == 1
    assert "ValueError: no such file" in done.stderr


CRASH = """
    import ctypes
    from monarch.actor import Actor, endpoint, this_host

    class Crashes(Actor):
        @endpoint
        def crash(self, depth):
            self.down(depth)

        def down(self, depth):
            return self.down(depth - 1) if depth else ctypes.string_at(0)

    crashes = this_host().spawn_procs().spawn("crashes", Crashes)
    try:
        crashes.crash.call_one(60).get()
    except BaseException as error:
        print(error)
"""


@pytest.mark.procs
def test_a_crash_is_named_with_its_stack(scripts: Scripts) -> None:
    text = scripts.run(CRASH, check=False).stdout
    for word in ("SIGSEGV", "native code", "Fatal Python error: Segmentation fault", "in string_at", "in down"):
        assert word in text
