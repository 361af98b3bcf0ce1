"""Tests of which incarnation of an actor a message is for, and what an actor does with those that are not for it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._runtime.incarnations import first_in
from monarch._runtime.instance import Delivery, Instance
from monarch._wire.message import Call, Failure

CLIENT, OTHER = "unix:/h/client", "unix:/h/m.7"


class Behaviour:
    def describe_stale(self, overtaken: bool = False) -> Failure:
        text = "it was overtaken" if overtaken else "it was restarted"
        return Failure(text, "key", "worker", [0], stopped=True, will_restart=True)

    def describe_stop(self, reason: str) -> Failure:
        return Failure(f"stopped: {reason}", "key", "worker", [0], stopped=True)


class Recorder:
    """A Proc that keeps what it is asked to send."""

    address = "unix:/h/m.0"

    def __init__(self) -> None:
        self.mailbox_messages = 1000
        self.refused: list[tuple[Call, Failure]] = []
        self.told: list[tuple[str, int]] = []
        self.pauses: list[tuple[str, bool]] = []
        self.timers: list[Callable[[], Any]] = []
        self.loop = self

    def call_later(self, delay: float, fn: Callable[[], Any]) -> None:
        self.timers.append(fn)

    def pass_time(self) -> None:
        timers, self.timers = self.timers, []
        for timer in timers:
            timer()

    def refuse(self, delivery: Delivery, failure: Failure) -> None:
        self.refused.append((delivery.call, failure))

    def tell_restarted(self, address: str, instance: Instance, port: int = 0) -> None:
        self.told.append((address, instance.incarnation))

    def pause_sender(self, address: str, key: str, on: bool) -> None:
        self.pauses.append((address, on))


class Receiver:
    def __init__(self, incarnation: int) -> None:
        self.proc = Recorder()
        proc: Any = self.proc
        self.instance = Instance(proc, key="key", name="worker", rank=0, view=b"", incarnation=incarnation)
        self.instance.behaviour = Behaviour()  # type: ignore[assignment]

    def deliver(self, seq: int, incarnation: int, sender: str = "a.0", back: str = "", method: str = "step") -> None:
        call = Call("key", sender, seq, method, 5, back, 0, b"", 0, incarnation)
        self.instance.deliver(Delivery(call, b"", (), CLIENT))

    def taken(self) -> list[tuple[int, int]]:
        """(incarnation, number) of what has reached the mailbox since the last look, in order."""
        return [(item.call.incarnation, item.call.seq) for item in self.instance.mailbox.drain()]

    def refused(self) -> list[tuple[int, int]]:
        refused, self.proc.refused = self.proc.refused, []
        assert all(failure.report == "it was restarted" for _, failure in refused)
        return [(call.incarnation, call.seq) for call, _ in refused]


def test_where_nothing_was_restarted_every_message_is_meant() -> None:
    receiver = Receiver(0)
    receiver.deliver(2, 0)
    receiver.deliver(1, 0)
    assert receiver.taken() == [(0, 1), (0, 2)]
    assert (receiver.refused(), receiver.proc.told) == ([], [])


@pytest.mark.parametrize("mine", [1, 2, first_in(1), first_in(3) + 2])
def test_messages_that_name_this_incarnation_begin_at_one(mine: int) -> None:
    receiver = Receiver(mine)
    receiver.deliver(1, mine)
    receiver.deliver(2, mine)
    assert receiver.taken() == [(mine, 1), (mine, 2)]
    assert (receiver.refused(), receiver.proc.told) == ([], [])


@pytest.mark.parametrize(
    ("mine", "target_incarnation", "seq"),
    [
        (1, 0, 2),  # its sender knew the first one
        (1, 0, 700),
        (2, 1, 1),
        (2, 1, 2),
        (first_in(1), 0, 2),
        (first_in(1), 3, 1),
        (first_in(2), first_in(1), 1),
        (1, 2, 1),  # for one that is not here yet: nobody sends such a thing, and nobody waits for it
        (0, 1, 1),
    ],
)
def test_messages_for_another_are_refused_and_their_sender_is_told(
    mine: int, target_incarnation: int, seq: int
) -> None:
    receiver = Receiver(mine)
    receiver.deliver(seq, target_incarnation)
    assert receiver.taken() == []
    assert receiver.refused() == [(target_incarnation, seq)]
    assert receiver.proc.told == [(CLIENT, mine)]


def test_the_sender_is_told_and_not_whoever_waits_for_the_answer() -> None:
    receiver = Receiver(1)
    receiver.deliver(2, 0, back=OTHER)
    assert receiver.proc.told == [(CLIENT, 1)]


def test_a_sender_that_knows_of_no_restart_and_begins_here_is_welcome() -> None:
    receiver = Receiver(1)
    receiver.deliver(1, 0)
    receiver.deliver(2, 0)
    receiver.deliver(2, 0, sender="b.0")  # that one sent its first to the actor before
    receiver.deliver(3, 0)
    assert receiver.taken() == [(0, 1), (0, 2), (0, 3)]
    assert receiver.refused() == [(0, 2)]


UNAWARE = [(0, number) for number in (1, 2, 3, 4)]


@pytest.mark.parametrize("before", range(5))
def test_whatever_overtakes_what_during_a_restart_every_message_has_an_outcome(before: int) -> None:
    """Threads of one sender number their messages and send them in any order. The first `before` to arrive reach the actor
    that was there, the others the one that took its place, those that name it (of threads that have heard) among them."""
    for arrivals in itertools.permutations([*UNAWARE, (1, 1), (1, 2)]):
        if any(named for named, _ in arrivals[:before]):
            continue  # nobody can name the one that is not there yet
        receiver = Receiver(1)
        handled: list[tuple[int, int]] = []
        for incarnation, seq in arrivals[before:]:
            receiver.deliver(seq, incarnation)
            handled += receiver.taken()
        for _ in range(3):
            receiver.proc.pass_time()
        refused = receiver.refused()
        assert handled + receiver.taken() == handled  # what has waited for long is answered, not run
        assert sorted(handled + refused) == sorted(arrivals[before:]), arrivals
        assert [seq for named, seq in handled if named] == [1, 2]
        unaware = [seq for named, seq in handled if not named]
        assert unaware == list(range(1, len(unaware) + 1))  # nothing before it has gone elsewhere, or was refused
        assert receiver.instance._reorder.held == 0


def test_a_message_that_waits_for_one_before_it_has_time() -> None:
    receiver = Receiver(1)
    receiver.deliver(1, 0)
    receiver.deliver(3, 0)
    receiver.deliver(2, 0)
    receiver.deliver(5, 0)
    timers = list(receiver.proc.timers)
    timers[0]()  # of the third message, which has been handled: what waits now has waited less long
    assert (receiver.taken(), receiver.refused()) == ([(0, 1), (0, 2), (0, 3)], [])
    timers[1]()
    receiver.deliver(4, 0)
    assert (receiver.taken(), receiver.refused()) == ([], [(0, 5), (0, 4)])


def test_a_message_that_comes_after_its_path_was_lost_is_answered() -> None:
    receiver = Receiver(0)
    receiver.deliver(1, 0)
    receiver.deliver(3, 0)
    receiver.instance.path_lost("a.0")
    receiver.deliver(5, 0)
    receiver.deliver(2, 0)
    receiver.deliver(2, 0)
    receiver.deliver(4, 0)
    assert receiver.taken() == [(0, 1), (0, 3), (0, 5)]
    assert [call.seq for call, failure in receiver.proc.refused if failure.report == "it was overtaken"] == [2, 4]
    assert receiver.proc.told == []  # nothing was restarted


def test_a_sender_that_hears_of_the_restart_later_begins_a_second_stream() -> None:
    receiver = Receiver(1)
    receiver.deliver(1, 0)
    receiver.deliver(1, 1)  # another of its threads had heard already
    receiver.deliver(2, 0)
    receiver.deliver(2, 1)
    assert receiver.taken() == [(0, 1), (1, 1), (0, 2), (1, 2)]
    receiver.deliver(4, 0)
    receiver.deliver(3, 1)
    assert receiver.taken() == [(1, 3)]
    receiver.deliver(3, 0)
    assert receiver.taken() == [(0, 3), (0, 4)]


@pytest.mark.parametrize("end", ["path_lost", "sender_ended"])
def test_both_streams_end_with_their_sender(end: str) -> None:
    receiver = Receiver(1)
    for incarnation in (0, 1):
        receiver.deliver(1, incarnation)
        receiver.deliver(3, incarnation)  # the second will not come
        receiver.deliver(3, incarnation, sender="b.0") if incarnation else None
    assert receiver.taken() == [(0, 1), (1, 1)]
    getattr(receiver.instance, end)("a.0")
    assert receiver.taken() == [(0, 3), (1, 3)]
    assert receiver.instance._reorder.held == 1  # another sender's waits on
    receiver.deliver(1, 1, sender="b.0")
    receiver.deliver(2, 1, sender="b.0")
    assert receiver.taken() == [(1, 1), (1, 2), (1, 3)]


def test_a_sender_whose_path_was_lost_goes_on_wherever_it_is() -> None:
    receiver = Receiver(1)
    for incarnation in (0, 1):
        receiver.deliver(1, incarnation)
    receiver.instance.path_lost("a.0")
    for incarnation in (0, 1):
        receiver.deliver(5, incarnation)
        receiver.deliver(6, incarnation)
    assert receiver.taken() == [(0, 1), (1, 1), (0, 5), (0, 6), (1, 5), (1, 6)]


@pytest.mark.parametrize("mine", [0, 1, first_in(1)])
def test_a_sender_whose_first_messages_were_refused_before_it_came(mine: int) -> None:
    """No actor was there for too long. What follows is not held back for what will never come."""
    receiver = Receiver(mine)
    receiver.instance.missed("a.0", mine)
    receiver.deliver(4, mine)
    receiver.deliver(5, mine)
    assert receiver.taken() == [(mine, 4), (mine, 5)]


def test_also_when_it_knows_of_no_restart() -> None:
    receiver = Receiver(first_in(1))
    receiver.instance.missed("a.0", 0)
    receiver.instance.missed("a.0", 77)  # meant for one that never was here
    receiver.deliver(4, 0)
    receiver.deliver(9, 77)
    assert (receiver.taken(), receiver.refused()) == ([(0, 4)], [(77, 9)])


def test_what_comes_while_it_stops_is_refused_as_that() -> None:
    receiver = Receiver(1)
    receiver.deliver(1, 1)
    receiver.instance.request_stop("enough")
    receiver.deliver(2, 1)
    receiver.deliver(1, 0)
    assert receiver.taken() == []
    assert [failure.report for _, failure in receiver.proc.refused] == ["stopped: enough"] * 3


def test_its_name_tells_it_from_those_before_it() -> None:
    names = [Receiver(incarnation).instance.unique for incarnation in (0, 1, 2, first_in(1))]
    assert names == ["key.0", "key.0~1", "key.0~2", f"key.0~{2**32}"]


def test_a_full_mailbox_pauses_the_process_that_sends() -> None:
    receiver = Receiver(0)
    receiver.instance.high_water = 2
    for seq in range(1, 5):
        receiver.deliver(seq, 0, back=OTHER)
    assert receiver.proc.pauses == [(CLIENT, True)]


@given(st.lists(st.tuples(st.sampled_from("ab"), st.booleans()), max_size=30), st.randoms(use_true_random=False))
def test_each_stream_is_handled_in_order_and_once(sent: list[tuple[str, bool]], random: Any) -> None:
    """Senders that hear of the restart at some time; frames that come in any order and more than once. A first message is
    there first, for a connection keeps its order and nobody has heard of the restart before it."""
    receiver = Receiver(1)
    counters = {stream: itertools.count(1) for stream in itertools.product("ab", (0, 1))}
    frames = [
        (sender, next(counters[sender, int(incarnation_known)]), int(incarnation_known))
        for sender, incarnation_known in sent
    ]
    first = [frame for frame in frames if frame[1] == 1]
    rest = [frame for frame in frames if frame[1] > 1] * 2
    random.shuffle(rest)
    for sender, seq, incarnation in first + rest:
        receiver.deliver(seq, incarnation, sender=sender)
    handled: dict[tuple[str, int], list[int]] = {}
    for item in receiver.instance.mailbox.drain():
        handled.setdefault((item.call.sender, item.call.incarnation), []).append(item.call.seq)
    for stream, counter in counters.items():
        assert handled.get(stream, []) == list(range(1, next(counter)))
    assert receiver.proc.refused == []
