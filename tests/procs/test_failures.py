"""What goes wrong, and who is told what: errors of endpoints, deaths of actors and of processes."""

from __future__ import annotations

import asyncio
import ctypes
import os
import pickle
import signal
import threading
from typing import Any

import pytest

from monarch.actor import (
    Actor,
    ActorError,
    Channel,
    MeshFailure,
    Port,
    ProcMesh,
    SupervisionError,
    current_rank,
    endpoint,
    this_host,
)
from tests.support.tiers import first_of, full

pytestmark = pytest.mark.procs
TIMEOUT = 30
SOON = 5  # well below the ten seconds that looking now and then for dead processes would need


class Unpicklable(Exception):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.handle = threading.Lock()


class Replayless(Exception):
    """Pickling stores `args`, which do not fit the constructor."""

    def __init__(self, code: int, *, reason: str) -> None:
        super().__init__(f"code {code}: {reason}")
        self.code = code


class NotException(BaseException):
    pass


class Frail(Actor):
    def __init__(self, fail_on: int | None = None) -> None:
        if fail_on is not None and current_rank().rank == fail_on:
            raise OSError("no room in the constructor")

    @endpoint
    async def pid(self) -> int:
        return os.getpid()

    @endpoint
    async def alive(self) -> str:
        return "alive"

    @endpoint
    async def fail(self, text: str = "as asked") -> None:
        raise ValueError(text)

    @endpoint
    async def fail_with_cause(self) -> None:
        try:
            raise KeyError("the root of it")
        except KeyError as exc:
            raise RuntimeError("on top") from exc

    @endpoint
    async def fail_unpicklably(self) -> None:
        raise Unpicklable("with a handle")

    @endpoint
    async def fail_replayless(self) -> None:
        raise Replayless(7, reason="worn out")

    @endpoint
    async def raise_base(self, name: str) -> None:
        raise {"SystemExit": SystemExit, "KeyboardInterrupt": KeyboardInterrupt, "custom": NotException}[name]("base")

    @endpoint
    async def generator(self) -> Any:
        return (x for x in ())

    @endpoint
    async def hold(self, port: Port[Any]) -> None:
        opened, receiver = Channel[Any].open()
        port.send(opened)
        await receiver.recv()

    @endpoint
    async def spin(self, port: Port[Any]) -> None:
        """Never gives the thread back."""
        port.send(None)
        while True:
            pass

    @endpoint
    async def exit(self, code: int) -> None:
        os._exit(code)

    @endpoint
    async def crash(self) -> None:
        ctypes.string_at(0)


class SyncFrail(Actor):
    @endpoint
    def fail(self) -> None:
        raise ValueError("as asked")

    @endpoint
    def raise_base(self, name: str) -> None:
        raise {"SystemExit": SystemExit, "KeyboardInterrupt": KeyboardInterrupt, "custom": NotException}[name]("base")

    @endpoint
    def alive(self) -> str:
        return "alive"


@pytest.fixture
def frail(procs2: ProcMesh) -> Any:
    return procs2.spawn("frail", Frail)


@pytest.fixture
def one(frail: Any) -> Any:
    return frail.slice(gpus=0)


@pytest.fixture
def own(spawn_procs: Any) -> Any:
    """Two processes that a test may kill."""
    return spawn_procs({"gpus": 2})


# --- an endpoint raises and its caller waits


def test_an_actor_error_shows_the_remote_traceback(one: Any) -> None:
    with pytest.raises(ActorError) as caught:
        one.fail.call_one("broken").get(timeout=TIMEOUT)
    error = caught.value
    assert error.message == "Actor call frail.fail failed."
    assert isinstance(error.exception, ValueError) and error.exception.args == ("broken",)
    assert str(error).startswith("Actor call frail.fail failed.\n ")
    for text in (
        "Traceback of where the remote call failed (most recent call last):",
        "in fail",
        "ValueError: broken",
    ):
        assert text in str(error) and text in error.exception_formatted
    assert error.__cause__ is None


def test_an_actor_error_shows_causes(one: Any) -> None:
    with pytest.raises(ActorError) as caught:
        one.fail_with_cause.call_one().get(timeout=TIMEOUT)
    assert "KeyError: 'the root of it'" in str(caught.value) and "RuntimeError: on top" in str(caught.value)


def test_an_actor_error_can_be_pickled(one: Any) -> None:
    error = one.fail.call_one("broken").exception(timeout=TIMEOUT)
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) and again.message == error.message


