"""Ranks of a torch group that are killed in every phase of training."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from monarch.config import configured
from tests.procs import torch_run_deaths
from tests.procs.torch_deaths import PHASES, TIMEOUT, round_of, trainers_on
from tests.support.command_line import CommandLine, command_line
from tests.support.tiers import first_of, full, slow

pytest.importorskip("torch")
pytestmark = [pytest.mark.procs, full, pytest.mark.usefixtures("torch_preloaded")]


@pytest.fixture
def monarch(tmp_path: Path) -> Iterator[CommandLine]:
    with command_line(tmp_path) as line:
        yield line


@pytest.mark.parametrize(
    "deaths",
    [
        [(2, "backward")],
        [(0, "fsdp"), (3, "pipeline"), (1, "again")],
        [(2, "spmd")],
        pytest.param([(rank % 4, phase) for rank, phase in enumerate(PHASES)], marks=slow),
    ],
)
def test_every_survivor_of_four_names_the_dead_rank_and_training_goes_on(
    spawn_procs: Any, deaths: list[tuple[int, str]]
) -> None:
    procs = spawn_procs({"gpus": 4})
    trainers = trainers_on(procs)
    for rank, phase in deaths:
        round_of(procs, trainers, [rank], phase)
    round_of(procs, trainers, [1, 2], "checkpoint")


def test_a_rank_that_is_stopped_for_suspect_timeout_counts_as_dead(spawn_procs: Any) -> None:
    with configured(suspect_timeout="500ms", suspect_after="0s"):
        procs = spawn_procs({"gpus": 4})
    trainers = trainers_on(procs)
    pid = trainers.slice(gpus=2).pid.call_one().get(TIMEOUT)
    try:
        round_of(procs, trainers, [2], "backward", number=signal.SIGSTOP)
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    assert trainers.slice(gpus=2).pid.call_one().get(TIMEOUT) != pid


@pytest.mark.parametrize(
    ("victims", "phase", "restarts"),
    first_of([([2], "backward", 0), ([0, 3], "mesh", 1), ([1], "begin", 0)], full=2),
)
def test_a_command_ends_all_ranks_and_names_the_dead(
    victims: list[int], phase: str, restarts: int, monarch: CommandLine
) -> None:
    torch_run_deaths.round_of(monarch, 4, victims, phase, restarts)
