"""Ranks of a torch group that are killed in every phase of training."""

from __future__ import annotations

from typing import Any

import pytest

from tests.procs.torch_deaths import PHASES, round_of, trainers_on
from tests.support.tiers import full, slow

pytest.importorskip("torch")
pytestmark = [pytest.mark.procs, full, pytest.mark.usefixtures("torch_preloaded")]


@pytest.mark.parametrize(
    "deaths", [[(2, "backward")], pytest.param([(rank % 4, phase) for rank, phase in enumerate(PHASES)], marks=slow)]
)
def test_every_survivor_of_four_names_the_dead_rank_and_training_goes_on(
    spawn_procs: Any, deaths: list[tuple[int, str]]
) -> None:
    procs = spawn_procs({"gpus": 4})
    trainers = trainers_on(procs)
    for rank, phase in deaths:
        round_of(procs, trainers, [rank], phase)
    round_of(procs, trainers, [1, 2], "checkpoint")
