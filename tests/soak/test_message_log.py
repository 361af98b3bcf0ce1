"""Tests of what a report says of messages that have not come to their end, and that recording costs others nothing."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from monarch._runtime.instance import Delivery, Instance
from monarch._runtime.proc import Proc
from monarch.actor import Actor, endpoint, this_host
from monarch.testing import InProcessCluster
from tests.soak import message_log
from tests.soak.message_log import MessageLog, Step, recording, report


class Small(Actor):
    @endpoint
    def work(self, number: int) -> int:
        return number


def test_a_message_held_behind_one_that_was_lost_is_told_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    original, there = Instance.deliver, threading.Event()

    def lossy(self: Instance, delivery: Delivery) -> None:
        if delivery.call.method != "work" or delivery.call.seq != 2:
            original(self, delivery)
        if delivery.call.method == "work" and delivery.call.seq == 3:
            there.set()

    monkeypatch.setattr(Instance, "deliver", lossy)
    log = MessageLog()
    with recording(log), InProcessCluster():
        actor: Any = this_host().spawn_procs().spawn("small", Small)
        assert actor.work.call_one(1).get() == 1
        lost = [actor.work.call_one(2), actor.work.call_one(3)]
        assert there.wait(60)
        text = report(log.steps())
        del lost
    title, *lives = text.split("\n  client")
    assert title == "2 of 3 messages have not come to their end"
    heads = {life.partition("\n")[0]: life for life in lives}
    told = {head.rpartition("#")[2]: life for head, life in heads.items() if "@" in head}
    assert sorted(told) == ["2", "3"]
    for step in ("posted: work() for port", "taken by", "read, from"):
        assert step in told["2"]
    assert "in the mailbox" not in told["2"]
    assert "held behind 2 (actor ~0)" in told["3"]


def test_outside_of_the_block_the_runtime_is_as_it_was() -> None:
    before = {(cls, name): cls.__dict__[name] for cls, name, _ in message_log._REPLACED}
    with recording(MessageLog()):
        assert all(cls.__dict__[name] is not function for (cls, name), function in before.items())
    assert all(cls.__dict__[name] is function for (cls, name), function in before.items())
    assert Proc.post.__module__ == "monarch._runtime.proc"


def test_an_answered_call_and_a_handled_broadcast_have_come_to_their_end() -> None:
    log = MessageLog()
    with recording(log), InProcessCluster():
        actor: Any = this_host().spawn_procs().spawn("small", Small)
        actor.work.broadcast(1)
        assert actor.work.call_one(2).get() == 2
    assert report(log.steps()) == "0 of 2 messages have not come to their end"


def test_the_oldest_steps_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_log, "KEPT", 3)
    log = MessageLog()
    for number in range(10):
        log.note("here", f"a>b@c#{number}", "posted")
    assert [step.key for step in log.steps()] == ["a>b@c#7", "a>b@c#8", "a>b@c#9"]


def test_what_other_processes_wrote_is_read_in_the_order_of_time(tmp_path: Any) -> None:
    other, ours = MessageLog(str(tmp_path)), MessageLog(others=str(tmp_path))
    other.note("there", "a>b@c#1", "read,\n\tfrom here")
    ours.note("here", "a>b@c#1", "closed")
    assert [step[1:] for step in ours.steps()] == [
        ("there", "a>b@c#1", "read, from here"),
        ("here", "a>b@c#1", "closed"),
    ]


def test_a_number_that_was_never_posted_is_told() -> None:
    numbered, posted = Step(1.0, "", "a>b[0]#1", "numbered"), Step(2.0, "x", "a>b[0]#1", "posted to y")
    assert "a>b[0]#1" in report([numbered])
    assert "a>b[0]#1" not in report([numbered, posted])
