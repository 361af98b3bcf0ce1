"""Two links over a wire that cuts, delays, swallows and repeats, in virtual time; and when exactly one is dead."""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._wire.link import (
    FRAME_REFUSALS,
    NEVER,
    Carry,
    Close,
    Dead,
    Dial,
    Link,
    LinkEffect,
    LinkLimits,
    SendBye,
    SendMessage,
    Suspect,
)
from monarch._wire.message import VERSION, Beat, Bye, LinkHello
from monarch._wire.software import Software

LIMITS = LinkLimits()
DIALLER, ACCEPTOR = 0, 1
ADDRESS = "tcp://far:1"


def dialler(limits: LinkLimits = LIMITS, agent: str = "agent-0") -> Link:
    return Link("link", host="tcp://near:1", agent=agent, limits=limits, rng=random.Random(1), reached=ADDRESS)


def acceptor(limits: LinkLimits = LIMITS, agent: str = "agent-1") -> Link:
    return Link("link", host="", agent=agent, limits=limits, rng=random.Random(2))


class Wire:
    """One connection: what each side writes arrives at the other `latency` later, in order, until it is cut."""

    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self.greeted = False
        self.closed = [False, False]
        self.gone = False  # nothing that is under way, or is written from now on, arrives
        self.told = [False, False]
        self._last = [0.0, 0.0]

    def put(self, side: int, item: Any) -> None:
        if self.closed[side] or self.gone:
            return
        there = 1 - side
        at = self._last[there] = max(self._last[there], self.sim.now + self.sim.latency)
        self.sim.at(at, there, lambda: self._arrive(there, item))

    def _arrive(self, side: int, item: Any) -> None:
        if self.gone or self.closed[side]:
            return
        if item is None:
            self.tell(side, "the other end closed it")
        else:
            self.sim.arrived(side, self, item)

    def close(self, side: int) -> None:
        self.put(side, None)
        self.closed[side] = True

    def cut(self, delays: tuple[float | None, float | None]) -> None:
        """Each side hears of it after its delay; None: never, as when a machine in between was switched off."""
        self.gone = True
        for side, delay in enumerate(delays):
            if delay is not None:
                self.sim.at(self.sim.now + delay, side, lambda side=side: self.tell(side, "cut"))

    def tell(self, side: int, why: str) -> None:
        if not self.closed[side] and not self.told[side]:
            self.told[side] = True
            self.sim.act(side, self.sim.links[side].broken(self.sim.now, self, why))