@pytest.mark.parametrize("adverb", ["call", "call_one", "choose"])
def test_an_actor_survives_what_its_caller_was_told(one: Any, adverb: str) -> None:
    with pytest.raises(ActorError):
        getattr(one.fail, adverb)().get(timeout=TIMEOUT)
    assert one.alive.call_one().get(timeout=TIMEOUT) == "alive"


def test_an_exception_that_cannot_be_pickled_comes_as_text(one: Any) -> None:
    with pytest.raises(ActorError) as caught:
        one.fail_unpicklably.call_one().get(timeout=TIMEOUT)
    assert "Unpicklable: with a handle" in str(caught.value) and "in fail_unpicklably" in str(caught.value)
    assert one.alive.call_one().get(timeout=TIMEOUT) == "alive"


def test_an_exception_whose_constructor_cannot_be_replayed_comes_as_text(one: Any) -> None:
    with pytest.raises(ActorError) as caught:
        one.fail_replayless.call_one().get(timeout=TIMEOUT)
    assert "Replayless: code 7: worn out" in str(caught.value)
    assert one.alive.call_one().get(timeout=TIMEOUT) == "alive"


def test_a_result_that_cannot_be_pickled_is_an_actor_error(one: Any) -> None:
    with pytest.raises(ActorError, match="generator") as caught:
        one.generator.call_one().get(timeout=TIMEOUT)
    assert isinstance(caught.value.exception, TypeError)
    assert one.alive.call_one().get(timeout=TIMEOUT) == "alive"


# --- an actor fails


def test_a_broadcast_to_a_failing_endpoint_reaches_the_hook_once(frail: Any, faults: Any) -> None:
    frail.slice(gpus=1).fail.broadcast("nobody asked")
    failure = faults.next()
    assert isinstance(failure, MeshFailure)
    assert failure.mesh_name == frail._name.get(timeout=TIMEOUT)
    assert "crashed_ranks=[1]" in str(failure) and str(failure).startswith("MeshFailure(mesh_name=")
    report = failure.report()
    assert "nobody asked" in report and "Frail frail{'gpus': 1/2}" in report
    assert "and all its descendants have failed:" in report
    assert "actor explicitly aborted due to:" in report
    frail.slice(gpus=0).alive.call_one().get(timeout=TIMEOUT)
    assert faults.rest() == []


def test_a_failed_rank_fails_every_view_that_has_it_and_no_other(frail: Any, faults: Any) -> None:
    frail.slice(gpus=1).fail.broadcast("a reason")
    faults.next()
    for view in (frail, frail.slice(gpus=1), frail.flatten("x")):
        with pytest.raises(SupervisionError, match="a reason") as caught:
            view.alive.call().get(timeout=TIMEOUT)
        assert "alive()" in str(caught.value)
    assert frail.slice(gpus=0).alive.call_one().get(timeout=TIMEOUT) == "alive"
    for future in frail.alive.stream():
        assert isinstance(future.exception(timeout=TIMEOUT), SupervisionError)
    with pytest.raises(SupervisionError, match="a reason"):
        frail.alive.choose().get(timeout=TIMEOUT)
    assert faults.rest() == []


def test_other_actors_of_the_process_go_on_and_new_ones_can_be_made(procs2: ProcMesh, frail: Any, faults: Any) -> None:
    other = procs2.spawn("other", Frail)
    frail.fail.broadcast()
    faults.next()
    faults.next()
    assert other.alive.call().get(timeout=TIMEOUT).values() == ["alive"] * 2
    assert procs2.spawn("fresh", Frail).alive.call().get(timeout=TIMEOUT).values() == ["alive"] * 2


def test_who_caught_the_error_is_not_told_again(frail: Any, faults: Any) -> None:
    frail.slice(gpus=0).fail.broadcast()
    faults.next()
    for _ in range(3):
        with pytest.raises(SupervisionError):
            frail.alive.call().get(timeout=TIMEOUT)
    assert frail.slice(gpus=1).alive.call_one().get(timeout=TIMEOUT) == "alive"
    assert faults.rest() == []


def test_a_call_behind_the_failure_fails_with_its_report(one: Any, faults: Any) -> None:
    one.fail.broadcast("before it")
    with pytest.raises(SupervisionError, match="before it"):
        one.alive.call_one().get(timeout=TIMEOUT)
    assert "before it" in faults.next(handled=True).report()


