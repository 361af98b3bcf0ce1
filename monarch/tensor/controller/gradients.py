"""Derivatives one at a time: the backward pass as an iterator, and functions that bring their own derivative.

`backward()` runs all of a graph at once. Here the nodes of the graph are called one by one, and only those that lead to
the next gradient asked for, so that a program can do something with one gradient (reduce it, step an optimizer) before
the next is worked out. Works on any tensors that torch differentiates, distributed or not: it uses what
`torch.autograd.graph` shows of the graph.
"""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.utils import _pytree as pytree

from monarch._devices import torch_versions
from monarch.tensor.controller.activation import active_mesh, no_mesh
from monarch.tensor.controller.stream import Stream, get_active_stream
from monarch.tensor.controller.tensor import Tensor

if TYPE_CHECKING:
    from torch.autograd.function import FunctionCtx
    from torch.autograd.graph import Node
    from torch.utils._pytree import PyTree, TreeSpec

    from monarch.tensor.controller.mesh import DeviceMesh

Root: TypeAlias = torch.Tensor | GradientEdge
Restorer: TypeAlias = Callable[[Any], contextlib.AbstractContextManager[Any]]


class _Edge(NamedTuple):
    """The input of a node for the gradient of the output `number` of the operation that it differentiates."""

    node: Node
    number: int


def _edge_of(root: Root) -> _Edge | None:
    """None for a tensor that no gradient leads to."""
    if isinstance(root, torch.Tensor):
        if not root.requires_grad:
            return None
        with _place_of([root]):  # of a leaf it is found by an operation
            root = get_gradient_edge(root)
    return _Edge(root.node, root.output_nr)


# --- the graph ---------------------------------------------------------------------------------------------------


class _Graph:
    """The nodes that are reached from some edges, in an order in which each comes behind all that feed it."""

    def __init__(self, roots: Sequence[_Edge]) -> None:
        order: list[Node] = []  # each behind all that it feeds
        seen: set[Node] = set()
        for root in roots:
            stack = [(root.node, iter(_next(root.node)))] if root.node not in seen else []
            seen.add(root.node)
            while stack:
                node, rest = stack[-1]
                for edge in rest:
                    if edge.node not in seen:
                        seen.add(edge.node)
                        stack.append((edge.node, iter(_next(edge.node))))
                        break
                else:
                    order.append(node)
                    stack.pop()
        self.places = {node: place for place, node in enumerate(reversed(order))}
        self.feeders: dict[_Edge, list[Node]] = {}
        self.above: dict[Node, list[Node]] = {}  # the nodes that feed a node
        for node in self.places:
            for edge in _next(node):
                self.feeders.setdefault(edge, []).append(node)
                self.above.setdefault(edge.node, []).append(node)

    def leading_to(self, edge: _Edge, done: set[Node]) -> list[Node]:
        """The nodes that have to run, in order, before the gradient at `edge` is complete, but for those in `done`."""
        wanted: set[Node] = set()
        open_ = [node for node in self.feeders.get(edge, ()) if node not in done]
        while open_:
            node = open_.pop()
            if node not in wanted:
                wanted.add(node)
                open_.extend(parent for parent in self.above.get(node, ()) if parent not in done)
        return sorted(wanted, key=self.places.__getitem__)

    def place_of(self, edge: _Edge) -> float:
        """After how many nodes its gradient is complete; infinity for what is not reached."""
        feeders = self.feeders.get(edge)
        if feeders:
            return max(self.places[node] for node in feeders) + 1.0
        return 0.0 if edge.node in self.places else float("inf")


def _next(node: Node) -> list[_Edge]:
    return [_Edge(function, number) for function, number in node.next_functions if function is not None]


def gradient_execution_order(roots: Sequence[Root], with_respect_to: Sequence[Root]) -> list[int]:
    """The indices of `with_respect_to` in the order in which a backward pass from `roots` completes their gradients:
    those nearest to the roots first. Those that no gradient reaches come last."""
    starts = [edge for root in roots if (edge := _edge_of(root)) is not None]
    graph = _Graph(starts)
    reached = set(starts)
    keys = []
    for index, item in enumerate(with_respect_to):
        edge = _edge_of(item)
        if edge is None or (edge not in graph.feeders and edge not in reached):
            keys.append((float("inf"), 0, index))
        else:
            # Of gradients that one node gives, that of a tensor which was computed counts as nearer than a leaf's.
            keys.append((graph.place_of(edge), 0 if edge.node.next_functions else 1, index))
    return [index for _, _, index in sorted(keys)]