class Simulation:
    """Carries out effects. `dials`: what becomes of attempts: "ok", "refused", or "lost" (no answer for a second)."""

    def __init__(self, limits: LinkLimits = LIMITS) -> None:
        self.now = 0.0
        self.latency = 0.01
        self.dials = "ok"
        self.links = [dialler(limits), acceptor(limits)]
        self.wires: list[Wire] = []
        self.hellos: list[LinkHello] = []
        self.carriers: list[Wire | None] = [None, None]
        self.delivered: list[list[int]] = [[], []]
        self.suspicions: list[list[str]] = [[], []]
        self.deaths: list[list[tuple[float, Dead]]] = [[], []]
        self.sent = [0, 0]
        self.beats: list[list[float]] = [[], []]
        self._stopped_until = [0.0, 0.0]
        self._order = itertools.count()
        self._events: list[tuple[float, int, int, Callable[[], Any]]] = []

    def start(self) -> Simulation:
        self.act(DIALLER, self.links[DIALLER].start(self.now))
        return self

    # --- time

    def at(self, when: float, side: int, fn: Callable[[], Any]) -> None:
        heapq.heappush(self._events, (when, next(self._order), side, fn))

    def run(self, seconds: float) -> None:
        """Runs all that is due; at the same time, in the order of an event loop's turn: what arrived first, then ticks."""
        until = self.now + seconds
        while True:
            ticks = [
                (max(link.due(), self._stopped_until[side], self.now), side) for side, link in enumerate(self.links)
            ]
            tick, ticking = min(ticks)
            event = self._events[0][0] if self._events else NEVER
            if min(event, tick) > until:
                break
            if event <= tick:
                when, order, side, fn = heapq.heappop(self._events)
                if when < self._stopped_until[side]:
                    heapq.heappush(self._events, (self._stopped_until[side], order, side, fn))
                    continue
                self.now = max(self.now, when)
                fn()
            else:
                self.now = tick
                self.act(ticking, self.links[ticking].tick(self.now))
        self.now = until

    def stop(self, side: int, seconds: float) -> None:
        """Stops a process for a while."""
        self._stopped_until[side] = max(self._stopped_until[side], self.now + seconds)

    # --- what happens

    def send(self, side: int, count: int = 1) -> None:
        link = self.links[side]
        if link.dead:
            return
        for _ in range(count):
            number = self.sent[side]
            self.sent[side] += 1
            link.keep((b"%d" % number,), 100)
            carrier = self.carriers[side]
            if carrier is not None and link.connection is carrier:
                carrier.put(side, number)

    def arrived(self, side: int, wire: Wire, item: Any) -> None:
        link, now = self.links[side], self.now
        match item:
            case LinkHello() if side == ACCEPTOR and not wire.greeted:
                wire.greeted = True
                self.act(side, link.accepted(now, wire, item))
            case LinkHello():
                self.act(side, link.hello_received(now, wire, item))
            case Beat(received):
                self.act(side, link.beat(now, wire, received))
            case Bye(reason):
                self.act(side, link.said_bye(now, wire, reason))
            case _:
                if wire is link.connection:
                    assert link.up
                    self.delivered[side].append(item)
                self.act(side, link.took(now, wire, 1, 100))

    def act(self, side: int, effects: list[LinkEffect]) -> None:
        for effect in effects:
            match effect:
                case Dial():
                    self._dial()
                case SendMessage(wire, msg):
                    if type(msg) is LinkHello and side == DIALLER:
                        self.hellos.append(msg)
                    if type(msg) is Beat:
                        self.beats[side].append(self.now)
                    wire.put(side, msg)
                case Carry(wire):
                    self.carriers[side] = wire
                    for pieces, _size in self.links[side].kept:
                        wire.put(side, int(bytes(pieces[0])))
                case SendBye(wire, why):
                    wire.put(side, Bye(why))
                    wire.close(side)
                case Close(wire, _):
                    wire.close(side)
                case Suspect(why):
                    self.suspicions[side].append(why)
                case Dead():
                    self.deaths[side].append((self.now, effect))

    def _dial(self) -> None:
        link, outcome = self.links[DIALLER], self.dials
        if outcome == "ok":
            wire = Wire(self)
            self.wires.append(wire)
            self.at(self.now + self.latency, DIALLER, lambda: self.act(DIALLER, link.dialled(self.now, wire)))
        else:
            refused = outcome == "refused"
            self.at(
                self.now + (0.0 if refused else 1.0),
                DIALLER,
                lambda: self.act(DIALLER, link.dial_failed(self.now, outcome, refused=refused)),
            )

    def cut(self, *delays: float | None) -> None:
        """The latest connection."""
        if self.wires:
            told = delays or (0.0, 0.0)
            self.wires[-1].cut((told[0], told[1]))

    def ghost(self, index: int, lives: float) -> None:
        """A connection that the dialler gave up long ago has its hello arrive only now."""
        if self.hellos:
            wire = Wire(self)
            hello = self.hellos[index % len(self.hellos)]
            wire.closed[DIALLER] = True
            self.at(self.now, ACCEPTOR, lambda: self.arrived(ACCEPTOR, wire, hello))
            self.at(self.now + lives, ACCEPTOR, lambda: wire.tell(ACCEPTOR, "the other end closed it"))

    def swallow(self, seconds: float) -> None:
        """Nothing gets through for a while, and nobody hears of it."""
        self.dials = "lost"
        self.cut(None, None)
        self.at(self.now + seconds, DIALLER, self.heal)

    def heal(self) -> None:
        self.dials = "ok"

    # --- what must hold

    def check(self) -> None:
        for side in (DIALLER, ACCEPTOR):
            delivered = self.delivered[1 - side]
            assert delivered == list(range(len(delivered))), "lost, repeated or reordered"
            assert len(delivered) <= self.sent[side]
            link = self.links[side]
            assert link.unacknowledged_bytes == 100 * link.unacknowledged
            if not link.dead:
                assert link.sent == self.sent[side]
                assert link.sent - link.unacknowledged <= len(delivered), "acknowledged and not delivered"

    def check_whole(self) -> None:
        self.check()
        assert self.deaths == [[], []]
        assert all(link.up and not link.suspected for link in self.links)
        assert [len(self.delivered[ACCEPTOR]), len(self.delivered[DIALLER])] == self.sent
        assert [link.unacknowledged for link in self.links] == [0, 0]


# --- nothing lost, repeated, reordered

