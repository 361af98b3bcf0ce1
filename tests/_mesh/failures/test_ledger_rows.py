"""Failures, row by row: who raises what, where, to whom, and what becomes of everybody else.

On an in-process cluster: what reaches its root client and is not taken by `cluster.next_failure()` fails the test, so every
test here also says that nothing else was reported. What needs real processes is in `tests/procs/test_supervision.py`.
"""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import queue
import re
import socket
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

import monarch
from monarch.actor import (
    ActorAddr,
    ActorError,
    Channel,
    Future,
    MeshFailure,
    MessageTooLargeError,
    Port,
    SupervisionError,
    bind_context,
    context,
    current_actor_name,
    current_rank,
    current_size,
    send,
    this_host,
)
from monarch.testing import InProcessCluster, Local, VirtualClock
from tests.support.actors import (
    TIMEOUT,
    Async,
    AsyncOwner,
    Concurrent,
    Gate,
    MixedOwner,
    Script,
    Scripted,
    Sync,
    SyncOwner,
    do,
    fails,
    own,
    raising,
)
from tests.support.pairs import pairs

pytestmark = pytest.mark.usefixtures("no_leaks", "cluster")


KINDS = [Sync, Async]
OWNERS = [SyncOwner, AsyncOwner, MixedOwner]
kinds = pytest.mark.parametrize("kind", KINDS)
owners = pytest.mark.parametrize("kind", OWNERS)


def _hook(entry: Any) -> Any:
    """The name of what happened, without its arguments."""
    return entry if isinstance(entry, str) else entry[0]


def spawn(kind: Any, script: Script | None = None, name: str = "a", procs: Any = None) -> Any:
    """A mesh of one, in a process of its own unless said otherwise."""
    return (procs or this_host().spawn_procs()).spawn(name, kind, Local(script or Script()))


def owning(kind: Any, *, gpus: int = 2, **hooks: Callable[..., Any]) -> tuple[Any, Any, Script]:
    """An actor that does so when asked, the mesh that it owns, and its script, from which its `init` is taken."""
    owner = spawn(kind, script := Script(**hooks), "owner")
    child = own(owner, gpus=gpus)
    assert script.next() == "init"
    return owner, child, script


# --- The types and their texts.

# `<root>.<module.Class name{'gpus': 1/2}>`; the module's name depends on how the tests are collected.
DISPLAY = r"<root>\.<[\w./-]*Sync a\{'gpus': 1/2\}>"
FAILED = rf"The actor {DISPLAY} and all its descendants have failed:\n    "


def pair(kind: Any = Sync) -> tuple[Any, Any]:
    """Two actors, each in its process, that live."""
    procs = this_host().spawn_procs({"gpus": 2})
    mesh = procs.spawn("a", kind, Local(Script()))
    mesh.ping.call().get(TIMEOUT)
    return procs, mesh


def test_an_actor_error_has_its_exception_its_message_and_the_remote_traceback(cluster: InProcessCluster) -> None:
    def with_cause(actor: Any) -> None:
        try:
            raise KeyError("the root of it")
        except KeyError as exc:
            raise ValueError("on top") from exc

    with pytest.raises(ActorError) as caught:
        do(spawn(Sync), with_cause)
    error = caught.value
    assert isinstance(error, Exception) and not isinstance(error, RuntimeError)
    assert isinstance(error.exception, ValueError) and error.exception.args == ("on top",)
    assert error.message == "Actor call a.do failed."
    place = f" Rank 0 on {socket.gethostname()}, pid {os.getpid()}"
    assert str(error) == f"{error.message}\n{place}\n {error.exception_formatted}"
    heading = "Traceback of where the remote call failed (most recent call last):"
    assert error.exception_formatted.count(heading) == 2  # its own, and the cause's
    assert "Traceback (most recent call last):" not in error.exception_formatted
    assert re.search(
        r"KeyError: 'the root of it'.*direct cause.*in with_cause.*ValueError: on top\n$",
        error.exception_formatted,
        re.DOTALL,
    )
    assert error.__cause__ is None
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.message, again.exception_formatted) == (
        str(error),
        error.message,
        error.exception_formatted,
    )


def test_an_actor_error_can_be_made_by_hand() -> None:
    error = ActorError(ValueError("by hand"))
    assert error.message == "A remote actor call has failed."
    assert "ValueError: by hand" in str(error)


def test_a_supervision_error_names_the_endpoint_and_the_report(cluster: InProcessCluster) -> None:
    _, mesh = pair()
    mesh.slice(gpus=1).do.broadcast(Local(raising(ValueError("worn out"))))
    report = cluster.next_failure().report()
    error = mesh.ping.call().exception(TIMEOUT)
    assert isinstance(error, SupervisionError) and isinstance(error, RuntimeError)
    assert str(error) == f"Endpoint call a.ping() failed, {report}"
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is SupervisionError and str(again) == str(error)
    assert str(SupervisionError("only a report")) == "only a report"


def test_a_mesh_failure_names_mesh_ranks_and_event_and_stays_where_it_is(cluster: InProcessCluster) -> None:
    _, mesh = pair()
    mesh.slice(gpus=1).do.broadcast(Local(raising(ValueError("worn out"))))
    failure = cluster.next_failure()
    assert not isinstance(failure, BaseException)
    assert failure.mesh_name == mesh._name.get(TIMEOUT)
    assert failure.crashed_ranks == [1]
    assert re.fullmatch(
        rf"MeshFailure\(mesh_name=a-\w+, crashed_ranks=\[1\], event=Supervision event: actor {DISPLAY} failed: "
        rf"ValueError: worn out\)",
        str(failure),
    )
    with pytest.raises(TypeError):
        pickle.dumps(failure)
    with pytest.raises(TypeError):
        MeshFailure()  # type: ignore[call-arg]
    survivor = mesh.slice(gpus=0)
    with pytest.raises(TypeError, match=r"send its report\(\)"):
        survivor.do.call_one(Local(print), failure)
    assert survivor.ping.call_one().get(TIMEOUT) == "pong"


def test_the_report_of_an_exception(cluster: InProcessCluster) -> None:
    _, mesh = pair()
    mesh.slice(gpus=1).do.broadcast(Local(raising(ValueError("worn out"))))
    heading = r"Traceback of where the remote call failed \(most recent call last\):"
    shape = rf"{FAILED}actor explicitly aborted due to: {heading}\n(    .*\n)+    ValueError: worn out"
    assert re.fullmatch(shape, cluster.next_failure().report())


@pytest.mark.parametrize(("reason", "text"), [("out of luck", "out of luck"), (None, r"\(no reason provided\)")])
def test_the_report_of_an_abort(cluster: InProcessCluster, reason: str | None, text: str) -> None:
    _, mesh = pair()
    do(mesh.slice(gpus=1), lambda actor: context().actor_instance.abort(reason))
    failure = cluster.next_failure()
    assert re.fullmatch(rf"{FAILED}actor explicitly aborted due to: {text}", failure.report())


@pytest.mark.parametrize(("code", "text"), [(-9, r"Killed\(sig=9\)"), (7, "exited with non-zero code 7")])
def test_the_report_of_a_lost_process(cluster: InProcessCluster, code: int, text: str) -> None:
    procs, _ = pair()
    cluster.kill(procs, 1, code=code)
    failure = cluster.next_failure()
    shape = rf"{FAILED}the process this actor was running on failed: {text}\n    rank 1 of a-\w+, pid \d+, at \S+"
    assert re.fullmatch(shape, failure.report())
    assert re.fullmatch(rf"Supervision event: actor {DISPLAY} failed: .*{text}.*", failure.event)


def test_the_report_of_a_process_that_exited_cleanly(cluster: InProcessCluster) -> None:
    procs, mesh = pair()
    cluster.kill(procs, 1, code=0)
    text = fails(mesh.ping.call())
    shape = (
        rf"Endpoint call a\.ping\(\) failed, Supervision event: actor {DISPLAY} has status:\n"
        rf"  stopped: process exited cleanly"
    )
    assert re.fullmatch(shape, text)
    assert mesh.slice(gpus=0).ping.call_one().get(TIMEOUT) == "pong"


@kinds
def test_the_report_of_a_stopped_actor(kind: Any) -> None:
    mesh = spawn(kind)
    mesh.stop("no more").get(TIMEOUT)
    text = fails(mesh.ping.call_one())
    event = rf"Supervision event: actor .*{kind.__name__} a> has status:\n  stopped: no more"
    shape = rf"Endpoint call a\.ping\(\) failed, {event}"
    assert re.fullmatch(shape, text)


def test_the_name_of_an_actor_is_the_line_of_its_creators(cluster: InProcessCluster) -> None:
    owner = spawn(SyncOwner, script := Script(), "owner")
    own(owner).slice(gpus=1).do.broadcast(Local(raising(ValueError("worn out"))))
    assert script.next() == "init"
    assert re.match(
        r"The actor <root>\.<[\w./-]*SyncOwner owner>\.<[\w./-]*Sync child\{'gpus': 1/2\}> and all its descendants",
        script.next_supervised().report(),
    )


# --- An endpoint raises: each cell of the table.


class Custom(BaseException):
    pass


def base_exceptions() -> list[BaseException]:
    return [
        SystemExit("a base exception"),
        KeyboardInterrupt("a base exception"),
        asyncio.CancelledError("a base exception"),
        Custom("a base exception"),
        BaseExceptionGroup("a base exception", [SystemExit()]),
    ]


BASE = [type(exc).__name__ for exc in base_exceptions()]
base = pytest.mark.parametrize("number", range(len(BASE)), ids=BASE)


def answer(endpoint: Any, adverb: str, argument: Any) -> Any:
    """Calls an endpoint of a mesh of one with an adverb that has a reply; raises what the reply says."""
    if adverb == "send":
        port, receiver = Channel[Any].open()
        send(endpoint, (argument,), {}, port=port)
        return receiver.recv().get(TIMEOUT)
    if adverb == "stream":
        (future,) = endpoint.stream(argument)
        return future.get(TIMEOUT)
    return getattr(endpoint, adverb)(argument).get(TIMEOUT)


WITH_REPLY = ["call", "call_one", "choose", "stream", "send"]
EVERY_KIND = [Sync, Async, Concurrent]
every_kind = pytest.mark.parametrize("kind", EVERY_KIND)


class Unloadable:
    """Can be sent, and raises when it arrives."""

    def __reduce__(self) -> Any:
        return _explode, ()


def _explode() -> None:
    raise ImportError("not here")


class Unpicklable(Exception):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.handle = threading.Lock()


class Replayless(Exception):
    """Pickling stores `args`, which do not fit the constructor."""

    def __init__(self, code: int, *, reason: str) -> None:
        super().__init__(f"code {code}: {reason}")


class Failing(NamedTuple):
    """An argument of `do` with which it fails, and what is said of it."""

    argument: Callable[[], Any]
    text: str
    type: type[BaseException]
    kinds: list[Any]  # where it is a failure when nobody waits: a concurrent endpoint goes on


