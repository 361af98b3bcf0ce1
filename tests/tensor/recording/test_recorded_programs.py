"""Random programs give, recorded and replayed, what they give operation by operation."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, note, settings

import monarch.tensor as mt
from monarch.tensor.controller.mesh import DeviceMesh
from tests.support.examples import examples
from tests.tensor.loopback import loopback
from tests.tensor.programs import namespace, programs, run, tensors

SLOW = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much)
ARGUMENTS = ("v0", "v1", "v2")
CALLS = 5
EXAMPLES = examples(40)


class Program:
    """A program as a function of some of its variables; the others are there before it, and keep what it does to them."""

    def __init__(self, lines: list[str], wrapped: Callable[[Any], Any], mesh: DeviceMesh) -> None:
        self.lines = lines
        self.mesh = mesh
        self.captured = {name: value for name, value in namespace().items() if name not in ARGUMENTS}
        self.call = wrapped(self.body)

    def body(self, *arguments: Any) -> Any:
        scope = {**self.captured, **dict(zip(ARGUMENTS, arguments, strict=True))}
        for line in self.lines:
            run(line, scope)
        return tensors(scope)

    def once(self) -> Any:
        """Returns what a call gives, and what there is of its arguments and variables afterwards; the exception, if it
        raised one."""
        fresh = namespace()
        arguments = [fresh[name] for name in ARGUMENTS]
        try:
            found = self.call(*arguments)
        except NotImplementedError:
            return None
        except Exception as exc:
            return type(exc)
        seen = {**found, **dict(zip(ARGUMENTS, arguments, strict=True)), **tensors(self.captured)}
        return {name: (_layout(tensor), self._bits(tensor)) for name, tensor in seen.items()}

    def _bits(self, tensor: Any) -> list[str]:
        with mt.no_mesh.activate():
            return [str(self.mesh.client.local(tensor, rank).tolist()) for rank in range(2)]


def _layout(tensor: Any) -> Any:
    return tuple(tensor.shape), tensor.stride(), tensor.storage_offset(), tensor.dtype


@pytest.mark.parametrize("wrapped", [mt.function, mt.compile])
def test_a_recorded_program_gives_what_the_program_gives(wrapped: Any) -> None:
    replayed = 0

    @settings(max_examples=EXAMPLES, suppress_health_check=SLOW, deadline=None)
    @given(programs())
    def check(lines: list[str]) -> None:
        nonlocal replayed
        note("\n".join(lines))
        if wrapped is mt.compile:
            lines = [line for line in lines if ".data =" not in line]  # leaves a tensor behind, which compile drops
        with loopback(gpus=2) as mesh, warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            plain = Program(lines, lambda fn: fn, mesh)
            recorded = Program(lines, wrapped, mesh)
            for number in range(CALLS):
                expected, found = plain.once(), recorded.once()
                if found is None:  # what compile refuses
                    return
                assert found == expected, f"call {number + 1}"
                if isinstance(expected, type):
                    return
            replayed += 1

    check()
    assert replayed > EXAMPLES // 6