sides = st.sampled_from([DIALLER, ACCEPTOR])
told = st.one_of(st.none(), st.floats(0, 4))
steps = st.one_of(
    st.tuples(st.just("send"), sides, st.integers(1, 12)),
    st.tuples(st.just("run"), st.one_of(st.floats(0, 0.1), st.floats(0, 5))),
    st.tuples(st.just("cut"), told, told),
    st.tuples(st.just("swallow"), st.floats(0, 4)),
    st.tuples(st.just("stop"), sides, st.floats(0, 10)),
    st.tuples(st.just("ghost"), st.integers(0, 9), st.floats(0, 4)),
    st.tuples(st.just("latency"), st.floats(0, 0.5)),
)


def play(sim: Simulation, schedule: list[tuple[Any, ...]]) -> None:
    sim.start().run(0.5)
    for name, *arguments in schedule:
        if name == "latency":
            sim.latency = arguments[0]
        else:
            getattr(sim, name)(*arguments)
        sim.check()


def play_and_heal(schedule: list[tuple[Any, ...]], ack_every: int) -> Simulation:
    # A window that no such schedule outlasts: death is not what this is about.
    sim = Simulation(LinkLimits(ack_every=ack_every, reconnect=1e4, attach=1e4))
    play(sim, schedule)
    sim.heal()
    sim.latency = 0.01
    sim.run(60)  # longer than anything above lasts, and what comes of it
    sim.check_whole()
    return sim


def drawn(rng: random.Random, count: int) -> list[tuple[Any, ...]]:
    """Steps like those above; mostly short runs, so that much is under way when something happens."""

    def told() -> float | None:
        return rng.choice([None, 0.0, rng.uniform(0, 0.1), rng.uniform(0, 4)])

    def step() -> tuple[Any, ...]:
        side = rng.choice([DIALLER, ACCEPTOR])
        match rng.choices(["send", "run", "cut", "swallow", "stop", "ghost", "latency"], [8, 12, 3, 1, 1, 2, 1])[0]:
            case "send":
                return "send", side, rng.randint(1, 12)
            case "run":
                return "run", rng.choice([rng.uniform(0, 0.05), rng.uniform(0, 0.5), rng.uniform(0, 5)])
            case "cut":
                return "cut", told(), told()
            case "swallow":
                return "swallow", rng.uniform(0, 4)
            case "stop":
                return "stop", side, rng.uniform(0, 10)
            case "ghost":
                return "ghost", rng.randint(0, 9), rng.uniform(0, 4)
            case _:
                return "latency", rng.choice([0.0, 0.01, rng.uniform(0, 0.5)])

    return [step() for _ in range(count)]


@given(st.lists(steps, max_size=40), st.integers(1, 7))
def test_whatever_happens_to_connections_each_side_gets_what_the_other_sent(
    schedule: list[tuple[Any, ...]], ack_every: int
) -> None:
    play_and_heal(schedule, ack_every)


@pytest.mark.parametrize("seed", range(60))
def test_the_same_in_long_schedules(seed: int) -> None:
    rng = random.Random(seed)
    sim = play_and_heal(drawn(rng, 120), rng.choice([1, 3, 10, 1000]))
    assert len(sim.wires) >= 2


@pytest.mark.parametrize("seed", range(30))
def test_up_to_its_death_a_link_delivers_a_prefix(seed: int) -> None:
    rng = random.Random(seed)
    sim = Simulation(LinkLimits(ack_every=3, reconnect=rng.uniform(0, 5), attach=5))
    play(sim, drawn(rng, 120))
    for deaths, link in zip(sim.deaths, sim.links, strict=True):
        assert len(deaths) == (link.dead is not None)
        assert not link.dead or link.unacknowledged_bytes == 0


def test_the_schedules_do_come_to_new_connections_and_to_frames_sent_again() -> None:
    sim = Simulation().start()
    sim.run(1)
    sim.send(DIALLER, 5)
    sim.send(ACCEPTOR, 5)
    sim.cut(None, 0.0)
    sim.run(10)
    sim.check_whole()
    assert len(sim.wires) == 2
    assert sim.suspicions[DIALLER][0].endswith("(setting server_heartbeat_interval: 3 missed)")
    assert sim.suspicions == [[sim.suspicions[0][0], ""], ["the connection to tcp://near:1 broke: cut", ""]]


