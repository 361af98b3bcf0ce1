"""Streams, autograd and failing kernels on real devices. Where the state of a process matters, in a program of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import monarch
from monarch.actor import ProcMesh, SupervisionError, this_host
from tests.support.devices import TIMEOUT, one_process_a_device
from tests.support.scripts import Scripts

pytestmark = [pytest.mark.device, pytest.mark.procs]

procs = pytest.fixture(one_process_a_device, scope="module", name="procs")


@pytest.fixture
def doomed() -> Iterator[ProcMesh]:
    """One process that a test may ruin."""
    mesh = this_host().spawn_procs({"gpus": 1})
    yield mesh
    mesh.stop().get(timeout=TIMEOUT)


TRAINING = """
import sys

import torch

import monarch
from monarch.actor import this_host


def losses(wrap):
    net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 1)).double().to("cuda")
    with torch.no_grad():
        for number, weight in enumerate(net.parameters()):
            weight.copy_(torch.linspace(-1, 1 + number, weight.numel(), device="cuda").reshape(weight.shape))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2, fused=True)
    x = torch.linspace(-1, 1, 64, dtype=torch.float64, device="cuda").reshape(8, 8)

    def step(x):
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    run = wrap(step)
    return [run(x) for _ in range(6)]


if __name__ == "__main__":
    procs = this_host().spawn_procs({"gpus": 1})
    plain = lambda step: step
    with procs.activate():
        found = monarch.inspect(losses(monarch.function if sys.argv[1] == "recorded" else plain))
        bad = torch.ones(3, device="cuda", requires_grad=True)
        total = (bad * 2).sum()
        fails = monarch.remote(lambda grad: grad.cpu()[7], propagate=lambda grad: torch.empty_like(grad))
        bad.register_hook(lambda grad: fails(grad))
        total.backward()  # THE LINE
        try:
            monarch.inspect(bad.grad)
        except monarch.tensor.RemoteException as exc:
            print("issued at:", [frame.line for frame in exc.controller_frames][-1:], [
                frame.line for frame in exc.controller_frames if "THE LINE" in (frame.line or "")])
    for values in (found, losses(plain)):
        print(" ".join(repr(loss.item()) for loss in values))
    procs.stop().get()
"""


@pytest.mark.parametrize("how", ["plain", "recorded"])
def test_the_first_thing_that_a_program_does_is_to_train(scripts: Scripts, how: str) -> None:
    """Nothing here has made a context before."""
    out = scripts.run(TRAINING, how).stdout.splitlines()
    losses, alone = ([float(word) for word in line.split()] for line in out[-2:])
    assert len(losses) == 6 and losses[-1] < losses[0]
    assert losses == pytest.approx(alone, rel=1e-9)
    assert "THE LINE" in out[-3], out


HIDDEN = """
import torch

import monarch
from monarch.actor import this_host

if __name__ == "__main__":
    assert not torch.cuda.is_available()
    procs = this_host().spawn_procs({"gpus": 1})
    with procs.activate():
        x = torch.ones(4, device="cuda", requires_grad=True)
        print(x.device.type)
        # the workers of this program see no card either, so nothing is fetched: the graph alone is asked for
        y = (x * x).sum()
        y.backward()
        print(x.grad.device.type)
    procs.stop().get()
"""


def test_autograd_of_a_program_that_sees_no_card(scripts: Scripts) -> None:
    environment = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
    done = scripts.run(HIDDEN, env=environment, check=False)
    # With a driver's device nodes there torch initialises it, and says that no card is visible. It must not die of a signal.
    assert done.returncode >= 0, done.stderr
    assert done.stdout.split() == ["cuda", "cuda"] or "cuda" in done.stderr.lower(), done.stderr


def test_moves_to_another_stream_under_long_kernels(procs: ProcMesh) -> None:
    """Memory that is sent or taken over is not given out again while a kernel is at it: sums tell."""
    import torch

    other = monarch.Stream("other")
    size = 1 << 20
    with procs.activate() as mesh:
        busy = torch.eye(4096, device="cuda")
        sums = []
        for number in range(50):
            x = torch.full((size,), float(number), device="cuda")
            for _ in range(4):
                busy = busy @ busy
            moved = x.to_mesh(mesh, stream=other)
            del x
            torch.full((size,), -1.0, device="cuda")  # takes the memory of x, if it can
            with other.activate():
                sums.append(moved.sum())
            del moved
        found = monarch.inspect(sums)
    assert [one.item() for one in found] == [float(number * size) for number in range(50)]


def test_ranks_that_exchange_tensors_do_not_wait_for_each_other(procs: ProcMesh) -> None:
    import torch

    if len(procs) < 2:
        pytest.skip("two devices are needed")
    with procs.activate() as mesh:
        first, second = mesh.slice(gpus=0), mesh.slice(gpus=1)
        with first.activate():
            a = torch.ones(1 << 22, device="cuda")
        with second.activate():
            b = torch.full((1 << 22,), 2.0, device="cuda")
        for _ in range(50):
            a, b = b.to_mesh(first), a.to_mesh(second)
        assert monarch.inspect(a.sum()).item() == 1 << 22
        assert monarch.inspect(b.sum()).item() == 2 << 22


def test_collectives_beside_a_computation(procs: ProcMesh) -> None:
    import torch

    with procs.activate():
        x = torch.ones(1 << 22, device="cuda")
        product = torch.eye(2048, device="cuda")
        for _ in range(20):
            pending = x.reduce("gpus", "avg", async_op=True)
            for _ in range(8):
                product = product @ product
            x = pending.wait()
        assert monarch.inspect((x.sum(), product.trace()))[0].item() == 1 << 22


def test_a_device_side_assert_ends_the_engine_and_says_where(doomed: ProcMesh) -> None:
    import torch

    with doomed.activate():
        table = torch.ones(4, 2, device="cuda")
        rows = torch.full((2,), 9, dtype=torch.int64, device="cuda")  # an index that the kernel itself checks
        picked = table.index_select(0, rows)
        with pytest.raises((monarch.tensor.RemoteException, SupervisionError), match="at or before") as caught:
            monarch.inspect(picked * 2)
        assert "CUDA_LAUNCH_BLOCKING" in str(caught.value)
        with pytest.raises(SupervisionError):
            for _ in range(1000):
                monarch.inspect(torch.ones(1))
    doomed.restart().get(timeout=TIMEOUT)
    with doomed.activate():
        assert monarch.inspect(torch.ones(2, device="cuda")).tolist() == [1, 1]


@pytest.mark.parametrize("backend", ["FLASH_ATTENTION", "EFFICIENT_ATTENTION", "MATH", ""])
def test_attention_is_that_of_one_process(procs: ProcMesh, backend: str) -> None:
    import contextlib

    import torch
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def gradients() -> Any:
        q, k, v = (
            torch.linspace(-1, 1, 2 * 4 * 64 * 32, device="cuda").roll(shift).reshape(2, 4, 64, 32).bfloat16()
            for shift in range(3)
        )
        leaves = [one.detach().requires_grad_() for one in (q, k, v)]
        with sdpa_kernel(getattr(SDPBackend, backend)) if backend else contextlib.nullcontext():
            F.scaled_dot_product_attention(*leaves, is_causal=True).float().square().sum().backward()
        return [leaf.grad for leaf in leaves]

    with procs.activate():
        found = monarch.inspect(gradients())
    for ours, theirs in zip(found, gradients(), strict=True):
        torch.testing.assert_close(ours, theirs.cpu(), rtol=2e-2, atol=2e-2)
