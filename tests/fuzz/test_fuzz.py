"""Each door, for a moment, with a seed that stays."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import pytest

from tests.fuzz import TARGETS
from tests.fuzz.targets import FuzzedProgram, run, running_program

pytestmark = [pytest.mark.full, pytest.mark.procs]
ROUNDS, QUERIES = 120, 60  # make fuzz TARGETS=sql goes on for longer
SEED = 1


@pytest.fixture(scope="module")
def program() -> Iterator[FuzzedProgram]:
    with running_program() as made:
        yield made


@pytest.mark.parametrize("name", TARGETS)
def test_what_is_sent_leaves_the_process_as_it_was(program: FuzzedProgram, name: str) -> None:
    rounds = QUERIES if name == "sql" else ROUNDS
    run(name, importlib.import_module(f"tests.fuzz.{name}").target(program), SEED, rounds, 0.0)