def test_what_arrived_and_was_not_acknowledged_is_not_sent_again() -> None:
    sim = Simulation(LinkLimits(heartbeat=0)).start()
    sim.run(1)
    sim.send(DIALLER, 5)
    sim.send(ACCEPTOR, 5)
    sim.run(0.1)
    assert [link.unacknowledged for link in sim.links] == [5, 5]
    sim.cut()
    sim.run(0.1)
    assert len(sim.wires) == 2
    sim.check_whole()


def test_what_is_sent_before_the_first_connection_follows_it() -> None:
    sim = Simulation()
    sim.send(DIALLER, 3)
    sim.start().run(5)
    sim.check_whole()


def test_a_stale_hello_disturbs_a_link_only_for_a_moment() -> None:
    sim = Simulation().start()
    sim.run(0.5)
    sim.send(DIALLER, 3)
    sim.run(2)
    wire = sim.links[ACCEPTOR].connection
    sim.ghost(0, 5.0)
    sim.run(0.1)
    assert sim.links[ACCEPTOR].connection is wire
    sim.check_whole()


def test_a_new_connection_takes_the_place_of_one_that_only_the_dialler_knows_is_broken() -> None:
    sim = Simulation().start()
    sim.run(1)
    sim.cut(0.0, None)
    sim.run(0.5)
    assert sim.links[ACCEPTOR].connection is sim.wires[1]
    sim.check_whole()


# --- acknowledgements, heartbeats


def up(limits: LinkLimits = LIMITS) -> Simulation:
    sim = Simulation(limits)
    sim.latency = 0.0
    return run_until_up(sim.start())


def run_until_up(sim: Simulation) -> Simulation:
    sim.run(0)
    assert all(link.up for link in sim.links)
    return sim


def test_received_frames_are_acknowledged_after_a_number_of_them() -> None:
    sim = up(LinkLimits(ack_every=4, heartbeat=0))
    sim.send(DIALLER, 3)
    sim.run(0)
    assert sim.links[DIALLER].unacknowledged == 3
    sim.send(DIALLER, 1)
    sim.run(0)
    assert sim.links[DIALLER].unacknowledged == 0


def test_and_after_a_number_of_bytes() -> None:
    sim = up(LinkLimits(ack_bytes=400, heartbeat=0))
    sim.send(DIALLER, 3)
    sim.run(0)
    assert sim.links[DIALLER].unacknowledged_bytes == 300
    sim.send(DIALLER, 1)
    sim.run(0)
    assert sim.links[DIALLER].unacknowledged_bytes == 0


def test_and_some_time_after_the_first_of_them() -> None:
    sim = up(LinkLimits(ack_interval=0.5, heartbeat=0))
    sim.send(DIALLER)
    sim.run(0.25)
    sim.send(DIALLER)
    sim.run(0.125)
    assert sim.links[DIALLER].unacknowledged == 2
    sim.run(0.125)
    assert sim.links[DIALLER].unacknowledged == 0
    assert sim.beats == [[], [0.5]]


def test_an_idle_link_beats() -> None:
    sim = up(LinkLimits(heartbeat=2))
    sim.run(9)
    assert sim.beats == [[2, 4, 6, 8], [2, 4, 6, 8]]
    assert sim.links[DIALLER].due() == 10


def test_a_heartbeat_does_not_queue_behind_bytes_that_wait() -> None:
    sim = up(LinkLimits(heartbeat=2))
    link = sim.links[DIALLER]
    assert link.tick(2, busy=True) == []
    assert link.due() == 4
    assert link.tick(4, busy=False) == [SendMessage(link.connection, Beat(0))]


def test_but_an_acknowledgement_does() -> None:
    sim = up(LinkLimits(heartbeat=2))
    link = sim.links[DIALLER]
    link.took(1, link.connection, 2, 10)
    assert link.tick(1.5, busy=True) == [SendMessage(link.connection, Beat(2))]


def test_full_from_the_bound_on_and_not_after_the_acknowledgement() -> None:
    link = up(LinkLimits(queue=100)).links[DIALLER]
    link.keep((b"x" * 99,), 99)
    assert not link.full
    link.keep((b"x" * 1000,), 1000)
    assert link.full
    assert link.beat(1, link.connection, 1) == []
    assert link.full
    assert link.beat(1, link.connection, 2) == []
    assert not link.full
    assert link.unacknowledged == 0


# --- silence


