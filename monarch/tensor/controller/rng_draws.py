"""Operations that the program gives a torch.Generator, as operations on the generator's state.

`dispatch` hands over a call that it does not know and that has a generator in it; what comes back has a distributed tensor
in the generator's place. A process's own generator, which such a call may name as well, is what an operation without one
draws from.
"""

from __future__ import annotations

import weakref
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from monarch.tensor.controller.stream_placement import StreamPlacement
from monarch.tensor.generators import drawing_name, generator_argument

if TYPE_CHECKING:
    from torch._ops import OpOverload

    from monarch.tensor.signature import Args, Kwargs

# The generators made while a mesh was active, by the address of what torch keeps of one: an operation arrives here with
# another Python object for it.
made: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_drawings: dict[Any, Drawing] = {}  # by the operation


class Drawing:
    """`op`, an OpOverload, with its generator's state for a tensor that it changes. As much of an OpOverload as
    `dispatch` looks at."""

    def __init__(self, op: OpOverload) -> None:
        self._op = op
        self._generator = generator_argument(op._schema)
        self.tags = op.tags
        arguments = list(op._schema.arguments)
        if self._generator is not None:
            place, name = self._generator
            arguments[place] = SimpleNamespace(
                name=name,
                type="Tensor",
                kwarg_only=arguments[place].kwarg_only,
                alias_info=SimpleNamespace(is_write=True),
            )
        self._schema = SimpleNamespace(name=op._schema.name, arguments=arguments, is_mutable=True)

    def __call__(self, *args: object, **kwargs: object) -> Any:
        """On stand-ins for tensors, which have no numbers to draw: the operation without a generator."""
        assert self._generator is not None
        place, name = self._generator
        if name in kwargs:
            kwargs[name] = None
        else:
            args = (*args[:place], None, *args[place + 1 :])
        return self._op(*args, **kwargs)

    def __str__(self) -> str:
        return drawing_name(self._op)


def given_state(
    func: OpOverload, args: Args, kwargs: Kwargs, place: StreamPlacement
) -> tuple[Any, tuple[Any, ...], dict[str, Any]] | None:
    """The call of `func` at `place` with a state, or nothing, in place of its generator; None when it has no generator.

    Raises TypeError for a generator that has no state on meshes, RuntimeError for one of another kind of device.
    """
    given = next((value for value in (*args, *kwargs.values()) if isinstance(value, torch._C.Generator)), None)
    if given is None:
        return None
    state = None
    if not _is_default(given):
        generator = made.get(given._cdata)
        if generator is None:
            raise TypeError(
                f"{func} was given a torch.Generator that was made without an active mesh, so it has a state in this process "
                f"alone: make it inside `with mesh.activate():`"
            )
        _check_device(generator, args, kwargs)
        state = generator.state_at(place)
        func = _drawings.get(func) or _drawings.setdefault(func, Drawing(func))
    args = tuple(state if value is given else value for value in args)
    return func, args, {name: state if value is given else value for name, value in kwargs.items()}


def _is_default(generator: Any) -> bool:
    """True if it is a generator that torch has by itself: torch.default_generator or that of a device."""
    own = (torch.default_generator, *torch.cuda.default_generators)
    return generator._cdata in [one._cdata for one in own]


def _check_device(generator: Any, args: Args, kwargs: Kwargs) -> None:
    """Raises as torch does where it draws."""
    device = next((arg.device for arg in args if isinstance(arg, torch.Tensor)), kwargs.get("device"))
    wanted = torch.device(device if device is not None else "cpu").type
    if generator.device.type != wanted:
        raise RuntimeError(f"Expected a '{wanted}' device type for generator but found '{generator.device.type}'")