EXCEPTIONS = [
    Failing(lambda: Local(raising(ValueError("an exception"))), "ValueError: an exception", ValueError, KINDS),
    Failing(Unloadable, "ImportError: not here", ImportError, EVERY_KIND),
    # cannot be pickled, and pickled but not made again: these come as text
    Failing(lambda: Local(raising(Unpicklable("a handle"))), "Unpicklable: a handle", Exception, KINDS),
    Failing(lambda: Local(raising(Replayless(7, reason="worn out"))), "Replayless: code 7: worn out", Exception, KINDS),
]


@pytest.mark.parametrize(("kind", "adverb", "row"), pairs(EVERY_KIND, WITH_REPLY, EXCEPTIONS))
def test_an_exception_with_a_reply_is_the_callers_and_the_actor_lives(kind: Any, adverb: str, row: Failing) -> None:
    mesh = spawn(kind)
    with pytest.raises(ActorError, match=row.text) as caught:
        answer(mesh.do, adverb, row.argument())
    assert isinstance(caught.value.exception, row.type)
    assert ("in action" in caught.value.exception_formatted) is (row.type is not ImportError)
    assert mesh.ping.call_one().get(TIMEOUT) == "pong"


@pytest.mark.parametrize(("row", "kind"), [(row, kind) for row in EXCEPTIONS for kind in row.kinds])
def test_an_exception_without_a_reply_is_a_failure(cluster: InProcessCluster, kind: Any, row: Failing) -> None:
    mesh = spawn(kind, script := Script())
    mesh.do.broadcast(row.argument())
    assert row.text in cluster.next_failure().report()
    fails(mesh.ping.call_one(), row.text)
    hook, exc = script.rest()[-1]
    assert hook == "cleanup" and isinstance(exc, row.type)


@kinds
def test_a_send_without_a_port_is_like_a_broadcast(cluster: InProcessCluster, kind: Any) -> None:
    mesh = spawn(kind)
    send(mesh.do, (Local(raising(ValueError("an exception"))),), {})
    assert "ValueError: an exception" in cluster.next_failure().report()


def test_an_exception_of_a_concurrent_endpoint_without_a_reply_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    mesh = spawn(Concurrent)
    mesh.do.broadcast(Local(raising(ValueError("an exception"))))
    with pytest.raises(ActorError, match="the next one"):
        do(mesh, raising(ValueError("the next one")))
    (record,) = [record for record in caplog.records if record.name == "monarch"]
    assert "nobody waits" in record.getMessage() and record.exc_info is not None


@pytest.mark.parametrize(("kind", "adverb", "number"), pairs(EVERY_KIND, WITH_REPLY, range(len(BASE))))
def test_a_base_exception_with_a_reply_is_a_failure(
    cluster: InProcessCluster, kind: Any, adverb: str, number: int
) -> None:
    mesh = spawn(kind)
    with pytest.raises(SupervisionError, match=BASE[number]):
        answer(mesh.do, adverb, Local(raising(base_exceptions()[number])))
    assert BASE[number] in cluster.next_failure(handled=True).report()
    fails(mesh.ping.call_one(), "a base exception")


@base
@every_kind
def test_a_base_exception_without_a_reply_is_a_failure(cluster: InProcessCluster, kind: Any, number: int) -> None:
    mesh = spawn(kind, script := Script())
    mesh.do.broadcast(Local(raising(base_exceptions()[number])))
    assert BASE[number] in cluster.next_failure().report()
    hook, exc = script.rest()[-1]
    assert hook == "cleanup" and isinstance(exc, Exception) and BASE[number] in str(exc)


@pytest.mark.parametrize(
    ("kind", "adverb", "number"), pairs(EVERY_KIND, [*WITH_REPLY, "broadcast"], range(-1, len(BASE)))
)
def test_whatever_is_raised_beside_an_explicit_port_is_a_failure(
    cluster: InProcessCluster, kind: Any, adverb: str, number: int
) -> None:
    mesh = spawn(kind)
    action = raising(ValueError("beside it") if number < 0 else base_exceptions()[number])
    if adverb == "broadcast":
        mesh.explicit.broadcast(Local(action))
    else:
        with pytest.raises(SupervisionError):
            answer(mesh.explicit, adverb, Local(action))
    failure = cluster.next_failure(handled=adverb != "broadcast")
    assert ("beside it" if number < 0 else BASE[number]) in failure.report()
    fails(mesh.ping.call_one())


@every_kind
@pytest.mark.parametrize("answers", [0, 1, 2])
def test_a_port_hears_once_that_the_actor_behind_it_failed(cluster: InProcessCluster, kind: Any, answers: int) -> None:
    def answer_and_raise(actor: Any, port: Port[Any]) -> None:
        for number in range(answers):
            port.send(number)
        raise ValueError("worn out")

    mesh = spawn(kind)
    port, receiver = Channel[Any].open()
    send(mesh.explicit, (Local(answer_and_raise),), {}, port=port)
    for number in range(answers):
        assert receiver.recv().get(TIMEOUT) == number
    fails(receiver.recv(), "worn out")
    cluster.next_failure(handled=True)
    port.send("the last")
    assert receiver.recv().get(TIMEOUT) == "the last"


@every_kind
def test_a_response_port_that_was_kept_hears_that_the_actor_failed(cluster: InProcessCluster, kind: Any) -> None:
    mesh = spawn(kind)
    kept: list[Any] = []
    taken: queue.SimpleQueue[None] = queue.SimpleQueue()

    def keep(actor: Any, port: Port[Any]) -> None:
        kept.append(port)
        taken.put(None)

    waiting = [mesh.explicit.call_one(Local(keep)), mesh.explicit.call(Local(keep))]
    for _ in waiting:
        taken.get(timeout=TIMEOUT)
    do(mesh, lambda actor: context().actor_instance.abort("worn out"))
    for future in waiting:
        fails(future, "worn out")
    cluster.next_failure(handled=True)


@pytest.mark.usefixtures("calls_are_in_time")
def test_constructor_arguments_that_cannot_be_unpickled(cluster: InProcessCluster) -> None:
    mesh = this_host().spawn_procs().spawn("a", Sync, Unloadable())
    fails(mesh.ping.call_one(), "ImportError: not here")
    assert "ImportError: not here" in cluster.next_failure(handled=True).report()


@every_kind
def test_a_result_that_cannot_be_pickled_is_the_callers_and_the_actor_lives(kind: Any) -> None:
    mesh = spawn(kind)
    with pytest.raises(ActorError) as caught:
        do(mesh, lambda actor: threading.Lock())
    assert isinstance(caught.value.exception, TypeError)
    mesh.do.broadcast(Local(lambda actor: threading.Lock()))  # nobody wants it: it is not pickled at all
    assert mesh.ping.call_one().get(TIMEOUT) == "pong"


@kinds
def test_a_thread_that_raises_harms_nobody(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: seen.append(args.exc_value))

    def start(actor: Any) -> None:
        thread = threading.Thread(target=bind_context(raising(ValueError("in a thread"))))
        thread.start()
        thread.join()

    mesh = spawn(kind)
    do(mesh, start)
    assert [str(exc) for exc in seen] == ["in a thread"]
    assert mesh.ping.call_one().get(TIMEOUT) == "pong"


@pytest.mark.parametrize("exc", [ValueError, SystemExit, KeyboardInterrupt, Custom, asyncio.CancelledError])
def test_a_background_task_that_raises_harms_nobody(caplog: pytest.LogCaptureFixture, exc: type[BaseException]) -> None:
    async def background() -> None:
        raise exc("in a task")

    async def start(actor: Any) -> None:
        task = asyncio.get_running_loop().create_task(background())
        await asyncio.wait([task])

    mesh = spawn(Async)
    do(mesh, start)
    assert mesh.ping.call_one().get(TIMEOUT) == "pong"
    gc.collect()
    assert mesh.ping.call_one().get(TIMEOUT) == "pong"
    if exc is not asyncio.CancelledError:
        assert "in a task" in caplog.text


def test_a_task_that_ends_the_loop_leaves_the_endpoint_in_progress_alone() -> None:
    async def background() -> None:
        raise SystemExit("in a task")

    async def start(actor: Any) -> str:
        task = asyncio.get_running_loop().create_task(background())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert isinstance(task.exception(), SystemExit)
        return "went on"

    assert do(spawn(Async), start) == "went on"


# --- Calls to what has failed or stopped.


@kinds
def test_views_with_the_failed_rank_fail_and_no_others(cluster: InProcessCluster, kind: Any) -> None:
    procs = this_host().spawn_procs({"hosts": 2, "gpus": 2})
    mesh = procs.spawn("a", kind, Local(Script()))
    earlier = mesh.slice(hosts=1)
    mesh.slice(hosts=1, gpus=1).do.broadcast(Local(raising(ValueError("the first cause"))))
    report = cluster.next_failure().report()
    later = mesh.flatten("all").rename(all="x")
    for view in (mesh, earlier, mesh.slice(gpus=1), later, later.slice(x=3), mesh.slice(hosts=1, gpus=1)):
        future = view.ping.call()
        assert "ready" in repr(future)  # known here: nothing was sent
        assert report in fails(future, "the first cause")
    for view in (mesh.slice(hosts=0), mesh.slice(gpus=0), later.slice(x=slice(0, 3)), earlier.slice(gpus=0)):
        assert view.ping.call().get(TIMEOUT).values() == ["pong"] * len(view)


def test_every_adverb_on_a_view_with_the_failed_rank(cluster: InProcessCluster) -> None:
    _, mesh = pair()
    mesh.slice(gpus=1).do.broadcast(Local(raising(ValueError("the first cause"))))
    cluster.next_failure()
    fails(mesh.ping.call(), "the first cause")
    fails(mesh.slice(gpus=1).ping.call_one(), "the first cause")
    for _ in range(8):  # also when the healthy rank would have been chosen
        fails(mesh.ping.choose(), "the first cause")
    futures = list(mesh.ping.stream())
    assert len(futures) == 2
    for future in futures:
        fails(future, "the first cause")
    port, receiver = Channel[Any].open()
    send(mesh.slice(gpus=1).ping, (), {}, port=port)
    fails(receiver.recv(), "the first cause")


@kinds
def test_the_answers_of_a_stream_that_came_are_kept_and_the_rest_fail(cluster: InProcessCluster, kind: Any) -> None:
    _, mesh = pair(kind)
    gate = Gate()

    def answer_or_fail(actor: Any) -> Any:
        if current_rank().rank == 0:
            return "came"
        gate.stand()
        raise SystemExit("worn out")

    first, second = mesh.do.stream(Local(answer_or_fail))
    assert first.get(TIMEOUT) == "came"
    gate.open()
    fails(second, "worn out")
    cluster.next_failure(handled=True)


def test_a_failure_ends_a_call_before_all_have_answered(cluster: InProcessCluster, gate: Gate) -> None:
    _, mesh = pair()

    def fail_or_stand(actor: Any) -> None:
        if current_rank().rank == 0:
            gate.stand()
        else:
            raise SystemExit("worn out")

    future = mesh.do.call(Local(fail_or_stand))
    fails(future, "worn out")
    cluster.next_failure(handled=True)