def test_three_missed_heartbeats_end_the_connection_and_not_the_link() -> None:
    sim = up()
    sim.run(10.5)
    sim.swallow(60)
    sim.run(2.25)
    assert all(link.up for link in sim.links)
    sim.run(0.25)
    assert not any(link.up for link in sim.links)
    assert [len(told) for told in sim.suspicions] == [1, 1]
    assert sim.deaths == [[], []]


def test_a_process_that_did_not_run_itself_does_not_judge_silence() -> None:
    link = up().links[ACCEPTOR]
    assert [type(effect) for effect in link.tick(100)] == [SendMessage]  # a Beat
    assert link.up
    assert link.due() == 101
    link.tick(101)
    assert not link.up


def test_a_frame_is_a_sign_of_life_and_so_is_a_part_of_one() -> None:
    link = up(LinkLimits(ack_interval=100)).links[DIALLER]
    link.took(2.5, link.connection, 1, 1)
    for now in (1, 2, 3, 4, 5, 5.45):
        link.tick(now)
        assert link.up
    link.alive(5.25)
    for now in (6, 7, 8, 8.2):
        link.tick(now)
        assert link.up
    link.tick(8.25)
    assert not link.up


def test_whoever_does_not_read_hears_nothing_and_infers_nothing() -> None:
    link = up().links[DIALLER]
    link.deaf(1, True)
    for now in range(1, 20):
        link.tick(now)
    assert link.up
    link.deaf(20, False)
    for now in (20, 21, 22, 22.9):
        link.tick(now)
        assert link.up
    link.tick(23)
    assert not link.up


# --- redialling


def failing(link: Link, until: float, refused: bool = False) -> list[float]:
    """Returns when it dials, if every attempt fails at once; up to its death."""
    times, now = [], 0.0
    effects = link.start(0.0)
    while not link.dead and now < until:
        if effects == [Dial()]:
            times.append(now)
            effects = link.dial_failed(now, "no route", refused=refused)
        else:
            now = link.due()
            effects = link.tick(now)
    return times


def test_pauses_between_attempts_double_up_to_a_limit_with_jitter() -> None:
    times = failing(dialler(LinkLimits(attach=30)), 100)
    pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
    for index, pause in enumerate(pauses):
        full = min(2.0, 0.05 * 2**index)
        assert full / 2 <= pause <= full
    assert len(set(pauses)) == len(pauses)
    assert 28 <= times[-1] <= 30


def test_a_first_connection_has_a_window_of_its_own_and_refusals_do_not_count() -> None:
    link = dialler(LinkLimits(attach=7))
    failing(link, 100, refused=True)
    assert link.dead == Dead(
        "tcp://far:1 could not be reached within 7 s (setting mesh_attach_config_timeout): no route", False
    )


def test_the_window_counts_from_the_break_on_both_sides() -> None:
    sim = up(LinkLimits(reconnect=10, heartbeat=0))
    sim.run(5)
    sim.dials = "lost"
    sim.cut(0.0, 1.0)
    sim.run(100)
    assert [deaths[0][0] for deaths in sim.deaths] == [15, 16]
    near, far = (deaths[0][1] for deaths in sim.deaths)
    assert near.why == (
        "no new connection with tcp://far:1 came about within 10 s (setting channel_reconnect_timeout): lost"
    )
    assert far.why == (
        "no new connection with tcp://near:1 came about within 10 s (setting channel_reconnect_timeout): "
        "the connection to tcp://near:1 broke: cut"
    )
    assert not near.orderly and not far.orderly


def test_a_connection_that_was_up_is_redialled_at_once() -> None:
    sim = up()
    sim.run(1)
    sim.cut()
    sim.run(0)
    assert len(sim.wires) == 2
    sim.check_whole()


def test_one_that_breaks_as_soon_as_it_is_up_is_redialled_less_and_less_often() -> None:
    sim = up()
    for _ in range(1000):
        sim.cut()
        sim.run(0.01)
    assert 5 < len(sim.wires) < 15


def test_time_that_this_process_did_not_run_does_not_count_for_the_window() -> None:
    sim = up(LinkLimits(reconnect=10))
    link = sim.links[ACCEPTOR]
    link.broken(5, link.connection, "cut")
    assert link.tick(100) == []
    assert link.due() == 103
    assert [type(effect) for effect in link.tick(103)] == [Dead]


def test_a_handshake_without_an_answer_is_tried_again() -> None:
    link = dialler()
    link.start(0)
    first = object()
    link.dialled(0, first)
    assert link.tick(3) == [Close(first, "no sign of life for 3 s (setting server_heartbeat_interval: 3 missed)")]
    assert link.tick(link.due()) == [Dial()]
    assert not link.dead


