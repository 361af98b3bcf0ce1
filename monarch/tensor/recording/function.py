"""`monarch.function` and `compile`: functions of distributed tensors, such as a training step, that cost one small command a
call.

The first call with given metadata runs as ever, the second is recorded while it runs, later ones are replays. A replay is
made only while everything that the recording took as constant is as it was (`guards`), but for learning rates and what
optimizers compute of their step counts, which are inputs (`rates`, `evolving`). What cannot be replayed truly runs
operation by operation, and the program is told once. `compile` is the same without guards: it records before it runs, and
refuses what it cannot replay.
"""

from __future__ import annotations

import functools
import inspect
import types
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from operator import attrgetter, call, is_
from typing import TYPE_CHECKING, Any

import torch

from monarch._linux.locks import Lock
from monarch.tensor.controller import misuse
from monarch.tensor.controller.activation import active_mesh, no_modes
from monarch.tensor.controller.derivations import KnownReads
from monarch.tensor.controller.records import recorder
from monarch.tensor.controller.stream import get_active_stream
from monarch.tensor.controller.tensor import Tensor
from monarch.tensor.recording.call_arguments import Arguments
from monarch.tensor.recording.calls import (
    TRACES,
    RecordedCall,
    Replay,
    label_of,
    put_together,
    results_of,
    without_graph,
)
from monarch.tensor.recording.guards import Change, Guards, watched
from monarch.tensor.recording.observed import ObservedCalls
from monarch.tensor.recording.outside import Generators
from monarch.tensor.recording.rates import confirmed
from monarch.tensor.recording.recorded_trace import RecordedTrace, Unrecordable, drop_leaked
from monarch.tensor.recording.recorder import CommandHolder, CommandRecorder, CommandWatcher, divergence

if TYPE_CHECKING:
    from torch.utils._pytree import PyTree

    from monarch.tensor.controller.derivations import KnownPart
    from monarch.tensor.signature import WorkerCall

# Recording is given up when it does not pay: after this many recordings one after the other. Four replays make up for one.
TRIES = 8
PAYS = 4
VARIANTS = 8  # recordings of calls of one kind, for different states of what they read; the oldest is forgotten then

_grad = attrgetter("grad")


def function(fn: Callable[..., PyTree]) -> Function:
    """`fn`, to be recorded and replayed. Also a decorator, of methods too.

    Calls are told apart by the values of arguments that are no tensors (they have to be hashable), metadata, aliasing,
    mesh, stream and requires_grad of those that are, the active mesh and stream, grad mode, autocast, default dtype,
    deterministic mode and the attention backends that are allowed. The first call of a kind runs operation by operation
    (optimizers make their state then), the second does so too and is recorded, later ones send one command for each
    mesh and stream in turn. Whole training steps can be recorded: forward, backward, clipping, torch's optimizers. What
    these compute of their step counts in Python is computed again for each replay.

    Python does not run in a replay, so each call compares what `fn` and the functions that it called read of variables
    around them, globals, attributes, containers and defaults: numbers, flags, strings, hooks, `training`, the values in
    `param_groups`, which tensor is where and whether it requires grad. What has changed is recorded anew (8 recordings
    of a kind are kept); values that come again are found again. A learning rate that changes before each call costs one
    recording more, once, with torch's optimizers, unless code in `fn` that is not theirs reads it too.
    Where recordings do not pay, because something changes again and again, `fn` runs operation by operation for good,
    and a RuntimeWarning names what changes. `fn` may not change Python values itself (a counter, a list, a scheduler
    inside), nor take values from outside (random numbers of Python, NumPy or torch in this process, clocks, files,
    queues): then, too, it runs operation by operation, and the warning names them. What is not compared: what libraries
    written in C keep to themselves, names made up at run time (`getattr(self, f"w{n}")`), and what lies in containers of
    more than 65,536 values.

    Tensors that `fn` uses without being given them are read and changed in place by each call; gradients that it leaves
    in `.grad` are set again by each; other tensors that it leaves behind in objects have a new value after each call
    (and their memory is kept). Random operations draw new numbers.

    Values that this process knows (masks and counts made of constants) may be read: a recording serves all calls in which
    the same is read of them. Where `fn` changes in place what it reads, it runs operation by operation.

    Results are tensors of their own at each call, without a graph of derivatives; an argument that is returned is that
    argument. What makes a recording untrue (fetching, calls of actors, state that is replaced instead of
    changed) makes `fn` run operation by operation for good, with one RuntimeWarning that says what and why. When one
    operation fails in a worker, all results of that call fail, with the operation's name, and so is lost what the call
    changes in place. At most 64 recordings are kept.

    `monarch.tensor.compile` is stricter: it records the first call without running it, verifies recordings, has no
    derivatives and refuses what it cannot replay.
    """
    if not callable(fn):
        raise TypeError(f"a function is recorded, and {fn!r} is none")
    if _later(fn):
        raise TypeError(
            f"{label_of(fn)} is a generator or a coroutine: a call of it returns something that runs later, and nothing "
            f"would be recorded. Let a plain function do it"
        )
    return Function(fn)


