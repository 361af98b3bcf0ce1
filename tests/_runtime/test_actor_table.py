"""The table of actors: what becomes of messages for actors that are here, not yet, or not any more. No loop, no socket."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from monarch._runtime import actor_table
from monarch._runtime.actor_table import ActorTable
from monarch._runtime.instance import Delivery
from monarch._wire.message import Call, Failure, Skip
from monarch.config import settings

CLIENT, OTHER = "unix:/h/client", "unix:/h/m.7"


class Actor:
    """An Instance, as much of it as the table uses. Notes what it is told."""

    def __init__(self, key: str = "a", incarnation: int = 0) -> None:
        self.key = key
        self.incarnation = incarnation
        self.end: Failure | None = None
        self.told: list[Any] = []

    def deliver(self, delivery: Delivery) -> None:
        self.told.append(delivery.call.seq)

    def take_up(self, call: Call) -> None:
        self.told.append(("take up", call.seq))

    def missed(self, sender: str, incarnation: int) -> None:
        self.told.append(("missed", sender, incarnation))

    def path_lost(self, sender: str) -> None:
        self.told.append(("path lost", sender))

    def sender_ended(self, sender: str) -> None:
        self.told.append(("sender ended", sender))

    def skip_lost(self, sender: str) -> None:
        self.told.append(("skip lost", sender))


class Table(ActorTable):
    """With a clock in the hands of the test."""

    def __init__(self) -> None:
        self.refused: list[tuple[int, str]] = []
        self.timers: list[Callable[[], Any]] = []
        self.over = False
        super().__init__("unix:/h/m.0", self._later, self._refused, lambda: self.over)

    def _later(self, seconds: float, fn: Callable[[], Any]) -> None:
        assert seconds == settings.pending_actor_delivery_timeout()
        self.timers.append(fn)

    def _refused(self, delivery: Delivery, failure: Failure) -> None:
        self.refused.append((delivery.call.seq, failure.report))

    def send(
        self, *numbers: int, to: str = "a", sender: str = "c.0", source: str = CLIENT, incarnation: int = 0
    ) -> None:
        for number in numbers:
            self.deliver(Call(to, sender, number, "step", 0, "", 0, b"", 0, incarnation), b"", (), source)

    def expire(self) -> None:
        timers, self.timers = self.timers, []
        for timer in timers:
            timer()

    def come(self, actor: Actor) -> Actor:
        self.add(actor)  # type: ignore[arg-type]
        return actor


@pytest.fixture
def table() -> Table:
    return Table()


def hold_at_most(count: int) -> None:
    settings.LAYERS.set_runtime({**settings.LAYERS.runtime(), "undelivered_messages": count})


def test_messages_for_an_actor_that_is_here_go_to_it(table: Table) -> None:
    actor = table.come(Actor())
    table.send(1, 2)
    assert actor.told == [1, 2] and table.waiting == 0 and table.timers == []


def test_messages_for_one_that_is_not_here_yet_wait_for_it_with_one_timer(table: Table) -> None:
    table.send(1, 2)
    assert (table.waiting, len(table.timers)) == (2, 1)
    actor = table.come(Actor())
    assert actor.told == [1, 2] and table.waiting == 0
    table.expire()
    assert table.refused == []


def test_after_a_while_they_are_refused_and_who_comes_after_all_does_not_wait_for_them(table: Table) -> None:
    table.send(1, 2)
    table.expire()
    reason = "the actor a does not exist in the process at unix:/h/m.0"
    assert table.refused == [(1, reason), (2, reason)] and table.waiting == 0
    assert table.come(Actor()).told == [("missed", "c.0", 0)]
    assert table.senders_to("a") == [CLIENT]


def test_a_process_that_has_closed_refuses_nobody(table: Table) -> None:
    table.send(1)
    table.over = True
    table.expire()
    assert table.refused == []


def test_more_than_the_bound_are_refused_at_once(table: Table) -> None:
    hold_at_most(2)
    table.send(1, 2, 3)
    assert table.refused == [(3, "no actor a is here and 2 messages already wait for others")]


def test_actors_that_never_came_are_remembered_up_to_a_bound(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actor_table, "_MISSED", 3)
    hold_at_most(0)
    for number in range(5):
        table.send(1, to=f"a{number}")
    assert [table.come(Actor(f"a{number}")).told != [] for number in range(5)] == [False, False, True, True, True]


def test_the_first_message_to_an_absent_actor_makes_it(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    monkeypatch.setattr(actor_table, "start_thread", lambda make, name: make())
    table.absent["a"] = lambda: made.append("a")
    table.send(1, 2)
    assert made == ["a"] and table.absent == {} and table.waiting == 2


def test_who_sends_to_an_actor_that_has_ended_is_told_why(table: Table) -> None:
    actor = table.come(Actor(incarnation=4))
    assert table.end_of("a") is None
    table.remove(actor, Failure("it raised"))  # type: ignore[arg-type]
    end = table.end_of("a")
    assert end is not None and (end.report, end.incarnation) == ("it raised", 4)
    table.send(1)
    assert table.refused == [(1, "it raised")]
    table.come(Actor())
    assert table.end_of("a") is None


def test_one_that_was_given_up_on_does_not_take_its_successor_along(table: Table) -> None:
    first = table.come(Actor())
    second = table.come(Actor(incarnation=1))
    table.remove(first, Failure("it hung"))  # type: ignore[arg-type]
    table.send(1)
    assert second.told == [1] and table.end_of("a") is None


def test_ends_are_remembered_up_to_a_bound(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actor_table, "_TOMBSTONES", 2)
    for key in ("a", "b", "c"):
        table.remove(table.come(Actor(key)), Failure(key))  # type: ignore[arg-type]
    assert [table.end_of(key) is not None for key in ("a", "b", "c")] == [False, True, True]


def test_one_that_was_stopped_before_it_came_never_comes(table: Table) -> None:
    table.send(1)
    table.never_comes("a", Failure("stopped", incarnation=2))
    table.never_comes("a", Failure("of an earlier one", incarnation=1))
    table.send(2)
    assert table.refused == [(1, "stopped"), (2, "stopped")] and table.waiting == 0
    actor = table.come(Actor(incarnation=3))
    table.never_comes("a", Failure("too late", incarnation=3))
    table.send(3)
    assert actor.told == [3]


# --- senders


def test_the_end_of_a_sender_is_told_to_those_it_sent_to(table: Table) -> None:
    first, second, third = (table.come(Actor(key)) for key in ("a", "b", "c"))
    table.send(1)
    table.send(1, to="b", sender="d.0")
    assert table.senders_to("a") == [CLIENT] and table.senders_to("c") == []
    table.sender_ended(CLIENT, "c.0")
    table.sender_ended(OTHER, "d.0")  # another of that name
    assert (first.told, second.told, third.told) == ([1, ("sender ended", "c.0")], [1], [])
    assert table.senders_to("a") == []


def test_with_a_process_the_paths_of_all_its_actors_are_lost(table: Table) -> None:
    first, second = table.come(Actor("a")), table.come(Actor("b"))
    table.send(1)
    table.send(1, to="b", source=OTHER)
    table.process_ended(CLIENT)
    table.process_ended(CLIENT)
    assert (first.told, second.told) == ([1, ("path lost", "c.0")], [1])
    assert table.senders_to("a") == []


def test_behind_a_broken_connection_the_first_messages_may_be_missing(table: Table) -> None:
    actor = table.come(Actor())
    table.connection_broke(CLIENT)
    table.send(5)
    table.send(6, source=OTHER)
    assert actor.told == [("take up", 5), 5, 6]
    table.process_ended(CLIENT)
    table.send(7)
    assert actor.told[-2:] == [("path lost", "c.0"), 7]


def test_what_waited_behind_a_broken_connection_is_taken_as_it_comes(table: Table) -> None:
    table.connection_broke(CLIENT)
    table.send(5)
    assert table.come(Actor()).told == [5, ("path lost", "c.0")]


def test_lost_casts_are_skipped_by_those_that_are_here(table: Table) -> None:
    actor = table.come(Actor())
    table.skip_lost(Skip("a", "c.0"))
    table.skip_lost(Skip("nobody", "c.0"))
    assert actor.told == [("skip lost", "c.0")]


def test_senders_do_not_remember_actors_that_nobody_remembers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actor_table, "_TOMBSTONES", 3)
    table = actor_table.ActorTable("unix:/h/m.0", lambda *_: None, lambda *_: None, lambda: False)
    for number in range(10):
        table._senders.setdefault("unix:/h/client", {}).setdefault("client.0", set()).add(f"a{number}")
        with table._lock:
            table._bury(f"a{number}", Failure("ended", stopped=True))
    assert table._senders["unix:/h/client"]["client.0"] == {"a7", "a8", "a9"}