def test_a_late_connection_is_closed() -> None:
    link = dialler()
    link.start(0)
    link.close(1, "enough")
    late = object()
    assert link.dialled(2, late) == [Close(late, "it is not wanted any more")]


# --- death


def test_a_host_that_refuses_again_and_again_has_ended() -> None:
    sim = up()
    sim.run(1)
    sim.dials = "refused"
    sim.cut()
    sim.run(0.29)
    assert not sim.links[DIALLER].dead
    sim.run(1)
    at, dead = sim.deaths[DIALLER][0]
    assert 1.3 <= at <= 2
    assert dead == Dead("nobody listens at tcp://far:1 any more: the process has ended (refused)", False)


def test_not_when_something_else_happened_in_between() -> None:
    link = up().links[DIALLER]
    link.broken(1, link.connection, "cut")
    now = 1.0
    for attempt in range(20):
        link.dial_failed(now, "refused" if attempt % 3 else "no route", refused=attempt % 3 > 0)
        assert not link.dead
        now = link.due()
        assert link.tick(now) == [Dial()]


def test_errors_that_stay_are_final() -> None:
    link = dialler()
    link.start(0)
    assert link.dial_failed(1, "the secret is another one", final=True) == [Dead("the secret is another one")]
    assert link.due() == NEVER


def test_bye_is_orderly() -> None:
    sim = up()
    sim.send(DIALLER, 3)
    sim.act(DIALLER, sim.links[DIALLER].close(1, "the script is over"))
    sim.run(1)
    assert sim.delivered[ACCEPTOR] == [0, 1, 2]
    assert [deaths[0][1] for deaths in sim.deaths] == [
        Dead("the script is over", True),
        Dead("tcp://near:1 said goodbye: the script is over", True),
    ]


def test_bye_in_place_of_hello_is_a_refusal() -> None:
    link = dialler()
    link.start(0)
    there = object()
    link.dialled(0, there)
    effects = link.said_bye(0, there, "no such link")
    why = "tcp://far:1 refused the link: no such link"
    assert effects == [Close(there, why), Dead(why, False)]


def hello(**changes: Any) -> LinkHello:
    fields: dict[str, Any] = {
        "version": VERSION,
        "host": ADDRESS,
        "agent": "agent-1",
        "link": "link",
        "reached": ADDRESS,
        "received": 0,
        "resume": True,
    }
    return LinkHello(**(fields | changes))


def redialled(frames: int) -> tuple[Link, object]:
    """A dialler that had a connection, on which `frames` were acknowledged, and has dialled another."""
    sim = up()
    sim.run(1)
    link = sim.links[DIALLER]
    for _ in range(frames + 1):
        link.keep((b"x",), 1)
    link.beat(1, link.connection, frames)
    link.broken(1, link.connection, "cut")
    connection = object()
    link.dialled(1, connection)
    return link, connection


@pytest.mark.parametrize(
    "changes", [{"agent": "agent-2"}, {"resume": False}, {"received": 1}], ids=["agent", "resume", "received"]
)
def test_another_process_at_the_same_address_is_another_host(changes: dict[str, Any]) -> None:
    link, there = redialled(frames=2)
    why = "the process at tcp://far:1 is another one now: the host was restarted"
    assert link.hello_received(1, there, hello(**({"received": 2} | changes))) == [SendBye(there, why), Dead(why)]


def test_the_same_process_goes_on_where_it_was() -> None:
    link, there = redialled(frames=2)
    assert link.hello_received(1, there, hello(received=2)) == [Carry(there), Suspect("")]
    assert (link.sent, link.unacknowledged) == (3, 1)


def test_versions_that_differ_are_named_to_both_sides() -> None:
    far, there = acceptor(), object()
    why = f"protocol version {VERSION} meets version 99 of tcp://near:1: all hosts need one monarch version"
    assert far.accepted(0, there, hello(version=99, host="tcp://near:1", resume=False)) == [
        SendBye(there, why),
        Dead(why),
    ]
    near = dialler()
    near.start(0)
    near.dialled(0, there)
    why = f"protocol version {VERSION} meets version 99 of tcp://far:1: all hosts need one monarch version"
    assert near.hello_received(0, there, hello(version=99)) == [SendBye(there, why), Dead(why)]


