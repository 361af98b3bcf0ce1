"""Who may wait at a port of the debugger, and who has to go."""

from __future__ import annotations

import pytest

from monarch.debugger.waiting_room import WaitingRoom


def test_the_oldest_goes() -> None:
    room: WaitingRoom[int] = WaitingRoom(2)
    assert [room.enter(number, "10.0.0.1") for number in range(4)] == [None, None, 0, 1]
    assert not room.leave(0), "it had to go"
    assert room.leave(2)
    assert not room.leave(2)
    assert len(room) == 1


@pytest.mark.parametrize("network", ["10.0.0.66", "fd00:2::{:x}%eth0", "::ffff:10.0.0.66"])
def test_who_fills_it_pushes_out_himself(network: str) -> None:
    """With IPv6 a machine has many addresses."""
    room: WaitingRoom[int] = WaitingRoom(3)
    room.enter(-1, "10.0.0.7")
    room.enter(-2, "fd00:1::7")
    gone = [room.enter(number, network.format(number)) for number in range(1_000)]
    assert gone == [None, *range(999)]


def test_among_many_places_the_oldest_goes() -> None:
    room: WaitingRoom[int] = WaitingRoom(3)
    assert [room.enter(number, f"10.0.0.{number}") for number in range(5)] == [None, None, None, 0, 1]
