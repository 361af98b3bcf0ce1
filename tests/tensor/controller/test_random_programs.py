"""Random programs of torch operations give, on every rank, the bits that they give without a mesh."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, note, settings

import monarch.tensor as mt
from monarch.tensor.controller.mesh import DeviceMesh
from tests.support.examples import examples
from tests.tensor.loopback import loopback
from tests.tensor.programs import namespace, programs, run, tensors

SLOW = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much)


def bits(tensor: torch.Tensor) -> bytes:
    whole = torch.empty(tensor.numel(), dtype=tensor.dtype).copy_(tensor.detach().reshape(-1))
    return whole.view(torch.uint8).numpy().tobytes()


def layout(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Returns what has to be equal. The strides of dimensions without a second element mean nothing, and torch's
    kernels differ in them."""
    steps = tuple(step if size > 1 else None for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    where = (steps, tensor.storage_offset()) if tensor.numel() else None
    return tuple(tensor.shape), where, tensor.dtype, tensor.is_conj(), tensor.is_neg()


def layouts(scope: dict[str, Any]) -> dict[str, Any]:
    return {name: layout(tensor) for name, tensor in tensors(scope).items()}


def compare(lines: list[str], mesh: DeviceMesh) -> dict[str, Any]:
    """Runs a program without a mesh and on `mesh`, and compares every tensor on every rank. What it left on the mesh."""
    text = "\n".join(lines)
    note(text)
    with mt.no_mesh.activate():
        here = namespace()
    there = namespace()
    for line in lines:
        with mt.no_mesh.activate():
            run(line, here)
        try:
            run(line, there)
        except Exception as exc:
            raise AssertionError(f"on the mesh `{line}` raised, in\n{text}") from exc
    with mt.no_mesh.activate():
        local = tensors(here)
    remote = tensors(there)
    assert list(local) == list(remote)
    for name, tensor in local.items():
        assert type(remote[name]) is mt.Tensor, f"{name} is no distributed tensor in\n{text}"
        assert layout(remote[name]) == layout(tensor), f"{name} in\n{text}"
        assert remote[name].requires_grad == tensor.requires_grad, f"{name} in\n{text}"
    for rank in range(len(mesh)):
        found = mt.inspect(remote, gpus=rank)
        with mt.no_mesh.activate():
            for name, tensor in local.items():
                assert bits(found[name]) == bits(tensor), (
                    f"{name} on rank {rank}: {found[name]} for {tensor} in\n{text}"
                )
    return there


@settings(max_examples=examples(150), suppress_health_check=SLOW)
@given(programs())
def test_a_program_gives_the_same_bits_on_every_rank(lines: list[str]) -> None:
    with loopback(gpus=2) as mesh:
        there = compare(lines, mesh)
        for rank in range(2):
            for name, known in layouts(there).items():
                assert layout(mesh.client.local(tensors(there)[name], rank)) == known, name
        there.clear()
        assert mesh.client.living() == [[], []]


@settings(max_examples=examples(25), suppress_health_check=SLOW)
@given(programs(state=True))
def test_values_that_leave_the_mesh_and_come_back_keep_their_bits(lines: list[str]) -> None:
    with loopback(gpus=2) as mesh:
        compare(lines, mesh)


@pytest.mark.procs
@settings(max_examples=examples(25), suppress_health_check=(*SLOW, HealthCheck.function_scoped_fixture))
@given(programs())
def test_a_program_gives_the_same_bits_in_two_processes(mesh: DeviceMesh, lines: list[str]) -> None:
    compare(lines, mesh)
