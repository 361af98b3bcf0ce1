"""torch's random numbers under a mesh: seeds, states, `fork_rng` and checkpoints are those of the mesh's processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import monarch
import monarch.random
import monarch.tensor as mt
from monarch.tensor.recording.function import Function
from tests.tensor.loopback import loopback


def on_mesh(mesh: Any, program: Callable[[], Any]) -> list[Any]:
    """Returns what `program` gives on each rank."""
    found = program()
    return [mt.inspect(found, gpus=rank) for rank in range(len(mesh))]


def here(program: Callable[[], Any]) -> Any:
    """Returns what plain torch gives in this process."""
    with mt.no_mesh.activate():
        return program()


def equal(found: Any, expected: Any) -> bool:
    with mt.no_mesh.activate():
        return len(found) == len(expected) and all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


def seeded(seed: int, count: int) -> list[float]:
    """The first numbers of plain torch with that seed."""
    with mt.no_mesh.activate():
        numbers: list[float] = torch.rand(count, generator=torch.Generator().manual_seed(seed)).tolist()
        return numbers


def same_as_plain(mesh: Any, program: Callable[[], Any]) -> None:
    expected = here(program)
    for found in on_mesh(mesh, program):
        assert equal(found, expected)


# --- seeds ----------------------------------------------------------------------------------------------------------


def test_a_seed_is_that_of_every_process_and_of_this_one(loop: Any) -> None:
    def program() -> list[Any]:
        torch.manual_seed(5)
        return [torch.rand(3), torch.randperm(4), F.dropout(torch.ones(8)), torch.randn(2, 2)]

    same_as_plain(loop, program)
    here(lambda: torch.manual_seed(9))
    torch.manual_seed(5)
    assert here(lambda: torch.rand(3)).tolist() == seeded(5, 3)


def test_a_seed_without_a_mesh_is_of_this_process_alone(loop: Any) -> None:
    torch.manual_seed(5)
    first = mt.inspect(torch.rand(3))
    here(lambda: torch.manual_seed(5))
    assert mt.inspect(torch.rand(3)).tolist() != first.tolist()


def test_a_seed_on_a_slice_leaves_the_others_alone(loop: Any) -> None:
    torch.manual_seed(1)
    with loop.slice(gpus=1).activate():
        torch.manual_seed(2)
    numbers = torch.rand(2)
    found = [mt.inspect(numbers, gpus=rank).tolist() for rank in range(2)]
    assert found == [seeded(1, 2), seeded(2, 2)]


@pytest.mark.parametrize("seed", [0, -1, (1 << 64) - 1, -(1 << 63)])
def test_seeds_have_64_bits(loop: Any, seed: int) -> None:
    same_as_plain(loop, lambda: [(torch.manual_seed(seed), torch.rand(2))[1]])
    assert torch.initial_seed() == here(lambda: (torch.manual_seed(seed), torch.initial_seed())[1])
    assert torch.random.initial_seed() == torch.initial_seed()


@pytest.mark.parametrize("seed", [1 << 64, -(1 << 63) - 1])
def test_a_seed_that_is_too_large(loop: Any, seed: int) -> None:
    with pytest.raises(ValueError, match="a seed has 64 bits"):
        torch.manual_seed(seed)
    with pytest.raises(ValueError, match="a seed has 64 bits"):
        monarch.random.manual_seed_per_rank(seed)


def test_torch_seed_gives_the_seed_with_which_it_can_be_done_again(loop: Any) -> None:
    seed = torch.seed()
    numbers = torch.rand(3)
    assert torch.initial_seed() == seed
    torch.manual_seed(seed)
    again = torch.rand(3)
    for rank in range(2):
        assert mt.inspect(again, gpus=rank).tolist() == mt.inspect(numbers, gpus=rank).tolist()
    assert torch.seed() != seed


def test_the_initial_seed_is_known_only_where_it_was_given(loop: Any) -> None:
    for read in (torch.initial_seed, torch.cuda.initial_seed):
        with pytest.raises(RuntimeError, match=r"were not seeded from here.*torch.manual_seed"):
            read()
    torch.manual_seed(3)
    with torch.random.fork_rng():
        torch.manual_seed(4)
        assert torch.initial_seed() == 4
    assert torch.initial_seed() == 3
    state = torch.get_rng_state()
    torch.manual_seed(6)
    torch.cuda.manual_seed(8)
    assert (torch.initial_seed(), torch.cuda.initial_seed()) == (6, 8)
    torch.set_rng_state(state)
    assert (torch.initial_seed(), torch.cuda.initial_seed()) == (3, 8)
    with loop.slice(gpus=1).activate():
        torch.manual_seed(2)
        assert torch.initial_seed() == 2
    with pytest.raises(RuntimeError, match="were not seeded from here"):
        torch.initial_seed()  # no longer the same on all
    torch.manual_seed(1)
    monarch.random.manual_seed_per_rank(2)
    with pytest.raises(RuntimeError, match="were not seeded from here"):
        torch.initial_seed()


def test_each_rank_of_its_own_accord(loop: Any) -> None:
    for _ in range(2):
        monarch.random.manual_seed_per_rank(40)
        found = on_mesh(loop, lambda: [torch.rand(3)])
        assert [one[0].tolist() for one in found] == [seeded(40, 3), seeded(41, 3)]


# --- states ---------------------------------------------------------------------------------------------------------


def test_states_are_distributed_and_put_back_in_order(loop: Any) -> None:
    def program() -> list[Any]:
        torch.manual_seed(1)
        torch.rand(5)
        state = torch.get_rng_state()
        first = torch.rand(3)
        torch.random.set_rng_state(state)
        return [first, torch.rand(3), state]

    same_as_plain(loop, program)
    assert type(torch.get_rng_state()) is mt.Tensor
    assert type(here(torch.get_rng_state)) is torch.Tensor


def test_states_of_ranks_that_differ(loop: Any) -> None:
    state = torch.get_rng_state()
    numbers = torch.rand(3)
    torch.set_rng_state(state)
    again = torch.rand(3)
    for rank in range(2):
        assert mt.inspect(numbers, gpus=rank).tolist() == mt.inspect(again, gpus=rank).tolist()
    assert mt.inspect(numbers, gpus=0).tolist() != mt.inspect(numbers, gpus=1).tolist()


def test_a_state_of_this_process_becomes_that_of_all(loop: Any) -> None:
    state = here(lambda: (torch.manual_seed(8), torch.rand(4), torch.get_rng_state())[2])
    expected = here(lambda: torch.rand(3))
    torch.set_rng_state(state)
    for found in on_mesh(loop, lambda: [torch.rand(3)]):
        assert equal(found, [expected])


def test_what_is_no_state(loop: Any) -> None:
    with mt.no_mesh.activate():
        wrong = [torch.zeros(5056), torch.zeros(7, dtype=torch.uint8), [1, 2]]
    for state in wrong:
        with pytest.raises(TypeError, match=r"is a uint8 tensor of \d+ elements, from get_rng_state"):
            torch.set_rng_state(state)


def test_a_fork_leaves_the_generators_as_they_were(loop: Any) -> None:
    def program() -> list[Any]:
        torch.manual_seed(2)
        with torch.random.fork_rng():
            first = torch.rand(2)
            torch.manual_seed(7)
            second = torch.rand(2)
        with torch.random.fork_rng(enabled=False):
            third = torch.rand(2)
        with torch.random.fork_rng(devices=[]):
            fourth = torch.rand(2)
        return [first, second, third, fourth, torch.rand(2)]

    same_as_plain(loop, program)
    before = here(torch.get_rng_state)
    with torch.random.fork_rng():
        torch.manual_seed(3)
    assert here(lambda: torch.equal(torch.get_rng_state(), before))


def test_without_a_mesh_torch_is_as_ever() -> None:
    torch.manual_seed(1)
    first = torch.rand(2)
    assert torch.initial_seed() == 1
    with torch.random.fork_rng(devices=[]):
        torch.seed()
    torch.set_rng_state(torch.Generator().manual_seed(1).get_state())
    assert torch.rand(2).tolist() == first.tolist()
    assert torch.manual_seed(1) is torch.default_generator
    assert torch.random.default_generator.device.type == "cpu"


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without CUDA")
def test_accelerators_of_processes_that_have_none(loop: Any) -> None:
    """Seeds nothing, as on a machine without one; states are zeros."""
    torch.cuda.manual_seed(1)
    torch.cuda.manual_seed_all(1)
    torch.cuda.seed()
    torch.cuda.seed_all()
    state = torch.cuda.get_rng_state()
    torch.cuda.set_rng_state(state)
    torch.cuda.set_rng_state_all(torch.cuda.get_rng_state_all())
    assert mt.inspect(state).tolist() == [0] * 16
    with pytest.raises(ValueError, match="there is one state, that of each process's own device, and 2 were given"):
        torch.cuda.set_rng_state_all([state, state])


# --- torch.utils.checkpoint -------------------------------------------------------------------------------------------


def trained(reentrant: bool, steps: int = 2) -> list[Any]:
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5), nn.GELU(), nn.Linear(6, 6), nn.Dropout(0.3))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(steps):
        x = torch.rand(4, 6).requires_grad_()
        for _ in range(3):
            x = checkpoint(net, x, use_reentrant=reentrant)
        checkpoint_sequential(net, 2, x, use_reentrant=reentrant).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [*(parameter.detach() for parameter in net.parameters()), torch.rand(3)]


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_training_with_dropout_is_that_of_plain_torch(loop: Any, reentrant: bool) -> None:
    same_as_plain(loop, lambda: trained(reentrant))


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("active", [True, False])
def test_a_checkpoint_computes_again_with_the_same_masks_on_ranks_that_differ(
    loop: Any, reentrant: bool, active: bool
) -> None:
    x = torch.ones(64).requires_grad_()
    out = checkpoint(F.dropout, x, use_reentrant=reentrant)
    after = torch.get_rng_state()
    if active:
        out.sum().backward()
    else:
        with mt.no_mesh.activate():
            out.sum().backward()
    assert x.grad is not None
    masks = []
    for rank in range(2):
        gradient, made, before, now = mt.inspect((x.grad, out, after, torch.get_rng_state()), gpus=rank)
        assert gradient.tolist() == made.tolist()  # each is the mask, scaled
        assert before.tolist() == now.tolist()
        masks.append(made.tolist())
    assert masks[0] != masks[1]


def test_a_checkpoint_that_keeps_no_state(loop: Any) -> None:
    def program() -> list[Any]:
        torch.manual_seed(3)
        x = torch.ones(32).requires_grad_()
        checkpoint(F.dropout, x, use_reentrant=False, preserve_rng_state=False).sum().backward()
        return [x.grad, torch.rand(2)]

    same_as_plain(loop, program)


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without CUDA")
def test_the_state_of_a_device_is_kept_although_this_process_has_none(loop: Any) -> None:
    """torch asks whether this process has initialised the device; it is the others that draw on it."""

    def issued(x: Any) -> list[str]:
        before = len(loop.client.runs())
        checkpoint(F.dropout, x, use_reentrant=False).sum().backward()
        return [str(loop.client.calls[run.signature].name()) for run in loop.client.runs()[before:]]

    names = issued(torch.ones(8, device="cuda").requires_grad_())
    assert names.count("monarch.random.get_device_state") == 2  # at the checkpoint, and where it is computed again
    assert names.count("monarch.random.set_device_state") == 2  # for that, and after it
    names = issued(torch.ones(8).requires_grad_())
    assert not any("device_state" in name for name in names)


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpoint_on_a_mesh_that_is_not_active(loop: Any, reentrant: bool) -> None:
    """Operations run on the mesh of their tensors; so it is that one's generators which matter."""
    x = torch.ones(64).requires_grad_()
    numbers = []
    with loopback(gpus=1):
        elsewhere = torch.get_rng_state()
        for forward in (mt.no_mesh.activate, loopback):
            for backward in (mt.no_mesh.activate, loopback):
                x.grad = None
                with forward():
                    out = checkpoint(F.dropout, x, use_reentrant=reentrant)
                    numbers.append(x.detach().bernoulli(0.5))
                with backward():
                    out.sum().backward()
                numbers.append(x.detach().bernoulli(0.5))
                with loop.activate():
                    assert mt.inspect(x.grad, gpus=1).tolist() == mt.inspect(out, gpus=1).tolist()
    with loop.activate():
        masks = [tuple(mt.inspect(one, gpus=1).tolist()) for one in numbers]
    assert len(set(masks)) == len(masks)  # nothing was drawn twice
    torch.set_rng_state(elsewhere)  # means its own mesh


# --- recordings ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_recorded_step_draws_what_it_draws_unrecorded(loop: Any, reentrant: bool) -> None:
    def losses(wrap: Callable[[Any], Any]) -> list[Any]:
        torch.manual_seed(11)
        generator = torch.Generator().manual_seed(12)
        net = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        x = torch.rand(4, 6)

        def step(x: Any) -> Any:
            optimizer.zero_grad()
            noisy = (x + torch.rand(x.shape, generator=generator)).requires_grad_()
            loss = checkpoint(net, noisy, use_reentrant=reentrant).square().mean()
            loss.backward()
            optimizer.step()
            with torch.random.fork_rng():
                torch.manual_seed(1)
                fixed = torch.rand(2).sum()
            return loss + fixed + torch.rand(())

        call = wrap(step)
        found = [call(x).detach() for _ in range(6)]
        assert not isinstance(call, Function) or call.traces == 1
        return [*found, torch.rand(2), torch.rand(2, generator=generator)]

    recorded = on_mesh(loop, lambda: losses(mt.function))
    expected = here(lambda: losses(lambda step: step))
    for found in recorded:
        assert equal(found, expected)
