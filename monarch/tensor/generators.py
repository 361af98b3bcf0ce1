"""Operations that draw from a torch.Generator: on a mesh the generator's state is a distributed tensor.

In the generator's place the operation is given that tensor, an input that it changes like any other. So streams, slices,
recordings and failures mean for a generator what they mean for tensors, and no worker keeps anything between commands.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch._ops import OpOverload

DEVICE_BYTES = 16  # of the state of a CUDA or ROCm generator: a seed and an offset. That of the CPU's is larger
_SUFFIX = "_from_state"  # of the name of an operation that is given a state


def drawing_name(op: OpOverload) -> str:
    """The name of `op` (an OpOverload) when it is given a state in place of its generator."""
    return f"{op}{_SUFFIX}"


def drawn_op(name: str) -> str | None:
    """The name of the operation of which `name` is the drawing name; None of others."""
    return name.removesuffix(_SUFFIX) if name.endswith(_SUFFIX) else None


def generator_argument(schema: Any) -> tuple[int, str] | None:
    """Position and name of the argument of an operation that is a generator; None where there is none."""
    for place, argument in enumerate(schema.arguments):
        if str(argument.type) in ("Optional[Generator]", "Generator"):
            return place, argument.name
    return None


def drawing(op: OpOverload) -> Callable[..., Any]:
    """`op`, an OpOverload with a generator, as a function that takes the generator's state in its place and changes it.
    For workers: on local tensors."""
    found = generator_argument(op._schema)
    assert found is not None
    place, name = found

    def draw(*args: Any, **kwargs: Any) -> Any:
        state = kwargs[name] if name in kwargs else args[place]
        generator = of_state(state)
        if name in kwargs:
            kwargs[name] = generator
        else:
            args = (*args[:place], generator, *args[place + 1 :])
        result = op(*args, **kwargs)
        state.copy_(generator.get_state())
        return result

    return draw


def of_state(state: torch.Tensor) -> torch.Generator:
    """A generator of this process in `state`, a local uint8 tensor: of the CPU, or by its size of the accelerator."""
    generator = torch.Generator(accelerator() if state.numel() == DEVICE_BYTES else "cpu")
    generator.set_state(state)
    return generator


def seeded_state(seed: int, device: bool) -> torch.Tensor:
    """The state of a generator with that seed: of the CPU's or, with `device`, the accelerator's."""
    return torch.Generator(accelerator() if device else "cpu").manual_seed(seed).get_state()


def accelerator() -> torch.device:
    """The accelerator that this thread works on. RuntimeError without one."""
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if found is None:
        raise RuntimeError("a generator of an accelerator is used in a process that has no accelerator")
    return torch.device(found.type, torch.accelerator.current_device_index())
