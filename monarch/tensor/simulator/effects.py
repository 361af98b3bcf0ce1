"""The effects of a call on inputs of which only metadata is known: new tensors, views, changes. Nothing is computed.

Operations are asked on fake tensors, once for each metadata of their inputs; remote functions have been asked when they
were issued (`FunctionCall.outcome`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from monarch.tensor import generators, metadata, patterns, propagation
from monarch.tensor.controller import rng_draws
from monarch.tensor.controller.distribute import ShardCall
from monarch.tensor.controller.issued import RepeatedConstant
from monarch.tensor.metadata import Meta
from monarch.tensor.signature import NumberHole, OpCall
from monarch.tensor.worker.collectives import ReduceTensor, shape_of
from monarch.tensor.worker.function_call import FunctionCall
from monarch.tensor.worker.random_numbers import RandomCall
from monarch.tensor.worker.ranks import Coordinate

if TYPE_CHECKING:
    from torch.utils._pytree import PyTree

    from monarch.tensor.signature import Scalar, WorkerCall

KNOWN = 1 << 13  # calls whose effect is remembered; beyond it all are forgotten


class Effect:
    """`made`: what each new reference is, as (metadata, home); home is -1 for memory of its own, the place of the
    input whose memory it shares, or `-2 - k` for that of the k-th of `made`. `writes`: places of inputs that it
    changes; `changed`: inputs with other metadata after it; `moved`: inputs in other memory after it, each with the
    input whose memory that is, or -1."""

    __slots__ = ("changed", "made", "moved", "writes")

    def __init__(
        self,
        made: Sequence[tuple[Meta | None, int]],
        writes: tuple[int, ...] = (),
        changed: Sequence[tuple[int, Meta]] = (),
        moved: Sequence[tuple[int, int]] = (),
    ) -> None:
        self.made = tuple(made)
        self.writes = writes
        self.changed = tuple(changed)
        self.moved = tuple(moved)

    @property
    def is_view(self) -> bool:
        """True if it does nothing but show memory that was there in another way."""
        return bool(self.made) and not self.writes and not self.moved and all(home >= 0 for _, home in self.made)


class Effects:
    """A memory of what calls give, by the identity of the call and of its inputs' metadata, both of which are kept
    meanwhile."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], tuple[Effect, Any]] = {}

    def of(self, call: WorkerCall, inputs: Sequence[Meta | None], numbers: Sequence[Scalar], peers: int = 1) -> Effect:
        """The effect of `call` with tensors `inputs`. `peers`: how many ranks take part in it together."""
        key = (id(call), peers, *map(id, inputs))
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= KNOWN:
                self._known.clear()
            known = self._known[key] = (_effect(call, inputs, numbers, peers), (call, inputs))
        return known[0]


def _effect(call: Any, inputs: Sequence[Meta | None], numbers: Sequence[Scalar], peers: int) -> Effect:
    kind = type(call)
    if kind is OpCall:
        return _operation(call, inputs, numbers)
    if kind is FunctionCall:
        made = [(leaf.meta, leaf.view) for leaf in call.outcome.fresh] if call.outcome is not None else []
        return Effect(made, call.mutates)
    if kind is ReduceTensor:
        return _reduction(call, inputs, peers)
    if kind is Coordinate:
        return Effect([(metadata.contiguous((), torch.int64, "cpu"), -1)])
    if kind is RandomCall:
        return Effect([(metadata.contiguous((size,), torch.uint8, "cpu"), -1) for size in call.sizes], call.mutates)
    if kind is ShardCall:
        return Effect([(call.meta, -1)])
    if kind is RepeatedConstant:
        return Effect([(metadata.of(call.value), -1)])
    return Effect([(None, -1)] * (1 if call.keeps is None else len(call.keeps)), call.mutates)