# --- the generator -----------------------------------------------------------------------------------------------


class GradientGenerator:
    """An iterator over the gradients of `roots` with respect to each of `with_respect_to`, in that order.

    `next()` runs as much of the backward pass as the next gradient needs, and never a node twice. A gradient that no
    root reaches is None. `roots` and `with_respect_to` are tensors or GradientEdges
    (`torch.autograd.graph.get_gradient_edge`); `grad_roots` are the gradients to begin with, in the order of the roots:
    ones where there is none or None (of a GradientEdge there has to be one).

    Distributed tensors: every node runs with the mesh and the stream of the tensors it works on active, whatever is
    active where `next()` is called. `context_restorer`: in place of that, a function of the node that gives the context
    for it.

    The graph's saved tensors are kept; hooks of tensors and nodes do not run, and nothing is added to any `.grad`.
    RuntimeError when the graph was freed by an earlier `backward()`.
    """

    def __init__(
        self,
        roots: Sequence[Root],
        with_respect_to: Sequence[Root],
        grad_roots: Sequence[torch.Tensor | None] = (),
        context_restorer: Restorer | None = None,
    ) -> None:
        if len(grad_roots) > len(roots):
            raise ValueError(f"{len(grad_roots)} gradients were given for {len(roots)} roots")
        self._restorer = context_restorer
        self._wanted = [_edge_of(item) for item in with_respect_to]
        self._targets = set(self._wanted)
        self._gradients: dict[_Edge, torch.Tensor] = {}
        self._done: set[Node] = set()
        starts: list[_Edge] = []
        for index, root in enumerate(roots):
            edge = _edge_of(root)
            if edge is None:
                raise RuntimeError(f"root {index} does not require grad, so nothing can be derived from it")
            starts.append(edge)
            given = grad_roots[index] if index < len(grad_roots) else None
            self._add(edge, given if given is not None else _ones(root))
        self._graph = _Graph(starts)
        self._index = 0

    def __iter__(self) -> GradientGenerator:
        return self

    def __len__(self) -> int:
        return len(self._wanted) - self._index

    def __next__(self) -> torch.Tensor | None:
        if self._index >= len(self._wanted):
            raise StopIteration
        edge = self._wanted[self._index]
        if edge is None:
            self._index += 1
            return None
        with torch.no_grad():
            for node in self._graph.leading_to(edge, self._done):
                self._run(node)
                self._done.add(node)
        self._index += 1
        return self._gradients.get(edge)

    def _add(self, edge: _Edge, gradient: torch.Tensor) -> None:
        known = self._gradients.get(edge)
        if known is not None:
            with _place_of([known, gradient]), torch.no_grad():
                gradient = known + gradient
        self._gradients[edge] = gradient

    def _run(self, node: Node) -> None:
        places = self._graph.places
        edges = [_Edge(node, number) for number in range(len(node._input_metadata))]
        gradients = [self._gradients.get(edge) for edge in edges]
        if all(gradient is None for gradient in gradients):
            return
        with self._restorer(node) if self._restorer is not None else _place_of(gradients):
            for (following, number), result in zip(node.next_functions, _call(node, gradients, places), strict=False):
                if following is not None and result is not None:
                    fitted = _fitted(result, following._input_metadata[number])
                    self._add(_Edge(following, number), fitted)
        for edge in edges:
            if edge not in self._targets:
                self._gradients.pop(edge, None)


def _ones(root: Root) -> torch.Tensor:
    if not isinstance(root, torch.Tensor):
        raise RuntimeError("the gradient of a GradientEdge has to be given in grad_roots: its shape is not known here")
    with _place_of([root]), torch.no_grad():
        return torch.ones_like(root)


def _call(
    node: Node, gradients: Sequence[torch.Tensor | None], places: dict[Node, int]
) -> Sequence[torch.Tensor | None]:
    """Returns what the node gives, one for each of its next functions; None where there is no gradient."""
    if callable(node):
        found = node(*gradients)
        return found if isinstance(found, tuple) else (found,)
    # A torch.autograd.Function written in Python: only autograd's engine knows how to call it. It runs this node alone
    # when it is asked for the gradient at that following node which comes first, because no other leads there.
    given = [
        (GradientEdge(node, number), gradient) for number, gradient in enumerate(gradients) if gradient is not None
    ]
    first = min(_next(node), key=lambda edge: places[edge.node])
    results: list[object] = []
    hook = node.register_hook(lambda made, _given: results.extend(made))
    try:
        torch.autograd.grad(
            [edge for edge, _ in given],
            [GradientEdge(*first)],
            [gradient for _, gradient in given],
            retain_graph=True,
            allow_unused=True,
        )
    finally:
        hook.remove()
    return results


