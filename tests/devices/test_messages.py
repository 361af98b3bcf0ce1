"""Tensors of a real device in messages."""

from __future__ import annotations

from typing import Any

import pytest

from tests.devices.side import call

pytestmark = [pytest.mark.device, pytest.mark.procs]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bool", "complex64", "float8_e4m3fn"])
@pytest.mark.parametrize("rows", [1, 2000])
def test_an_echo_comes_back_on_the_device(owner: Any, dtype: str, rows: int) -> None:
    import torch

    there = (torch.arange(rows * 257) % 2).view(rows, 257).to(getattr(torch, dtype)).cuda()
    back = call(owner.echo, there)
    assert back.device == there.device
    assert back.dtype == there.dtype
    assert torch.equal(back.cpu().view(torch.uint8), there.cpu().view(torch.uint8))


def test_the_receiver_has_it_on_the_device(owner: Any) -> None:
    import torch

    there = torch.arange(12.0, device="cuda").view(3, 4)
    told = call(owner.describe, there, there.t(), there[1:, ::2])
    assert [device for device, *_ in told] == ["cuda:0"] * 3
    for (_, _, _, seen), sent in zip(told, (there, there.t(), there[1:, ::2]), strict=True):
        assert torch.equal(seen, sent.cpu())


def test_views_of_one_storage_stay_so(owner: Any) -> None:
    import torch

    there = torch.zeros(1000, device="cuda")
    assert call(owner.shared, there, there[:10])
    assert not call(owner.shared, there, there.clone())


def test_what_the_device_still_computes_is_waited_for(owner: Any) -> None:
    import torch

    with torch.cuda.stream(torch.cuda.Stream()):
        there = torch.ones(1024, 1024, device="cuda")
        for _ in range(20):
            there = there @ there / 1024
        back = call(owner.echo, there)
    assert torch.equal(back.cpu(), torch.ones(1024, 1024))


def test_several_receivers_have_one_each(procs: Any, owner: Any, reader: Any) -> None:
    import torch

    there = torch.arange(1 << 20, device="cuda")
    for place, mesh in enumerate((owner, reader)):
        (told,) = call(mesh.describe, there)
        assert told[0] == f"cuda:{place % torch.cuda.device_count()}"
        assert torch.equal(told[3], there.cpu())


def test_a_parameter_keeps_its_gradient_flag(owner: Any) -> None:
    import torch

    there = torch.nn.Parameter(torch.ones(4, device="cuda"))
    back = call(owner.echo, there)
    assert isinstance(back, torch.nn.Parameter)
    assert back.requires_grad
    assert back.device == there.device
