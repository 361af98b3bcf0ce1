"""Tests of what programs are made of, and how they are cut down."""

from __future__ import annotations

import typing
from collections import Counter

from tests.soak.generate import generate
from tests.soak.program import Cast, Join, Kill, Operation, Program, SpawnProcs
from tests.soak.shrink import shrink


def test_a_seed_makes_the_same_program_every_time() -> None:
    assert [generate(seed) for seed in range(50)] == [generate(seed) for seed in range(50)]
    assert len({str(generate(seed)) for seed in range(50)}) == 50


def test_programs_are_of_every_kind() -> None:
    programs = [generate(seed) for seed in range(500)]
    operations = [operation for program in programs for operation in program.operations]
    counts = Counter(map(type, operations))
    assert set(counts) == set(typing.get_args(Operation))
    assert min(counts.values()) >= 50
    sizes = [operation.size for operation in operations if isinstance(operation, SpawnProcs)]
    assert max(sizes) > 40
    assert all(size <= 64 for size in sizes)


def test_every_message_of_a_program_has_a_number_of_its_own() -> None:
    for seed in range(100):
        numbers = [operation.number for operation in generate(seed).operations if isinstance(operation, Cast)]
        assert numbers == sorted(set(numbers))


def test_a_program_reads_as_lines_of_the_ordinary_api() -> None:
    program = Program(1, (SpawnProcs("p0", 2), Kill("p0", 1), Cast(3, "m0", 1, "call", deadline=0.5, via=("m1", 0))))
    assert str(program).splitlines() == [
        "    0  p0 = this_host().spawn_procs({'gpus': 2})",
        "    1  cluster.kill(p0, 1)",
        "    2  f3 = m1[0].relay.call_one(lambda: m0[1].work.with_timeout(0.5).call(3))",
    ]


def test_a_program_is_cut_down_to_what_matters() -> None:
    operations = (SpawnProcs("p0", 2), *(Join() for _ in range(20)), Kill("p0", 0), Join(), Kill("p0", 1), Join())

    def fails(program: Program) -> bool:
        return {SpawnProcs("p0", 2), Kill("p0", 1)} <= set(program.operations)

    assert shrink(Program(1, operations), fails).operations == (SpawnProcs("p0", 2), Kill("p0", 1))


def test_a_program_of_which_all_matters_stays() -> None:
    program = generate(7)
    assert shrink(program, lambda smaller: False) == program
