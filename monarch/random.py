"""The random numbers of the processes of the active mesh: `get_state`, `set_state`, `new_state`, `manual_seed_per_rank`,
`make_deterministic`."""

from __future__ import annotations

from monarch.tensor.controller.rng import (
    State,
    get_state,
    make_deterministic,
    manual_seed_per_rank,
    new_state,
    set_state,
)

__all__ = ["State", "get_state", "make_deterministic", "manual_seed_per_rank", "new_state", "set_state"]
