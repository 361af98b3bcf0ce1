"""Initialisers that look at values draw in the processes of a mesh what they would draw here."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from monarch.tensor.controller.activation import no_modes
from tests.tensor.recording.looked_at import local


@pytest.mark.parametrize("bounds", [(0.0, 1.0, -2.0, 2.0), (0.0, 0.02, -2.0, 2.0), (0.0, 1.0, 1.5, 3.0)])
def test_a_truncated_normal_is_drawn_as_here(loop: Any, bounds: tuple[float, ...]) -> None:
    torch.manual_seed(3)
    weight = torch.nn.Parameter(torch.empty(40, 30))
    assert torch.nn.init.trunc_normal_(weight, *bounds) is weight and weight.requires_grad and weight.is_leaf
    next_draw = torch.rand(2)
    with no_modes():
        torch.manual_seed(3)
        wanted = torch.nn.init.trunc_normal_(torch.empty(40, 30), *bounds)
        assert torch.equal(local(loop, weight), wanted)
        assert torch.equal(local(loop, next_draw), torch.rand(2))


def test_a_generator_is_refused(loop: Any) -> None:
    with pytest.raises(NotImplementedError, match=r"takes no generator: call torch.manual_seed\(...\) under the mesh"):
        torch.nn.init.trunc_normal_(torch.empty(3), generator=torch.Generator())