@kinds
def test_other_actors_of_the_same_processes_go_on(cluster: InProcessCluster, kind: Any) -> None:
    procs, mesh = pair(kind)
    other = procs.spawn("other", kind, Local(Script()))
    mesh.do.broadcast(Local(raising(ValueError("worn out"))))
    assert sorted(cluster.next_failure().crashed_ranks + cluster.next_failure().crashed_ranks) == [0, 1]
    assert other.ping.call().get(TIMEOUT).values() == ["pong"] * 2
    assert procs.spawn("fresh", kind, Local(Script())).ping.call().get(TIMEOUT).values() == ["pong"] * 2


@kinds
def test_what_waits_at_a_failing_actor_fails_with_it(cluster: InProcessCluster, kind: Any, gate: Gate) -> None:
    mesh = spawn(kind)
    held = gate.hold(mesh)
    mesh.do.broadcast(Local(raising(ValueError("worn out"))))
    behind = [mesh.ping.call_one(), mesh.ping.call(), *mesh.ping.stream()]
    gate.open()
    held.get(TIMEOUT)
    for future in behind:
        fails(future, "worn out")
    assert "worn out" in cluster.next_failure(handled=True).report()


@kinds
def test_who_was_told_is_not_told_again(cluster: InProcessCluster, kind: Any) -> None:
    """Catching the error of a call is enough: no message comes back as a second fault."""
    child = spawn(kind)
    caller = spawn(SyncOwner, script := Script(), "caller")
    child.stop().get(TIMEOUT)

    def call(actor: Any, mesh: Any) -> str:
        fails(mesh.ping.call_one())
        for future in mesh.ping.stream():
            fails(future)
        return "caught"

    assert do(caller, call, child) == "caught"
    fails(child.ping.call_one())  # so for the client
    cluster.settle()
    assert caller.ping.call_one().get(TIMEOUT) == "pong"
    assert script.rest() == ["init"]


# --- Undeliverable messages.


@pytest.mark.parametrize("how", ["stopped", "failed"])
def test_a_broadcast_to_an_actor_that_ended_is_a_fault_of_the_client(cluster: InProcessCluster, how: str) -> None:
    mesh = spawn(Sync)
    if how == "stopped":
        mesh.stop("no more").get(TIMEOUT)
    else:
        mesh.do.broadcast(Local(raising(ValueError("no more"))))
        cluster.next_failure()
    mesh.ping.broadcast()
    failure = cluster.next_failure()
    assert failure.mesh_name == "<none>" and failure.crashed_ranks == []
    assert re.match(
        r"undeliverable message for a-\w+\.ping\(\) \(broadcast\)\n  sender: .+\n  dest: a-\w+\[0\]\n  error: ",
        failure.report(),
    )
    assert "no more" in failure.report()


def port_of(target: Any) -> tuple[Any, list[Any]]:
    """A port of an actor, and what keeps its receiver."""
    kept: list[Any] = []

    def open_port(actor: Any) -> Any:
        port, receiver = Channel[Any].open()
        kept.append(receiver)
        return port

    return do(target, open_port), kept


@pytest.mark.parametrize("way", ["broadcast", "port"])
@pytest.mark.parametrize("kind", OWNERS)
def test_an_actor_whose_message_finds_no_actor_fails(cluster: InProcessCluster, kind: Any, way: str) -> None:
    """It is not asked: the hook is for ports whose receiver is gone."""
    target, sender = spawn(Async, name="target"), spawn(kind, script := Script(), "sender")
    port, _kept = port_of(target)
    target.stop().get(TIMEOUT)
    message = r"undeliverable message for target-\w+\.ping\(\)"
    if way == "broadcast":
        do(sender, lambda actor, mesh: mesh.ping.broadcast(), target)
    else:
        message = "undeliverable message to port"
        do(sender, lambda actor, port: port.send("too late"), port)
    failure = cluster.next_failure()
    assert failure.mesh_name.startswith("sender-") and failure.crashed_ranks == [0]
    assert re.search(message, failure.report())
    for line in ("sender: ", "dest: ", "error: "):
        assert line in failure.report()
    assert [_hook(entry) for entry in script.rest()] == ["init", "cleanup"]


def send_for_nobody(sender: Any) -> None:
    """To a port whose receiver is gone."""
    port, receiver = Channel[Any].open()
    del receiver
    gc.collect()
    do(sender, lambda actor, port: port.send("for nobody"), port)


@pytest.mark.parametrize("kind", OWNERS)
@pytest.mark.parametrize("handled", [True, False])
def test_a_port_whose_receiver_is_gone_is_the_hooks(kind: Any, handled: bool) -> None:
    """Unhandled it is dropped."""
    script = Script(undeliverable=lambda actor, envelope: handled)
    sender = spawn(kind, script)
    assert script.next() == "init"
    send_for_nobody(sender)
    hook, envelope = script.next()
    assert hook == "undeliverable"
    assert envelope.sender() and envelope.dest().startswith("port ") and "gone" in envelope.error_msg()
    assert sender.ping.call_one().get(TIMEOUT) == "pong"
    assert script.rest() == []


@pytest.mark.parametrize("kind", OWNERS)
def test_a_port_into_a_dead_process_is_the_hooks(cluster: InProcessCluster, kind: Any) -> None:
    script = Script()
    target, sender = spawn(Sync, name="target"), spawn(kind, script, "sender")

    def reach(actor: Any, mesh: Any, port: Any) -> None:
        fails(mesh.ping.call_one(), "Killed")
        port.send("too late")
        mesh.ping.broadcast()  # to a dead process: silently dropped

    port, _kept = port_of(target)
    cluster.kill(target)
    assert cluster.next_failure().mesh_name.startswith("target-")
    assert script.next() == "init"
    do(sender, _off_loop(reach), target, port)
    hook, envelope = script.next()
    assert hook == "undeliverable" and "process has ended" in envelope.error_msg()
    assert sender.ping.call_one().get(TIMEOUT) == "pong"
    cluster.settle()
    assert script.rest() == []


@pytest.mark.parametrize("kind", [*OWNERS, Sync])
@pytest.mark.parametrize("exc", [ValueError, SystemExit])
def test_a_hook_for_undeliverable_messages_that_raises(
    cluster: InProcessCluster, kind: Any, exc: type[BaseException]
) -> None:
    sender = spawn(kind, Script(undeliverable=raising(exc("in the hook"))))
    send_for_nobody(sender)
    assert "in the hook" in cluster.next_failure().report()


class PlainHooks(Async):
    """Endpoints are async, hooks are not."""

    def _handle_undeliverable_message(self, envelope: Any) -> None:
        self.script.note("undeliverable", asyncio._get_running_loop())

    def __supervise__(self, failure: MeshFailure) -> bool:
        self.script.note("supervise", asyncio._get_running_loop())
        return True

    def __cleanup__(self, exc: Exception | None) -> None:  # type: ignore[override]
        self.script.note("cleanup", asyncio._get_running_loop())


def test_plain_hooks_see_no_loop(cluster: InProcessCluster) -> None:
    mesh = spawn(PlainHooks, script := Script())
    assert script.next() == "init"
    send_for_nobody(mesh)
    assert script.next() == ("undeliverable", None)
    break_rank(cluster, own(mesh), "raised")
    assert script.next() == ("supervise", None)
    mesh.stop().get(TIMEOUT)
    assert script.next() == ("cleanup", None)


@pytest.mark.parametrize("way", ["broadcast", "call", "port", "result"])
@kinds
def test_a_message_that_is_too_large_harms_nobody(cluster: InProcessCluster, kind: Any, way: str) -> None:
    """It is refused where it is sent, and the sender lives."""
    with monarch.configured(codec_max_frame_length=100_000):
        sender = spawn(kind, script := Script(), "sender")
        other = spawn(Sync, name="other")
        sender.ping.call_one().get(TIMEOUT)
    port, receiver = Channel[Any].open()

    def send_much(actor: Any, other: Any, port: Any) -> Any:
        much = b"x" * 200_000
        if way == "result":
            return much
        return port.send(much) if way == "port" else getattr(other.note, way)(much)

    with pytest.raises(ActorError, match=r"200\d\d\d bytes.*codec_max_frame_length") as caught:
        do(sender, send_much, other, port)
    assert isinstance(caught.value.exception, MessageTooLargeError)
    port.send("small")
    assert receiver.recv().get(TIMEOUT) == "small"
    assert [mesh.ping.call_one().get(TIMEOUT) for mesh in (sender, other)] == ["pong", "pong"]
    assert script.rest() == ["init"]


@owners
def test_hooks_run_for_no_message(cluster: InProcessCluster, kind: Any) -> None:
    """Their rank is the actor's, not that of the message before."""
    ranks: list[tuple[str, Any]] = []

    def note(hook: str, result: Any) -> Callable[..., Any]:
        def run(actor: Any, *_: Any) -> Any:
            ranks.append((hook, dict(current_rank())))
            return result

        return run

    hooks = {name: note(name, True) for name in ("init", "supervise", "undeliverable", "cleanup")}
    script = Script(**hooks)
    mesh = this_host().spawn_procs({"gpus": 2}).slice(gpus=slice(1, 2)).spawn("a", kind, Local(script))
    owner = mesh.rename(gpus="other")
    assert owner.do.call_one(Local(lambda actor: dict(current_rank()))).get(TIMEOUT) == {"other": 0}
    assert script.next() == "init"
    send_for_nobody(owner)
    assert script.next()[0] == "undeliverable"
    break_rank(cluster, own(owner), "raised")
    script.next_supervised()
    mesh.stop().get(TIMEOUT)
    assert ranks == [(hook, {"gpus": 0}) for hook in ("init", "undeliverable", "supervise", "cleanup")]


@pytest.mark.parametrize("gone", ["receiver", "actor"])
def test_without_return_undeliverable_nobody_hears(cluster: InProcessCluster, gone: str) -> None:
    sender = spawn(SyncOwner, script := Script(), "sender")
    target = spawn(Sync, name="target")
    kept: list[Any] = []

    def open_port(actor: Any) -> Any:
        port, receiver = Channel[Any].open()
        port.return_undeliverable = False
        if gone == "actor":
            kept.append(receiver)
        return port

    port = do(target, open_port)
    assert port.return_undeliverable is False  # it travels with the port
    gc.collect()
    if gone == "actor":
        target.stop().get(TIMEOUT)
    do(sender, lambda actor, port: port.send("for nobody"), port)
    port.send("nor from the client")
    cluster.settle()
    assert sender.ping.call_one().get(TIMEOUT) == "pong"
    assert script.rest() == ["init"]


@every_kind
@pytest.mark.parametrize("outcome", ["value", "exception"])
def test_a_dropped_future_drops_its_answer(kind: Any, outcome: str) -> None:
    ran = threading.Event()

    def run(actor: Any) -> None:
        ran.set()
        if outcome == "exception":
            raise ValueError("nobody hears it")

    mesh = spawn(kind, script := Script())
    mesh.do.call_one(Local(run))
    gc.collect()
    assert ran.wait(TIMEOUT)
    assert mesh.ping.call_one().get(TIMEOUT) == "pong"
    assert script.rest() == ["init"]


