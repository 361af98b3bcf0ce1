"""Programs that make references, hand them about, keep and drop them at random, while processes die; and what is left."""

from __future__ import annotations

import gc
import os
import random
from collections.abc import Callable
from typing import Any

from monarch.actor import Actor, ActorError, ProcMesh, SupervisionError, endpoint
from monarch.references import ObjectRef, ReferenceLost, put
from monarch.references import store as stores
from tests.references.settling import until

BATCH = 100  # references that a call makes
LOST = (ReferenceLost, SupervisionError)


class Churner(Actor):
    """Keeps a few of the references that it makes and gets."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.kept: list[ObjectRef[Any]] = []

    @endpoint
    def work(self, given: list[ObjectRef[Any]]) -> list[ObjectRef[Any]]:
        """Makes references, some of which hold others; keeps some, gives some back, reads some."""
        chance = self.random
        made: list[ObjectRef[Any]] = []
        for number in range(BATCH):
            value: Any = [number, *chance.sample(made, min(2, len(made)))] if number % 5 == 0 else number
            made.append(put(bytearray(70_000) if number % 50 == 1 else value))
        known = [*given, *made]
        for ref in chance.sample(known, 3):
            try:
                ref.get(60)
                if chance.random() < 0.2:
                    known.append(ref.pin(timeout=60))
            except (*LOST, ValueError):  # of a value that is here already
                pass
        self.kept = chance.sample([*self.kept, *known], min(40, len(self.kept) + len(known)))
        return chance.sample([*self.kept, *known], 20)

    @endpoint
    def make(self, number: int) -> int:
        return number

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def forget(self) -> None:
        self.kept.clear()

    @endpoint
    def left(self) -> tuple[bool, str]:
        return left_here()


def left_here() -> tuple[bool, str]:
    """Returns whether nothing is left in this process, and what is."""
    gc.collect()
    store = stores.store()
    table = store._table
    found = [len(store.handles), len(store._kept), len(store.reader.fetched), store.nbytes]
    return store.is_clean, f"{found} {list(table._held)[:3]} {list(table._early)[:3]} {list(table._unwanted)[:3]}"


def churn(
    number: int, seed: int, spawn: Callable[[], ProcMesh], kill: Callable[[ProcMesh, Any, int], None], every: int
) -> int:
    """Makes so many references with the actors of three meshes of two processes; every so many calls one process is killed,
    and its mesh replaced. Returns how many processes were killed; nothing is left of any reference in those that live."""
    chance = random.Random(seed)
    seeds = iter(range(seed, seed + 1_000_000))

    def mesh() -> tuple[ProcMesh, Any]:
        procs = spawn()
        return procs, procs.flatten("rank").spawn("churners", Churner, next(seeds))

    meshes = [mesh() for _ in range(3)]
    own: list[ObjectRef[Any]] = []
    made = kills = 0
    while made < number:
        index = chance.randrange(3)
        procs, churners = meshes[index]
        one = churners.slice(rank=chance.randrange(2))
        try:
            own += one.work.call_one(chance.sample(own, min(10, len(own)))).get()
            own += [one.make.keep.call_one(made) for _ in range(5)]
        except (ActorError, SupervisionError):
            pass
        made += BATCH + 5
        own = chance.sample(own, min(60, len(own)))
        if made // (BATCH + 5) % every == 0:
            kill(procs, churners, chance.randrange(2))
            kills += 1
            meshes[index] = mesh()
            try:
                procs.stop().get()
            except SupervisionError:
                pass
    own.clear()
    for _, churners in meshes:
        churners.forget.call().get()
    until(lambda: all(clean for clean, _ in left_of(meshes)), timeout=120)
    return kills


def left_of(meshes: list[tuple[ProcMesh, Any]]) -> list[tuple[bool, str]]:
    """Returns of each process whether nothing is left there, and what is."""
    left = [found for _, churners in meshes for found in churners.left.call().get().values()]
    return [*left, left_here()]
