"""Tests of where the elements of results lie: the program works it out on tensors without values, kernels of a device
decide it.

Each case runs in a process that has the device, op by op and recorded. The layout that the program believes a tensor to have
is that of the local tensor, and its values, through its memory too, are those of plain torch on the same device.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import monarch
from monarch.actor import ProcMesh, this_host

pytestmark = [pytest.mark.device, pytest.mark.procs]


@pytest.fixture(scope="module")
def procs() -> Iterator[ProcMesh]:
    """One process, with one device."""
    mesh = this_host().spawn_procs({"gpus": 1}, name="strides")
    yield mesh
    mesh.stop().get(timeout=120)


def made(*shape: int, dtype: str = "float32", grad: bool = False) -> Any:
    """A tensor whose numbers are the same each time."""
    import torch

    count = 1
    for size in shape:
        count *= size
    x = torch.arange(count, device="cuda", dtype=torch.float32).sin().reshape(shape).to(getattr(torch, dtype))
    return x.requires_grad_() if grad else x


def convolution() -> list[Any]:
    from torch.nn import functional as F

    x, w = made(2, 8, 9, 9), made(4, 8, 3, 3)
    return [F.conv2d(x, w), F.conv2d(x, w, made(4), stride=2, padding=1), F.conv_transpose2d(x, made(8, 4, 3, 3))]


def channels_last() -> list[Any]:
    import torch
    from torch.nn import functional as F

    x = made(2, 8, 9, 9).contiguous(memory_format=torch.channels_last)
    w = made(4, 8, 3, 3).contiguous(memory_format=torch.channels_last)
    y = F.conv2d(x, w, padding=1)
    return [
        y,
        F.max_pool2d(y, 2),
        F.batch_norm(y, None, None, training=True),
        F.interpolate(y, scale_factor=2.0),
        y + 1,
    ]


def channels_last_against_contiguous() -> list[Any]:
    import torch
    from torch.nn import functional as F

    x = made(2, 8, 9, 9).contiguous(memory_format=torch.channels_last)
    return [
        F.conv2d(x, made(4, 8, 3, 3)),
        F.conv2d(made(2, 8, 9, 9), made(4, 8, 3, 3).to(memory_format=torch.channels_last)),
    ]


def convolution_backward() -> list[Any]:
    import torch
    from torch.nn import functional as F

    x, w = made(2, 8, 9, 9, grad=True), made(4, 8, 3, 3, grad=True)
    return list(torch.autograd.grad(F.conv2d(x, w, padding=1).square().sum(), (x, w)))


def attention_math() -> list[Any]:
    from torch.nn import functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q, k, v = (made(2, 16, 4, 8).transpose(1, 2) * n for n in (1, 2, 3))
    with sdpa_kernel(SDPBackend.MATH):
        return [F.scaled_dot_product_attention(q, k, v, is_causal=True)]


def attention_memory_efficient() -> list[Any]:
    from torch.nn import functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q, k, v = (made(2, 16, 4, 8).transpose(1, 2) * n for n in (1, 2, 3))
    with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
        return [F.scaled_dot_product_attention(q, k, v, is_causal=True)]


def attention_flash() -> list[Any]:
    from torch.nn import functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q, k, v = (made(2, 16, 4, 64, dtype="bfloat16").transpose(1, 2) for _ in range(3))
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]):
        return [F.scaled_dot_product_attention(q, k, v, is_causal=True)]


def attention_backward() -> list[Any]:
    import torch
    from torch.nn import functional as F

    q, k, v = (made(2, 4, 16, 64, dtype="bfloat16", grad=True) for _ in range(3))
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return [y.detach(), *torch.autograd.grad(y.float().square().sum(), (q, k, v))]


def norms() -> list[Any]:
    from torch.nn import functional as F

    x = made(2, 8, 9, 9)
    return [
        F.layer_norm(x, (9, 9)),
        F.group_norm(x, 2),
        F.instance_norm(x),
        F.batch_norm(x, None, None, training=True),
        F.layer_norm(x.transpose(1, 3), (8,)),
        F.rms_norm(x, (9,)),
        F.normalize(x, dim=1),
    ]


def norms_backward() -> list[Any]:
    import torch
    from torch.nn import functional as F

    x, w = made(4, 6, 8, grad=True), made(8, grad=True)
    y = F.layer_norm(x.transpose(0, 1), (8,), w)
    return list(torch.autograd.grad(y.square().sum(), (x, w)))


def matrices() -> list[Any]:
    import torch
    from torch.nn import functional as F

    x, y = made(6, 4), made(6, 5)
    return [
        x.t() @ y,
        torch.addmm(made(4, 5), x.t(), y),
        torch.baddbmm(made(2, 3, 3), made(2, 4, 3).mT, made(2, 4, 3)),
        torch.einsum("bij,bkj->bik", made(2, 3, 4), made(2, 5, 4)),
        F.linear(made(2, 3, 4), made(7, 4)),
        torch.linalg.qr(made(4, 3))[1].abs(),
    ]


def indexing_and_sorting() -> list[Any]:
    import torch

    x = made(5, 6).t()
    index = torch.tensor([0, 2, 1], device="cuda")
    found = [x[index], x[:, index], x.sort(0)[0], x.topk(2, 0)[0], x.cumsum(0), x.flip(0), torch.cat([x, x], 1)]
    return [*found, x.gather(0, torch.zeros(1, 5, dtype=torch.int64, device="cuda"))]


CASES = (
    convolution,
    channels_last,
    channels_last_against_contiguous,
    convolution_backward,
    attention_math,
    attention_memory_efficient,
    attention_flash,
    attention_backward,
    norms,
    norms_backward,
    matrices,
    indexing_and_sorting,
)


def layout(tensor: Any) -> tuple[Any, ...]:
    """Returns what has to be equal: strides where a dimension has a second element."""
    steps = tuple(step for size, step in zip(tensor.shape, tensor.stride(), strict=True) if size > 1)
    return tuple(tensor.shape), steps if tensor.numel() else (), str(tensor.dtype)


def first(tensor: Any) -> Any:
    """Elements by where they lie: others where the layout is not what the program believes."""
    import torch

    tensor = tensor.detach()
    return (
        torch.as_strided(tensor, (min(tensor.numel(), 5),), (1,)) if tensor.is_contiguous() else tensor.reshape(-1)[:5]
    )


@pytest.mark.parametrize("recorded", [False, True], ids=["op by op", "recorded"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_results_lie_where_the_program_believes(procs: ProcMesh, case: Callable[[], list[Any]], recorded: bool) -> None:
    import torch

    plain = [tensor.detach().float().cpu() for tensor in case()]
    expected = [(tensor, tensor.reshape(-1)[:5]) for tensor in plain]
    look = monarch.remote(layout, propagate="inspect")
    with procs.activate(), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a case that cannot be recorded is one that runs op by op
        run = monarch.function(case) if recorded else case
        for call in range(4 if recorded else 1):
            found = [(tensor.detach(), first(tensor)) for tensor in run()]
            assert len(found) == len(expected)
            for at, ((tensor, begins), values) in enumerate(zip(found, expected, strict=True)):
                where = f"call {call + 1}, result {at + 1}"
                there = next(iter(look.call(tensor).get().values()))
                assert layout(tensor) == there, (
                    f"{where}: the program believes {layout(tensor)}, the process has {there}"
                )
                here = monarch.inspect((tensor.float(), begins.float()))
                for one, other in zip(here, values, strict=True):
                    with monarch.no_mesh.activate():
                        assert torch.allclose(one, other, rtol=2e-2, atol=2e-2), (
                            f"{where}: other values than plain torch"
                        )