def test_broadcast_never_raises(cluster: InProcessCluster) -> None:
    procs, mesh = pair()
    cluster.kill(procs, 1)
    cluster.next_failure()
    mesh.ping.broadcast()
    mesh.slice(gpus=1).ping.broadcast()
    assert mesh.slice(gpus=0).ping.call_one().get(TIMEOUT) == "pong"


# --- A process dies.


def test_every_mesh_with_a_rank_there_fails_at_that_rank_once(cluster: InProcessCluster) -> None:
    procs, first = pair()
    second = procs.spawn("second", Async, Local(Script()))
    whole = procs.flatten("all").slice(all=1).spawn("third", Sync, Local(Script()))
    elsewhere = procs.slice(gpus=0).spawn("fourth", Sync, Local(Script()))
    for mesh in (second, whole, elsewhere):
        mesh.ping.call().get(TIMEOUT)
    cluster.kill(procs, 1)
    found = {failure.mesh_name: failure.crashed_ranks for failure in (cluster.next_failure() for _ in range(3))}
    names = [mesh._name.get(TIMEOUT) for mesh in (first, second, whole)]
    assert found == {names[0]: [1], names[1]: [1], names[2]: [0]}
    assert elsewhere.ping.call_one().get(TIMEOUT) == "pong"


@kinds
def test_whoever_waits_for_a_rank_there_is_told_and_nobody_else(
    cluster: InProcessCluster, kind: Any, gate: Gate
) -> None:
    _, mesh = pair(kind)
    healthy, doomed = mesh.slice(gpus=0), mesh.slice(gpus=1)
    held = [gate.hold(doomed)]
    for view in (mesh, doomed):
        held += [view.ping.call(), *view.ping.stream()]
    held.append(doomed.ping.choose())
    assert healthy.ping.call_one().get(TIMEOUT) == "pong"  # and with it have come its answers to the calls before
    cluster.kill(doomed)
    errors = [future.exception(TIMEOUT) for future in held]
    assert errors.count(None) == 1  # the healthy rank's answer to stream()
    for error in errors:
        assert error is None or (isinstance(error, SupervisionError) and "Killed(sig=9)" in str(error))
    assert healthy.ping.call_one().get(TIMEOUT) == "pong"
    cluster.next_failure(handled=True)


def test_who_gives_a_port_is_told_as_well(cluster: InProcessCluster) -> None:
    mesh = spawn(Sync)
    mesh.ping.call_one().get(TIMEOUT)
    cluster.kill(mesh)
    cluster.next_failure()
    port, receiver = Channel[Any].open_ranked()
    send(mesh.ping, (), {}, port=port)
    fails(receiver.recv(), r"Killed\(sig=9\)")


def test_an_exit_with_0_is_told_to_callers_only(cluster: InProcessCluster, gate: Gate) -> None:
    owner = spawn(SyncOwner, script := Script(), "owner")
    child = own(owner)
    held = gate.hold(child.slice(gpus=1))
    cluster.kill(child, 1, code=0)
    for future in (held, child.ping.call(), child.slice(gpus=1).ping.call_one()):
        fails(future, "stopped: process exited cleanly")
    assert child.slice(gpus=0).ping.call_one().get(TIMEOUT) == "pong"
    cluster.settle()
    assert owner.ping.call_one().get(TIMEOUT) == "pong"
    assert script.rest() == ["init"]


def test_after_a_death_slices_can_be_spawned_on_and_the_whole_says_why_not(
    cluster: InProcessCluster, request: pytest.FixtureRequest
) -> None:
    procs, _ = pair()
    cluster.kill(procs, 1)
    cluster.next_failure()
    request.getfixturevalue("calls_are_in_time")
    healthy = procs.slice(gpus=0).spawn("b", Sync, Local(Script()))
    assert healthy.ping.call_one().get(TIMEOUT) == "pong"
    whole = procs.spawn("c", Sync, Local(Script()))  # raises nothing here
    fails(whole.initialized, "Killed", error=RuntimeError)
    fails(whole.ping.call(), "Killed")
    assert cluster.next_failure(handled=True).mesh_name.startswith("c-")


def test_dead_processes_can_be_stopped_and_the_host_goes_on(cluster: InProcessCluster) -> None:
    procs, mesh = pair()
    cluster.kill(mesh)
    assert sorted(cluster.next_failure().crashed_ranks + cluster.next_failure().crashed_ranks) == [0, 1]
    assert procs.stop().get(TIMEOUT) is None
    assert spawn(Sync).ping.call_one().get(TIMEOUT) == "pong"


# --- The constructor raises.


@pytest.mark.usefixtures("calls_are_in_time")
@kinds
@pytest.mark.parametrize("exc", [OSError, SystemExit, asyncio.CancelledError])
def test_a_constructor_that_raises_fails_its_ranks(
    cluster: InProcessCluster, kind: Any, exc: type[BaseException]
) -> None:
    def construct(actor: Any) -> None:
        if current_rank().rank != 1:
            raise exc("no room")

    script = Script(init=construct)
    mesh = this_host().spawn_procs({"gpus": 3}).spawn("a", kind, Local(script))
    assert mesh.initialized.get(TIMEOUT) is None
    text = fails(mesh.ping.call(), "no room")
    assert "in __init__" in text and "in construct" in text
    failures = [cluster.next_failure(handled=True) for _ in range(2)]
    assert sorted(failures[0].crashed_ranks + failures[1].crashed_ranks) == [0, 2]
    assert mesh.slice(gpus=1).ping.call_one().get(TIMEOUT) == "pong"
    assert mesh.initialized.get(TIMEOUT) is None
    assert script.rest() == ["init"] * 3  # nobody was cleaned up
    mesh.stop().get(TIMEOUT)
    assert script.rest() == [("cleanup", None)]


@pytest.mark.usefixtures("calls_are_in_time")
@kinds
def test_what_a_constructor_spawned_before_it_raised_is_stopped(cluster: InProcessCluster, kind: Any) -> None:
    children = Script()

    def construct(actor: Any) -> None:
        child = this_host().spawn_procs().spawn("child", Sync, Local(children))
        blocking(child.ping.call_one())
        raise OSError("no room")

    mesh = spawn(Sync if kind is Sync else MixedOwner, Script(init=construct))
    fails(mesh.ping.call_one(), "no room")
    cluster.next_failure(handled=True)
    assert children.rest() == ["init", ("cleanup", None)]


# --- Owners.


def break_rank(cluster: InProcessCluster, child: Any, way: str, rank: int = 1) -> None:
    """A rank of a mesh fails, caused by somebody who does not own it."""
    if way == "killed":
        cluster.kill(child, rank)
    else:
        child.slice(gpus=rank).do.broadcast(Local(raising(ValueError("a child failed"))))


WAYS = ["raised", "killed"]
ways = pytest.mark.parametrize("way", WAYS)


@pytest.mark.parametrize(("kind", "way", "value"), pairs(OWNERS, WAYS, [True, 1, "yes", [0], object()]))
def test_supervise_true(cluster: InProcessCluster, kind: Any, way: str, value: Any) -> None:
    """Handled: nothing further, the owner and the other ranks live."""
    owner, child, script = owning(kind, supervise=lambda actor, failure: value)
    break_rank(cluster, child, way)
    failure = script.next_supervised()
    assert isinstance(failure, MeshFailure)
    assert failure.mesh_name == child._name.get(TIMEOUT) and failure.crashed_ranks == [1]
    assert ("Killed(sig=9)" if way == "killed" else "a child failed") in failure.report()
    assert child.slice(gpus=0).ping.call_one().get(TIMEOUT) == "pong"
    cluster.settle()
    assert owner.ping.call_one().get(TIMEOUT) == "pong"
    assert script.rest() == []


@pytest.mark.parametrize(("kind", "way", "value"), pairs(OWNERS, WAYS, [False, None, 0, []]))
def test_supervise_false(cluster: InProcessCluster, kind: Any, way: str, value: Any) -> None:
    """Unhandled: the owner fails with the report of its child, and its own owner is told."""
    owner = spawn(kind, script := Script(supervise=lambda actor, failure: value), "owner")
    child = own(owner)
    break_rank(cluster, child, way)
    failure = cluster.next_failure()
    assert failure.mesh_name == owner._name.get(TIMEOUT) and failure.crashed_ranks == [0]
    assert re.match(
        r"The actor <root>\.<\S+ owner>\.<[\w./-]*Sync child\{'gpus': 1/2\}> and all its descendants have failed:\n",
        failure.report(),  # the one that failed first
    )
    assert re.match(
        r"Supervision event: actor <root>\.<\S+ owner> failed because it did not handle a supervision event from its "
        r"child\. Supervision event: actor .*child.* failed: ",
        failure.event,
    )
    cause = "Killed(sig=9)" if way == "killed" else "a child failed"
    assert cause in fails(owner.ping.call_one())
    assert script.next() == "init"
    assert script.next_supervised().report() == failure.report()
    hook, exc = script.next()
    assert hook == "cleanup" and isinstance(exc, Exception) and cause in str(exc)
    assert script.rest() == []


@ways
@kinds
def test_no_supervise(cluster: InProcessCluster, kind: Any, way: str) -> None:
    owner = spawn(kind, name="owner")
    break_rank(cluster, own(owner), way)
    failure = cluster.next_failure()
    assert failure.mesh_name == owner._name.get(TIMEOUT)
    assert ("Killed(sig=9)" if way == "killed" else "a child failed") in failure.report()


@owners
@pytest.mark.parametrize("exc", [KeyError, SystemExit, asyncio.CancelledError, Custom])
def test_supervise_raises(cluster: InProcessCluster, kind: Any, exc: type[BaseException]) -> None:
    """A failure of the owner that shows both: its own first, the one it was to handle below."""
    script = Script(supervise=raising(exc("in supervise")))
    owner = spawn(kind, script, "owner")
    break_rank(cluster, own(owner), "raised")
    failure = cluster.next_failure()
    assert failure.mesh_name == owner._name.get(TIMEOUT) and failure.crashed_ranks == [0]
    assert re.fullmatch(
        r"actor explicitly aborted due to: Traceback of where[^\n]*\n(.*\n)+.*in supervise.*\n"
        r"This error occurred while handling another failure:\n"
        r"    The actor \S+ owner>\.<.* child\{'gpus': 1/2\}> and all its descendants have failed:\n"
        r"(    .*\n)+        ValueError: a child failed",
        failure.report(),
    )
    hook, cause = script.rest()[-1]
    assert hook == "cleanup" and isinstance(cause, Exception) and "in supervise" in str(cause)


@owners
def test_the_owner_is_told_and_not_who_holds_a_reference(cluster: InProcessCluster, kind: Any) -> None:
    owner = spawn(kind, told := Script(), "owner")
    holder = spawn(kind, untold := Script(), "holder")
    child = own(owner)

    def break_it(actor: Any, mesh: Any) -> str:
        mesh.slice(gpus=1).do.broadcast(Local(raising(ValueError("at another's request"))))
        error = mesh.slice(gpus=1).ping.call_one().exception(TIMEOUT)
        assert isinstance(error, SupervisionError)
        return str(error)

    # the caller separately gets the error
    assert "at another's request" in holder.do.call_one(Local(_off_loop(break_it)), child).get(TIMEOUT)
    assert told.next() == "init"
    assert told.next_supervised().crashed_ranks == [1]
    cluster.settle()
    assert holder.ping.call_one().get(TIMEOUT) == "pong"
    assert untold.rest() == ["init"]


