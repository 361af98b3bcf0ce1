"""Tests of who gives way when too many connections are in their handshake."""

from __future__ import annotations

import random
from collections import deque
from operator import itemgetter
from typing import NamedTuple

import pytest

from monarch._wire.transport.handshake_slots import HandshakeSlots, source_of


class Peer(NamedTuple):
    number: int
    honest: bool


def filled(limit: int = 8, source: str = "10.0.0.1") -> HandshakeSlots[Peer]:
    places: HandshakeSlots[Peer] = HandshakeSlots(limit, random.Random(1).choice)
    for number in range(limit):
        places.add(Peer(number, False), source)
    return places


def test_who_has_spoken_stays_while_others_are_silent() -> None:
    places = filled()
    for number in range(7):
        places.spoke(Peer(number, False))
    for _ in range(20):
        assert places.victim() == Peer(7, False)


def test_the_source_with_the_most_gives_way() -> None:
    for speak in (False, True):
        places = filled(7)
        honest = Peer(100, True)
        places.add(honest, "10.0.0.2")
        if speak:
            for peer in places:
                places.spoke(peer)
        while len(places) > 2:
            victim = places.victim()
            assert victim is not None and victim != honest
            places.remove(victim)


def test_the_last_one_leaves_nothing() -> None:
    places = filled(3)
    places.spoke(Peer(0, False))
    places.spoke(Peer(0, False))
    assert places.full
    for peer in places:
        places.remove(peer)
        places.remove(peer)
    assert (len(places), places.victim(), places._silent, places._spoken) == (0, None, {}, {})
    places.spoke(Peer(0, False))  # late
    assert "0 of 3, from 0 sources" in repr(places)


def test_the_oldest_goes() -> None:
    slots: HandshakeSlots[int] = HandshakeSlots(2, itemgetter(0))
    assert [slots.enter(number, "10.0.0.1") for number in range(4)] == [None, None, 0, 1]
    assert not slots.remove(0), "it had to go"
    assert slots.remove(2)
    assert not slots.remove(2)
    assert len(slots) == 1


@pytest.mark.parametrize("network", ["10.0.0.66", "fd00:2::{:x}%eth0", "::ffff:10.0.0.66"])
def test_a_source_that_fills_them_pushes_out_its_own(network: str) -> None:
    """A machine has many addresses with IPv6."""
    slots: HandshakeSlots[int] = HandshakeSlots(3, itemgetter(0))
    slots.enter(-1, source_of("10.0.0.7"))
    slots.enter(-2, source_of("fd00:1::7"))
    gone = [slots.enter(number, source_of(network.format(number))) for number in range(1_000)]
    assert gone == [None, *range(999)]


def test_among_many_sources_the_oldest_goes() -> None:
    slots: HandshakeSlots[int] = HandshakeSlots(3, itemgetter(0))
    assert [slots.enter(number, source_of(f"10.0.0.{number}")) for number in range(5)] == [None, None, None, 0, 1]


@pytest.mark.parametrize(
    ("host", "source"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8::1:2:3:4", "2001:db8::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
    ],
)
def test_what_counts_as_one_source(host: str, source: str) -> None:
    assert source_of(host) == source


class Attack(NamedTuple):
    a_second: int
    sources: int
    say_hello: bool  # strangers may know what a host says first
    honest_has_own_address: bool


@pytest.mark.parametrize(
    ("attack", "at_least"),
    [
        (Attack(1_000, 1, False, True), 1.0),
        (Attack(1_000, 1, False, False), 1.0),  # behind the same address as the strangers
        (Attack(1_000, 1_000, False, True), 1.0),
        (Attack(1_000, 1, True, True), 1.0),
        (Attack(1_000, 100, True, True), 0.9),
        (Attack(1_000, 1, True, False), 0.6),  # nothing tells them apart: by chance
    ],
)
def test_handshakes_at_100_ms_while_strangers_come(attack: Attack, at_least: float) -> None:
    """512 places. A stranger stays for 5 seconds, an honest peer for one round trip between its hello and its proof."""
    rng = random.Random(7)
    places: HandshakeSlots[Peer] = HandshakeSlots(512, rng.choice)
    leaving: deque[tuple[float, Peer]] = deque()
    waiting: dict[Peer, float] = {}
    served = tried = 0
    for tick in range(20 * attack.a_second):
        now = tick / attack.a_second
        stranger = Peer(tick, False)
        arrivals = [(stranger, f"10.9.0.{rng.randrange(attack.sources)}", attack.say_hello)]
        if tick % 100 == 50 and now > 5:
            honest = Peer(tick, True)
            arrivals.append((honest, "10.1.1.1" if attack.honest_has_own_address else "10.9.0.0", True))
            waiting[honest] = now + 0.1
            tried += 1
        for peer, source, speaks in arrivals:
            if places.full:
                victim = places.victim()
                assert victim is not None
                places.remove(victim)
                waiting.pop(victim, None)
            places.add(peer, source)
            if speaks:
                places.spoke(peer)
        leaving.append((now + 5.0, stranger))
        while leaving[0][0] <= now:
            places.remove(leaving.popleft()[1])
        for peer in [peer for peer, until in waiting.items() if until <= now]:
            del waiting[peer]
            places.remove(peer)
            served += 1
    assert tried > 100 and served + len(waiting) >= at_least * tried