def _fitted(gradient: torch.Tensor, about: Any) -> torch.Tensor:
    """Fits a gradient as autograd's engine does between nodes: summed over what the operation had broadcast, in the
    dtype of the tensor."""
    shape = tuple(about.shape)
    if tuple(gradient.shape) != shape:
        gradient = gradient.sum_to_size(shape)
    if gradient.dtype != about.dtype:
        gradient = gradient.real if gradient.is_complex() and not about.dtype.is_complex else gradient
        gradient = gradient.to(about.dtype)
    return gradient


@contextlib.contextmanager
def _place_of(tensors: Sequence[object]) -> Iterator[None]:
    """The mesh and stream of the first distributed tensor are active; without one no mesh is."""
    first = next((tensor for tensor in tensors if isinstance(tensor, Tensor)), None)
    if first is None:
        with no_mesh.activate():
            yield
        return
    with first.mesh.activate(), first.stream.activate():
        yield


def grad_generator(
    roots: Root | Sequence[Root] = (),
    with_respect_to: Sequence[Root] = (),
    grad_roots: Sequence[torch.Tensor | None] = (),
) -> GradientGenerator:
    """The gradients of `roots` with respect to each of `with_respect_to`, one at a time: see GradientGenerator."""
    if isinstance(roots, torch.Tensor | GradientEdge):
        roots = [roots]
    return GradientGenerator(roots, with_respect_to, grad_roots)


class GradGenerator:
    """The same for trees (nested lists, tuples, dicts) of tensors: `root()` says where to begin, `grad()` what is
    wanted.

    Iterating gives one tree of gradients for each `grad()`, in the order of the calls; leaves that are no tensors that
    require grad, and tensors that no root reaches, are None.
    """

    def __init__(self) -> None:
        self._roots: list[Root] = []
        self._grad_roots: list[torch.Tensor | None] = []
        self._trees: list[tuple[int, TreeSpec]] = []
        self._wanted: list[Any] = []

    def root(self, tensor: Root, grad: torch.Tensor | None = None) -> None:
        """Begins at `tensor`, with `grad` (ones without)."""
        self._roots.append(tensor)
        self._grad_roots.append(grad)

    def grad(self, tree: PyTree) -> None:
        """Asks for the gradients of the tensors in `tree`."""
        leaves, spec = pytree.tree_flatten(tree, is_leaf=lambda value: isinstance(value, GradientEdge))
        self._trees.append((len(leaves), spec))
        self._wanted += [leaf if isinstance(leaf, torch.Tensor | GradientEdge) else None for leaf in leaves]

    def __iter__(self) -> Iterator[Any]:
        generator = GradientGenerator(
            self._roots, [item for item in self._wanted if item is not None], self._grad_roots
        )
        rest = iter(self._wanted)
        for count, spec in self._trees:
            yield pytree.tree_unflatten([None if next(rest) is None else next(generator) for _ in range(count)], spec)


# --- functions with their own derivative ------------------------------------------------------------------------


def grad_function(fn: Callable[..., PyTree]) -> Callable[..., PyTree]:
    """Makes `fn(*args) -> (result, backward)` a differentiable function of its arguments that returns `result`.

    `backward(*gradients of the tensors in result)` returns a gradient, or None, for each argument; one that is not a
    tuple for the only argument. Arguments and result may be trees of tensors and other values; the gradient of an
    argument that is a tree is such a tree. Tensors that `backward` uses from around it are saved with the graph, as by
    `ctx.save_for_backward`, so that it holds no cycle and notices when they are changed in place. `fn` runs without
    grad; `backward` with the mesh and stream that were active when `fn` ran.
    """

    @functools.wraps(fn)
    def differentiable(*args: object) -> Any:
        leaves, spec = pytree.tree_flatten(args)
        call = _GradientCall(fn, spec, len(args))
        outputs = _Differentiable.apply(call, *leaves)
        return call.result(outputs)

    return differentiable