def compile(fn: Callable[..., Any] | None = None, verify: bool = True) -> Any:
    """Records `fn`: its operations on distributed tensors are noted instead of done, and then done by one command a
    call.

    A recording is made for each pattern of arguments: metadata, meshes, streams and aliasing of the tensors, values of
    everything else (which has to be hashable), and the mesh, stream and grad mode that are active. At most 64 are kept.
    With `verify` the first call that could use a recording makes it a second time: RuntimeError ("diverges at operation
    ...") when it came out otherwise.

    `fn` runs only while it is recorded. What it does besides (counting, printing) happens then alone, and Python values
    it reads stay as they were. Tensors that it uses without being given them are read again at each call, and what it
    changes in place is changed at each call. Tensors it makes and does not return are dropped at its end. A result that
    is an argument is that argument.

    Neither arguments nor results may require grad (TypeError REQUIRES_GRAD), and each call checks that the tensors it
    uses may be used (TypeError DROPPED, BORROWED, ...). Fetching inside is a NotImplementedError, as is `.item()`. When
    one operation fails in a worker, every result of that call fails, and what the call changes in place is lost. Inside
    another `compile`, a `function` that records, or `coalescing`, `fn` is simply called. When results of a remote
    function have to be found out first (the first call with propagate="cached"), `fn` begins again and runs operation
    by operation, and is recorded the next time.

    `monarch.function` is the one for training steps: it lets gradients be computed inside and tensors stay behind in
    Python objects, and runs operation by operation what cannot be recorded. This one is strict: what it takes, it
    replays from the first call on.
    """
    if fn is None:
        return functools.partial(compile, verify=verify)
    return CompiledFunction(fn, verify)


class _Variant(Replay):
    """A Replay with what it takes and leaves of gradients, (parameter, its gradient or None), and what it took as
    constant: in Python (`guards`), and of values that were known (`reads`)."""

    __slots__ = ("guards", "needs", "reads", "sets")

    def __init__(
        self,
        trace: RecordedTrace,
        run: RecordedCall,
        needs: list[tuple[weakref.ref[Tensor], Tensor | None]],
        sets: list[tuple[weakref.ref[Tensor], Tensor | None]],
        guards: Guards,
        reads: KnownReads | None,
    ) -> None:
        super().__init__(trace, run)
        self.needs = [weak for weak, _ in needs], [grad for _, grad in needs]
        self.sets = sets
        self.guards = guards
        self.reads = reads

    def fits(self, tensors: Sequence[Tensor]) -> bool:
        weak, grads = self.needs
        try:
            if not all(map(is_, map(_grad, map(call, weak)), grads)):
                return False
        except AttributeError:  # a parameter is gone
            return False
        trace = self.trace
        if not (trace.same_tensors() and self.guards.holds() and trace.rates.known() and self.same_read(tensors)):
            return False
        return trace.evolution is None or trace.evolution.now() is not None

    def same_read(self, tensors: Sequence[Tensor]) -> bool:
        """True if the function would read the same of these arguments, and of tensors that are the program's own."""
        if self.reads is None:
            return True
        with no_modes():
            return self.reads.hold([tensor._record.storage for tensor in tensors])

    def learn(self, other: _Variant, changes: list[Change]) -> bool:
        """Takes learning rates as inputs if they are all that `other`, a recording made before `changes`, differs by.
        Then it serves for that one too."""
        rates, ours, theirs = self.trace.rates, self.trace.evolution, other.trace.evolution
        if not changes or any(change.key != "lr" for change in changes):
            return False
        if (ours is None) is not (theirs is None) or (
            ours is not None and theirs is not None and not ours.alike(theirs)
        ):
            return False
        sources = confirmed(other.trace.recording.steps, self.trace.recording.steps)
        if sources is None:
            return False
        taken = [rates.mappings[source] for source in frozenset().union(*sources.values())]
        taken += ours.groups if ours is not None else []
        if any(all(change.where is not group for group in taken) for change in changes):
            return False
        rates.confirm(sources)
        for group in taken:
            self.guards.release(group, "lr")
        return True

    def call(self, arguments: Arguments) -> PyTree:
        result = super().call(arguments)
        for weak, grad in self.sets:
            parameter = weak()
            if parameter is not None and parameter.grad is not grad:
                parameter.grad = grad
        return result


