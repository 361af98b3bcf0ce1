"""Tests of what a process makes once, and owners that a way is not tried with for a while."""

from __future__ import annotations

import os
import weakref

import pytest

from monarch.rdma import rerouting
from monarch.rdma.buffer_handle import Owner
from monarch.rdma.once import OncePerProcess
from monarch.rdma.rerouting import AvoidedRoutes


def test_it_is_made_once() -> None:
    made: OncePerProcess[list[int]] = OncePerProcess()
    first = made.get(lambda: [1])
    assert made.get(lambda: [2]) is first


def test_what_could_not_be_made_is_tried_again() -> None:
    made: OncePerProcess[int] = OncePerProcess()
    with pytest.raises(OSError, match="not now"):
        made.get(_fail)
    assert made.get(lambda: 1) == 1


def _fail() -> int:
    raise OSError("not now")


def test_a_forked_child_makes_its_own_and_does_not_close_its_parents() -> None:
    reader, writer = os.pipe()

    class Open:
        def __del__(self) -> None:
            if os.getpid() != here:
                os.write(writer, b"closed ")

    here = os.getpid()
    made: OncePerProcess[Open] = OncePerProcess()
    parents = weakref.ref(made.get(Open))
    with made.lock:  # as another thread of the parent might hold it
        child = os.fork()
        if child == 0:
            same = made.get(Open) is parents()
            os.write(writer, b"the parent's" if same else b"its own")
            os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 100) == b"its own"
    assert made.get(Open) is parents()
    os.close(reader)
    os.close(writer)


def test_an_owner_is_avoided_for_a_while() -> None:
    avoided = AvoidedRoutes()
    first, second = (Owner("host", number, 0, 0, "name") for number in (1, 2))
    assert avoided.add(first, "broken", 60.0)
    assert not avoided.add(first, "broken again", 60.0)
    assert avoided.add(second, "broken", -1.0)
    assert (avoided.why(first), avoided.why(second)) == ("broken again", "")


def test_of_many_avoided_owners_the_first_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rerouting, "AVOIDED", 2)
    avoided = AvoidedRoutes()
    owners = [Owner("host", number, 0, 0, "name") for number in range(3)]
    for owner in owners:
        avoided.add(owner, "broken", 60.0)
    assert [avoided.why(owner) for owner in owners] == ["", "broken", "broken"]