def blocking(future: Future[Any]) -> Any:
    """Waits on the thread of an event loop without the warning that this deserves."""
    result: queue.SimpleQueue[Any] = queue.SimpleQueue()
    thread = threading.Thread(target=lambda: result.put(future.get(TIMEOUT)))
    thread.start()
    thread.join()
    return result.get_nowait()


@kinds
def test_a_reference_owns_nothing(cluster: InProcessCluster, kind: Any) -> None:
    """Its holder may end, in whatever way: the mesh lives on, and is its owner's."""
    _, child, script = owning(SyncOwner)
    for how in ("stop", "abort"):
        holder = spawn(kind, name="holder")
        do(holder, lambda actor, mesh: setattr(actor, "child", mesh), child)
        do(holder, end(how))
        ended(cluster, holder, how)
    assert child.ping.call().get(TIMEOUT).values() == ["pong", "pong"]
    with pytest.raises(NotImplementedError, match="owned"):
        child.stop()
    break_rank(cluster, child, "raised")
    script.next_supervised()


def _off_loop(action: Callable[..., Any]) -> Callable[..., Any]:
    """`action`, in another thread when the actor has a loop: blocking it would warn."""

    def run(actor: Any, *args: Any) -> Any:
        if asyncio._get_running_loop() is None:
            return action(actor, *args)
        return asyncio.to_thread(action, actor, *args)

    return run


@pytest.mark.parametrize("answer", [True, False])
@owners
def test_catching_the_error_of_a_call_does_not_spare_the_owner(
    cluster: InProcessCluster, kind: Any, answer: bool
) -> None:
    owner, child, script = owning(kind, supervise=lambda actor, failure: answer)
    caught = threading.Event()

    def call(actor: Any) -> None:
        fails(child.slice(gpus=1).do.call_one(Local(raising(SystemExit("a child failed")))), "a child failed")
        caught.set()

    owner.do.broadcast(Local(_off_loop(call)))
    assert caught.wait(TIMEOUT)
    assert script.next_supervised().crashed_ranks == [1]
    if answer:
        assert owner.ping.call_one().get(TIMEOUT) == "pong"
    else:
        assert "a child failed" in cluster.next_failure().report()


@kinds
def test_an_error_that_is_not_caught_is_the_callers_as_ever(cluster: InProcessCluster, kind: Any) -> None:
    child = spawn(Sync, name="child")
    child.stop("no more").get(TIMEOUT)
    caller = spawn(kind)

    def call(actor: Any, mesh: Any) -> Any:
        return mesh.ping.call_one().get(TIMEOUT)

    with pytest.raises(ActorError, match="stopped: no more") as caught:
        do(caller, _off_loop(call), child)
    assert isinstance(caught.value.exception, SupervisionError)
    assert caller.ping.call_one().get(TIMEOUT) == "pong"


@owners
def test_once_for_each_rank(cluster: InProcessCluster, kind: Any) -> None:
    owner, child, script = owning(kind, gpus=3)
    for rank in (2, 0):
        break_rank(cluster, child, "raised", rank)
        assert script.next_supervised().crashed_ranks == [rank]
        cluster.kill(child, rank)  # its process dies as well: the rank has failed already
    for view in (child, child.slice(gpus=0), child.slice(gpus=2)):
        fails(view.ping.call())
    cluster.settle()
    assert owner.ping.call_one().get(TIMEOUT) == "pong"
    assert script.rest() == []
    assert child.slice(gpus=1).ping.call_one().get(TIMEOUT) == "pong"


@owners
def test_an_actor_is_not_asked_about_its_own_failure(cluster: InProcessCluster, kind: Any) -> None:
    mesh = spawn(kind, script := Script())
    mesh.do.broadcast(Local(raising(ValueError("its own"))))
    assert "its own" in cluster.next_failure().report()
    assert [_hook(entry) for entry in script.rest()] == ["init", "cleanup"]


@kinds
def test_stops_and_exits_are_not_supervised(cluster: InProcessCluster, kind: Any) -> None:
    """Neither a mesh that its owner stops, nor an actor that stops itself, nor processes that are stopped or exit with 0."""
    owner = spawn(SyncOwner, script := Script(), "owner")
    meshes: list[Any] = []

    def spawn_all(actor: Any) -> None:
        for name in ("stopped", "by itself", "its processes", "exits"):
            procs = this_host().spawn_procs()
            meshes.append((procs, procs.spawn(name, kind, Local(Script()))))
            meshes[-1][1].ping.call_one().get(TIMEOUT)

    def stop(actor: Any) -> None:
        meshes[0][1].stop().get(TIMEOUT)
        meshes[2][0].stop().get(TIMEOUT)

    do(owner, spawn_all)
    do(owner, stop)
    do(meshes[1][1], lambda actor: context().actor_instance.stop("done"))
    cluster.kill(meshes[3][1], code=0)
    for _, mesh in meshes:
        fails(mesh.ping.call_one(), "stopped")
    cluster.settle()
    assert owner.ping.call_one().get(TIMEOUT) == "pong"
    assert script.rest() == ["init"]


# --- When an owner is asked.


@owners
def test_an_owner_that_is_busy_is_asked_before_queued_messages(
    cluster: InProcessCluster, kind: Any, gate: Gate
) -> None:
    owner, child, script = owning(kind)
    held = gate.hold(owner)
    for number in range(3):
        owner.note.broadcast(number)
    cluster.kill(child, 1)
    cluster.settle()
    assert script.rest() == []  # it is busy
    gate.open()
    held.get(TIMEOUT)
    script.next_supervised()
    assert [script.next() for _ in range(3)] == [0, 1, 2]


@pytest.mark.parametrize("kind", [AsyncOwner, MixedOwner])
def test_an_endpoint_that_has_just_gone_on_does_not_let_messages_pass_the_failure(
    cluster: InProcessCluster, kind: Any, gate: Gate
) -> None:
    """The failure is noticed while it gives way for a moment; it then ends, and the next message must wait."""

    async def stand(actor: Any) -> None:
        gate.stand()
        await asyncio.sleep(0)

    owner, child, script = owning(kind)
    owner.do.broadcast(Local(stand))
    gate.reached()
    for number in range(3):
        owner.note.broadcast(number)
    cluster.kill(child, 1)
    cluster.settle()
    gate.open()
    script.next_supervised()
    assert [script.next() for _ in range(3)] == [0, 1, 2]


@owners
def test_an_owner_is_asked_once_it_is_constructed(cluster: InProcessCluster, kind: Any, gate: Gate) -> None:
    def construct(actor: Any) -> None:
        child = Script(init=raising(OSError("no room")))
        this_host().spawn_procs().spawn("child", Sync, Local(child))
        gate.stand()
        actor.script.note("constructed")

    told = cluster.expect("ActorEnded")
    owner = spawn(kind, script := Script(init=construct), "owner")
    gate.reached()
    told.wait()
    owner.note.broadcast("the first message")
    cluster.settle()
    gate.open()
    assert [script.next(), script.next()] == ["init", "constructed"]
    assert "no room" in script.next_supervised().report()
    assert script.next() == "the first message"


class Awaited:
    """An endpoint or hook awaits it; the test lets it go on."""

    def __init__(self) -> None:
        self._entered: queue.SimpleQueue[Any] = queue.SimpleQueue()

    async def stand(self) -> Any:
        port, receiver = Channel[Any].open()
        self._entered.put(port)
        return await receiver.recv()

    async def stubborn(self, actor: Any) -> None:
        """Stands on when it is cancelled."""
        try:
            await self.stand()
        except asyncio.CancelledError:
            await self.stand()

    async def cancelled(self, actor: Any, *_: Any) -> None:
        """Writes down that it is cancelled."""
        try:
            await self.stand()
        except asyncio.CancelledError:
            actor.script.note("cancelled")
            raise

    def reached(self) -> Port[Any]:
        """Its port; what is sent there is what `stand` gives."""
        return self._entered.get(timeout=TIMEOUT)  # type: ignore[no-any-return]


@ways
@pytest.mark.parametrize("kind", [AsyncOwner, MixedOwner])
def test_an_async_owner_is_asked_while_an_endpoint_awaits(cluster: InProcessCluster, kind: Any, way: str) -> None:
    owner, child, script = owning(kind)
    awaited = Awaited()
    future = owner.do.call_one(Local(lambda actor: awaited.stand()))
    port = awaited.reached()
    break_rank(cluster, child, way)
    script.next_supervised()
    assert "pending" in repr(future)
    port.send("went on")
    assert future.get(TIMEOUT) == "went on"


def test_an_async_owner_hears_of_one_failure_at_a_time(cluster: InProcessCluster) -> None:
    awaited = Awaited()
    owner, child, script = owning(AsyncOwner, gpus=3, supervise=lambda actor, failure: awaited.stand())
    for rank in (1, 0, 2):
        cluster.kill(child, rank)
    cluster.settle()
    for rank in (1, 0, 2):
        port = awaited.reached()
        assert script.next_supervised().crashed_ranks == [rank]
        assert owner.ping.call_one().get(TIMEOUT) == "pong"  # endpoints run meanwhile
        assert script.rest() == []
        port.send(True)
    assert owner.ping.call_one().get(TIMEOUT) == "pong"


@pytest.mark.parametrize("kind", OWNERS)
def test_after_one_unhandled_failure_the_owner_is_not_asked_about_others(
    cluster: InProcessCluster, kind: Any, gate: Gate
) -> None:
    owner, child, script = owning(kind, gpus=3, supervise=lambda actor, failure: False)
    gate.hold(owner)
    for rank in (2, 0):
        cluster.kill(child, rank)
    cluster.settle()
    gate.open()
    assert "{'gpus': 2/3}" in cluster.next_failure().report()
    assert [entry[0] for entry in script.rest()] == ["supervise", "cleanup"]


def test_an_async_supervise_may_await_the_actors_own_endpoints(cluster: InProcessCluster) -> None:
    async def ask(actor: Any, failure: MeshFailure) -> bool:
        actor.script.note(await actor.itself.ping.call_one())
        return True

    owner = spawn(AsyncOwner, script := Script(supervise=ask), "owner")
    do(owner, lambda actor, mesh: setattr(actor, "itself", mesh), owner)
    child = own(owner)
    assert script.next() == "init"
    break_rank(cluster, child, "raised")
    script.next_supervised()
    assert script.next() == "pong"
    assert owner.ping.call_one().get(TIMEOUT) == "pong"


