"""The line before a full graph."""

from __future__ import annotations

from monarch.graph.line import WaitingTasks


def test_who_came_first_is_woken_and_others_when_it_has_left() -> None:
    line, woken = WaitingTasks(), []
    assert line.empty
    places = [line.join(lambda n=n: woken.append(n)) for n in range(3)]  # type: ignore[misc]
    assert not line.empty
    line.wake()
    line.wake()
    assert woken == [0, 0]
    assert [line.is_first(place) for place in places] == [True, False, False]
    line.leave(places[1])
    line.leave(places[0])
    line.wake()
    assert woken == [0, 0, 2]
    line.leave(places[2])
    line.wake()
    assert line.empty


def test_a_closed_loop_does_not_keep_the_others_waiting() -> None:
    line, woken = WaitingTasks(), []

    def closed() -> None:
        raise RuntimeError("Event loop is closed")

    line.join(closed)
    line.join(lambda: woken.append(1))
    line.wake_all()
    assert woken == [1]