class _CallKind:
    """The calls of one key: parameters that were met, and recordings for different states of what they use."""

    __slots__ = ("failures", "groups", "met", "strain", "variants", "verified")

    def __init__(self, met: Iterable[Tensor], variants: Iterable[Any] = ()) -> None:
        self.met = [weakref.ref(tensor) for tensor in met]
        self.variants: list[Any] = [*variants]  # of `function` each a _Variant, of `compile` one Replay
        self.groups: list[dict[str, Any]] = []  # of optimizers, as `rates` counts them
        self.failures = 0  # calls one after the other that could not be recorded
        self.verified = False  # of `compile`: recorded twice, and the same
        self.strain = 0  # PAYS for each recording, less one for each replay


class Function:
    """A recorded function, called as the function is; see `function`."""

    def __init__(self, fn: Callable[..., PyTree]) -> None:
        functools.update_wrapper(self, fn)
        self._function = fn
        self._label = label_of(fn)
        self._kinds: OrderedDict[Hashable, _CallKind] = OrderedDict()
        self._observed = ObservedCalls()
        self._lock = Lock()
        self._given_up = ""

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __repr__(self) -> str:
        state = f"op by op: {self._given_up}" if self._given_up else f"{self.traces} traces"
        return f"<monarch.function {self._label}, {state}>"

    @property
    def traces(self) -> int:
        """The number of its recordings."""
        return sum(len(kind.variants) for kind in list(self._kinds.values()))

    def retrace(self) -> None:
        """Forgets all recordings, and that recording was given up: the next calls are as the first ones."""
        with self._lock:
            kinds, self._kinds = self._kinds, OrderedDict()
            self._given_up = ""
            self._observed = ObservedCalls()
        for kind in kinds.values():
            for variant in kind.variants:
                variant.trace.forget()

    def __call__(self, *args: object, **kwargs: object) -> PyTree:
        here = recorder()
        if here is not None and not isinstance(here, CommandHolder):
            return self._function(*args, **kwargs)  # part of another recording
        if self._given_up:
            return self._plain(self._function(*args, **kwargs), (args, kwargs))
        try:
            arguments = Arguments(args, kwargs)
        except TypeError as exc:
            self._give_up(f"{exc}. Pass distributed tensors and values that can be hashed", 3)
            return self._plain(self._function(*args, **kwargs), (args, kwargs))
        kind, replay = self._known(arguments)
        if replay is not None:
            return replay.call(arguments)
        if here is not None:
            return self._plain(self._function(*args, **kwargs), (args, kwargs))
        if kind is None:
            return self._first(arguments)
        return self._recorded(kind, arguments)

    def _known(self, arguments: Arguments) -> tuple[_CallKind | None, Replay | None]:
        """Returns what is known of calls with these arguments, and the recording that may be replayed now."""
        with self._lock:
            kind = self._kinds.get(arguments.key)
            if kind is None:
                return None, None
            self._kinds.move_to_end(arguments.key)
        for replay in list(kind.variants):
            if replay.trace.stale:
                kind.variants.remove(replay)
                replay.trace.forget()
            elif replay.fits(arguments.tensors):
                if kind.strain:
                    kind.strain -= 1
                return kind, replay
        return kind, None

    # --- running

    def _first(self, arguments: Arguments) -> PyTree:
        with CommandWatcher() as watcher, self._observed.watching():
            value = arguments.call(self._function, arguments.tensors)
        kind = _CallKind(tensor for tensor, _ in watcher.grads.values())
        self._add(arguments.key, kind)
        return self._plain(value, arguments.tensors)

    def _recorded(self, kind: _CallKind, arguments: Arguments) -> PyTree:
        changes = [(variant, variant.guards.changes()) for variant in kind.variants]
        noted = CommandRecorder()
        for weak in kind.met:
            tensor = weak()
            if tensor is not None:
                noted.meet(tensor)
        before = watched(self._function, self._observed, lasting=False)
        generators = Generators(before.generators)
        with self._observed.watching(generators):
            run = RecordedCall(noted, self._function, arguments, True)
        untrue = _untrue(before, self._observed, generators)
        del before  # it keeps tensors that may have been replaced
        result = put_together(run.plan, run.spec, arguments.tensors, run.made)
        why = str(changes[0][1][0]) if changes and changes[0][1] else ""
        if changes and not why and not kind.variants[0].same_read(arguments.tensors):
            why = f"what it reads with {noted.read_with} of a tensor"
        learnable = []
        for variant, found in changes:
            if any(change.replaced for change in found):
                kind.variants.remove(variant)  # its snapshot would keep what the program has released
                variant.trace.forget()
            elif all(change.key == "lr" for change in found):
                learnable.append((variant, found))
        del changes
        try:
            if untrue and not noted.problem:
                raise Unrecordable(untrue)
            self._keep(kind, self._variant(kind, noted, run, generators, arguments), learnable)
            kind.failures = 0
        except Unrecordable as exc:
            kind.failures += 1
            if noted.problem or kind.failures >= 3:
                self._give_up(str(exc))
        kind.strain += PAYS
        if kind.strain >= TRIES * PAYS:
            self._give_up(_unsteady(why))
        self._make_room()
        return result

    def _keep(self, kind: _CallKind, variant: _Variant, earlier: list[tuple[_Variant, list[Change]]]) -> None:
        for other, changes in earlier:
            if not self._observed.names("lr") and variant.learn(other, changes):
                kind.variants.remove(other)
                other.trace.forget()
        kind.variants.insert(0, variant)
        while len(kind.variants) > VARIANTS:
            kind.variants.pop().trace.forget()

    def _variant(
        self, kind: _CallKind, noted: CommandRecorder, run: RecordedCall, generators: Generators, arguments: Arguments
    ) -> _Variant:
        given = {id(tensor) for tensor in run.formals}
        sets: list[tuple[weakref.ref[Tensor], Tensor | None]] = []
        for tensor, before in noted.grads.values():
            if tensor.grad is before:
                continue
            if id(tensor) in given:
                noted.refuse("it leaves a gradient in an argument: return torch.autograd.grad(...) instead")
            sets.append((weakref.ref(tensor), tensor.grad))
        guards = watched(self._function, self._observed, lasting=True)
        if new := generators.knows(guards.generators):
            raise Unrecordable(f"it may have drawn numbers with {new}, which it met for the first time")
        if guards.iterators:
            raise Unrecordable(_goes_on(guards.iterators[0]))
        known = {id(group) for group in kind.groups}
        kind.groups += [group for group in guards.groups() if id(group) not in known]
        places = {id(storage): at for at, (_, storage) in enumerate(arguments.before)}
        with no_modes():
            reads = noted.known_reads(places)
            evolution = noted.evolution(places)
        trace = RecordedTrace(self._label, noted, run.formals, run.made, True, kind.groups, evolution)
        captures = trace.recording.captures
        if reads and any(
            id(own) in places and reads.depends_on(own) for own in map(noted.storages.__getitem__, captures)
        ):
            raise Unrecordable(
                f"it reads with {noted.read_with} of a tensor that is an argument and a variable of its own as well"
            )
        needs = [
            (weakref.ref(tensor), before)
            for tensor, before in noted.grads.values()
            if id(tensor) not in given and (before is None or before._record.ref in captures)
        ]
        return _Variant(trace, run, needs, sets, guards, reads)

    def _plain(self, value: object, given: object) -> PyTree:
        """Returns what a call operation by operation gives as a replay would: without graphs."""
        arguments = [leaf for leaf in torch.utils._pytree.tree_leaves(given) if type(leaf) is Tensor]
        plan, spec, made = results_of(value, arguments, arguments)
        made = [without_graph(tensor) if tensor.requires_grad else tensor for tensor in made]
        return put_together(plan, spec, arguments, made)

    # --- bounds

    def _add(self, key: Hashable, kind: _CallKind) -> None:
        with self._lock:
            self._kinds[key] = kind
        self._make_room()

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