def test_an_acceptor_without_memory_of_the_link_refuses_it() -> None:
    link, there = acceptor(), object()
    effects = link.accepted(0, there, hello(host="tcp://near:1", agent="agent-0", received=4))
    assert [type(effect) for effect in effects] == [SendBye, Dead]
    assert link.dead is not None
    assert "does not know the link" in link.dead.why


def test_an_acceptor_whose_dialler_is_another_process_gives_the_link_up() -> None:
    link = up().links[ACCEPTOR]
    there = object()
    effects = link.accepted(1, there, hello(agent="agent-9"))
    assert [type(effect) for effect in effects] == [SendBye, Close, Dead]


def test_a_dead_link_refuses_with_the_reason() -> None:
    link = up().links[ACCEPTOR]
    link.close(1, "the host shuts down")
    there = object()
    assert link.accepted(2, there, hello()) == [SendBye(there, "the host shuts down")]


@pytest.mark.parametrize("beat", [True, False], ids=["beat", "hello"])
def test_a_count_of_frames_that_were_never_sent_ends_the_link(beat: bool) -> None:
    link, there = redialled(frames=0)
    if beat:
        link.hello_received(1, there, hello())
        link.beat(1, there, 2)
    else:
        link.hello_received(1, there, hello(received=2))
    assert link.dead is not None
    assert "2 frames of the 1 that were sent" in link.dead.why


def test_what_connections_of_before_say_is_ignored() -> None:
    link, there = redialled(frames=0)
    link.hello_received(1, there, hello())
    old = object()
    assert link.took(2, old, 5, 5) == []
    assert link.beat(2, old, 1) == []
    assert link.broken(2, old, "cut") == []
    assert link.said_bye(2, old, "gone") == []
    assert link.hello_received(2, old, hello()) == []
    assert link.up
    assert (link.received, link.unacknowledged) == (0, 1)


def test_repr_says_how_it_is() -> None:
    assert repr(dialler()) == "<Link link to tcp://far:1 (down, 0 frames kept)>"


# --- what the two hosts run


def greet(*runs: str) -> list[Any]:
    """The effects at the acceptor, of hosts that run these versions ("": one that does not say)."""
    softwares = [Software(python) if python else None for python in runs]
    near = Link(
        "link", host="tcp://near:1", agent="a", limits=LIMITS, rng=random.Random(1), reached=ADDRESS,
        software=softwares[0],
    )  # fmt: skip
    far = Link("link", host="", agent="b", limits=LIMITS, rng=random.Random(2), software=softwares[1])
    near.start(0.0)
    hello = near.dialled(0.0, "connection")[0].message  # type: ignore[union-attr]
    return far.accepted(0.0, "connection", hello)


@pytest.mark.parametrize("runs", [("cpython 3.11.1", "cpython 3.11.9"), ("", "cpython 3.11.1"), ("cpython 3.11.1", "")])
def test_hosts_that_fit_or_do_not_say_are_linked(runs: tuple[str, str]) -> None:
    assert any(isinstance(effect, Carry) for effect in greet(*runs))


def test_hosts_that_run_different_versions_of_python_are_not() -> None:
    bye, dead = greet("cpython 3.11.1", "cpython 3.13.0")
    assert isinstance(bye, SendBye) and isinstance(dead, Dead)
    assert f"{ADDRESS} runs cpython 3.13.0" in bye.why and "tcp://near:1 runs cpython 3.11.1" in bye.why


# --- frames that cannot be taken


class Refusing:
    """Two links, of which `side` takes no more than `takes` frames of the other: it breaks the connection at the next."""

    def __init__(self, side: int, takes: int) -> None:
        self.sim = Simulation().start()
        self.sim.run(1.0)
        self.side, self.takes = side, takes
        self.refused: Counter[int] = Counter()  # by frame
        arrived = self.sim.arrived

        def take_or_refuse(there: int, wire: Wire, item: Any) -> None:
            full = len(self.sim.delivered[side]) >= self.takes
            if there != side or type(item) is not int or not full:
                arrived(there, wire, item)
                return
            self.refused[item] += 1
            wire.close(side)
            self.sim.act(side, self.sim.links[side].broken(self.sim.now, wire, "no memory", frame_refused=True))

        self.sim.arrived = take_or_refuse  # type: ignore[assignment, method-assign]


