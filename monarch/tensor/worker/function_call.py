"""A remote function in a worker: its arguments put together, run with grad mode on, its result taken apart.

Tensors are detached on the way in and on the way out: autograd graphs end with the call, contents changed in place remain.
"""

from __future__ import annotations

import ctypes
import hashlib
import keyword
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from monarch.tensor import functions, patterns, signature
from monarch.tensor.failures import OneLine
from monarch.tensor.signature import Layout, NumberHole, TensorHole

if TYPE_CHECKING:
    from torch.utils._pytree import PyTree

    from monarch.tensor.signature import Scalar
    from monarch.tensor.worker.executor import Executor


class FunctionCall:
    """Runs `function` with `tree`, its (args, kwargs) with TensorHoles and NumberHoles in them. A `signature.WorkerCall`.

    `count`: how many leaves its result has; None when nobody wants it. `between`: whether it may talk to other ranks.
    `expected`: what each tensor that is kept has to be, as (Layout, whether it is no view of an argument); empty: it is not
    looked at. `outcome`: what the controller knows that it gives (a propagation.PropagatedOutcome); stays there.
    """

    repeatable = True
    outcome: Any = None
    expected: tuple[tuple[Layout, bool], ...] = ()

    def __init__(
        self,
        function: object,
        tree: PyTree,
        keeps: tuple[int, ...] | None,
        mutates: tuple[int, ...],
        count: int | None,
        between: bool,
        label: str,
    ) -> None:
        self.function = function
        self.tree = tree
        self.keeps = keeps
        self.mutates = mutates
        self.count = count
        self.between_ranks = between
        self.label = label

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name != "outcome"}

    def name(self) -> str:
        return f"remote function {self.label}"

    def prepare(self, executor: Executor) -> signature.Runner:
        call = self.caller()
        keeps, count = self.keeps, self.count

        def run(tensors: Sequence[torch.Tensor], numbers: Sequence[Scalar]) -> object:
            result = call(tensors, numbers)
            if count is None:
                return ()
            if keeps is None and isinstance(result, torch.Tensor):
                return self._as_expected(result.detach(), 0)
            leaves = pytree.tree_leaves(result)
            if len(leaves) != count:
                raise OneLine(
                    f"unexpected number of returns from op, expected {count}, got {len(leaves)}: what `propagate` of "
                    f"{self.label} returns has to have the structure of what the function returns"
                )
            for place, index in enumerate((0,) if keeps is None else keeps):
                if not isinstance(leaves[index], torch.Tensor):
                    raise OneLine(
                        f"{self.label} returned {type(leaves[index]).__name__} where its `propagate` has a tensor "
                        f"(leaf {index})"
                    )
                leaves[index] = self._as_expected(leaves[index].detach(), place)
            return leaves[0] if keeps is None else leaves

        return run

    def _as_expected(self, tensor: torch.Tensor, place: int) -> torch.Tensor:
        """The `place`-th tensor that is kept, in the layout that the controller believes it to have."""
        if not self.expected:
            return tensor
        layout, new = self.expected[place]
        if tensor.shape != layout.shape or tensor.dtype is not layout.dtype:
            found = signature.Layout(tuple(tensor.shape), tensor.stride(), tensor.dtype)
            raise OneLine(
                f"{self.label} gave {found} where its `propagate` says {layout}: a distributed tensor has the same shape and "
                f"dtype on every process and at each call with arguments of the same metadata"
            )
        return signature.with_strides(tensor, layout.stride) if new else tensor

    def caller(self) -> signature.Runner:
        """Returns the function of (tensors, numbers) that gives what the function returns."""
        apply = applier(functions.resolve(self.function), self.tree)

        def call(tensors: Sequence[torch.Tensor], numbers: Sequence[Scalar]) -> object:
            inputs = [tensor.detach() for tensor in tensors]
            before = torch.is_grad_enabled()
            torch._C._set_grad_enabled(True)
            try:
                return apply(inputs, numbers)
            finally:
                torch._C._set_grad_enabled(before)

        return call


class PatternCall:
    """Runs a FunctionCall on copies of its inputs, only to see what it gives (`patterns.SentOutcome`)."""

    describes = True  # no values of the program: allowed while it is recorded
    keeps: tuple[int, ...] | None = ()
    mutates: tuple[int, ...] = ()

    def __init__(self, call: FunctionCall) -> None:
        self.call = call

    def name(self) -> str:
        return f"{self.call.name()} (run once to learn what it returns)"

    def prepare(self, executor: Executor) -> signature.Runner:
        call = self.call.caller()

        def run(tensors: Sequence[torch.Tensor], numbers: Sequence[Scalar]) -> object:
            inputs = patterns.copies(tensors)
            before = [tensor._version for tensor in inputs]
            with _own_randomness():
                result = call(inputs, numbers)
            return patterns.to_send(result, inputs, patterns.written(inputs, before))

        return run


