"""From a seed, a random program. The same seed makes the same program for ever, on every machine.

Each program favours some kinds of operations and leaves others out (swarm testing: Groce and others, "Swarm Testing", ISSTA
2012), because what all programs do a little of, none does enough of.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.soak.program import (
    ABORT,
    AGENT,
    ANY,
    BROADCAST,
    CALL,
    CALL_ONE,
    CHOOSE,
    CLIENT,
    EXIT,
    FAIL,
    LEAVE,
    STREAM,
    WORK,
    Advance,
    Calm,
    Cast,
    Cut,
    CutHosts,
    Disturb,
    Freeze,
    Hold,
    Join,
    Kill,
    KillHost,
    Lose,
    Open,
    Operation,
    Policy,
    Program,
    RestartActors,
    RestartProcs,
    Spawn,
    SpawnProcs,
    StopActors,
    StopProcs,
    process,
)

KINDS = ("Plain", "Looped", "Concurrent")
_LARGE = 0.01  # share of programs with up to 64 processes
_SPREAD = 0.35  # share of programs with several hosts
_MOST_PROCS, _MOST_MESHES = 3, 5  # meshes in a program
_LONGEST_DELAY = 0.2  # seconds; of one rule
_SWITCHES = (5e-3, 1e-4, 1e-6)


def generate(seed: int) -> Program:
    return _Author(random.Random(f"soak {seed}")).write(seed)


class _Author:
    """Knows what has been written, not what became of it: an operation may well meet a mesh that is gone."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._large = rng.random() < _LARGE
        self._hosts = rng.choice((2, 2, 3)) if rng.random() < _SPREAD else 0
        self._gateway = 0 if self._hosts and rng.random() < 0.25 else None
        self._killed = False  # whether a host is
        self._procs: dict[str, int] = {}  # name -> size
        self._meshes: dict[str, int] = {}
        self._owned: list[str] = []  # meshes that the client spawned
        self._gates: list[int] = []
        self._number = 0
        self._deadly = rng.choice((0.0, 0.05, 0.3))  # share of casts that end an actor, or raise
        self._relayed = rng.choice((0.1, 0.3, 0.7))  # share of casts that actors send
        self._operations: list[Operation] = []

    def write(self, seed: int) -> Program:
        rng = self._rng
        makers = self._favoured()
        self._operations = [self._spawn_procs(), self._spawn()]
        length = rng.randint(10, 30)
        while len(self._operations) < length:
            maker = rng.choices(list(makers), list(makers.values()))[0]
            made = maker()
            if made is not None:
                self._operations.append(made)
        return Program(seed, tuple(self._operations), rng.choice(_SWITCHES), self._hosts, self._gateway)

    def _favoured(self) -> dict[Callable[[], Operation | None], float]:
        usual: dict[Callable[[], Operation | None], float] = {
            self._spawn_procs: 1,
            self._spawn: 2,
            self._adopt: 1,
            self._hold: 2,
            self._open: 2,
            self._kill: 1.5,
            self._freeze: 1,
            self._stop_actors: 1,
            self._stop_procs: 0.5,
            self._restart_actors: 2,
            self._restart_procs: 2,
            self._disturb: 3,
            self._calm: 1,
            self._lose: 0.5,
            self._cut: 1,
            self._cut_hosts: 4 if self._hosts else 0,
            self._kill_host: 1.5 if self._hosts else 0,
            self._advance: 1,
            self._join: 1,
        }
        rng = self._rng
        return {self._cast: 15.0} | {maker: weight * rng.choice((0, 0, 1, 3)) for maker, weight in usual.items()}

    # --- what there is

    def _next_number(self) -> int:
        self._number += 1
        return self._number

    def _any_procs(self) -> tuple[str, int]:
        name = self._rng.choice(list(self._procs))
        return name, self._rng.randrange(self._procs[name])

    def _any_actor(self, after: str = "") -> tuple[str, int] | None:
        """One of a mesh spawned after that one: actors call each other in that direction only, so never in a circle."""
        names = list(self._meshes)
        names = names[names.index(after) + 1 :] if after else names
        if not names:
            return None
        name = self._rng.choice(names)
        return name, self._rng.randrange(self._meshes[name])

    def _any_place(self) -> str:
        return CLIENT if self._rng.random() < 0.4 else process(*self._any_procs())

    # --- spawning

    def _spawn_procs(self) -> SpawnProcs | None:
        if len(self._procs) == _MOST_PROCS:
            return None
        rng, name = self._rng, f"p{len(self._procs)}"
        if self._hosts and rng.random() < 0.7:
            first = rng.randrange(self._hosts)
            hosts = (first,) if rng.random() < 0.5 else tuple(range(first, self._hosts))
            self._procs[name] = len(hosts) if len(hosts) > 1 else rng.choice((1, 1, 2))
            return SpawnProcs(name, self._procs[name], hosts)
        self._procs[name] = rng.randint(8, 64) if self._large and not self._procs else rng.choice((1, 1, 2, 2, 3))
        return SpawnProcs(name, self._procs[name])

    def _spawn(self) -> Spawn | None:
        rng = self._rng
        count = rng.choice((1, 1, 1, 2))
        if len(self._meshes) + count > _MOST_MESHES:
            return None
        policy = None
        if rng.random() < 0.25:
            strategy = rng.choice(("one_for_one", "all_for_one", "rest_for_one"))
            policy = Policy(strategy, rng.choice((0, 1, 3)), rng.choice((0.0, 0.0, 0.1)))
        spawn = self._spawn_on(*self._any_procs(), tuple(f"m{len(self._meshes) + i}" for i in range(count)), policy)
        self._owned += spawn.meshes
        return spawn

    def _adopt(self) -> Spawn | None:
        owner = self._any_actor() if self._meshes and len(self._meshes) < _MOST_MESHES else None
        return owner and self._spawn_on(*self._any_procs(), (f"m{len(self._meshes)}",), None, owner)

    def _spawn_on(
        self,
        procs: str,
        _rank: int,
        names: tuple[str, ...],
        policy: Policy | None,
        owner: tuple[str, int] | None = None,
    ) -> Spawn:
        rng, size = self._rng, self._procs[procs]
        first = rng.randrange(size) if rng.random() < 0.3 else 0
        count = rng.randint(1, size - first) if rng.random() < 0.3 else size - first
        broken = (rng.randrange(count),) if rng.random() < 0.05 else ()
        self._meshes.update(dict.fromkeys(names, count))
        number = self._next_number() if owner is not None else 0
        return Spawn(names, procs, first, count, rng.choice(KINDS), broken, rng.random() < 0.7, policy, owner, number)

    # --- messages

    def _cast(self) -> Cast:
        rng = self._rng
        via = self._any_actor() if rng.random() < self._relayed else None
        target = self._any_actor(via[0] if via is not None else "")
        if target is None:
            via, target = None, self._any_actor()
            assert target is not None
        mesh, rank = target
        whole = rng.random() < 0.6
        adverbs = [CALL, CHOOSE, STREAM, BROADCAST, BROADCAST]
        adverb = rng.choice(adverbs if whole and self._meshes[mesh] > 1 else [*adverbs, CALL_ONE, CALL_ONE])
        method = rng.choice((FAIL, FAIL, ABORT, EXIT, LEAVE)) if rng.random() < self._deadly else WORK
        deadline = rng.choice((0.05, 0.5, 2.0)) if adverb != BROADCAST and rng.random() < 0.2 else None
        kept = rng.random() < 0.9
        return Cast(self._next_number(), mesh, None if whole else rank, adverb, method, deadline, via, kept)

    def _work(self, deadline: float | None = None) -> Cast:
        """To a single mesh, with an answer."""
        target = self._any_actor()
        assert target is not None
        mesh, rank = target
        adverb = self._rng.choice((CALL, CHOOSE, STREAM))
        return Cast(self._next_number(), mesh, None if self._rng.random() < 0.5 else rank, adverb, deadline=deadline)

    def _hold(self) -> Hold | None:
        target = self._any_actor()
        assert target is not None
        number = self._next_number()
        self._gates.append(number)
        return Hold(number, *target)

    def _open(self) -> Open | None:
        return Open(self._gates.pop(self._rng.randrange(len(self._gates)))) if self._gates else None

    # --- ends

    def _kill(self) -> Kill:
        return Kill(*self._any_procs())

    def _freeze(self) -> Freeze:
        return Freeze(*self._any_procs())

    def _stop_actors(self) -> StopActors:
        return StopActors(self._rng.choice(self._owned))

    def _stop_procs(self) -> StopProcs:
        return StopProcs(self._any_procs()[0])

    def _restart_actors(self) -> RestartActors:
        mesh = self._rng.choice(self._owned)
        rank = self._rng.choice((None, self._rng.randrange(self._meshes[mesh])))
        return RestartActors(mesh, rank, self._rng.random() < 0.3)

    def _restart_procs(self) -> RestartProcs:
        procs, rank = self._any_procs()
        return RestartProcs(procs, self._rng.choice((None, rank)), self._rng.random() < 0.5)

    # --- the network, and time

    def _disturb(self) -> Disturb:
        rng, place = self._rng, self._any_place()
        source, target = rng.choice(((ANY, place), (place, ANY), (CLIENT, place)))
        what = rng.choice(("hold", "repeat", "repeat", "delay", "delay"))
        if what == "hold":
            return Disturb(source, target, hold=True)
        if what == "repeat":
            return Disturb(*rng.choice(((source, target), (ANY, ANY))), duplicate=rng.choice((0.3, 1.0)))
        if rng.random() < 0.2:
            source, target = rng.choice(((AGENT, CLIENT), (CLIENT, AGENT), (ANY, AGENT), (AGENT, ANY)))
        least = rng.uniform(0.0, _LONGEST_DELAY / 2)
        return Disturb(source, target, delay=(round(least, 3), round(rng.uniform(least, _LONGEST_DELAY), 3)))

    def _calm(self) -> Calm:
        return Calm()

    def _lose(self) -> Lose:
        rng = self._rng
        casts = tuple(self._work(deadline=rng.choice((0.05, 0.5))) for _ in range(rng.randint(1, 4)))
        return Lose(process(*self._any_procs()), rng.choice((0.3, 1.0)), casts, rng.random() < 0.5)

    def _cut(self) -> Cut:
        rng = self._rng
        return Cut(
            self._any_place(), process(*self._any_procs()), tuple(self._work() for _ in range(rng.randint(0, 4)))
        )

    def _cut_hosts(self) -> CutHosts:
        rng = self._rng
        one, other = rng.sample((CLIENT, *range(self._hosts)), 2)
        casts = tuple(self._work() for _ in range(rng.randint(0, 4)))
        return CutHosts(one, other, rng.random() < 0.5, casts)

    def _kill_host(self) -> KillHost | None:
        if self._killed:
            return None
        self._killed = True
        # Without the gateway nobody hears for a while how it is with the others.
        return KillHost(self._rng.randrange(0 if self._gateway is None else 1, self._hosts), self._rng.random() < 0.5)

    def _advance(self) -> Advance:
        return Advance(self._rng.choice((0.01, 0.1, 0.5)))

    def _join(self) -> Join:
        return Join()