class CompiledFunction(Function):
    """A Function without guards (see `compile`) that records before it runs anything and refuses what it cannot replay."""

    def __init__(self, fn: Callable[..., PyTree], verify: bool) -> None:
        super().__init__(fn)
        self._verify = verify

    def __call__(self, *args: object, **kwargs: object) -> PyTree:
        if recorder() is not None:
            return self._function(*args, **kwargs)
        arguments = Arguments(args, kwargs)
        self._no_grad(arguments.tensors, "argument")
        kind, replay = self._known(arguments)
        try:
            if replay is None:
                replay = self._record(arguments)
                self._add(arguments.key, _CallKind((), [replay]))
            elif self._verify and kind is not None and not kind.verified:
                self._check_again(replay, self._record(arguments))
                kind.verified = True
        except _NeedsWorkers:  # nothing was done so far
            return self._function(*args, **kwargs)
        return replay.call(arguments)

    def _record(self, arguments: Arguments) -> Replay:
        noted = _StrictRecorder(hold=True)
        run = RecordedCall(noted, self._function, arguments, False, lambda made: self._no_grad(made, "result"))
        try:
            trace = RecordedTrace(self._label, noted, run.formals, run.made, keep=False)
        except Unrecordable as exc:
            raise NotImplementedError(
                f"{self._label} cannot be compiled: {exc} (monarch.function runs such functions operation by operation)"
            ) from None
        drop_leaked(noted, {tensor._record.ref for tensor in run.made})
        return Replay(trace, run)

    def _check_again(self, kept: Replay, again: Replay) -> None:
        again.trace.forget()
        where = divergence(kept.trace.recording, again.trace.recording)
        if where or repr(kept.plan) != repr(again.plan):
            raise RuntimeError(
                f"{self._label} diverges at {where or 'what it returns'}: recorded twice for the same arguments, it did "
                f"something else. What it does may depend on its arguments alone (verify=False takes the first recording)"
            )

    def _no_grad(self, tensors: list[Tensor], what: str) -> None:
        problems = [misuse.OperandProblem(tensor, "REQUIRES_GRAD") for tensor in tensors if tensor.requires_grad]
        if problems:
            raise misuse.incorrect(f"{self._label}: {what}", tensors, {}, problems, active_mesh(), get_active_stream())


