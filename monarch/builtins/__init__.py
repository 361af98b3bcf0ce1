"""Remote functions that most programs need: logging and random numbers in the processes of a mesh."""

from __future__ import annotations

from monarch.builtins import log, random
from monarch.builtins.log import log_remote, set_logging_level_remote
from monarch.builtins.random import (
    get_rng_state_all_cuda_remote,
    get_rng_state_remote,
    manual_seed_all_cuda_remote,
    manual_seed_cuda_remote,
    random_seed_remote,
    seed_remote,
    set_manual_seed_remote,
    set_rng_state_all_cuda_remote,
    set_rng_state_remote,
)

__all__ = [
    "get_rng_state_all_cuda_remote",
    "get_rng_state_remote",
    "log",
    "log_remote",
    "manual_seed_all_cuda_remote",
    "manual_seed_cuda_remote",
    "random",
    "random_seed_remote",
    "seed_remote",
    "set_logging_level_remote",
    "set_manual_seed_remote",
    "set_rng_state_all_cuda_remote",
    "set_rng_state_remote",
]
