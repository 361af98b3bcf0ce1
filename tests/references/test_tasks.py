"""Tasks in memory."""

from __future__ import annotations

import asyncio
import threading

import pytest

from monarch.actor import ActorError, ProcMesh, this_host
from monarch.references import ObjectRef, as_completed, put, submit, task, values, wait
from monarch.testing import InProcessCluster
from tests.references.actors import Maker


@pytest.fixture
def procs(cluster: InProcessCluster) -> ProcMesh:
    return this_host().spawn_procs({"gpus": 3})


def add(*numbers: int) -> int:
    return sum(numbers)


class Gate:
    """Something that tests hold tasks at; all simulated processes share it."""

    opened = threading.Event()
    entered = threading.Semaphore(0)


def hold(number: int) -> int:
    Gate.entered.release()
    assert Gate.opened.wait(60)
    return number


@pytest.fixture
def gate() -> type[Gate]:
    Gate.opened, Gate.entered = threading.Event(), threading.Semaphore(0)
    return Gate


def test_references_go_in_and_out(procs: ProcMesh) -> None:
    first = procs.submit(add, 1, 2)
    second = submit(procs, add, first, put(10), 4)
    assert submit(procs, add, second, first).get(60) == 20


def test_a_task_waits_for_its_arguments_beside_others(procs: ProcMesh, gate: type[Gate]) -> None:
    one = procs.slice(gpus=slice(0, 1))
    late = submit(procs.slice(gpus=slice(1, 2)), hold, 5)
    waiting = submit(one, add, late, 1)
    assert submit(one, add, 2, 2).get(60) == 4  # of the same process, behind it
    gate.opened.set()
    assert waiting.get(60) == 6


def test_tasks_go_to_the_process_with_the_fewest(procs: ProcMesh, gate: type[Gate]) -> None:
    refs = [submit(procs, hold, number) for number in range(3)]
    for _ in refs:
        assert gate.entered.acquire(timeout=60)  # side by side
    assert len({ref.owner for ref in refs}) == 3
    gate.opened.set()
    assert [ref.get(60) for ref in refs] == [0, 1, 2]
    again = submit(procs, add, refs[1])
    assert again.get(60) == 1


def test_a_process_runs_one_task_at_a_time(procs: ProcMesh, gate: type[Gate]) -> None:
    one = procs.slice(gpus=slice(0, 1))
    refs = [submit(one, hold, number) for number in range(2)]
    assert gate.entered.acquire(timeout=60)
    assert not gate.entered.acquire(timeout=0.05)
    gate.opened.set()
    assert [ref.get(60) for ref in refs] == [0, 1]


class Flaky:
    """Fails as often as it is told; all simulated processes share it."""

    left = 0


@task(retries=2, retry_on=OSError)
def flaky(number: int) -> int:
    if Flaky.left:
        Flaky.left -= 1
        raise OSError("not now")
    return number


def test_retries_are_declared(procs: ProcMesh) -> None:
    Flaky.left = 2
    assert flaky.submit(procs, 7).get(60) == 7
    Flaky.left = 3
    with pytest.raises(ActorError) as caught:
        flaky.submit(procs, 7).get(60)
    assert isinstance(caught.value.exception, OSError)
    assert Flaky.left == 0
    assert flaky(3) == 3


def test_an_error_goes_on_to_the_tasks_behind(procs: ProcMesh) -> None:
    first = submit(procs, add, "nonsense")
    with pytest.raises(ActorError, match=r"nonsense|unsupported operand"):
        submit(procs, add, first, 1).get(60)


def test_async_functions_are_tasks(procs: ProcMesh) -> None:
    async def later(number: int) -> int:
        await asyncio.sleep(0)
        return number + 1

    assert submit(procs, later, put(4)).get(60) == 5


def test_references_within_arguments_stay(procs: ProcMesh) -> None:
    def total(refs: list[ObjectRef[int]]) -> int:
        return sum(ref.get(60) for ref in refs)

    assert submit(procs, total, [put(1), put(2)]).get(60) == 3


def test_results_come_as_they_are_made(procs: ProcMesh, gate: type[Gate]) -> None:
    slow, quick = submit(procs, hold, 1), submit(procs, add, 2)
    refs = [slow, quick]
    assert wait(refs, count=1, timeout=60) == ([quick], [slow])
    assert wait(refs, timeout=0.05) == ([quick], [slow])
    coming = as_completed(refs, timeout=60)
    assert next(coming) == quick
    gate.opened.set()
    assert next(coming) == slow
    assert wait(refs, timeout=60) == (refs, [])


def test_a_mesh_of_references_is_fetched_at_once(procs: ProcMesh) -> None:
    makers = procs.spawn("makers", Maker)
    refs = makers.squares.keep.call(3)
    assert values(refs, 60).values() == [[0, 1, 4]] * 3


def test_what_is_declared_is_checked() -> None:
    with pytest.raises(ValueError, match="how often a task is run again"):
        task(retries=-1)
    with pytest.raises(TypeError, match="retry_on is an exception class"):
        task(retry_on=1)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="how many of the 0 references"):
        wait([], count=1)
