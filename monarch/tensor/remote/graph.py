"""Autograd through a remote function: its graph stays in the workers between the forward and the backward pass.

The program's graph has one node for the whole function; its derivative runs the workers' graphs. They go when that node does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from monarch.tensor.controller.tensor import Tensor
from monarch.tensor.metadata import Meta
from monarch.tensor.remote.opaque_ref import OpaqueRef
from monarch.tensor.remote.remote_function import Remote

if TYPE_CHECKING:
    from torch.autograd.function import FunctionCtx
    from torch.utils._pytree import PyTree

    from monarch.tensor.signature import Args, Kwargs


class Graph:
    """The needs of the derivative of one forward pass, in a worker."""

    __slots__ = ("inputs", "outputs")

    def __init__(self, inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> None:
        self.inputs = inputs
        self.outputs = outputs


def forward(
    run: Callable[..., PyTree], args: Args, kwargs: Kwargs, wanted: Sequence[bool], extra: Sequence[torch.Tensor]
) -> PyTree:
    """Returns, in a worker, what `run(*args, **kwargs)` gives and a reference to its Graph.

    `wanted`: for each tensor among the arguments whether its derivative will be asked for; `extra`: tensors of `run`
    itself whose derivatives come after those.
    """
    leaves, spec = pytree.tree_flatten((args, kwargs))
    flags = iter(wanted)
    inputs = []
    for place, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor):
            leaves[place] = own = leaf.detach()
            if next(flags):
                inputs.append(own.requires_grad_())
    args, kwargs = pytree.tree_unflatten(leaves, spec)
    result = run(*args, **kwargs)
    outputs = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
    return result, OpaqueRef(Graph([*inputs, *extra], outputs))


def backward(ref: OpaqueRef, grads: list[torch.Tensor | None]) -> tuple[torch.Tensor, ...]:
    """Returns, in a worker, the derivatives of a Graph's inputs; zeros for what the outputs do not depend on."""
    graph: Graph = ref.value
    pairs = [
        (output, grad)
        for output, grad in zip(graph.outputs, grads, strict=True)
        if grad is not None and output.requires_grad
    ]
    if not pairs:
        return tuple(torch.zeros_like(tensor) for tensor in graph.inputs)
    found = torch.autograd.grad(
        [output for output, _ in pairs],
        graph.inputs,
        [grad for _, grad in pairs],
        retain_graph=True,
        allow_unused=True,
    )
    return tuple(
        grad if grad is not None else torch.zeros_like(tensor) for grad, tensor in zip(found, graph.inputs, strict=True)
    )


class _Like:
    """Propagates `backward`: derivatives look like what they are of."""

    pure = True

    def __init__(self, metas: tuple[Meta, ...]) -> None:
        self._metas = metas

    def __call__(self, ref: OpaqueRef, grads: Any) -> PyTree:
        return tuple(
            torch.empty_strided(meta.shape, meta.stride, dtype=meta.dtype, device=meta.device) for meta in self._metas
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Like) and self._metas == other._metas

    def __hash__(self) -> int:
        return hash(self._metas)


def apply(run: Callable[..., PyTree], args: Args, kwargs: Kwargs, parameters: Sequence[Tensor]) -> PyTree:
    """Issues a forward pass and gives its result, with a graph behind it for the arguments and `parameters` that
    require grad.

    `run(args, kwargs, wanted)` issues `forward` and returns what that does.
    """
    tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if type(leaf) is Tensor]
    grad = torch.is_grad_enabled()
    wanted = tuple(grad and tensor.requires_grad for tensor in tensors)
    differentiable = [tensor for tensor, want in zip(tensors, wanted, strict=True) if want]
    differentiable += [parameter for parameter in parameters if grad and parameter.requires_grad]
    flat: list[Any] = []

    def issue() -> PyTree:
        with torch.no_grad():
            result, ref = run(args, kwargs, wanted)
        values, structure = pytree.tree_flatten(result)
        flat.extend((values, structure))
        return values, ref

    if not differentiable:
        return pytree.tree_unflatten(issue()[0], flat[1])
    outputs = iter(_Node.apply(issue, *differentiable))
    values = [next(outputs) if type(value) is Tensor else value for value in flat[0]]
    return pytree.tree_unflatten(values, flat[1])


class _Node(torch.autograd.Function):
    """One node of the program's graph for all of a remote forward pass."""

    @staticmethod
    def forward(ctx: FunctionCtx, issue: Callable[[], PyTree], *inputs: Tensor) -> tuple[Tensor, ...]:
        values, ref = issue()
        ctx.ref = ref
        ctx.metas = tuple(tensor._record.meta for tensor in inputs)
        outputs = tuple(value for value in values if type(value) is Tensor)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(
            *(value for value in outputs if not (value.is_floating_point() or value.is_complex()))
        )
        return outputs

    @staticmethod
    def backward(ctx: FunctionCtx, *grads: Any) -> tuple[torch.Tensor | None, ...]:
        found = Remote(backward, _Like(ctx.metas))(ctx.ref, list(grads))
        return None, *found
