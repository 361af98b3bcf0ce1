"""Tasks in memory."""

from __future__ import annotations

import asyncio
import threading

import pytest

from monarch.actor import ActorError, ProcMesh, this_host
from monarch.config import configured
from monarch.references import (
    ObjectRef,
    ReferenceLimitError,
    ReferenceLost,
    as_completed,
    put,
    submit,
    task,
    values,
    wait,
)
from monarch.references import store as stores
from monarch.references.tasks import _workers
from monarch.testing import InProcessCluster
from tests.references.actors import Maker
from tests.references.settling import until


@pytest.fixture
def procs(cluster: InProcessCluster) -> ProcMesh:
    return this_host().spawn_procs({"gpus": 3})


def add(*numbers: int) -> int:
    return sum(numbers)


def fail() -> None:
    raise ValueError("no value")


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


def test_short_tasks_do_not_queue_behind_a_long_one(procs: ProcMesh, gate: type[Gate]) -> None:
    long = submit(procs, hold, 1)
    short = [submit(procs, add, number, 1) for number in range(9)]
    last = submit(procs, add, *short)
    assert [ref.get(60) for ref in short] == list(range(1, 10))
    assert last.get(60) == 45
    gate.opened.set()
    assert long.get(60) == 1


def test_what_waits_is_as_it_was_submitted(procs: ProcMesh, gate: type[Gate]) -> None:
    numpy = pytest.importorskip("numpy")
    one = procs.slice(gpus=slice(0, 1))
    numbers, large = [1, 2], numpy.zeros(1 << 16, dtype=numpy.uint8)
    first = submit(one, hold, 1)
    refs = [submit(one, sum, numbers), submit(one, sum, large), submit(one, sum, [put(4).get(), *numbers])]
    numbers.append(3)
    large[:] = 1
    with pytest.raises(TypeError, match=r"(?s)cannot pickle .*task add: nothing was sent. argument 0"):
        submit(one, add, threading.Lock())
    gate.opened.set()
    assert first.get(60) == 1
    assert [ref.get(60) for ref in refs] == [3, 0, 7]


def test_what_waits_has_a_bound(procs: ProcMesh, gate: type[Gate]) -> None:
    one = procs.slice(gpus=slice(0, 1))
    with configured(reference_bytes=15_000):
        refs = [submit(one, hold, number) for number in range(4)]  # the first does not wait
        waiting = stores.store().nbytes
        assert 3 * 4096 < waiting < 15_000
        said = r"task hold, of 4 KiB, is not accepted: .* keeps 12 KiB .*setting reference_bytes.*Wait for some of"
        with pytest.raises(ReferenceLimitError, match=said):
            submit(one, hold, 4)
        assert stores.store().nbytes == waiting
        gate.opened.set()
        assert [ref.get(60) for ref in refs] == [0, 1, 2, 3]
        until(lambda: stores.store().nbytes == 0)
        assert submit(one, hold, 5).get(60) == 5


def test_what_waits_is_not_lost_with_a_process(cluster: InProcessCluster, procs: ProcMesh, gate: type[Gate]) -> None:
    cluster.proc.mesh.owners.fault = lambda failure: None
    two = procs.slice(gpus=slice(0, 2))
    begun = [submit(two, hold, number) for number in range(2)]
    for _ in begun:
        assert gate.entered.acquire(timeout=60)
    behind = [submit(two, add, number) for number in range(4)]
    cluster.kill(two, 0)
    with pytest.raises(ReferenceLost, match=r"task hold \(rank 0\) made is lost with its process, .*sig=9"):
        begun[0].get(60)
    gate.opened.set()
    assert [ref.get(60) for ref in behind] == [0, 1, 2, 3]
    assert [submit(two, add, number).get(60) for number in range(3)] == [0, 1, 2]


def test_tasks_keep_away_from_a_process_that_ended_idle(cluster: InProcessCluster, procs: ProcMesh) -> None:
    cluster.proc.mesh.owners.fault = lambda failure: None
    assert submit(procs, add, 1).get(60) == 1
    cluster.kill(procs, 0)
    until(lambda: _workers(procs)._schedule._ended)
    assert [submit(procs, add, number).get(60) for number in range(3)] == [0, 1, 2]
    for rank in (1, 2):
        cluster.kill(procs, rank)
    until(lambda: _workers(procs)._schedule.has_ended)
    with pytest.raises(ReferenceLost, match="sig=9"):
        submit(procs, add, 1).get(60)


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


@task(retries=1)
def held_once(number: int) -> int:
    Gate.entered.release()
    assert Gate.opened.wait(60)
    return number + 1


def running_rank(procs: ProcMesh) -> int:
    """The rank of the process that has an unfinished task."""
    return _workers(procs)._schedule.running()[0]


def test_a_task_whose_process_ends_runs_in_another_one_when_it_says_so(
    cluster: InProcessCluster, procs: ProcMesh, gate: type[Gate]
) -> None:
    cluster.proc.mesh.owners.fault = lambda failure: None
    ref = held_once.submit(procs, 4)
    behind = submit(procs, add, ref, 1)
    assert gate.entered.acquire(timeout=60)
    first = held_once_rank = running_rank(procs)
    cluster.kill(procs, first)
    assert gate.entered.acquire(timeout=60)  # somewhere else
    gate.opened.set()
    assert ref.get(60) == 5
    assert asyncio.run(_awaited(ref)) == 5
    if behind.owner != procs._addresses()[held_once_rank]:
        assert behind.get(60) == 6
    assert submit(procs, add, ref, 1).get(60) == 6


