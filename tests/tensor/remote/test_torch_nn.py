"""Parts of torch.nn that look at values give under a mesh what they give here."""

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


def test_an_encoder_with_a_padding_mask(loop: Any) -> None:
    def encoded() -> Any:
        torch.manual_seed(1)
        layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
        encoder = torch.nn.TransformerEncoder(layer, 2).eval()
        mask = torch.tensor([[False] * 4, [False, False, True, True]])
        with torch.no_grad():
            return encoder(torch.linspace(0, 1, 64).reshape(2, 4, 8), src_key_padding_mask=mask)[:, :2]

    got = encoded()
    with no_modes():
        enabled = torch.backends.mha.get_fastpath_enabled()
        torch.testing.assert_close(local(loop, got), encoded())
    assert enabled and not torch.backends.mha.get_fastpath_enabled()


@pytest.mark.parametrize(
    ("a", "b", "ends"),
    [((6, 8), (2, 8, 4), [2, 6]), ((2, 3, 8), (8, 8), [4, 8]), ((4, 8), (8, 4), [4, 8]), ((2, 3, 4), (2, 4, 8), None)],
    ids=["rows", "columns", "sums", "batches"],
)
def test_products_of_groups_in_float32(loop: Any, a: Any, b: Any, ends: list[int] | None) -> None:
    def product() -> Any:
        x, y = (torch.linspace(-1, 1, torch.Size(shape).numel()).reshape(shape).requires_grad_() for shape in (a, b))
        made = torch._grouped_mm(x, y, offs=None if ends is None else torch.tensor(ends, dtype=torch.int32))
        (made * 2).sum().backward()
        return made.detach(), x.grad, y.grad

    with no_modes():
        try:
            wanted = product()
        except NotImplementedError:
            pytest.skip(f"torch {torch.__version__} has no kernel for it on the CPU")
    for have, want in zip(product(), wanted, strict=True):
        with no_modes():
            assert torch.equal(local(loop, have), want)


def test_products_of_groups_that_do_not_fit(loop: Any) -> None:
    with pytest.raises(RuntimeError, match="contraction dimension of mat_a and mat_b must match: 8 and 4"):
        torch._grouped_mm(torch.ones(6, 8), torch.ones(2, 4, 4), offs=torch.tensor([2, 6], dtype=torch.int32))
