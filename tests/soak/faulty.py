"""Programs for the cluster of real sockets: those of `generate`, without what only a network of our own can do."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from tests.soak.generate import generate
from tests.soak.program import Calm, Cut, CutHosts, Disturb, Freeze, KillHost, Lose, Operation, Program
from tests.support.syscalls import Faults


def program_of(seed: int) -> Program:
    """Returns the program of one host."""
    program = generate(seed)
    while program.hosts:
        program = generate(program.seed + 1_000_000)
    return dataclasses.replace(program, seed=seed, operations=list(_possible(program)))


def _possible(program: Program) -> Iterator[Operation]:
    for operation in program.operations:
        if isinstance(operation, (Cut, Lose)):
            yield from operation.casts
        elif not isinstance(operation, (Disturb, Calm, CutHosts, KillHost, Freeze)):
            yield operation


def faults_of(seed: int) -> Faults:
    """Every other seed breaks connections, too."""
    return Faults(seed, breaks=seed % 2 == 1)