class _GradientCall:
    """One call of a function made by `grad_function`; lives as long as its node."""

    def __init__(self, fn: Callable[..., PyTree], spec: TreeSpec, count: int) -> None:
        self.fn = fn
        self.spec = spec
        self.count = count
        self.template: list[Any] = []
        self.structure: Any = None
        self.backward: Any = None
        self.place: tuple[DeviceMesh | None, Stream] = (active_mesh(), get_active_stream())

    def result(self, outputs: Sequence[torch.Tensor]) -> PyTree:
        rest = iter(outputs)
        leaves = [next(rest) if leaf is _TENSOR else leaf for leaf in self.template]
        return pytree.tree_unflatten(leaves, self.structure)

    @contextlib.contextmanager
    def restored(self) -> Iterator[None]:
        mesh, stream = self.place
        with (mesh if mesh is not None else no_mesh).activate(), stream.activate():
            yield


_TENSOR = object()


class _Differentiable(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, call: _GradientCall, *leaves: Any) -> tuple[torch.Tensor, ...]:
        args = pytree.tree_unflatten(list(leaves), call.spec)
        made = call.fn(*args)
        if not isinstance(made, tuple) or len(made) != 2 or not callable(made[1]):
            raise TypeError(
                f"a function given to grad_function returns (result, backward), and {call.fn!r} returned {made!r}"
            )
        result, backward = made
        found, call.structure = pytree.tree_flatten(result)
        call.template = [_TENSOR if isinstance(leaf, torch.Tensor) else leaf for leaf in found]
        ctx.call = call
        saved, call.backward = _without_tensors(backward)
        ctx.save_for_backward(*saved)
        # An argument that is given back becomes another tensor, as autograd wants it.
        given = {id(leaf) for leaf in leaves}
        tensors = [leaf for leaf in found if isinstance(leaf, torch.Tensor)]
        return tuple(tensor.view_as(tensor) if id(tensor) in given else tensor for tensor in tensors)

    @staticmethod
    def backward(ctx: FunctionCtx, *gradients: Any) -> Any:
        call = ctx.call
        with call.restored():
            found = call.backward(ctx.saved_tensors)(*gradients)
        if not isinstance(found, tuple):
            found = (found,)
        if len(found) != call.count:
            raise RuntimeError(
                f"the backward of {call.fn!r} returned {len(found)} gradients for {call.count} arguments: one for "
                f"each, None where there is none"
            )
        flat: list[object] = []
        for gradient, spec in zip(found, torch_versions.children(call.spec), strict=True):
            if gradient is None:
                flat += [None] * spec.num_leaves
            else:
                flat += pytree.tree_leaves(gradient, is_leaf=lambda leaf: leaf is None)
        return (None, *flat)


def _without_tensors(function: Any) -> tuple[list[torch.Tensor], Callable[[Sequence[torch.Tensor]], object]]:
    """The tensors in the cells and defaults of a Python function, and what makes the function again when given them."""
    if not isinstance(function, types.FunctionType):
        return [], lambda _saved: function
    saved: list[torch.Tensor] = []

    def lift(value: object) -> Any:
        leaves, spec = pytree.tree_flatten(value)
        if not any(isinstance(leaf, torch.Tensor) for leaf in leaves):
            return None
        places = []
        for leaf in leaves:
            if isinstance(leaf, torch.Tensor):
                places.append((len(saved), None))
                saved.append(leaf)
            else:
                places.append((-1, leaf))
        return spec, places

    cells = [_content(cell, lift) for cell in function.__closure__ or ()]
    defaults = lift(function.__defaults__) if function.__defaults__ else None
    code, names, name, plain = function.__code__, function.__globals__, function.__name__, function.__defaults__
    keywords = function.__kwdefaults__

    def again(tensors: Sequence[Tensor]) -> Any:
        def put(lifted: Any) -> Any:
            spec, places = lifted
            return pytree.tree_unflatten([tensors[index] if index >= 0 else leaf for index, leaf in places], spec)

        closure = tuple(cell if lifted is None else types.CellType(put(lifted)) for cell, lifted in cells)
        made = types.FunctionType(code, names, name, plain if defaults is None else put(defaults), closure)
        made.__kwdefaults__ = keywords
        return made

    return saved, again


def _content(cell: Any, lift: Callable[[object], object]) -> tuple[Any, Any]:
    """(the cell, None), or (None, its lifted content) when there are tensors in it: then the cell itself is let go."""
    try:
        lifted = lift(cell.cell_contents)
    except ValueError:  # empty
        return cell, None
    return (cell, None) if lifted is None else (None, lifted)