class _NeedsWorkers(BaseException):
    """The workers are needed to go on: what a remote function gives has to be found out."""


class _StrictRecorder(CommandRecorder):
    """Says at once what a recording cannot have."""

    def known(self, what: str, part: KnownPart, value: torch.Tensor) -> None:
        raise NotImplementedError(f"NYI: {what} in a compiled function: the number would stay as it is now")

    def asking(self, call: WorkerCall) -> None:
        if getattr(call, "describes", False):
            raise _NeedsWorkers
        super().asking(call)

    def fetching(self, what: str = "fetching results") -> None:
        raise NotImplementedError(f"NYI: {what} in a compiled function: return the tensors and fetch them outside")


def _untrue(before: Guards, observed: ObservedCalls, generators: Generators) -> str:
    """Returns what the call that has just been observed did that replays of it would not do; `before`: from before it."""
    changed = next((change for change in before.changes() if change.lost), None)
    if changed is not None:
        return f"it changes {changed} itself, which a replay would not do: change it outside, or keep it in a tensor"
    if before.iterators:
        return _goes_on(before.iterators[0])
    if taken := observed.taken or generators.drawn():
        return f"it {taken}, and a replay would not: pass what comes of it, or draw random numbers with torch"
    return ""


def _goes_on(iterator: str) -> str:
    return f"it uses the iterator {iterator}, and a replay would not go on with it: pass what that gives"


def _unsteady(change: str) -> str:
    """Returns why recording does not pay where `change` is what made the last one necessary; "" where it was nothing
    in Python."""
    if not change:
        return "it uses or leaves behind different tensors in each call: change them in place"
    if "['lr']" in change:
        return (
            f"{change} changes again and again, and the optimizer computes with it in Python: use fused=True, or make it a "
            f"tensor (lr=torch.tensor(...))"
        )
    return f"{change} changes again and again: keep it in a tensor, or pass it as an argument if it has few values"


def _later(fn: object) -> bool:
    """True if a call of `fn` runs nothing yet."""
    fn = fn.forward if isinstance(fn, torch.nn.Module) else fn
    kinds = (inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isasyncgenfunction)
    return any(kind(fn) for kind in kinds)