@pytest.mark.parametrize("kind", [Frail, SyncFrail])
@pytest.mark.parametrize("name", ["SystemExit", "KeyboardInterrupt", "custom"])
def test_a_base_exception_is_a_failure_of_the_actor(
    procs2: ProcMesh, faults: Any, kind: type[Frail], name: str
) -> None:
    mesh = procs2.slice(gpus=0).spawn("frail", kind)
    with pytest.raises(SupervisionError):
        mesh.raise_base.call_one(name).get(timeout=TIMEOUT)
    expected = "NotException" if name == "custom" else name
    assert expected in faults.next(handled=True).report()
    assert procs2.spawn("fresh", SyncFrail).alive.call().get(timeout=TIMEOUT).values() == ["alive"] * 2


def test_a_supervision_error_can_be_pickled(one: Any, faults: Any) -> None:
    one.fail.broadcast()
    error = one.alive.call_one().exception(timeout=TIMEOUT)
    assert isinstance(error, SupervisionError) and isinstance(error, RuntimeError)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    faults.next(handled=True)


def test_a_mesh_failure_is_made_by_the_runtime_only() -> None:
    with pytest.raises(TypeError):
        MeshFailure()


# --- the constructor raises


def test_a_constructor_that_raises_fails_its_rank_only(procs2: ProcMesh, faults: Any) -> None:
    mesh = procs2.spawn("frail", Frail, fail_on=1)
    assert mesh.initialized.get(timeout=TIMEOUT) is None
    with pytest.raises(SupervisionError, match="no room in the constructor") as caught:
        mesh.alive.call().get(timeout=TIMEOUT)
    assert "__init__" in str(caught.value)  # its traceback
    assert mesh.slice(gpus=0).alive.call_one().get(timeout=TIMEOUT) == "alive"
    failure = faults.next(handled=True)
    assert "crashed_ranks=[1]" in str(failure) and "no room in the constructor" in failure.report()
    assert faults.rest() == []


# --- a process dies


def test_kill_9_ends_the_waiting_call_at_once_and_names_what_happened(own: Any, faults: Any) -> None:
    mesh = own.spawn("frail", Frail)
    pid = mesh.pid.call().get(timeout=TIMEOUT).get(1)
    port, receiver = Channel[Any].open()
    future = mesh.slice(gpus=1).hold.call_one(port)
    whole = mesh.hold.call(port)
    receiver.recv().get(timeout=TIMEOUT)
    os.kill(pid, signal.SIGKILL)
    for call in (future, whole):
        with pytest.raises(SupervisionError) as caught:
            call.get(timeout=SOON)
        text = str(caught.value)
        assert "frail" in text and "hold()" in text
        assert "{'gpus': 1/2}" in text
        assert "Killed(sig=9)" in text and str(pid) in text
    assert "Killed(sig=9)" in faults.next(handled=True).report()


def test_a_busy_process_is_noticed_as_fast(own: Any, faults: Any) -> None:
    mesh = own.spawn("frail", Frail).slice(gpus=0)
    pid = mesh.pid.call_one().get(timeout=TIMEOUT)
    port, receiver = Channel[Any].open()
    future = mesh.spin.call_one(port)
    receiver.recv().get(timeout=TIMEOUT)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(SupervisionError, match=r"Killed\(sig=9\)"):
        future.get(timeout=SOON)
    faults.next(handled=True)


def test_an_exit_code_is_named(own: Any, faults: Any) -> None:
    mesh = own.spawn("frail", Frail)
    with pytest.raises(SupervisionError, match="exited with non-zero code 7"):
        mesh.slice(gpus=0).exit.call_one(7).get(timeout=SOON)
    assert "exited with non-zero code 7" in faults.next(handled=True).report()


def test_an_exit_with_0_is_an_end_and_no_failure(own: Any, faults: Any) -> None:
    mesh = own.spawn("frail", Frail)
    with pytest.raises(SupervisionError, match="stopped: process exited cleanly"):
        mesh.slice(gpus=0).exit.call_one(0).get(timeout=SOON)
    with pytest.raises(SupervisionError):
        mesh.alive.call().get(timeout=SOON)
    assert mesh.slice(gpus=1).alive.call_one().get(timeout=TIMEOUT) == "alive"
    assert faults.rest() == []