class ValueCall:
    """Runs a FunctionCall; gives what it returned, with its tensors on the CPU."""

    keeps: tuple[int, ...] | None = ()

    def __init__(self, call: FunctionCall) -> None:
        self.call = call
        self.mutates = call.mutates

    def name(self) -> str:
        return self.call.name()

    def prepare(self, executor: Executor) -> signature.Runner:
        call = self.call.caller()
        return lambda tensors, numbers: pytree.tree_map(_to_cpu, call(tensors, numbers))


class ItemCall:
    """A `signature.WorkerCall` that answers with the number of its input, for a torch.amp.GradScaler."""

    keeps: tuple[int, ...] | None = ()
    mutates: tuple[int, ...] = ()

    def name(self) -> str:
        return "a value that torch.amp.GradScaler decides by"

    def prepare(self, executor: Executor) -> signature.Runner:
        return lambda tensors, numbers: tensors[0].item()


class AgreedCall:
    """A `signature.WorkerCall` that answers with its rank; a digest of its input, the same where all bits are; and the
    input itself on the CPU where that is small, or this is rank `first`. `what`: how the program reads it."""

    keeps: tuple[int, ...] | None = ()
    mutates: tuple[int, ...] = ()

    def __init__(self, what: str, first: int) -> None:
        self.what = what
        self.first = first

    def name(self) -> str:
        return f"{self.what} under agreed_values"

    def prepare(self, executor: Executor) -> signature.Runner:
        def run(tensors: Sequence[torch.Tensor], numbers: Sequence[Scalar]) -> tuple[int, bytes, torch.Tensor | None]:
            value = tensors[0].detach().resolve_conj().resolve_neg().cpu().clone(memory_format=torch.contiguous_format)
            bits = value
            if (value.dtype.is_floating_point or value.dtype.is_complex) and value.itemsize > 1:
                bits = torch.where(value.isnan(), torch.full_like(value, torch.nan), value)
            digest = hashlib.blake2b(ctypes.string_at(bits.data_ptr(), bits.nbytes)).digest()
            sent = value.numel() <= _SENT or executor.rank == self.first
            return executor.rank, digest, value if sent else None

        return run


_SENT = 64  # numbers that every rank sends, at most


def applier(function: Callable[..., Any], tree: PyTree) -> signature.Runner:
    """`function(*args, **kwargs)` for the args and kwargs of `tree` with their holes filled."""
    args, kwargs = tree
    if all(map(_flat, args)) and all(map(_flat, kwargs.values())) and all(map(_written_plainly, kwargs)):
        return signature.runner(function, args, kwargs)
    fill = filler(pytree.tree_map(signature.here, tree))

    def apply(tensors: Sequence[torch.Tensor], numbers: Sequence[Scalar]) -> object:
        args, kwargs = fill(tensors, numbers)
        return function(*args, **kwargs)

    return apply


def filler(tree: PyTree) -> signature.Runner:
    """Returns the function of (tensors, numbers) that gives `tree` with its holes filled."""
    leaves, spec = pytree.tree_flatten(tree)
    holes = [(place, leaf) for place, leaf in enumerate(leaves) if type(leaf) in (TensorHole, NumberHole)]

    def fill(tensors: Sequence[torch.Tensor], numbers: Sequence[Scalar]) -> object:
        values = list(leaves)
        for place, hole in holes:
            values[place] = tensors[hole] if type(hole) is TensorHole else numbers[hole]
        return pytree.tree_unflatten(values, spec)

    return fill


_FLAT = frozenset({TensorHole, NumberHole, int, float, bool, str, bytes, type(None), torch.dtype, torch.device})


def _flat(value: object) -> bool:
    return type(value) in _FLAT


def _written_plainly(name: str) -> bool:
    return name.isidentifier() and not keyword.iskeyword(name)


def _to_cpu(value: object) -> Any:
    return value.detach().cpu() if isinstance(value, torch.Tensor) else value


def _own_randomness() -> Any:
    """Random numbers drawn in here are drawn again later: this rank must not get ahead of the others."""
    device = torch.accelerator.current_accelerator()
    if device is None or not torch.get_device_module(device).is_initialized():
        return torch.random.fork_rng(devices=[])
    return torch.random.fork_rng(devices=[torch.accelerator.current_device_index()], device_type=device.type)
