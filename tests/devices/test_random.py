"""Random numbers of distributed tensors on real devices: those of plain torch on the same kind of device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import monarch
from monarch.actor import ProcMesh
from tests.support.devices import one_process_a_device
from tests.support.scripts import Scripts

pytestmark = [pytest.mark.device, pytest.mark.procs]


procs = pytest.fixture(one_process_a_device, scope="module", name="procs")


# The mesh comes first: the client has drawn nothing on a device by then, and computes no derivative of its own there.
ALIKE = """
    import torch
    import torch.nn.functional as F
    from torch.utils.checkpoint import checkpoint

    import monarch
    from monarch.actor import this_host


    def masked(x):
        return F.dropout(x * 2, 0.5)


    def program(reentrant):
        torch.manual_seed(3)
        x = torch.rand(64, 64, device="cuda").requires_grad_()
        y = x
        for _ in range(3):
            y = checkpoint(masked, y, use_reentrant=reentrant)
        y.sum().backward()
        state = torch.cuda.get_rng_state()
        first = torch.rand(8, device="cuda")
        torch.cuda.set_rng_state(state)
        with torch.random.fork_rng(devices=[0]):
            torch.manual_seed(9)
            forked = torch.rand(9, device="cuda")
        again = torch.rand(8, device="cuda")
        g = torch.Generator("cuda").manual_seed(5)
        drawn = [torch.rand(1000, device="cuda", generator=g), torch.empty(7, device="cuda").normal_(generator=g)]
        before = g.get_state()
        drawn.append(torch.randperm(50, device="cuda", generator=g))
        g.set_state(before)
        drawn.append(torch.randperm(50, device="cuda", generator=g))
        torch.cuda.manual_seed(4)
        drawn.append(torch.rand(8, device="cuda"))
        return [x.grad, y.detach(), first, forked, again, *drawn, torch.rand(8, device="cuda"), torch.rand(8)]


    if __name__ == "__main__":
        procs = this_host().spawn_procs({"gpus": 1})
        with procs.activate():
            there = [monarch.inspect(program(reentrant)) for reentrant in (True, False)]
        here = [program(reentrant) for reentrant in (True, False)]
        for found, expected in zip(there, here):
            for number, (one, other) in enumerate(zip(found, expected)):
                assert torch.equal(one, other.cpu()), number
            assert torch.equal(found[2], found[4])  # the state was put back, and the fork left no trace
            assert torch.equal(found[7], found[8])  # and so was that of the generator
        procs.stop().get()
        print("alike")
"""


def test_seeds_states_generators_and_checkpoints_are_those_of_plain_torch(scripts: Scripts) -> None:
    """In a process of its own: whether this one has used a device before decides what torch.utils.checkpoint saves."""
    assert "alike" in scripts.run(ALIKE).stdout


def test_a_recorded_step_draws_what_it_draws_unrecorded(procs: ProcMesh) -> None:
    import torch
    from torch.utils.checkpoint import checkpoint

    def gradients(wrap: Callable[[Any], Any]) -> list[Any]:
        torch.manual_seed(2)
        generator = torch.Generator("cuda").manual_seed(3)
        weight = torch.linspace(-1, 1, 256, device="cuda").requires_grad_()

        def step(x: Any) -> Any:
            noisy = x + torch.rand(256, device="cuda", generator=generator)
            out = checkpoint(lambda w: torch.nn.functional.dropout(w * noisy), weight, use_reentrant=False)
            (gradient,) = torch.autograd.grad(out.sum(), [weight])
            return gradient

        call = wrap(step)
        x = torch.ones(256, device="cuda")
        return [call(x) for _ in range(5)]

    with procs.activate():
        plain = monarch.inspect(gradients(lambda step: step))
        recorded = monarch.inspect(gradients(monarch.function))
    assert [one.tolist() for one in recorded] == [one.tolist() for one in plain]
    assert plain[0].tolist() != plain[1].tolist()
