"""Tests of what a process tells of its threads and tasks, on an in-process cluster."""

from __future__ import annotations

import asyncio
import collections
import importlib
import sys
import threading
import types
from collections.abc import Callable
from typing import Any

import pytest

from monarch._mesh.agent.liveness import Liveness
from monarch._mesh.inspection import questions, survey, thread_stacks
from monarch._mesh.inspection.local_variables import TEXT, VARIABLES, LocalsLook, LocalsThread
from monarch._mesh.inspection.stack_records import StackFrame
from monarch.actor import Actor, ActorMesh, Stacks, endpoint, this_host, wait_graph
from monarch.testing import InProcessCluster, Local
from tests.support.actors import TIMEOUT, Gate

pytestmark = pytest.mark.usefixtures("no_leaks")


class Plain(Actor):
    """Blocks its thread."""

    @endpoint
    def hold(self, fn: Local[Callable[[], Any]]) -> Any:
        return fn.value()

    @endpoint
    def nothing(self) -> None:
        return None


class Looped(Actor):
    """Awaits."""

    @endpoint
    async def hold(self, fn: Local[Callable[[], Any]]) -> Any:
        return await fn.value()

    @endpoint
    async def look(self, mesh: ActorMesh[Any]) -> Stacks:
        return await mesh.stacks()


def spawn(cls: type, count: int = 1) -> Any:
    mesh = this_host().spawn_procs({"gpus": count}, name="workers").spawn("held", cls)
    mesh.initialized.get(TIMEOUT)
    return mesh


def stacks_with(mesh: Any, function: str, **how: Any) -> Stacks:
    """The stacks, once one of them is in that function."""
    while True:
        found: Stacks = mesh.stacks(**how).get(TIMEOUT)
        if any(f.function.endswith(function) for stacks in found.ranks.values() for s in stacks for f in s.frames):
            return found


def test_a_blocked_endpoint_and_an_idle_one(cluster: InProcessCluster, gate: Gate) -> None:
    def wait_here() -> None:
        gate.opened.wait(TIMEOUT)

    mesh = spawn(Plain, 2)
    held = mesh.slice(gpus=1).hold.call_one(Local(wait_here))
    found = stacks_with(mesh, "wait_here")
    ((idle,), (stuck,)) = found.ranks.values()
    assert (idle.idle, idle.frames, idle.actor, idle.endpoint) == (True, [], "held", "")
    assert (stuck.idle, stuck.endpoint, stuck.rank, stuck.actor) == (False, "hold", 1, "held")
    assert [frame.function.rpartition(".")[2] for frame in stuck.frames] == ["hold", "wait_here"]
    assert "rank 1 at test_thread_stacks.py" in str(found)
    gate.open()
    held.get(TIMEOUT)


def test_a_suspended_endpoint_shows_where_it_awaits_and_what_it_has_begun(cluster: InProcessCluster) -> None:
    loops: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def aside(gate: asyncio.Event) -> None:
        await gate.wait()

    async def wait_here() -> None:
        gate = asyncio.Event()
        task = asyncio.create_task(aside(gate), name="aside")
        await asyncio.sleep(0)
        loops.append((asyncio.get_running_loop(), gate))
        await gate.wait()
        await task

    mesh = spawn(Looped)
    held = mesh.hold.call_one(Local(wait_here))
    while not loops:
        mesh.stacks().get(TIMEOUT)
    found = stacks_with(mesh, "aside")
    (stacks,) = found.ranks.values()
    by_endpoint = {stack.endpoint: stack for stack in stacks}
    assert [f.function.rpartition(".")[2] for f in by_endpoint["hold"].frames] == ["hold", "wait_here"]
    assert by_endpoint["hold"].task
    assert by_endpoint[""].task == "aside"
    loop, gate = loops[0]
    loop.call_soon_threadsafe(gate.set)
    held.get(TIMEOUT)


def test_an_actor_may_look_at_others(cluster: InProcessCluster, gate: Gate) -> None:
    def wait_here() -> None:
        gate.opened.wait(TIMEOUT)

    plain, looped = spawn(Plain), spawn(Looped)
    held = plain.hold.call_one(Local(wait_here))
    stacks_with(plain, "wait_here")
    assert "wait_here()" in str(looped.look.call_one(plain).get(TIMEOUT))
    gate.open()
    held.get(TIMEOUT)