def test_a_crash_names_the_signal(own: Any, faults: Any) -> None:
    with pytest.raises(SupervisionError, match="sig=11"):
        own.spawn("frail", Frail).slice(gpus=0).crash.call_one().get(timeout=SOON)
    faults.next(handled=True)


def test_the_report_has_the_last_lines_the_process_wrote(scripts: Any) -> None:
    scripts.run(
        """
        import os, sys
        import monarch.actor
        from monarch.actor import Actor, SupervisionError, endpoint, this_host

        monarch.actor.unhandled_fault_hook = lambda failure: None

        class A(Actor):
            @endpoint
            def end(self):
                print("the last words", file=sys.stderr, flush=True)
                os._exit(3)

        try:
            this_host().spawn_procs().spawn("a", A).end.call_one().get(timeout=30)
        except SupervisionError as exc:
            assert "the last words" in str(exc), str(exc)
        else:
            raise SystemExit("no error")
        """
    )


def test_other_slices_go_on_and_can_be_spawned_on(own: Any, faults: Any) -> None:
    mesh, other = own.spawn("frail", Frail), own.spawn("other", Frail)
    mesh.slice(gpus=0).exit.broadcast(1)
    with pytest.raises(SupervisionError):
        mesh.alive.call().get(timeout=SOON)
    for healthy in (mesh.slice(gpus=1), other.slice(gpus=1), own.slice(gpus=1).spawn("fresh", Frail)):
        assert healthy.alive.call_one().get(timeout=TIMEOUT) == "alive"
    with pytest.raises(SupervisionError):
        other.alive.call().get(timeout=SOON)
    faults.next(handled=True)


def test_each_mesh_on_a_dead_process_is_reported_once(own: Any, faults: Any) -> None:
    meshes = [own.spawn(name, Frail) for name in ("first", "second")]
    for mesh in meshes:
        mesh.alive.call().get(timeout=TIMEOUT)
    os.kill(meshes[0].pid.call().get(timeout=TIMEOUT).get(1), signal.SIGKILL)
    found = [faults.next(), faults.next()]
    assert {failure.mesh_name for failure in found} == {mesh._name.get(timeout=TIMEOUT) for mesh in meshes}
    assert all("crashed_ranks=[1]" in str(failure) for failure in found)
    assert meshes[0].slice(gpus=0).alive.call_one().get(timeout=TIMEOUT) == "alive"
    assert faults.rest() == []


# --- supervision by an actor


class Owner(Actor):
    def __init__(self, handles: bool) -> None:
        self.handles = handles
        self.kid = this_host().spawn_procs({"k": 2}).spawn("kid", Frail)
        self.seen: list[str] = []
        self.told = asyncio.Event()

    @endpoint
    async def break_one(self) -> list[str]:
        self.kid.slice(k=1).fail.broadcast("a kid failed")
        await self.told.wait()
        return self.seen

    @endpoint
    async def seen_now(self) -> list[str]:
        return self.seen

    @endpoint
    async def healthy(self) -> str:
        return await self.kid.slice(k=0).alive.call_one()

    @endpoint
    async def give_kid(self) -> Any:
        return self.kid

    def __supervise__(self, failure: MeshFailure) -> bool:
        self.seen.append(str(failure))
        self.told.set()
        return self.handles


def test_a_true_answer_of_supervise_ends_the_matter(proc: ProcMesh) -> None:
    owner = proc.spawn("owner", Owner, True)
    (said,) = owner.break_one.call_one().get(timeout=TIMEOUT)
    assert "crashed_ranks=[1]" in said and "kid" in said
    assert owner.healthy.call_one().get(timeout=TIMEOUT) == "alive"
    assert len(owner.seen_now.call_one().get(timeout=TIMEOUT)) == 1
    owner.stop().get(timeout=TIMEOUT)


def test_a_failure_goes_to_the_owner_whoever_caused_it(proc: ProcMesh) -> None:
    owner = proc.spawn("owner", Owner, True)
    kid = owner.give_kid.call_one().get(timeout=TIMEOUT)
    kid.slice(k=1).fail.broadcast("from outside")
    with pytest.raises(SupervisionError, match="from outside"):
        kid.alive.call().get(timeout=TIMEOUT)

    async def until_told() -> list[str]:
        while True:
            seen: list[str] = await owner.seen_now.call_one()
            if seen:
                return seen

    (said,) = asyncio.run(asyncio.wait_for(until_told(), TIMEOUT))
    assert "crashed_ranks=[1]" in said
    owner.stop().get(timeout=TIMEOUT)