@pytest.mark.parametrize("how", ["stopped by its owner", "stops itself", "aborts"])
def test_a_pending_supervise_is_cancelled_when_the_actor_ends_first(cluster: InProcessCluster, how: str) -> None:
    """Before `__cleanup__`, and those that were to follow do not begin."""
    awaited = Awaited()
    owner = spawn(AsyncOwner, script := Script(supervise=awaited.cancelled), "owner")
    child = own(owner, gpus=3)
    for rank in (0, 1):
        cluster.kill(child, rank)
    awaited.reached()
    cluster.settle()
    if how == "stopped by its owner":
        owner.stop().get(TIMEOUT)
    elif how == "stops itself":
        do(owner, lambda actor: context().actor_instance.stop("enough"))
    else:
        do(owner, lambda actor: context().actor_instance.abort("enough"))
        assert "enough" in cluster.next_failure().report()
    fails(owner.ping.call_one())
    assert script.next() == "init"
    script.next_supervised()
    assert script.next() == "cancelled"
    assert script.next()[0] == "cleanup"
    assert script.rest() == []


@pytest.mark.parametrize("kind", OWNERS)
def test_nobody_is_told_of_a_failure_under_an_owner_that_is_stopping(
    cluster: InProcessCluster, kind: Any, gate: Gate
) -> None:
    owner, child, script = owning(kind)
    gate.hold(owner)
    stopped = owner.stop()
    cluster.settle()
    cluster.kill(child, 1)
    cluster.settle()
    gate.open()
    stopped.get(TIMEOUT)
    assert script.rest() == [("cleanup", None)]


@pytest.mark.parametrize("kind", OWNERS)
def test_a_child_that_fails_because_it_is_stopped_is_not_reported(cluster: InProcessCluster, kind: Any) -> None:
    """Its cleanup raises, while its owner ends."""
    owner = spawn(kind, script := Script(), "owner")
    own(owner, script=Script(cleanup=raising(ValueError("in cleanup"))))
    owner.stop().get(TIMEOUT)
    cluster.settle()
    assert script.rest() == ["init", ("cleanup", None)]


# --- Up and down the tree.


class Tree:
    """root client -> top -> middle -> two leaves; beside middle, a sister of it."""

    def __init__(self, kind: Any, supervise: Any = None) -> None:
        hooks = {} if supervise is None else {"supervise": supervise}
        self.order: list[tuple[str, Any]] = []  # of cleanups
        self.scripts: dict[str, Script] = {}

        def script(name: str) -> Script:
            made = self.scripts[name] = Script(cleanup=lambda actor, exc: self.order.append((name, exc)), **hooks)
            return made

        self.top = spawn(kind, script("top"), "top")
        self.middle = own(self.top, kind, script("middle"), "middle", gpus=1).slice(gpus=0)
        self.sister = own(self.top, kind, script("sister"), "sister", gpus=1).slice(gpus=0)
        self.leaves = own(self.middle, kind, script("leaf"), "leaf", gpus=2)
        self.niece = own(self.sister, kind, script("niece"), "niece", gpus=1).slice(gpus=0)

    def names(self) -> list[str]:
        return [name for name, _ in self.order]

    def before(self, *pairs: tuple[str, str]) -> None:
        names = self.names()
        for first, second in pairs:
            last_of_first = max(index for index, name in enumerate(names) if name == first)
            assert last_of_first < names.index(second), names


trees = pytest.mark.parametrize("kind", [*KINDS, *OWNERS])


@trees
def test_a_stop_goes_down_the_whole_tree_children_first(cluster: InProcessCluster, kind: Any) -> None:
    tree = Tree(kind)
    tree.top.stop("the end").get(TIMEOUT)
    assert sorted(tree.names()) == ["leaf", "leaf", "middle", "niece", "sister", "top"]
    tree.before(("leaf", "middle"), ("niece", "sister"), ("middle", "top"), ("sister", "top"))
    assert [exc for _, exc in tree.order] == [None] * 6
    for mesh in (tree.leaves, tree.niece, tree.middle):
        fails(mesh.ping.call(), "stopped")


@trees
def test_a_failure_nobody_handles_climbs_to_the_root_and_takes_all_with_it(
    cluster: InProcessCluster, kind: Any
) -> None:
    tree = Tree(kind, supervise=lambda actor, failure: False)
    tree.leaves.slice(gpus=1).do.broadcast(Local(raising(ValueError("a leaf fell"))))
    failure = cluster.next_failure()
    assert failure.mesh_name == tree.top._name.get(TIMEOUT)
    assert re.match(
        r"The actor <root>\.<\S+ top>\.<\S+ middle\{.*\}>\.<\S+ leaf\{'gpus': 1/2\}> and all its descendants have "
        r"failed:\n(    .*\n)+    ValueError: a leaf fell$",
        failure.report(),
    )
    assert failure.event.count("did not handle a supervision event from its child") == 2
    assert sorted(tree.names()) == ["leaf", "leaf", "middle", "niece", "sister", "top"]
    tree.before(("leaf", "middle"), ("niece", "sister"), ("middle", "top"), ("sister", "top"))
    causes = dict(tree.order)
    assert causes["niece"] is None and causes["sister"] is None
    (stopped_leaf,) = [exc for name, exc in tree.order if name == "leaf" and exc is None]
    assert stopped_leaf is None
    for name in ("middle", "top"):
        assert isinstance(causes[name], Exception) and "a leaf fell" in str(causes[name])


@pytest.mark.parametrize("kind", OWNERS)
def test_a_failure_handled_half_way_goes_no_further(cluster: InProcessCluster, kind: Any) -> None:
    tree = Tree(kind)
    tree.scripts["middle"].hooks["supervise"] = lambda actor, failure: False
    cluster.kill(tree.leaves, 0)
    top = tree.scripts["top"]
    assert top.next() == "init"
    failure = top.next_supervised()
    assert failure.mesh_name == tree.middle._name.get(TIMEOUT)
    assert re.match(r"The actor .* leaf\{'gpus': 0/2\}> and all its descendants have failed", failure.report())
    assert sorted(tree.names()) == ["leaf", "middle"]
    for survivor in (tree.top, tree.sister, tree.niece):
        assert survivor.ping.call_one().get(TIMEOUT) == "pong"
    assert top.rest() == []


@kinds
def test_processes_end_with_the_actor_that_spawned_them(cluster: InProcessCluster, kind: Any) -> None:
    for end in ("stop", "abort"):
        owner = spawn(kind, name="owner")
        child = own(owner)
        address = cluster.address_of(child)
        do(owner, lambda actor, end=end: getattr(context().actor_instance, end)("enough"))
        if end == "abort":
            cluster.next_failure()
        fails(owner.ping.call_one(), "enough")
        owner.stop().get(TIMEOUT)
        fails(child.ping.call(), "stopped")
        assert address not in cluster.statistics()


@kinds
def test_actors_on_processes_of_others_are_stopped_with_their_owner(cluster: InProcessCluster, kind: Any) -> None:
    procs, others = pair()
    children = Script()

    def spawn_there(actor: Any, procs: Any) -> Any:
        return procs.spawn("child", Sync, Local(children))

    owner = spawn(kind, name="owner")
    child = do(owner, spawn_there, procs)
    child.ping.call().get(TIMEOUT)
    owner.stop().get(TIMEOUT)
    assert children.rest() == ["init", "init", ("cleanup", None), ("cleanup", None)]
    fails(child.ping.call(), "stopped: its owner ended")
    assert others.ping.call().get(TIMEOUT).values() == ["pong", "pong"]


def test_a_bootstrap_function_owns_what_it_spawns(cluster: InProcessCluster) -> None:
    """Through the setup actor, which handles nothing: the failure is the client's, as that of a mesh named setup."""
    children = Local[list[Any]]([])
    script = Local(Script())

    def bootstrap() -> None:
        child = this_host().spawn_procs().spawn("child", Sync, script)
        child.ping.call_one().get(TIMEOUT)
        children.value.append(child)

    procs = this_host().spawn_procs(bootstrap=bootstrap)
    procs.initialized.get(TIMEOUT)
    children.value[0].do.broadcast(Local(raising(ValueError("a child failed"))))
    failure = cluster.next_failure()
    assert "a child failed" in failure.report()
    assert "did not handle a supervision event from its child" in failure.event


# --- Cleanup.


@kinds
def test_cleanup_hears_nothing_on_a_stop_and_the_failure_on_a_failure(cluster: InProcessCluster, kind: Any) -> None:
    stopped, failed, aborted = Script(), Script(), Script()
    spawn(kind, stopped).stop().get(TIMEOUT)
    spawn(kind, failed).do.broadcast(Local(raising(ValueError("worn out"))))
    assert "worn out" in cluster.next_failure().report()
    do(spawn(kind, aborted), lambda actor: context().actor_instance.abort("enough"))
    assert "enough" in cluster.next_failure().report()
    assert stopped.rest() == ["init", ("cleanup", None)]
    _, (hook, exc) = failed.rest()
    assert hook == "cleanup" and isinstance(exc, ValueError)
    _, (hook, exc) = aborted.rest()
    assert hook == "cleanup" and isinstance(exc, Exception) and "enough" in str(exc)


@pytest.mark.parametrize("exc", [ValueError, SystemExit, TimeoutError, asyncio.CancelledError])
@kinds
def test_a_cleanup_that_raises_after_the_actor_stopped_itself(
    cluster: InProcessCluster, kind: Any, exc: type[BaseException]
) -> None:
    mesh = spawn(kind, Script(cleanup=raising(exc("in cleanup"))))
    do(mesh, lambda actor: context().actor_instance.stop("done"))
    failure = cluster.next_failure()
    assert failure.mesh_name == mesh._name.get(TIMEOUT)
    assert "cleanup error: " in failure.report() and "in cleanup" in failure.report()