def test_variables_are_text_and_secrets_are_not_shown(cluster: InProcessCluster, gate: Gate) -> None:
    class Rude:
        def __repr__(self) -> str:
            raise ValueError("no")

    def wait_here() -> None:
        text, api_token, rude = "x" * 10_000, "hunter2", Rude()
        gate.opened.wait(TIMEOUT)
        del text, api_token, rude

    mesh = spawn(Plain)
    held = mesh.hold.call_one(Local(wait_here))
    found = stacks_with(mesh, "wait_here", locals=True)
    shown = found.processes[0].threads[0].frames[-1].locals
    assert len(shown["text"]) <= TEXT
    assert "hunter2" not in str(shown)
    assert shown["rude"].startswith("<Rude instance at")
    assert "text = 'xxx" in str(found)
    gate.open()
    held.get(TIMEOUT)


def test_all_threads_shows_the_runtime(cluster: InProcessCluster) -> None:
    mesh = spawn(Plain)
    mesh.nothing.call_one().get(TIMEOUT)
    (stack,) = mesh.stacks(all_threads=True).get(TIMEOUT).only(lambda process, stack: stack.actor == "held").ranks[0]
    assert any(frame.file.endswith("driver.py") for frame in stack.frames)


def test_a_process_that_is_not_there(cluster: InProcessCluster) -> None:
    procs = this_host().spawn_procs({"gpus": 1}, name="workers")
    procs.initialized.get(TIMEOUT)
    procs.stop().get(TIMEOUT)
    found = procs.stacks(timeout=0.2).get(TIMEOUT)
    assert found.processes == []
    assert len(found.silent) == 1


@pytest.mark.parametrize("timeout", [-1, float("nan"), float("inf")])
def test_a_timeout_that_is_none(cluster: InProcessCluster, timeout: float) -> None:
    with pytest.raises(ValueError, match="invalid timeout"):
        spawn(Plain).stacks(timeout=timeout)


def answering(monkeypatch: pytest.MonkeyPatch, question: str, answer: bytes) -> None:
    """Rank 1 answers that question with this."""
    known = questions.QUESTIONS[question]

    def function(proc: Any, argument: bytes) -> bytes:
        made: bytes = getattr(importlib.import_module(f"monarch.{known.module}"), known.function)(proc, argument)
        return answer if proc.address.endswith(".1") else made

    module: Any = types.ModuleType(f"monarch.answers_of_tests_{question}")
    module.function = function
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(module, "__spec__", types.SimpleNamespace(_initializing=False))
    monkeypatch.setitem(
        questions.QUESTIONS, question, questions.Question(f"answers_of_tests_{question}", "function", quick=True)
    )


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"\x00", "cannot be read"),
        (b"\x91" * 100_000, "cannot be read"),
        (b"x" * 2_000_000, "2,000,000 bytes, more than"),
    ],
    ids=["another kind", "deep", "large"],
)
def test_an_answer_that_cannot_be_read_costs_no_other(
    cluster: InProcessCluster, gate: Gate, monkeypatch: pytest.MonkeyPatch, answer: bytes, why: str
) -> None:
    monkeypatch.setattr(survey, "LARGEST_REPLY", 1_000_000)
    mesh = spawn(Plain, 3)
    for question in ("stacks", "waits", "failures", "collectives"):
        answering(monkeypatch, question, answer)
    found = mesh.stacks(timeout=5.0).get(TIMEOUT)
    assert [process.rank for process in found.processes] == [0, 2]
    ((address, reason),) = found.silent.items()
    assert address.endswith(".1") and why in reason
    ((address, reason),) = wait_graph(5.0).get(TIMEOUT).silent.items()
    assert address.endswith(".1") and why in reason


def test_an_answer_that_nobody_asks_for_is_refused(cluster: InProcessCluster) -> None:
    spawn(Plain)
    answers = survey.ask("stacks", b"\xc1").get(TIMEOUT)
    assert answers.replies == {}
    assert all("DecodeError" in why for why in answers.silent.values())


def framed(**values: object) -> Any:
    """A frame with these variables."""
    names = "".join(f" {name} = values[{name!r}]\n" for name in values)
    namespace: dict[str, Any] = {"values": values, "sys": sys}
    exec(f"def held():\n{names} return sys._getframe()", namespace)
    return namespace["held"]()


def variables(frame: Any) -> dict[str, str]:
    look = LocalsLook()
    found = look.note(frame)
    look.read()
    return found


class Waits:
    """Its repr waits for the gate."""

    count = 0

    def __init__(self, gate: Gate) -> None:
        self.gate = gate

    def __repr__(self) -> str:
        Waits.count += 1
        self.gate.opened.wait(TIMEOUT)
        return "returned"


