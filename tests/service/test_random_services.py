"""Random services in virtual time: every request ends once, whatever dies, scales, updates and closes."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from monarch.service.effects import ReplyWith
from monarch.service.errors import (
    ReplicaLostError,
    ServiceOverloaded,
    ServiceTimeoutError,
    ServiceUnavailableError,
)
from monarch.service.routing import NAMED
from monarch.service.rules import Autoscale, HealthCheck, ServiceRules
from tests.service.simulation import Simulation
from tests.support.tiers import full, slow


def rules_of(draw: random.Random) -> ServiceRules:
    rules = ServiceRules(
        "service",
        replicas=draw.randint(0, 4),
        policy=draw.choice(list(NAMED.values())),
        concurrency=draw.randint(1, 3),
        queue=draw.randint(0, 4),
        limit=draw.choice([None, None, 3, 20]),
        restarts=draw.choice([0, 2, 100]),
        within=draw.choice([5.0, 60.0]),
        backoff=draw.choice([0.0, 0.1]),
        breaker=draw.choice([0, 2, 5]),
        pause=1.0,
        hosts=draw.randint(1, 3),
        waiting=draw.choice([0, 2, 100]),
    )
    rules = replace(rules, spares=draw.randint(0, rules.hosts - 1))
    if draw.random() < 0.3:
        least = draw.randint(0, 1)
        rules = replace(rules, autoscale=Autoscale(least, least + draw.randint(1, 3), idle=draw.choice([0.0, 2.0])))
    if draw.random() < 0.3:
        rules = replace(rules, health=HealthCheck("check", 1.0, 2.0), health_beside=draw.random() < 0.5)
    return rules


def play(seed: int) -> Simulation:
    draw = random.Random(seed)
    rules = rules_of(draw)
    world = Simulation(
        rules,
        seed,
        dying=draw.choice([0, 0, 0.05, 0.3]),
        raising=draw.choice([0, 0.1, 0.9]),
        broken=draw.choice([0, 0.1]),
        slow=draw.choice([0.1, 2.0]),
    )
    batch = draw.choice([0, 0, 4])
    sessions = ["", "a", "b"]
    for _ in range(draw.randint(10, 120)):
        chance = draw.random()
        if chance < 0.75:
            world.request(
                draw.choice(["work", "other"]),
                deadline=world.now + draw.choice([0.0, 0.1, 1.0]) if draw.random() < 0.2 else float("inf"),
                retries=draw.choice([0, 1, 3]),
                wait=draw.random() < 0.2,
                session=draw.choice(sessions),
                blocks=[draw.randint(0, 3), draw.randint(4, 6)] if draw.random() < 0.3 else (),
                max_batch=batch,
                max_wait=0.05,
                key=draw.choice(["x", "y"]),
            )
        elif chance < 0.78:
            world.fanout()
        elif chance < 0.81 and rules.autoscale is None:
            world.machine.scale(draw.randint(0, 4), world.now)
            world.settle()
        elif chance < 0.84:
            world.update(in_place=draw.random() < 0.5)
        elif chance < 0.85 and world.made:
            world.cancel(draw.randint(1, len(world.made)))
        elif chance < 0.86:
            world.machine.end_session(sessions[1])
            sessions[1] += "a"  # another one
        elif chance < 0.90 and world.living:
            number, generation = draw.choice(sorted(world.living))
            world._dies(number, generation)
        else:
            world.run(draw.choice([0.01, 0.3, 3.0]))
    world.finish()
    return world


def several(seeds: range) -> None:
    kinds: set[type] = set()
    for seed in seeds:
        try:
            world = play(seed)
        except Exception as exc:
            raise AssertionError(f"seed {seed}: {exc!r}") from exc
        kinds |= {type(outcome) for outcome in world.outcomes.values()}
    assert kinds >= {ReplyWith, ReplicaLostError, ServiceOverloaded, ServiceTimeoutError, ServiceUnavailableError}


def test_every_request_ends_once() -> None:
    several(range(300))


@full
def test_every_request_ends_once_with_more_seeds() -> None:
    several(range(300, 1500))


@slow
@pytest.mark.parametrize("first", range(1500, 41500, 10000))
def test_every_request_ends_once_with_most_seeds(first: int) -> None:
    several(range(first, first + 10000))
