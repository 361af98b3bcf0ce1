"""The arguments of a remote function: what of them is sent once, what travels with each call, what a result is known by."""

from __future__ import annotations

import enum
import types
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch.utils import _pytree as pytree

from monarch.tensor.controller.groups import RemoteProcessGroup
from monarch.tensor.controller.mesh import DeviceMesh
from monarch.tensor.controller.tensor import Tensor
from monarch.tensor.signature import NumberHole, TensorHole
from monarch.tensor.worker.function_call import FunctionCall

if TYPE_CHECKING:
    from collections.abc import Hashable

    from torch.utils._pytree import PyTree

    from monarch.tensor.signature import Args, Kwargs, Scalar

INT = 1 << 62
NUMBERS = frozenset({int, float, bool})
# Arguments that stay what they are: they are sent once, with the signature.
_CONSTANTS = frozenset(
    {type(None), str, bytes, complex, torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format, range,
     type, types.FunctionType, types.BuiltinFunctionType, DeviceMesh}
)  # fmt: skip
_LONG = 4096  # characters of a string from which on it is sent with each call: who passes them passes many
LEAVES = NUMBERS | _CONSTANTS | {Tensor}


def template(args: Args, kwargs: Kwargs, leaves: Sequence[object], shape: object) -> tuple[Any, list[Any]]:
    """Returns (args, kwargs) with TensorHoles for tensors and NumberHoles for numbers, and the numbers."""
    held: list[object] = []
    numbers: list[Scalar] = []
    slots = 0
    for leaf in leaves:
        kind = type(leaf)
        if kind is Tensor:
            held.append(TensorHole(slots))
            slots += 1
        elif travels(leaf):
            held.append(NumberHole(len(numbers)))
            numbers.append(leaf)
        else:
            held.append(leaf)
    if type(shape) is tuple:
        count = shape[0]
        return (tuple(held[:count]), dict(zip(shape[1:], held[count:], strict=True))), numbers
    return pytree.tree_unflatten(held, shape), numbers


def with_numbers(tree: PyTree, numbers: Sequence[Scalar]) -> PyTree:
    """Returns `tree` with its NumberHoles filled; its TensorHoles stay."""
    if not numbers:
        return tree
    return pytree.tree_map(lambda leaf: numbers[leaf] if type(leaf) is NumberHole else leaf, tree)


def signature_key(leaves: Sequence[object], shape: object, call: FunctionCall) -> Hashable:
    """Equal for calls that differ in their numbers and their tensors' metadata alone, and give tensors of the same
    metadata."""
    kinds = tuple(type(leaf) if type(leaf) is Tensor or travels(leaf) else (type(leaf), leaf) for leaf in leaves)
    return (call.function, shape, kinds, call.keeps, call.mutates, call.count, call.between_ranks, call.expected)


def travels(leaf: object) -> TypeGuard[Scalar]:
    """True if `leaf` is a number that goes with each Run."""
    kind = type(leaf)
    return kind in NUMBERS and (type(leaf) is not int or -INT < leaf < INT)


def sharing(inputs: Sequence[Tensor]) -> tuple[int, ...]:
    """Returns, for each tensor, the first that lies in the same memory."""
    first: dict[int, int] = {}
    return tuple(first.setdefault(id(tensor._record.storage), place) for place, tensor in enumerate(inputs))


def has_tensors(leaves: Sequence[object]) -> bool:
    """True if there are local tensors among them."""
    return any(isinstance(leaf, torch.Tensor) and type(leaf) is not Tensor for leaf in leaves)


def constant(leaf: Any) -> bool:
    """True if `leaf` can be sent once for all calls with an equal one."""
    kind = type(leaf)
    if kind is str or kind is bytes:
        return len(leaf) <= _LONG
    if kind is types.FunctionType:
        return not leaf.__closure__
    return kind in NUMBERS or kind in _CONSTANTS or isinstance(leaf, enum.Enum | type) or is_group(leaf)


def is_group(leaf: object) -> bool:
    return isinstance(leaf, RemoteProcessGroup)


def between_ranks(leaf: object) -> bool:
    """True if a function that is given this can talk to other ranks, so that its results depend on them."""
    return isinstance(leaf, DeviceMesh) or is_group(leaf)


# --- what a propagator depends on beside its arguments -----------------------------------------------------------

_PLAIN = (int, float, bool, str, bytes, type(None), torch.dtype, torch.device, torch.Size, type)


def captures_nothing(propagate: object) -> bool:
    """True if it gives the same for the same arguments, because there is nothing else that it could use."""
    if getattr(propagate, "pure", False):
        return True
    return isinstance(propagate, types.FunctionType) and not propagate.__closure__ and not names_in(propagate.__code__)


def captured(propagate: object, names: Sequence[str]) -> tuple[object, ...] | None:
    """Returns the variables that a propagator uses, its captured ones and globals, when they say all; else None.

    `names`: those in its code.
    """
    if not isinstance(propagate, types.FunctionType):
        return None
    found: list[object] = []
    for cell in propagate.__closure__ or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:  # not assigned yet
            return None
    known = propagate.__globals__
    found += [known[name] for name in names if name in known]
    kept = []
    for value in found:
        if isinstance(value, types.ModuleType):
            continue
        if isinstance(value, types.FunctionType):
            if value.__closure__:
                return None
        elif not isinstance(value, _PLAIN):
            return None
        kept.append((type(value), value))
    return tuple(kept)


def names_in(code: types.CodeType) -> tuple[str, ...]:
    """The names that code looks up outside of itself (and those of attributes)."""
    inner = [name for const in code.co_consts if isinstance(const, types.CodeType) for name in names_in(const)]
    return tuple(dict.fromkeys([*code.co_names, *inner]))