def test_a_repr_that_waits_keeps_one_thread_and_later_looks_say_so(no_leaks: None, gate: Gate) -> None:
    thread = LocalsThread(seconds=0.05)

    def look(**values: object) -> dict[str, str]:
        made = LocalsLook()
        found = made.note(framed(**values))
        thread.fill(made)
        return found

    Waits.count = 0
    before = set(threading.enumerate())
    waits = Waits(gate)
    first = look(number=1, slow=waits, behind=[2], text="t", secret="hunter2")
    assert (first["number"], first["text"]) == ("1", "'t'") and "hunter2" not in str(first)
    named = "before that of slow, of class Waits, in held() returns"
    for name in ("slow", "behind"):
        assert f"no repr() is called {named}" in first[name]
    for _ in range(5):
        again = look(number=1, other=waits, rude=Rude())
        assert again["number"] == "1"
        assert named in again["other"] and again["rude"].startswith("<Rude; ") and named in again["rude"]
    (left,) = set(threading.enumerate()) - before
    assert Waits.count == 1
    gate.open()
    left.join(TIMEOUT)
    assert first["slow"].startswith("<Waits; "), "what is found later is left out"
    assert look(slow=waits, behind=[2]) == {"slow": "returned", "behind": "[2]"}


class Rude:
    def __repr__(self) -> str:
        raise SystemExit


class Meta(type):
    def __getattribute__(cls, name: str) -> Any:
        raise AssertionError("code of the program runs")


class Odd(metaclass=Meta):
    pass


class Large(dict[int, int]):
    def __len__(self) -> int:
        return 10**9


def test_variables_of_any_kind_are_told_in_few_characters_and_from_their_beginning() -> None:
    class Unordered(set[int]):
        def __iter__(self) -> Any:
            yield from range(3)
            raise AssertionError("all of it is looked at")

        def __len__(self) -> int:
            return 10**9

    found = variables(
        framed(
            rude=Rude(), odd=Odd(), large=Large({1: 2}), many=dict.fromkeys(range(10**5), 0), raw=b"x" * 10**6,
            counts=collections.Counter("aab"), text="caf\udce9", long=[["x" * 10**6] * 9] * 9, frozen=frozenset([1]),
            unordered=Unordered(),
        )
    )  # fmt: skip
    assert max(map(len, found.values())) <= TEXT
    assert found["rude"] == "<its repr raised SystemExit>"
    assert found["odd"].startswith("<its repr raised AssertionError>")
    assert (found["large"], found["frozen"]) == ("{1: 2, ...}", "frozenset({1})")
    assert found["many"] == "{0: 0, 1: 0, 2: 0, 3: 0, ...}"
    assert found["raw"].startswith("<1,000,000 bytes that begin with b'xxx")
    assert (found["counts"], found["text"]) == ("Counter({'a': 2, 'b': 1})", "'caf\\udce9'")
    assert found["unordered"].startswith("<its repr raised AssertionError")


def test_variables_of_arrays_are_not_looked_into() -> None:
    class Tensor:
        shape, dtype, device = (3, 5), "float32", "cuda:0"

        def __repr__(self) -> str:
            raise AssertionError("what is in it may be on a device")

    assert variables(framed(tensor=Tensor()))["tensor"] == "<Tensor (3, 5) float32 cuda:0>"


def test_of_many_variables_some_are_shown() -> None:
    namespace: dict[str, Any] = {}
    exec(
        "def f():\n" + "".join(f" v{n} = {n}\n" for n in range(200)) + " import sys\n return sys._getframe()", namespace
    )
    assert len(variables(namespace["f"]())) == VARIABLES


def test_a_stopped_process_is_known_by_how_its_suspicion_begins() -> None:
    """`survey` does not wait for it."""
    life = Liveness(10.0, 10.0)
    life.stopped(19)
    assert life.suspicion.startswith(survey.STOPPED)


def test_a_thread_of_the_runtime_that_waits_in_pythons_own_modules_is_left_out() -> None:
    wait = StackFrame("/usr/lib/python3.11/subprocess.py", 1264, "Popen.wait")
    own = StackFrame("/srv/train.py", 3, "load")
    package = StackFrame("/usr/lib/python3.11/site-packages/torch/x.py", 1, "init")
    left_out = [
        ("monarch-watch-a", [wait]),
        ("monarch-watch-a", [wait, own]),
        ("monarch-x", [package]),
        ("mine", [wait]),
    ]
    assert [thread_stacks._is_ours(*each) for each in left_out] == [True, False, False, False]
