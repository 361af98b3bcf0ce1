"""A local tensor that goes to other ranks has to be what these expect, and the controller knows."""

from __future__ import annotations

import torch

from monarch.tensor.failures import Failed

Expected = tuple[tuple[int, ...], torch.dtype, torch.device]  # shape, dtype, device


def problem_with(tensor: torch.Tensor, expected: Expected) -> Exception | None:
    """Returns why `tensor`, or the Failed in its place, cannot be sent to ranks that wait for `expected`."""
    shape, dtype, _ = expected
    if type(tensor) is Failed:
        return RuntimeError(tensor.text)
    if tuple(tensor.shape) != shape or tensor.dtype != dtype:
        return RuntimeError(
            f"the local tensor is {tensor.dtype}{list(tensor.shape)}, and the controller knows it as "
            f"{dtype}{list(shape)}: what `propagate` gives has to have the shapes of what the function returns"
        )
    return None
