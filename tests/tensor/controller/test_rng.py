"""States of random numbers in the processes of a mesh."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import monarch
import monarch.random
from monarch.actor import Actor, current_rank, endpoint
from tests.support.devices import every_device

pytestmark = [every_device, pytest.mark.usefixtures("device")]


def everywhere(tensor: Any) -> list[list[float]]:
    return [monarch.inspect(tensor, gpus=rank).tolist() for rank in range(2)]


def test_processes_begin_with_different_random_numbers(procs: Any) -> None:
    with procs.activate():
        first, second = everywhere(torch.rand(4))
    assert first != second


def test_a_state_put_back_gives_the_same_numbers_again(procs: Any, device: str) -> None:
    with procs.activate():
        state = monarch.random.get_state()
        first = torch.rand(4)
        other = torch.rand(4)
        monarch.random.set_state(state)
        again = torch.rand(4)
    assert everywhere(again) == everywhere(first) != everywhere(other)
    assert isinstance(state.cpu, monarch.Tensor) and state.cpu.dtype == torch.uint8
    assert monarch.inspect(state.cpu).shape == state.cpu.shape and monarch.inspect(state.cuda).shape == (16,)
    assert device == "cpu" or any(monarch.inspect(state.cuda).tolist())


def test_a_new_state_changes_nothing_before_it_is_set(procs: Any, device: str) -> None:
    with procs.activate():
        before = monarch.random.get_state()
        fresh = monarch.random.new_state(7)
        after = monarch.random.get_state()
        monarch.random.set_state(fresh)
        got = torch.rand(4)
    assert everywhere(before.cpu) == everywhere(after.cpu)
    wanted = torch.rand(4, generator=torch.Generator(device).manual_seed(7)).tolist()
    assert everywhere(got) == [wanted, wanted]


def test_a_seed_for_each_process(procs: Any, device: str) -> None:
    generators = [torch.Generator(device).manual_seed(40 + rank) for rank in range(2)]
    wanted = [torch.rand(3, generator=generator).tolist() for generator in generators]
    probes = procs.spawn("probes", Probe)
    with procs.activate():
        seed = probes.rank.rref() + 40
        for _ in range(2):
            monarch.random.set_state(monarch.random.new_state(seed))
            assert everywhere(torch.rand(3)) == wanted
        monarch.random.manual_seed_per_rank(40)
        assert everywhere(torch.rand(3)) == wanted
        torch.manual_seed(40)
        assert everywhere(torch.rand(3)) == [wanted[0], wanted[0]] != wanted
    probes.stop().get(timeout=300)


def test_operations_become_deterministic_in_the_processes_alone(procs: Any) -> None:
    probes = procs.spawn("probes", Probe)
    with procs.activate():
        monarch.random.make_deterministic()
        monarch.inspect(torch.ones(1))
    assert list(probes.deterministic.call().get(timeout=300).values()) == [True, True]
    assert not torch.are_deterministic_algorithms_enabled()
    probes.stop().get(timeout=300)


def test_misuse(procs: Any) -> None:
    with pytest.raises(ValueError, match="no device mesh is active"):
        monarch.random.get_state()
    with procs.activate():
        with monarch.no_mesh.activate():
            local = monarch.random.State(torch.get_rng_state(), torch.zeros(16, dtype=torch.uint8))
        with pytest.raises(TypeError, match="LOCAL_TENSOR"):
            monarch.random.set_state(local)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints_with_dropout_in_real_processes(procs: Any, device: str, reentrant: bool) -> None:
    def program() -> list[Any]:
        torch.manual_seed(3)
        g = torch.Generator(device).manual_seed(4)
        x = torch.rand(4, 8, generator=g).requires_grad_()
        for _ in range(2):
            y = checkpoint(torch.nn.functional.dropout, x, use_reentrant=reentrant)
            (y * torch.rand(4, 8)).sum().backward()
        return [x.grad, torch.rand(3), torch.rand(3, generator=g)]

    with procs.activate():
        found = program()
    expected = [tensor.tolist() for tensor in program()]
    for rank in range(2):
        assert [tensor.tolist() for tensor in monarch.inspect(found, gpus=rank)] == expected


class Probe(Actor):
    @endpoint(propagate=lambda: torch.zeros((), dtype=torch.int64))
    def rank(self) -> torch.Tensor:
        return torch.tensor(current_rank().rank)

    @endpoint
    def deterministic(self) -> bool:
        return torch.are_deterministic_algorithms_enabled()
