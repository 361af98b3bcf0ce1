"""`optimizer.load_state_dict(state)` with local tensors in `state`: they go to where the parameters are.

Torch moves each value to the parameter's device and dtype in one static method of its class Optimizer, of which it lets
subclasses make their own. There is no hook for all optimizers, so the method is wrapped: for distributed parameters alone,
and for others nothing changes.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from monarch.tensor.controller.constants import on_device_of, replica
from monarch.tensor.controller.handles import is_distributed

_METHOD = "_process_value_according_to_param_policy"  # torch/optim/optimizer.py, from 2.0 on


def follow_parameters() -> None:
    """From here on the state that any optimizer loads for a distributed parameter is distributed. Idempotent."""
    plain = getattr(torch.optim.Optimizer, _METHOD, None)
    if plain is None or hasattr(plain, "_follows_parameters"):
        return

    @functools.wraps(plain)
    def moved(param: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        if is_distributed(param) and isinstance(value, torch.Tensor) and not is_distributed(value):
            value = on_device_of(value, replica(param._record.place, value))
        return plain(param, value, *args, **kwargs)

    moved._follows_parameters = True  # type: ignore[attr-defined]
    setattr(torch.optim.Optimizer, _METHOD, staticmethod(moved))
