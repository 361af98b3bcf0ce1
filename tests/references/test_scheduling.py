"""The choice of the process that gets a task, alone and against a model."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from monarch.references.scheduling import TaskSchedule

ADDRESSES = ["a", "b", "c"]


def made() -> TaskSchedule[str]:
    return TaskSchedule(ADDRESSES)


def test_a_free_process_gets_it_before_one_that_is_not() -> None:
    schedule = made()
    assert [schedule.begin(()) for _ in range(3)] == [0, 1, 2]
    assert schedule.begin(()) is None
    schedule.wait("late", ())
    assert schedule.next() is None
    schedule.finished(1, True)
    assert schedule.next() == (1, "late")
    assert schedule.next() is None


def test_one_that_has_an_argument_comes_first() -> None:
    schedule = made()
    assert schedule.begin({"c"}) == 2
    assert schedule.begin({"c", "b"}) == 1
    assert schedule.begin({"c", "elsewhere"}) == 0


def test_those_that_wait_go_in_their_order() -> None:
    schedule = made()
    for _ in ADDRESSES:
        schedule.begin(())
    schedule.wait("second", ())
    schedule.wait("third", ())
    schedule.wait("first", (), first=True)
    schedule.finished(0, True)
    assert schedule.begin(()) is None  # none goes before them
    assert schedule.next() == (0, "first")
    schedule.finished(2, True)
    schedule.finished(1, True)
    assert [schedule.next(), schedule.next()] == [(1, "second"), (2, "third")]


def test_a_process_that_has_ended_gets_none_as_long_as_another_has_not() -> None:
    schedule = made()
    schedule.ended("a")
    schedule.ended("elsewhere")
    assert schedule.begin({"a"}) == 1
    schedule.finished(1, False)
    assert schedule.begin(()) == 2
    assert schedule.begin(()) is None
    assert not schedule.has_ended
    schedule.finished(2, False)
    assert schedule.has_ended
    assert schedule.begin(()) == 0  # for the cause
    schedule.finished(0, True)  # it was started again
    assert schedule.begin({"b"}) == 0


def test_word_of_a_task_may_come_after_that_of_the_end_of_its_process() -> None:
    schedule = made()
    assert schedule.begin(()) == 0
    schedule.ended("a")
    schedule.finished(0, True)
    assert schedule.begin({"a"}) == 1


@given(st.lists(st.tuples(st.sampled_from("wbfde"), st.integers(0, 2))))
def test_nothing_waits_while_a_living_process_is_free(steps: list[tuple[str, int]]) -> None:
    schedule: TaskSchedule[int] = TaskSchedule(ADDRESSES)
    running: set[int] = set()
    ended: set[int] = set()
    tried: set[int] = set()
    waiting: list[int] = []
    for number, (step, rank) in enumerate(steps):
        if step == "w":
            schedule.wait(number, ())
            waiting.append(number)
        elif step == "b" and (begun := schedule.begin(())) is not None:
            assert begun not in running and not waiting
            running.add(begun)
            tried |= {begun} & ended
        elif step in "fd" and rank in running:
            schedule.finished(rank, step == "f")
            running.discard(rank)
            if step == "d":
                ended.add(rank)
            elif rank in tried:
                ended.discard(rank)
            tried.discard(rank)
        elif step == "e":
            schedule.ended(ADDRESSES[rank])
            ended.add(rank)
        while (found := schedule.next()) is not None:
            assert found[0] not in running and (found[0] not in ended or len(ended) == 3)
            assert found[1] == waiting.pop(0)
            running.add(found[0])
            tried |= {found[0]} & ended
        assert schedule.running() == sorted(running)
        if waiting:
            assert {0, 1, 2} - running <= (ended if len(ended) < 3 else set())
