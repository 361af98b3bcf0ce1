"""`monarch.function`: a function of distributed tensors, such as a training step, that costs one small command a call.

The first call with given metadata runs as ever, the second is recorded while it runs, later ones are replays. What cannot be
replayed truly runs operation by operation, and the program is told once.
"""

from __future__ import annotations

import functools
import inspect
import threading
import types
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any

import torch

from monarch.tensor.controller.records import recorder
from monarch.tensor.controller.tensor import Tensor
from monarch.tensor.recording.arguments import Arguments
from monarch.tensor.recording.calls import TRACES, Replay, Run, label_of, put_together, results_of, without_graph
from monarch.tensor.recording.recorder import Held, Recorder, Watcher
from monarch.tensor.recording.trace import Trace, Unrecordable

TRIES = 8  # recordings that went stale or did not fit one after the other, until recording is given up


def function(fn: Callable[..., Any]) -> Function:
    """`fn`, to be recorded and replayed. Also a decorator, of methods too.

    Calls are told apart by the values of arguments that are no tensors (they have to be hashable), metadata, aliasing,
    mesh, stream and requires_grad of those that are, the active mesh and stream, grad mode, autocast, and the
    `training` flag of the modules that `fn` names. The first call of a kind runs operation by operation (optimizers
    make their state then), the second does so too and is recorded, later ones send one command for each mesh and stream
    in turn. Whole training steps can be recorded: forward, backward, clipping, optimizers that change parameters in
    place (Adam and AdamW with fused=True).

    As with CUDA graphs, Python runs only in the first two calls. Python values, such as a learning rate, stay as they
    were then: keep what changes in tensors, or call `retrace()`. Tensors that `fn` uses without being given them are
    read and changed in place by each call; gradients that it leaves in `.grad` are set again by each; other tensors
    that it leaves behind in objects have a new value after each call (and their memory is kept). Random operations draw
    new numbers. When a tensor that a recording reads is replaced by the program, it is recorded anew.

    Results are tensors of their own at each call, without a graph of derivatives; an argument that is returned is that
    argument. What makes a recording untrue (`.item()`, fetching, calls of actors, state that is replaced instead of
    changed) makes `fn` run operation by operation for good, with one RuntimeWarning that says what and why. When one
    operation fails in a worker, all results of that call fail, with the operation's name, and so is lost what the call
    changes in place. At most 64 recordings are kept.

    `monarch.tensor.compile` is stricter: it records the first call without running it, verifies recordings, has no
    derivatives and refuses what it cannot replay.
    """
    return Function(fn)


class _Variant(Replay):
    """With what it takes and leaves of gradients: (parameter, its gradient or None)."""

    __slots__ = ("needs", "sets")

    def __init__(self, trace: Trace, run: Run, needs: list[Any], sets: list[Any]) -> None:
        super().__init__(trace, run)
        self.needs = needs
        self.sets = sets

    def fits(self) -> bool:
        for weak, grad in self.needs:
            parameter = weak()
            if parameter is None or parameter.grad is not grad:
                return False
        return True

    def call(self, arguments: Arguments) -> Any:
        result = super().call(arguments)
        for weak, grad in self.sets:
            parameter = weak()
            if parameter is not None and parameter.grad is not grad:
                parameter.grad = grad
        return result


class _Kind:
    """What is known of calls of one key: parameters that were met, and traces for different states of their gradients."""

    __slots__ = ("met", "tries", "variants")

    def __init__(self, met: Iterable[Any]) -> None:
        self.met = [weakref.ref(tensor) for tensor in met]
        self.variants: list[_Variant] = []
        self.tries = 0