def _operation(call: OpCall, inputs: Sequence[Meta | None], numbers: Sequence[Scalar]) -> Effect:
    metas = [meta for meta in inputs if meta is not None]
    if len(metas) < len(inputs):  # of something that is not known itself
        return Effect([(None, -1)] * (1 if call.keeps is None else len(call.keeps)), call.mutates)
    args = [_numbered(arg, numbers) for arg in call.args]
    kwargs = {name: _numbered(value, numbers) for name, value in call.kwargs.items()}
    before = torch.get_default_dtype()
    torch.set_default_dtype(call.default or torch.float32)
    try:
        outcome = propagation.propagate(_overload(call.target), args, kwargs, metas)
    finally:
        torch.set_default_dtype(before)
    made = [(leaf.meta, leaf.view) for leaf in outcome.fresh]
    return Effect(made, outcome.mutates, outcome.changed, outcome.moved)


def _reduction(call: ReduceTensor, inputs: Sequence[Meta | None], peers: int) -> Effect:
    if call._inplace or call._has_out:
        return Effect([], call.mutates)
    made = []
    for shape, dtype, device in call._expected:
        whole = metadata.contiguous(shape, dtype, device)
        made.append((metadata.contiguous(shape_of(whole, call._reduction, call._scatter, peers), dtype, device), -1))
    return Effect(made)


def _numbered(value: Any, numbers: Sequence[Scalar]) -> object:
    """Returns `value` with numbers in the place of its NumberHoles."""
    kind = type(value)
    if kind is NumberHole:
        return numbers[value]
    if kind in (list, tuple):
        return kind(_numbered(item, numbers) for item in value)
    return value


def _overload(name: str) -> Any:
    if (inner := generators.drawn_op(name)) is not None:
        return rng_draws.Drawing(_overload(inner))
    namespace, packet, overload = name.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), overload)


# --- functions that are run for what they give ------------------------------------------------------------------


class _Snapshot:
    """Stand-ins for tensors of which only metadata and memory are known, in the form that `patterns` takes."""

    def __init__(self, meta: Meta, storage: object) -> None:
        self._record = self
        self.meta = meta
        self.storage = storage


def described(call: FunctionCall, inputs: Sequence[tuple[Meta, object]]) -> patterns.SentOutcome:
    """Returns what the function of `call` gives for inputs of (metadata, memory): runs it here, on fake tensors.

    Raises what it raises; those of torch's fake tensors where it looks at values.
    """
    found: patterns.SentOutcome = _on_fakes(
        call, inputs, lambda result, fakes, before: patterns.to_send(result, fakes, patterns.written(fakes, before))
    )
    return found


def returned(call: FunctionCall, inputs: Sequence[tuple[Meta, object]]) -> PyTree:
    """Returns what the function returns, with metadata in place of its tensors. Raises as `described`."""
    return _on_fakes(
        call, inputs, lambda result, fakes, before: pytree.tree_map_only(torch.Tensor, metadata.of, result)
    )


def _on_fakes(call: FunctionCall, inputs: Sequence[tuple[Meta, object]], look: Callable[..., object]) -> PyTree:
    caller = call.caller()
    stands = [_Snapshot(meta, storage) for meta, storage in inputs]
    with propagation.propagating, _disable_current_modes(), propagation.fake_mode():
        fakes = patterns._fakes(stands)
        before = [fake._version for fake in fakes]
        patterns._inside.propagating = True
        try:
            result = caller(fakes, ())
        finally:
            patterns._inside.propagating = False
        return look(result, fakes, before)


def zeros(meta: Meta | None) -> torch.Tensor:
    """A local tensor of that metadata on the CPU, as a fetch gives one. RuntimeError when it is not known."""
    if meta is None:
        raise RuntimeError("a simulated mesh does not know this tensor's shape and dtype, so it cannot make one up")
    with _disable_current_modes():
        made = torch.zeros(-(-meta.nbytes // meta.dtype.itemsize), dtype=meta.dtype)
        made = torch.as_strided(made, meta.shape, meta.stride, meta.offset)
        return metadata.mark(made, meta.deferred) if meta.deferred else made


__all__ = ["Effect", "Effects", "described", "returned", "zeros"]