@pytest.mark.parametrize("side", [DIALLER, ACCEPTOR])
def test_a_frame_that_is_refused_too_often_is_the_end_of_the_link(side: int) -> None:
    case = Refusing(side, takes=3)
    sim = case.sim
    for _ in range(5):
        sim.send(1 - side)
    began = sim.now
    sim.run(60.0)
    assert sim.delivered[side] == [0, 1, 2] and case.refused == {3: FRAME_REFUSALS}
    for deaths in sim.deaths:
        ((when, dead),) = deaths
        assert f"{FRAME_REFUSALS} times: no memory" in dead.why and "could not be taken" in dead.why
        assert 1.0 < when - began < 15.0


@pytest.mark.parametrize("side", [DIALLER, ACCEPTOR])
def test_a_frame_that_is_taken_in_the_end_is_the_end_of_nothing(side: int) -> None:
    """Refusals of one frame are counted, not those of all."""
    case = Refusing(side, takes=0)
    sim = case.sim
    for _ in range(4):
        sim.send(1 - side)
    for frame in range(4):
        while case.refused[frame] < FRAME_REFUSALS - 1:
            sim.run(0.01)
            assert sim.now < 100.0
        case.takes = frame + 1
    sim.run(5.0)
    assert sim.delivered[side] == [0, 1, 2, 3] and sim.deaths == [[], []]


def test_a_worker_that_ends_while_it_is_dialled_is_not_told_of() -> None:
    """Its listening socket resets who waits to be accepted; after that nobody listens."""
    link = dialler()
    link.start(0.0)
    assert link.dial_failed(0.0, "reset in the middle of the handshake", unexpected=True) == []
    for _ in range(4):
        assert link.tick(now := link.due()) == [Dial()]
        assert link.dial_failed(now, "nobody listens", refused=True) == []
    assert link.tick(now := link.due()) == [Dial()]
    assert link.dial_failed(now, "reset in the middle of the handshake", unexpected=True) == []  # not twice in a row


def test_the_end_of_a_host_is_known_soon_also_when_its_port_took_connections_for_a_while() -> None:
    """The processes of an agent that was killed may keep its port open: who dials it is accepted and hears nothing."""
    link = up(LinkLimits(heartbeat=0)).links[0]
    now = 5.0
    effects = link.broken(now, link.connection, "reset")
    for number in range(8):
        assert Dial() in effects
        link.dialled(now, number)
        link.broken(now, number, "reset")
        now = link.due()
        effects = link.tick(now)
    first = now
    while Dial() in effects:
        link.dial_failed(now, "nobody listens", refused=True)
        effects = [] if link.dead else link.tick(now := link.due())
    assert link.dead
    assert now - first <= 0.8


# --- names that nobody knows


def test_a_name_that_nobody_knows_is_said_when_it_fails_twice_and_looked_up_again() -> None:
    """A pod's name is known once the pod runs, and workers may start after the client."""
    link = dialler(LIMITS._replace(attach=20.0))
    link.start(0.0)
    assert link.dial_failed(0.0, "no such name", unexpected=True) == []
    assert link.tick(link.due()) == [Dial()]
    (said,) = link.dial_failed(0.1, "no such name", unexpected=True)
    limit = "20 s (setting mesh_attach_config_timeout)"
    assert said == Suspect(f"no such name; it is tried again for up to {limit}")
    while (now := link.due()) < 20.0:
        assert link.tick(now) == [Dial()]
        assert link.dial_failed(now, "still no such name", unexpected=True) == []  # once is enough
    assert link.tick(20.0) == [Dead(f"{ADDRESS} could not be reached within {limit}: still no such name")]


def test_a_name_that_is_known_later_is_as_good_as_any() -> None:
    link = dialler()
    link.start(0.0)
    for at in (0.0, 0.1):
        link.dial_failed(at, "no such name", unexpected=True)
        assert link.tick(link.due()) == [Dial()]
    assert link.dial_failed(0.2, "nobody listens", refused=True) == [Suspect("")]
    assert link.tick(link.due()) == [Dial()]
    link.dialled(1.0, "connection")
    link.hello_received(1.0, "connection", LinkHello(VERSION, ADDRESS, "agent-1", "link", ADDRESS, 0, False))
    assert link.up


def test_a_name_that_is_lost_while_the_link_is_broken_says_nothing_new() -> None:
    link = dialler()
    link.start(0.0)
    link.dialled(0.0, "connection")
    link.hello_received(0.0, "connection", LinkHello(VERSION, ADDRESS, "agent-1", "link", ADDRESS, 0, False))
    assert link.up
    link.broken(5.0, "connection", "cut")
    assert link.dial_failed(5.0, "no such name", unexpected=True) == []  # the name service may be behind
    assert link.dead is None