class Function:
    """What `function` returns: called as the function is."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        functools.update_wrapper(self, fn)
        self._function = fn
        self._label = label_of(fn)
        self._kinds: OrderedDict[Any, _Kind] = OrderedDict()
        self._modules = _modules_of(fn)
        self._lock = threading.Lock()
        self._given_up = ""

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __repr__(self) -> str:
        state = f"op by op: {self._given_up}" if self._given_up else f"{self.traces} traces"
        return f"<monarch.function {self._label}, {state}>"

    @property
    def traces(self) -> int:
        """How many recordings it has."""
        return sum(len(kind.variants) for kind in list(self._kinds.values()))

    def retrace(self) -> None:
        """Forgets all recordings, and that recording was given up: the next calls are as the first ones."""
        with self._lock:
            kinds, self._kinds = self._kinds, OrderedDict()
            self._given_up = ""
            self._modules = _modules_of(self._function)
        for kind in kinds.values():
            for variant in kind.variants:
                variant.trace.forget()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        here = recorder()
        if here is not None and not isinstance(here, Held):
            return self._function(*args, **kwargs)  # part of another recording
        if self._given_up:
            return self._plain(self._function(*args, **kwargs), (args, kwargs))
        try:
            arguments = Arguments(args, kwargs, tuple([module.training for module in self._modules]))
        except TypeError as exc:
            self._give_up(f"{exc}. Pass distributed tensors and values that can be hashed", 3)
            return self._plain(self._function(*args, **kwargs), (args, kwargs))
        with self._lock:
            kind = self._kinds.get(arguments.key)
            if kind is not None:
                self._kinds.move_to_end(arguments.key)
        if kind is not None:
            for variant in list(kind.variants):
                if variant.trace.stale:
                    kind.variants.remove(variant)
                    variant.trace.forget()
                elif variant.fits():
                    kind.tries = 0
                    return variant.call(arguments)
        if here is not None:
            return self._plain(self._function(*args, **kwargs), (args, kwargs))
        if kind is None:
            return self._first(arguments)
        return self._recorded(kind, arguments)

    # --- running

    def _first(self, arguments: Arguments) -> Any:
        with Watcher() as watcher:
            value = arguments.call(self._function, arguments.tensors)
        kind = _Kind(tensor for tensor, _ in watcher.grads.values())
        with self._lock:
            self._kinds[arguments.key] = kind
        self._make_room()
        return self._plain(value, arguments.tensors)

    def _recorded(self, kind: _Kind, arguments: Arguments) -> Any:
        kind.tries += 1
        noted = Recorder()
        for weak in kind.met:
            tensor = weak()
            if tensor is not None:
                noted.meet(tensor)
        run = Run(noted, self._function, arguments, True)
        result = put_together(run.plan, run.spec, arguments.tensors, run.made)
        try:
            kind.variants.insert(0, self._variant(noted, run))
        except Unrecordable as exc:
            if noted.problem or kind.tries >= 3:
                self._give_up(str(exc))
        if kind.tries >= TRIES:
            self._give_up("it uses or leaves behind different tensors in each call: change them in place")
        self._make_room()
        return result

    def _variant(self, noted: Recorder, run: Run) -> _Variant:
        given = {id(tensor) for tensor in run.formals}
        sets: list[Any] = []
        for tensor, before in noted.grads.values():
            if tensor.grad is before:
                continue
            if id(tensor) in given:
                noted.refuse("it leaves a gradient in an argument: return torch.autograd.grad(...) instead")
            sets.append((weakref.ref(tensor), tensor.grad))
        trace = Trace(self._label, noted, run.formals, run.made, keep=True)
        captures = trace.recording.captures
        needs = [
            (weakref.ref(tensor), before)
            for tensor, before in noted.grads.values()
            if id(tensor) not in given and (before is None or before._record.ref in captures)
        ]
        return _Variant(trace, run, needs, sets)

    def _plain(self, value: Any, given: Any) -> Any:
        """What a call operation by operation returns: as a replay would, without graphs."""
        arguments = [leaf for leaf in torch.utils._pytree.tree_leaves(given) if type(leaf) is Tensor]
        plan, spec, made = results_of(value, arguments, arguments)
        made = [without_graph(tensor) if tensor.requires_grad else tensor for tensor in made]
        return put_together(plan, spec, arguments, made)

    # --- bounds

    def _make_room(self) -> None:
        while len(self._kinds) > 1 and (len(self._kinds) > TRACES or self.traces > TRACES):
            with self._lock:
                kind = self._kinds.popitem(last=False)[1]
            for variant in kind.variants:
                variant.trace.forget()

    def _give_up(self, why: str, level: int = 4) -> None:
        if self._given_up:
            return
        self._given_up = why
        warnings.warn(
            f"monarch.function: {self._label} runs operation by operation from now on: {why}",
            RuntimeWarning,
            stacklevel=level,
        )


def _modules_of(fn: Any) -> list[torch.nn.Module]:
    """The modules that `fn` names: what it is a method of, variables of the functions around it, globals."""
    found: dict[int, torch.nn.Module] = {}
    fn = inspect.unwrap(fn)
    names: list[Any] = [fn, getattr(fn, "__self__", None)]
    fn = getattr(fn, "__func__", fn)
    if isinstance(fn, types.FunctionType):
        for cell in fn.__closure__ or ():
            try:
                names.append(cell.cell_contents)
            except ValueError:  # not set yet
                continue
        names += [fn.__globals__.get(name) for name in fn.__code__.co_names]
    for value in names:
        if isinstance(value, torch.nn.Module):
            found[id(value)] = value
    return list(found.values())