def test_a_false_answer_of_supervise_is_a_failure_of_the_owner(proc: ProcMesh, faults: Any) -> None:
    owner = proc.spawn("owner", Owner, False)
    owner.break_one.broadcast()
    failure = faults.next()
    assert failure.mesh_name == owner._name.get(timeout=TIMEOUT)
    assert "a kid failed" in failure.report()
    with pytest.raises(SupervisionError, match="a kid failed"):
        owner.seen_now.call_one().get(timeout=TIMEOUT)


# --- nobody supervises


UNHANDLED = """
    import atexit, sys
    from monarch.actor import Actor, Channel, endpoint, this_host

    class A(Actor):
        @endpoint
        def fail(self): raise ValueError("nobody looks after me")

    atexit.register(print, "atexit ran", flush=True)
    a = this_host().spawn_procs().spawn("a", A)
    port, receiver = Channel.open()
    a.fail.broadcast()
    try:
        WAIT
    except Exception:
        print("wrongly caught", flush=True)
    finally:
        print("finally ran", flush=True)
"""


@pytest.mark.parametrize(
    "wait",
    first_of(["receiver.recv().get(timeout=30)", "__import__('time').sleep(30)"]),
    ids=["in our wait", "in another wait"],
)
def test_an_unhandled_failure_ends_the_program_and_explains_itself(scripts: Any, wait: str) -> None:
    done = scripts.run(UNHANDLED.replace("WAIT", wait), check=False)
    assert done.returncode == 1, done.stderr
    assert done.stdout.splitlines() == ["finally ran", "atexit ran"]
    assert "Unhandled monarch error on the root actor" in done.stderr
    assert "UnhandledFaultError" in done.stderr and "nobody looks after me" in done.stderr


def test_a_hook_that_returns_keeps_the_program_going(scripts: Any) -> None:
    scripts.run(
        """
        import queue
        import monarch.actor
        from monarch.actor import Actor, endpoint, this_host

        class A(Actor):
            @endpoint
            def fail(self): raise ValueError("looked after")
            @endpoint
            def alive(self): return True

        seen = queue.Queue()
        monarch.actor.unhandled_fault_hook = seen.put
        procs = this_host().spawn_procs()
        procs.spawn("a", A).fail.broadcast()
        assert "looked after" in seen.get(timeout=30).report()
        assert procs.spawn("b", A).alive.call_one().get(timeout=30)
        """
    )


@full
def test_a_hook_that_raises_is_no_hook(scripts: Any) -> None:
    done = scripts.run(
        """
        import monarch.actor
        from monarch.actor import Actor, Channel, UnhandledFaultError, endpoint, this_host

        class A(Actor):
            @endpoint
            def fail(self): raise ValueError("the failure")

        def hook(failure):
            raise RuntimeError("the hook failed too")

        monarch.actor.unhandled_fault_hook = hook
        port, receiver = Channel.open()
        this_host().spawn_procs().spawn("a", A).fail.broadcast()
        try:
            receiver.recv().get(timeout=30)
        except UnhandledFaultError as exc:
            assert isinstance(exc, KeyboardInterrupt) and "the failure" in str(exc)
            print("interrupted")
        """
    )
    assert done.stdout.strip() == "interrupted"
    assert "Unhandled monarch error on the root actor" in done.stderr


# --- the fork server


@full
def test_processes_are_started_without_the_fork_server_when_it_is_killed(scripts: Any) -> None:
    scripts.run(
        """
        import os, signal
        from monarch.actor import Actor, endpoint, this_host

        class A(Actor):
            @endpoint
            def parent(self): return os.getpid(), os.getppid()

        before = this_host().spawn_procs({"gpus": 2}).spawn("a", A)
        found = before.parent.call().get(timeout=30).values()
        agent = found[0][1]
        with open(f"/proc/{agent}/task/{agent}/children") as file:
            children = {int(pid) for pid in file.read().split()}
        (zygote,) = children - {pid for pid, _ in found}
        os.kill(zygote, signal.SIGKILL)
        while os.path.exists(f"/proc/{zygote}"):  # until the agent has reaped it
            before.parent.call().get(timeout=30)
        after = this_host().spawn_procs({"gpus": 2}).spawn("a", A)
        assert len(after.parent.call().get(timeout=30).values()) == 2
        assert [pid for pid, _ in before.parent.call().get(timeout=30).values()] == [pid for pid, _ in found]
        """
    )
