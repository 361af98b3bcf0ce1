"""The common part of `compile` and `function`: a call that is recorded while it runs, and replays of it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch.utils import _pytree as pytree

from monarch.tensor.controller.tensor import Tensor
from monarch.tensor.recording.call_arguments import Arguments, aliased, reshaped
from monarch.tensor.recording.recorded_trace import RecordedTrace
from monarch.tensor.recording.recorder import CommandRecorder

if TYPE_CHECKING:
    from torch.utils._pytree import PyTree, TreeSpec

TRACES = 64  # recordings of one function; the one unused for longest is forgotten then


class RecordedCall:
    """One call of `function`, noted by `noted` while it runs on stand-ins (`formals`) of its arguments: `made` are the
    tensors that it made and returned. `check` is given these before they lose their graph of derivatives. With `give`,
    arguments whose shape or memory it changed have the new one."""

    __slots__ = ("formals", "made", "plan", "spec")

    def __init__(
        self, noted: CommandRecorder, function: Callable[..., PyTree], arguments: Arguments, give: bool,
        check: Callable[[list[Tensor]], None] | None = None,
    ) -> None:  # fmt: skip
        self.formals = aliased(arguments.tensors)
        with noted:
            value = arguments.call(function, self.formals)
            self.plan, self.spec, made = results_of(value, self.formals, arguments.tensors)
            if check is not None:
                check(made)
            self.made = [without_graph(tensor) for tensor in made]
        del value
        reshaped(noted, self.formals, arguments, give)


class Replay:
    """A recording of a Run, and how to put together what a call returns."""

    __slots__ = ("plan", "spec", "trace")

    def __init__(self, trace: RecordedTrace, run: RecordedCall) -> None:
        self.trace = trace
        self.plan = run.plan
        self.spec = run.spec

    def fits(self, tensors: Sequence[Tensor]) -> bool:
        """True if what the recording took as constant is as it was, and `tensors` may be its arguments."""
        return True

    def call(self, arguments: Arguments) -> PyTree:
        """Returns what the function would return, after one command for each mesh and stream in turn."""
        made = self.trace.replay(arguments.tensors)
        return put_together(self.plan, self.spec, arguments.tensors, made)


def results_of(
    value: object, given: Sequence[Tensor], formals: Sequence[Tensor]
) -> tuple[list[object], TreeSpec, list[Tensor]]:
    """The leaves of what a function returned, its tree, and the tensors among them that are no arguments. In the leaves
    those are `_Made` and arguments `_Given`, by number."""
    leaves, spec = pytree.tree_flatten(value)
    arguments = {id(tensor): at for at, tensor in reversed([*enumerate(given), *enumerate(formals)])}
    made: dict[int, Tensor] = {}
    plan: list[object] = []
    for leaf in leaves:
        if type(leaf) is not Tensor:
            plan.append(leaf)
        elif id(leaf) in arguments:
            plan.append(_Given(arguments[id(leaf)]))
        else:
            number = list(made).index(id(leaf)) if id(leaf) in made else len(made)
            made[id(leaf)] = leaf
            plan.append(_Made(number))
    return plan, spec, list(made.values())


def without_graph(tensor: Tensor) -> Tensor:
    """The same memory without a graph of derivatives, as another tensor."""
    with tensor._record.place.stream.activate(), torch.no_grad():
        detached: Tensor = tensor.detach()
    return detached


class _Given(int):
    __slots__ = ()


class _Made(int):
    __slots__ = ()


def put_together(plan: Sequence[object], spec: TreeSpec, given: Sequence[Tensor], made: Sequence[Tensor]) -> PyTree:
    """Returns what a call returns: the tree with these arguments and tensors."""
    if spec is None:
        return made[0]
    leaves = [given[leaf] if type(leaf) is _Given else made[leaf] if type(leaf) is _Made else leaf for leaf in plan]
    return pytree.tree_unflatten(leaves, spec)


def label_of(function: object) -> str:
    """Returns its name as errors show it."""
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__qualname__", None) or type(function).__qualname__)