async def _awaited(ref: ObjectRef[int]) -> int:
    return await ref


def test_a_task_that_has_used_up_its_retries_is_lost_with_the_cause(
    cluster: InProcessCluster, procs: ProcMesh, gate: type[Gate]
) -> None:
    cluster.proc.mesh.owners.fault = lambda failure: None
    ref = held_once.submit(procs, 4)
    for _ in range(2):
        assert gate.entered.acquire(timeout=60)
        cluster.kill(procs, running_rank(procs))
    with pytest.raises(ReferenceLost, match=r"task held_once \(rank \d\) made is lost with its process, .*sig=9"):
        ref.get(60)
    gate.opened.set()


def test_a_task_that_nobody_wants_is_not_run_again(
    cluster: InProcessCluster, procs: ProcMesh, gate: type[Gate]
) -> None:
    cluster.proc.mesh.owners.fault = lambda failure: None
    ref = held_once.submit(procs, 4)
    assert gate.entered.acquire(timeout=60)
    own, name = stores.store(), ref._facts.ref
    del ref
    until(lambda: not own.is_wanted(name))
    cluster.kill(procs, running_rank(procs))
    until(lambda: own.is_clean)
    gate.opened.set()


def test_the_error_of_a_task_shows_its_own_frames(procs: ProcMesh) -> None:
    with pytest.raises(ActorError) as caught:
        procs.submit(int, "x").get()
    assert "invalid literal" in str(caught.value)
    with pytest.raises(ActorError) as caught:
        procs.submit(fail).get()
    shown = [line for line in str(caught.value).splitlines() if "File " in line]
    assert len(shown) == 1 and "in fail" in shown[0]


def test_an_error_goes_on_to_the_tasks_behind(procs: ProcMesh) -> None:
    first = submit(procs, add, "nonsense")
    with pytest.raises(ActorError, match=r"nonsense|unsupported operand"):
        submit(procs, add, first, 1).get(60)


def test_of_an_argument_s_error_its_own_lines_are_shown_and_which_task_did_not_run(procs: ProcMesh) -> None:
    with pytest.raises(ActorError) as caught:
        submit(procs, add, submit(procs, add, 1, submit(procs, fail))).get(60)
    said = str(caught.value)
    shown = [line for line in said.splitlines() if "File " in line]
    assert len(shown) == 1 and "in fail" in shown[0]
    assert "task add did not run: its argument 1, <ObjectRef of task fail (rank " in said
    assert "task add did not run: its argument 0, <ObjectRef of task add>, could not be fetched" in said


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


def test_in_an_event_loop_results_come_as_they_are_made(procs: ProcMesh, gate: type[Gate]) -> None:
    late, early, wrong = submit(procs, hold, 0), submit(procs, add, 1), submit(procs, fail)

    async def gather() -> list[ObjectRef[int]]:
        found = []
        async for ref in as_completed([late, early, wrong]):
            found.append(ref)
            if len(found) == 2:
                gate.opened.set()
        return found

    found = asyncio.run(gather())
    assert found[-1] is late and set(found) == {late, early, wrong}


def test_wait_in_an_event_loop_says_what_to_use(procs: ProcMesh, gate: type[Gate]) -> None:
    late = submit(procs, hold, 0)

    async def look() -> None:
        threading.Timer(0.01, gate.opened.set).start()
        with pytest.warns(UserWarning, match=r"wait\(\) was called.*Use `async for ref in as_completed") as told:
            wait([late])
        assert [one.filename for one in told] == [__file__]

    asyncio.run(look())


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


def test_calls_that_do_not_fit_are_refused_at_once(procs: ProcMesh) -> None:
    with pytest.raises(TypeError, match="submit runs a function, got 3"):
        procs.submit(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"submit of hold\(number\).*: missing a required argument: 'number'"):
        procs.submit(hold)
    with pytest.raises(TypeError, match="too many positional arguments"):
        task(retries=1)(hold).submit(procs, 1, 2, 3)
    assert procs.submit(max, 1, 2).get() == 2  # which does not say what it takes


def test_tasks_go_to_processes_that_are_not_stopped(procs: ProcMesh) -> None:
    with pytest.raises(TypeError, match=r"submit takes a mesh of processes, such as spawn_procs.* got <HostMesh"):
        submit(this_host(), add)  # type: ignore[arg-type]
    part = procs.slice(gpus=0)
    assert [submit(mesh, add, 1).get(60) for mesh in (procs, part)] == [1, 1]
    procs.stop().get(60)
    for mesh in (procs, part):
        with pytest.raises(RuntimeError, match=r"already been stopped: spawn new processes with spawn_procs\(\)"):
            submit(mesh, add, 1)


def test_what_is_no_reference_is_refused(procs: ProcMesh) -> None:
    with pytest.raises(TypeError, match=r"got a list: of a list write \[ref.get\(\) for ref in refs\]"):
        values([put(1)])  # type: ignore[arg-type]
    for function in (wait, lambda refs: list(as_completed(refs))):
        with pytest.raises(TypeError, match="takes ObjectRefs, got 1"):
            function([1])  # type: ignore[list-item]
        with pytest.raises(TypeError, match=r"takes several references: \w+\(\[ref\]\)"):
            function(put(1))  # type: ignore[arg-type]