@kinds
def test_a_cleanup_that_raises_when_the_owner_stops_the_mesh_is_logged(
    cluster: InProcessCluster, kind: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A stop that was asked for is no failure, and does not raise; nothing is lost silently either."""
    mesh = spawn(kind, Script(cleanup=raising(ValueError("in cleanup"))))
    assert mesh.stop().get(TIMEOUT) is None
    (record,) = [record for record in caplog.records if "__cleanup__" in record.getMessage()]
    assert record.exc_info is not None and "in cleanup" in str(record.exc_info[1])


@kinds
def test_a_cleanup_that_raises_after_a_failure_does_not_hide_it(
    cluster: InProcessCluster, kind: Any, caplog: pytest.LogCaptureFixture
) -> None:
    mesh = spawn(kind, Script(cleanup=raising(ValueError("in cleanup"))))
    mesh.do.broadcast(Local(raising(ValueError("the first cause"))))
    report = cluster.next_failure().report()
    assert "the first cause" in report and "in cleanup" not in report
    assert "in cleanup" in caplog.text


def test_an_async_cleanup_is_cut_short(cluster: InProcessCluster) -> None:
    cut = threading.Event()

    async def endless(actor: Any, exc: Exception | None) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cut.set()
            raise

    mesh = spawn(Async, Script(cleanup=endless))
    mesh.ping.call_one().get(TIMEOUT)
    with monarch.configured(cleanup_timeout="10ms"):
        do(mesh, lambda actor: context().actor_instance.stop("done"))
        report = cluster.next_failure().report()
    assert cut.is_set()
    assert re.search(r"have failed:\n    cleanup error: deadline has elapsed$", report)


def test_an_async_cleanup_is_cut_short_and_stop_does_not_raise(cluster: InProcessCluster) -> None:
    mesh = spawn(Async, Script(cleanup=lambda actor, exc: asyncio.Event().wait()))
    mesh.ping.call_one().get(TIMEOUT)
    with monarch.configured(cleanup_timeout="10ms"):
        assert mesh.stop().get(TIMEOUT) is None


@pytest.mark.parametrize("kind", [Sync, Async])
def test_a_cleanup_that_blocks_is_not_waited_for(kind: Any, gate: Gate) -> None:
    with InProcessCluster(clock=(clock := VirtualClock())):
        stopped = spawn(kind, Script(cleanup=lambda actor, exc: gate.stand())).stop()
        gate.reached()
        clock.advance(2.9)
        assert "pending" in repr(stopped)
        clock.advance(1.2)  # one that should let itself be cancelled has a second for that
        assert stopped.get(TIMEOUT) is None
        gate.open()


@pytest.mark.parametrize("kind", [Sync, Async])
def test_a_failure_is_told_though_the_cleanup_blocks(kind: Any, gate: Gate) -> None:
    with InProcessCluster(clock=(clock := VirtualClock())) as inner:
        mesh = spawn(kind, Script(cleanup=lambda actor, exc: gate.stand()))
        mesh.do.broadcast(Local(raising(ValueError("worn out"))))
        gate.reached()
        fails(mesh.ping.call_one(), "worn out")  # callers do not wait for the cleanup
        clock.advance(4.1)
        assert "worn out" in inner.next_failure(handled=True).report()
        gate.open()


def test_a_failure_is_told_though_an_endpoint_does_not_let_itself_be_cancelled(cluster: InProcessCluster) -> None:
    awaited = Awaited()
    owner = spawn(AsyncOwner, Script(supervise=lambda actor, failure: False), "owner")
    child = own(owner)
    with monarch.configured(stop_actor_timeout="10ms"):
        future = owner.do.call_one(Local(awaited.stubborn))
        awaited.reached()
        break_rank(cluster, child, "raised")
        port = awaited.reached()
        fails(future, "a child failed")
        assert "a child failed" in cluster.next_failure(handled=True).report()
        fails(child.ping.call(), "stopped")
    port.send(None)


def test_a_failure_is_told_though_a_concurrent_endpoint_does_not_let_itself_be_cancelled(
    cluster: InProcessCluster,
) -> None:
    awaited = Awaited()
    mesh = spawn(Concurrent)
    future = mesh.do.call_one(Local(awaited.stubborn))
    awaited.reached()
    with monarch.configured(stop_actor_timeout="10ms"):
        do(mesh, lambda actor: context().actor_instance.abort("worn out"))
        fails(future, "worn out")
        port = awaited.reached()
        assert "worn out" in cluster.next_failure(handled=True).report()
    port.send(None)


@kinds
def test_the_children_of_an_actor_that_hangs_are_stopped_all_the_same(
    cluster: InProcessCluster, kind: Any, gate: Gate
) -> None:
    owner = spawn(kind, name="owner")
    own(owner, script=(children := Script()))
    gate.hold(owner)
    with monarch.configured(stop_actor_timeout="10ms", cleanup_timeout="10ms"):
        owner.stop().get(TIMEOUT)
        assert [children.next() for _ in range(4)] == ["init", "init", ("cleanup", None), ("cleanup", None)]


# --- An actor ends itself.

ends = pytest.mark.parametrize("how", ["abort", "kill", "stop"])


def end(how: str, reason: str | None = "enough") -> Callable[..., str]:
    def action(*_: Any) -> str:
        getattr(context().actor_instance, how)(reason)
        return "replied"

    return action


def ended(cluster: InProcessCluster, mesh: Any, how: str, reason: str = "enough", handled: bool = False) -> None:
    """The mesh has ended in that way, for that reason, and its owner was told of a failure only (by a call: `handled`)."""
    if how == "stop":
        assert re.search(rf"has status:\n  stopped: {re.escape(reason)}$", fails(mesh.ping.call_one()))
    else:
        text = re.escape(f"actor explicitly aborted due to: {reason}")
        assert re.search(rf"have failed:\n    {text}$", cluster.next_failure(handled=handled).report())
        fails(mesh.ping.call_one(), text)


@ends
@every_kind
def test_an_endpoint_ends_its_actor_after_its_reply(cluster: InProcessCluster, kind: Any, how: str) -> None:
    mesh = spawn(kind)
    assert do(mesh, end(how)) == "replied"
    ended(cluster, mesh, how)


@pytest.mark.parametrize(
    ("how", "text"),
    [("abort", "(no reason provided)"), ("kill", "(no reason provided)"), ("stop", "stopped by itself")],
)
@kinds
def test_without_a_reason(cluster: InProcessCluster, kind: Any, how: str, text: str) -> None:
    mesh = spawn(kind)
    do(mesh, end(how, None))
    ended(cluster, mesh, how, text)


@ends
@kinds
def test_messages_behind_it_are_refused(cluster: InProcessCluster, kind: Any, how: str, gate: Gate) -> None:
    mesh = spawn(kind, script := Script())

    def stand_and_end(actor: Any) -> str:
        gate.stand()
        return end(how)()

    held = mesh.do.call_one(Local(stand_and_end))
    gate.reached()
    behind = mesh.note.call_one("never")
    mesh.note.broadcast("never")  # it waits when the actor ends: its sender need not hear of it
    cluster.settle()
    gate.open()
    assert held.get(TIMEOUT) == "replied"
    fails(behind, "enough")
    ended(cluster, mesh, how, handled=True)
    mesh.stop().get(TIMEOUT)
    assert [_hook(entry) for entry in script.rest()] == ["init", "cleanup"]


def in_a_thread(action: Callable[..., Any]) -> Callable[..., None]:
    """Runs it with the actor's context in a thread that the endpoint does not wait for."""

    def start(actor: Any, *args: Any) -> None:
        threading.Thread(target=bind_context(action), args=(actor, *args)).start()

    return start


@ends
@kinds
def test_a_thread_ends_its_idle_actor(cluster: InProcessCluster, kind: Any, how: str, gate: Gate) -> None:
    mesh = spawn(kind, script := Script())

    def later(actor: Any) -> None:
        gate.stand()
        end(how)()

    do(mesh, in_a_thread(later))
    gate.reached()
    mesh.ping.call_one().get(TIMEOUT)
    assert script.next() == "init"
    gate.open()
    assert script.next()[0] == "cleanup"  # nobody sends it a message: it ends by itself
    ended(cluster, mesh, how)


@ends
@kinds
def test_a_thread_ends_its_busy_actor_after_the_reply(
    cluster: InProcessCluster, kind: Any, how: str, gate: Gate
) -> None:
    mesh = spawn(kind)
    done = threading.Event()

    def from_a_thread(actor: Any) -> None:
        end(how)()
        done.set()

    def stand(actor: Any) -> str:
        in_a_thread(from_a_thread)(actor)
        gate.stand()
        return "replied"

    future = mesh.do.call_one(Local(stand))
    assert done.wait(TIMEOUT)
    gate.open()
    assert future.get(TIMEOUT) == "replied"
    ended(cluster, mesh, how)


@ends
def test_a_background_task_ends_its_idle_actor(cluster: InProcessCluster, how: str) -> None:
    awaited = Awaited()

    async def later() -> None:
        await awaited.stand()
        end(how)()

    def start(actor: Any) -> None:
        actor.task = asyncio.get_running_loop().create_task(later())

    mesh = spawn(Async, script := Script())
    do(mesh, start)
    assert script.next() == "init"
    awaited.reached().send(None)
    assert script.next()[0] == "cleanup"
    ended(cluster, mesh, how)


@ends
def test_a_task_ends_its_actor_while_an_endpoint_awaits(cluster: InProcessCluster, how: str) -> None:
    """After the reply of that endpoint: it is not cancelled."""
    awaited = Awaited()

    async def endpoint_(actor: Any) -> Any:
        async def later() -> None:
            end(how)()

        await asyncio.get_running_loop().create_task(later())
        return await awaited.stand()

    mesh = spawn(Async)
    future = mesh.do.call_one(Local(endpoint_))
    awaited.reached().send("replied")
    assert future.get(TIMEOUT) == "replied"
    ended(cluster, mesh, how)


@pytest.mark.parametrize("hows", [["abort", "abort", "stop"], ["stop", "abort", "abort"]])
@kinds
def test_an_abort_counts_more_than_a_stop_and_the_first_of_them(
    cluster: InProcessCluster, kind: Any, hows: list[str]
) -> None:
    def end_often(actor: Any) -> None:
        for number, how in enumerate(hows):
            end(how, f"reason {number}")()

    mesh = spawn(kind)
    do(mesh, end_often)
    ended(cluster, mesh, "abort", f"reason {hows.index('abort')}")


@pytest.mark.parametrize("answer", [True, False])
@owners
def test_an_abort_within_supervise(cluster: InProcessCluster, kind: Any, answer: bool) -> None:
    """Handled, the actor fails for its own reason; unhandled, with its child."""

    def abort(actor: Any, failure: MeshFailure) -> bool:
        end("abort")()
        return answer

    owner = spawn(kind, Script(supervise=abort), "owner")
    break_rank(cluster, own(owner), "raised")
    report = cluster.next_failure().report()
    assert ("explicitly aborted due to: enough" if answer else "a child failed") in report


@owners
def test_a_stop_within_supervise(cluster: InProcessCluster, kind: Any) -> None:
    def stop(actor: Any, failure: MeshFailure) -> bool:
        end("stop")()
        return True

    owner = spawn(kind, script := Script(supervise=stop), "owner")
    break_rank(cluster, own(owner), "raised")
    assert script.next() == "init"
    script.next_supervised()
    assert script.next() == ("cleanup", None)
    ended(cluster, owner, "stop")


@pytest.mark.usefixtures("calls_are_in_time")
@ends
@kinds
def test_ending_within_the_constructor(cluster: InProcessCluster, kind: Any, how: str) -> None:
    """It is constructed, handles nothing, and is cleaned up."""
    mesh = spawn(kind, script := Script(init=end(how)))
    fails(mesh.note.call_one("never"), "enough")
    ended(cluster, mesh, how, handled=True)
    mesh.stop().get(TIMEOUT)
    assert [_hook(entry) for entry in script.rest()] == ["init", "cleanup"]


@kinds
def test_an_abort_within_cleanup_is_a_failure(cluster: InProcessCluster, kind: Any) -> None:
    mesh = spawn(kind, Script(cleanup=end("abort", "while cleaning")))
    do(mesh, end("stop"))
    report = cluster.next_failure().report()
    assert re.search(r"have failed:\n    actor explicitly aborted due to: while cleaning$", report)


@ends
def test_ending_an_actor_that_has_ended_does_nothing(cluster: InProcessCluster, how: str) -> None:
    mesh = spawn(Sync)
    kept: list[Any] = []
    do(mesh, lambda actor: kept.append(context().actor_instance))
    mesh.stop("first").get(TIMEOUT)
    getattr(kept[0], how)("second")
    fails(mesh.ping.call_one(), "stopped: first")


def test_the_client_cannot_end_itself_like_an_actor() -> None:
    for how in ("abort", "kill", "stop"):
        with pytest.raises(RuntimeError, match="the client cannot"):
            getattr(context().actor_instance, how)()


# --- Ends that cross each other.


@kinds
def test_a_stop_while_it_is_constructed(kind: Any, gate: Gate) -> None:
    script = Script(init=lambda actor: gate.stand())
    mesh = spawn(kind, script)
    gate.reached()
    queued = mesh.note.call_one("never")
    stopped = mesh.stop("too early")
    fails(mesh.ping.call_one(), "stopped: too early")
    gate.open()
    stopped.get(TIMEOUT)
    fails(queued, "stopped: too early")
    assert script.rest() == ["init", ("cleanup", None)]


@kinds
def test_a_constructor_that_raises_while_it_is_stopped(cluster: InProcessCluster, kind: Any, gate: Gate) -> None:
    def construct(actor: Any) -> None:
        gate.stand()
        raise OSError("no room")

    mesh = spawn(kind, script := Script(init=construct))
    gate.reached()
    stopped = mesh.stop("too early")
    gate.open()
    assert stopped.get(TIMEOUT) is None
    cluster.settle()
    assert script.rest() == ["init"]


@pytest.mark.parametrize("how", ["raises", "aborts"])
@kinds
def test_a_failure_while_stopping_is_not_told(cluster: InProcessCluster, kind: Any, how: str, gate: Gate) -> None:
    def stand_and_fail(actor: Any) -> None:
        gate.stand()
        actor.script.note("went on")
        if how == "raises":
            raise ValueError("too late")
        end("abort", "too late")()

    mesh = spawn(kind, script := Script())
    mesh.do.broadcast(Local(stand_and_fail))
    gate.reached()
    stopped = mesh.stop("no more")
    cluster.settle()
    gate.open()
    assert stopped.get(TIMEOUT) is None
    cluster.settle()
    fails(mesh.ping.call_one())
    assert [_hook(entry) for entry in script.rest()] == ["init", "went on", "cleanup"]


@kinds
def test_a_failure_after_the_actor_asked_to_stop_is_told(cluster: InProcessCluster, kind: Any) -> None:
    def stop_and_raise(actor: Any) -> None:
        end("stop")()
        raise ValueError("worn out")

    mesh = spawn(kind)
    mesh.do.broadcast(Local(stop_and_raise))
    assert "worn out" in cluster.next_failure().report()


@kinds
def test_stopping_a_mesh_with_a_failed_rank(cluster: InProcessCluster, kind: Any) -> None:
    _, mesh = pair(kind)
    mesh.slice(gpus=1).do.broadcast(Local(raising(ValueError("worn out"))))
    cluster.next_failure()
    assert mesh.stop().get(TIMEOUT) is None
    assert mesh.stop().get(TIMEOUT) is None


def test_a_stop_cancels_the_awaiting_endpoint_and_concurrent_ones_which_is_no_failure() -> None:
    mesh = spawn(Concurrent, script := Script())
    awaited = Awaited()
    futures = [mesh.do.call_one(Local(awaited.cancelled)), mesh.do.call_one(Local(awaited.cancelled))]
    mesh.do.broadcast(Local(awaited.cancelled))
    for _ in range(3):
        awaited.reached()
    mesh.stop("no more").get(TIMEOUT)
    for future in futures:
        fails(future, "stopped: no more")
    assert script.rest() == ["init", "cancelled", "cancelled", "cancelled", ("cleanup", None)]


# --- Spawning at odd times.


@owners
def test_spawning_in_the_constructor(cluster: InProcessCluster, kind: Any) -> None:
    children = Script()

    def construct(actor: Any) -> None:
        actor.child = this_host().spawn_procs({"gpus": 2}).spawn("child", Sync, Local(children))

    owner = spawn(kind, script := Script(init=construct), "owner")
    child = do(owner, lambda actor: actor.child)
    assert script.next() == "init"
    child.ping.call().get(TIMEOUT)
    break_rank(cluster, child, "raised")
    script.next_supervised()
    owner.stop().get(TIMEOUT)
    assert [_hook(entry) for entry in children.rest()].count("cleanup") == 2


@owners
def test_spawning_in_supervise(cluster: InProcessCluster, kind: Any) -> None:
    """Shows that what takes the place of a lost child is the owner's like any other."""
    children = Script()

    def replace(actor: Any, failure: MeshFailure) -> bool:
        actor.spare = this_host().spawn_procs({"gpus": 2}).spawn("spare", Sync, Local(children))
        return True

    owner = spawn(kind, script := Script(supervise=replace), "owner")
    break_rank(cluster, own(owner), "killed")
    assert script.next() == "init"
    script.next_supervised()
    spare = do(owner, lambda actor: actor.spare)
    spare.ping.call().get(TIMEOUT)
    break_rank(cluster, spare, "raised", 0)
    assert script.next_supervised().mesh_name == spare._name.get(TIMEOUT)
    owner.stop().get(TIMEOUT)
    fails(spare.ping.call(), "stopped")


@pytest.mark.parametrize("what", ["procs", "actors"])
@kinds
def test_spawning_in_cleanup_is_refused(cluster: InProcessCluster, kind: Any, what: str) -> None:
    """Nobody would stop it."""
    procs, _ = pair()
    errors: list[Any] = []

    def spawn_late(actor: Any, exc: Exception | None) -> None:
        try:
            if what == "procs":
                this_host().spawn_procs()
            else:
                procs.spawn("late", Sync, Local(Script()))
        except RuntimeError as error:
            errors.append(str(error))

    before = len(cluster.statistics())
    spawn(kind, Script(cleanup=spawn_late), procs=procs.slice(gpus=0)).stop("no more").get(TIMEOUT)
    (error,) = errors
    assert "'a'" in error and "has ended" in error and "no more" in error
    assert len(cluster.statistics()) == before


@kinds
def test_spawning_in_a_thread_of_an_actor_that_has_ended_is_refused(kind: Any, gate: Gate) -> None:
    result: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def spawn_late(actor: Any) -> None:
        gate.stand()
        try:
            result.put(this_host().spawn_procs())
        except RuntimeError as error:
            result.put(str(error))

    mesh = spawn(kind)
    do(mesh, in_a_thread(spawn_late))
    gate.reached()
    mesh.stop("no more").get(TIMEOUT)
    gate.open()
    assert "no more" in result.get(timeout=TIMEOUT)


class Slow:
    """Takes its time to be encoded: until the gate is open."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate

    def __reduce__(self) -> Any:
        self.gate.stand()
        return _new_script, ()


def _new_script() -> Scripted:
    return Local(Script())


def test_what_a_thread_was_spawning_when_its_actor_ended_is_stopped(cluster: InProcessCluster, gate: Gate) -> None:
    procs, _ = pair()
    result: queue.SimpleQueue[Any] = queue.SimpleQueue()
    mesh = spawn(Sync)
    do(mesh, in_a_thread(lambda actor: result.put(procs.spawn("late", Sync, Slow(gate)))))
    gate.reached()
    mesh.stop("no more").get(TIMEOUT)
    gate.open()
    late = result.get(timeout=TIMEOUT)
    cluster.settle()
    fails(late.ping.call(), "stopped: its owner ended")


@kinds
def test_what_an_endpoint_spawns_while_its_actor_is_being_stopped_is_stopped_too(
    cluster: InProcessCluster, kind: Any, gate: Gate
) -> None:
    spawned = threading.Event()

    def spawn_late(actor: Any) -> None:
        gate.stand()
        this_host().spawn_procs().spawn("late", Sync, Local(Script()))
        spawned.set()

    mesh = spawn(kind)
    mesh.do.broadcast(Local(spawn_late))
    gate.reached()
    stopped = mesh.stop("no more")
    cluster.settle()
    before = len(cluster.statistics())
    gate.open()
    stopped.get(TIMEOUT)
    assert spawned.is_set()
    assert len(cluster.statistics()) == before


@kinds
def test_who_waits_in_an_actor_that_ends_is_told(cluster: InProcessCluster, kind: Any) -> None:
    """A thread of its own, at a port that it opened."""
    result: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def wait(actor: Any) -> None:
        _, receiver = Channel[Any].open()
        future = receiver.recv()
        result.put("begun")
        result.put(future.exception(TIMEOUT))

    mesh = spawn(kind)
    do(mesh, in_a_thread(wait))
    assert result.get(timeout=TIMEOUT) == "begun"
    mesh.stop("no more").get(TIMEOUT)
    error = result.get(timeout=TIMEOUT)
    assert isinstance(error, SupervisionError) and "stopped: no more" in str(error)


# --- What an actor knows of itself.


def test_the_instance_of_an_actor() -> None:
    procs = this_host().spawn_procs({"hosts": 2, "gpus": 2}, name="pool")
    mesh = procs.slice(gpus=1).spawn("a", Sync, Local(Script()))

    def facts(actor: Any) -> dict[str, Any]:
        instance = context().actor_instance
        return {
            "name": instance.name,
            "class_name": instance.class_name,
            "rank": instance.rank,
            "proc_mesh": instance.proc_mesh.sizes,
            "proc": instance.proc.sizes,
            "proc_id": instance.proc_id,
            "actor_id": instance.actor_id,
            "creator": instance.creator,
            "repr": repr(instance),
            "current": (current_rank().rank, current_size(), current_actor_name()),
        }

    found = mesh.slice(hosts=1).do.call_one(Local(facts)).get(TIMEOUT)
    assert found["name"] == "a"
    assert found["class_name"] == f"{Sync.__module__}.Sync"
    assert dict(found["rank"]) == {"hosts": 1} and found["rank"].extent == mesh.extent  # a slice counts as its own mesh
    assert (found["proc_mesh"], found["proc"]) == ({"hosts": 2}, {})
    assert isinstance(found["proc_id"], str) and found["proc_id"] == found["actor_id"].proc_id
    creator = found["creator"]
    assert (creator.name, creator.class_name, creator.creator) == ("root", None, None)
    assert re.fullmatch(r"<root>\.<[\w./-]*Sync a\{'hosts': 1/2\}>", found["repr"])
    addr = found["actor_id"]
    assert isinstance(addr, ActorAddr)
    assert addr.label == "a" and addr.pid == addr.uid and not addr.is_root
    for attribute in ("addr", "proc_name", "actor_name", "proc_label"):
        assert getattr(addr, attribute)
    again = ActorAddr.from_string(str(addr))
    assert again == addr == pickle.loads(pickle.dumps(addr)) and hash(again) == hash(addr) and str(again) == str(addr)
    assert found["current"] == (0, {}, str(addr))
    others = {str(value["actor_id"]) for value in mesh.do.call(Local(facts)).get(TIMEOUT).values()}
    assert len(others) == 2 and str(addr) in others


def test_the_instance_of_the_client() -> None:
    instance = context().actor_instance
    assert (instance.name, instance.class_name, instance.creator) == ("root", None, None)
    assert repr(instance) == "<root>"
    assert context() is context()
    assert context().message_rank.rank == 0 and dict(context().message_rank) == {}
    assert (current_rank().rank, current_size(), current_actor_name()) == (0, {}, str(instance.actor_id))
    assert instance.actor_id.is_root
