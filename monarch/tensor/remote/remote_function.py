"""`monarch.remote`: a Python function of the program runs in every process of a mesh, on its local tensors."""

from __future__ import annotations

import functools
import random
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, overload

import torch
from torch.utils import _pytree as pytree

from monarch.actor import Future, NDSlice, Port, Shape, ValueMesh, bind_context
from monarch.actor.lowlevel import follow, start_thread
from monarch.tensor import functions, patterns
from monarch.tensor.controller import dispatch, misuse
from monarch.tensor.controller.activation import active_mesh
from monarch.tensor.controller.checks import trouble
from monarch.tensor.controller.dispatch import KnownCall
from monarch.tensor.controller.fetch import rank_at
from monarch.tensor.controller.handles import make
from monarch.tensor.controller.misuse import OperandProblem
from monarch.tensor.controller.records import KNOWN, TensorRecord, TensorStorage, recorder, recorders
from monarch.tensor.controller.stream import _active as _streams
from monarch.tensor.controller.taint import Taint, merge
from monarch.tensor.controller.tensor import Tensor
from monarch.tensor.failures import Failed
from monarch.tensor.propagation import PropagatedOutcome
from monarch.tensor.remote import function_arguments
from monarch.tensor.remote.function_arguments import INT, LEAVES, NUMBERS
from monarch.tensor.signature import Layout
from monarch.tensor.worker import current
from monarch.tensor.worker.function_call import FunctionCall, PatternCall, ValueCall, filler

if TYPE_CHECKING:
    from collections.abc import Hashable

    from torch.utils._pytree import PyTree
    from typing_extensions import ParamSpec, TypeVar  # every checker has it: `default` came with Python 3.13

    from monarch.tensor.controller.engine import TensorEngine
    from monarch.tensor.controller.mesh import DeviceMesh
    from monarch.tensor.controller.stream_placement import StreamPlacement
    from monarch.tensor.signature import Args, Kwargs, Scalar

    P = ParamSpec("P", default=...)
    R = TypeVar("R", default=Any)
    R_co = TypeVar("R_co", covariant=True, default=Any)

    class RemoteDecorator(Protocol):
        def __call__(self, function: Callable[P, R], /) -> Remote[P, R]: ...
else:
    from typing import ParamSpec, TypeVar

    P, R_co = ParamSpec("P"), TypeVar("R_co")

_SEEN = 1024  # calls with constants that a Remote remembers having made once; beyond that it starts over

# How often what a call gives was known, and how often it had to be found by running the function once.
_hit = 0
_miss = 0


@overload
def remote(function: None = None, *, propagate: Any = None) -> RemoteDecorator: ...
@overload
def remote(function: Callable[P, R], *, propagate: Any = None) -> Remote[P, R]: ...
@overload
def remote(function: Any, *, propagate: Any = None) -> Remote: ...
def remote(function: Any = None, *, propagate: Any = None) -> Any:
    """Makes `function` run in the processes of a mesh: `remote(f)`, `@remote`, `@remote(propagate=...)`.

        @monarch.remote(propagate=lambda x: x)
        def normalized(x):                      # in each worker, on its local tensor
            return x / x.norm()

        y = normalized(x)                       # here, at once: a distributed tensor

    `function`: a callable, a torch operation, or the dotted path of one. Functions that the workers can import travel by name
    (and run undecorated there), others by value, once.

    Calling what it gives issues the function on the mesh of the distributed tensors among the arguments (else the active
    one), and returns at once the structure of its results, with distributed tensors. Arguments are trees of distributed
    tensors and of values that can be pickled. In the workers everything is local. Autograd graphs end with the call.

    The adverbs `call`, `call_one`, `choose`, `stream` and `broadcast` run it on the ranks of the active mesh and give what it
    returned there, its tensors as local ones on the CPU. A failure is a RemoteException: raised by a fetch of what depends on
    it, of an adverb's Future, and otherwise of the mesh's `exit()`.

    `propagate` says how this process knows what a call gives without waiting for it:

    - None or "cached": for each new pattern of inputs (metadata of tensors, which of them share memory, other values) the
      function first runs once on the first rank, on copies of its tensors, and this call waits for that. What is no tensor
      has to be hashable. Effects of the function other than on its tensors and random numbers happen twice on that rank.
    - "inspect": what it returns is not wanted; calls return None. That it changes its inputs is not known here.
    - a callable: called with fake tensors in place of the distributed ones, returns fake tensors in the structure of what the
      function returns. What it writes to, the function may write to. Its answer is kept for each pattern of inputs,
      unless it is no plain function or uses variables with more in them than numbers, strings, types and functions.
    """
    if function is None:
        return functools.partial(remote, propagate=propagate)
    return Remote(function, propagate)


class Remote(Generic[P, R_co]):
    """A function that runs in the processes of a mesh: that of its distributed tensors, else the active one.

    Calling it issues it and returns at once what it gives on each rank: its structure with distributed tensors. Arguments are
    pytrees of distributed tensors and values that can be pickled; a Mesh is a WorkerMesh there. In the workers
    everything is local: torch too, and other Remotes are plain functions. Autograd graphs end with the call.

    `call`, `call_one`, `choose` and `stream` run it on the ranks of the active mesh and give what it returned, its
    tensors as local ones on the CPU. When it fails there, their Futures raise RemoteException, or it is logged when the
    Future is dropped unseen. The first failure of a `broadcast` or of a call whose results nobody fetches is raised by
    the mesh's `exit()`; the others, and all when the mesh ends otherwise, are logged.
    """

    _is_remote = True

    def __init__(self, function: Any, propagate: Any = None) -> None:
        if propagate is None:
            propagate = "cached"
        if propagate == "mocked":
            raise NotImplementedError(
                "remote(propagate='mocked') is not part of this package: give a function of fake tensors as `propagate`"
            )
        if propagate not in ("cached", "inspect") and not callable(propagate):
            raise ValueError(f"`propagate` is None, 'cached', 'inspect' or a callable, and not {propagate!r}")
        function = functions.wrapped(function)
        self._function: Any = function
        self._propagate = propagate
        self._resolvable: Any = None
        self._once: set[Hashable] = set()  # signatures that calls had once
        self._first: dict[Hashable, _KnownFunctionCall] = {}  # what those gave
        self._label = functions.label(function)
        self._pure = not callable(propagate) or function_arguments.captures_nothing(propagate)
        self._names = (
            function_arguments.names_in(propagate.__code__) if isinstance(propagate, types.FunctionType) else ()
        )
        if callable(function):
            functools.update_wrapper(self, function, updated=())

    def __repr__(self) -> str:
        return f"<remote function {self._label}>"

    def __reduce__(self) -> tuple[object, ...]:
        found = functions.named(self._function)
        return (
            (_rebuild, (found, self._propagate)) if found is not None else (Remote, (self._function, self._propagate))
        )

    # --- issuing

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Issues it; see the class. TypeError for tensors that cannot be used here, ValueError without any mesh to run on.

        With cached propagation also RemoteException, when the first run failed.
        """
        global _hit
        # What may be flat is read as it is; else as a tree.
        leaves: Any = args if not kwargs else (*args, *kwargs.values())
        shape: Any = (len(args), *kwargs)
        for leaf in leaves:
            if type(leaf) not in LEAVES:
                leaves, shape = pytree.tree_flatten((args, kwargs))
                break
        inputs: list[Tensor] = []
        numbers: list[Scalar] = []
        key: list[Hashable] = [self._target(), self._propagate, shape]
        loose = False
        for leaf in leaves:
            kind = type(leaf)
            if kind is Tensor:
                inputs.append(leaf)
                key.append(leaf._record.meta)
            elif kind in NUMBERS and (kind is not int or -INT < leaf < INT):
                numbers.append(leaf)
                key.append((kind, leaf))
            else:
                key.append((kind, leaf))
                loose = loose or not function_arguments.constant(leaf)
        if inputs:
            place = inputs[0]._record.place
            closer = place.stream is not _streams.stream
            taint = inputs[0]._record.storage.taint
            refs = []
            for tensor in inputs:
                record = tensor._record
                storage = record.storage
                if record.place is not place or storage.flags:
                    closer = True
                if storage.taint is not taint:
                    taint = merge(taint, storage.taint)
                refs.append(record.ref)
            if len(inputs) > 1:
                key.append(function_arguments.sharing(inputs))
        else:
            if patterns.propagating() or current.thread.worker is not None:
                return self._inside(args, kwargs)  # type: ignore[no-any-return]
            mesh = active_mesh()
            if mesh is None:
                if loose and function_arguments.has_tensors(leaves):
                    raise self._local_tensors(args, kwargs, leaves)
                raise _needs_mesh(self._label)
            place, closer, taint, refs = mesh.place(_streams.stream), False, None, []
        if loose and function_arguments.has_tensors(leaves):
            raise self._local_tensors(args, kwargs, leaves)
        engine = place.engine
        if closer:
            place = _check(self._label, args, kwargs, inputs, (), place)
        pure = self._pure
        if not pure:
            captured = function_arguments.captured(self._propagate, self._names)
            pure = captured is not None
            key.append(captured)
        frozen: Hashable = tuple(key)
        try:
            entry = engine.entries.get(frozen) or self._first.get(frozen) if pure else None
        except TypeError:
            entry, frozen = None, None
        if entry is None:
            entry = self._learn(args, kwargs, leaves, shape, inputs, place, frozen, pure, loose)
        elif self._propagate == "cached":
            _hit += 1
        outcome = entry.outcome
        if outcome.mutates and closer:
            _check(self._label, args, kwargs, inputs, outcome.mutates, place)
        signature = entry.signature
        if signature < 0:
            signature = self._seldom(entry, frozen, engine)
        if recorders and (here := recorder()) is not None:
            here.read(inputs)
        if signature >= 0:
            ident = engine.run(place, signature, refs, numbers, entry.fresh)
        else:
            call = entry.call if not numbers else entry.call_with(numbers)
            ident = engine.do(place, call, refs, entry.fresh)
        if entry.between:
            taint = engine.taints.issued(ident, place, (taint,))
        if outcome.mutates:
            _mutated(inputs, outcome.mutates, taint)
        if entry.kind == KnownCall.NEW:
            return make(TensorRecord(ident, entry.meta, place, TensorStorage(taint)))
        made = dispatch.fresh_leaves(outcome, inputs, place, ident, taint)
        return made[0] if outcome.structure is None else outcome.structure(made)  # type: ignore[no-any-return]

    rref = __call__

    def _target(self) -> Any:
        found = self._resolvable
        if found is None:
            found = self._resolvable = functions.resolvable(self._function)
        return found

    def _learn(
        self, args: Args, kwargs: Kwargs, leaves: Sequence[object], shape: Any, inputs: list[Tensor],
        place: StreamPlacement, key: Hashable,
        pure: bool, loose: bool,
    ) -> _KnownFunctionCall:  # fmt: skip
        """Finds out what a call gives that was not made before."""
        global _miss
        tree, numbers = function_arguments.template(args, kwargs, leaves, shape)
        between = any(function_arguments.between_ranks(leaf) for leaf in leaves)
        if self._propagate == "inspect":
            outcome = patterns.nothing()
        elif self._propagate == "cached":
            if key is None:
                raise TypeError(
                    f"an argument of {self._label} cannot be hashed, and shapes of results are kept by argument: pass "
                    f"`propagate=` a function of fake tensors, or 'inspect' when the result is not needed"
                )
            if any(function_arguments.is_group(leaf) for leaf in leaves):
                raise TypeError(
                    f"what {self._label} gives cannot be found by running it on one rank, because it was passed a group of "
                    f"ranks: pass `propagate=` a function of fake tensors, or 'inspect' when the result is not needed"
                )
            _miss += 1
            outcome = self._try(tree, numbers, inputs, place)
        else:
            fill = filler(tree)
            outcome = patterns.propagated(self._propagate, lambda fakes: fill(fakes, numbers), inputs)
        count = None if self._propagate == "inspect" else len(outcome.leaves)
        call = FunctionCall(self._target(), tree, outcome.keeps, outcome.mutates, count, between, self._label)
        call.outcome = outcome
        call.expected = _expected(outcome)
        entry = _KnownFunctionCall(outcome, call, between)
        # Sent with the call itself: values that may change under their name; strings and functions that nobody can name until
        # they come again, because programs make many that never do.
        keep = pure and key is not None and (not loose or self._propagate == "cached")
        if not loose:
            entry.key = function_arguments.signature_key(leaves, shape, call)
            if not isinstance(call.function, functions.ByValue) and not any(
                type(leaf) in (str, bytes) for leaf in leaves
            ):
                entry.signature = place.engine.define(entry.key, call)
                if keep:
                    place.engine.remember(key, entry)
                return entry
        if keep:
            if len(self._first) >= _SEEN:
                self._first.clear()
            self._first[key] = entry
        return entry

    def _try(
        self, tree: PyTree, numbers: Sequence[Scalar], inputs: list[Tensor], place: StreamPlacement
    ) -> PropagatedOutcome:
        """Runs it once on the first rank, for what it gives."""
        call = FunctionCall(
            self._target(), function_arguments.with_numbers(tree, numbers), (), (), None, False, self._label
        )
        mesh = _rank_mesh(place.mesh, 0)
        refs = [tensor._record.ref for tensor in inputs]
        taints = [tensor._record.storage.taint for tensor in inputs]
        engine = place.engine
        answers = engine.ask(mesh, place.mesh, PatternCall(call), refs, taints, "call", place.stream).get()
        return patterns.received(_values(engine, answers)[0])

    def _seldom(self, entry: _KnownFunctionCall, key: Hashable, engine: TensorEngine) -> int:
        """The signature of a call that is made only now and then: defined when it comes again. -1 until then, and for values
        that may change under their name."""
        if entry.key is None:
            return -1
        if entry.key not in self._once:
            if len(self._once) >= _SEEN:
                self._once.clear()
            self._once.add(entry.key)
            return -1
        signature: int = engine.define(entry.key, entry.call)
        if self._first.pop(key, None) is not None:
            known = _KnownFunctionCall(entry.outcome, entry.call, entry.between)
            known.signature = signature
            engine.remember(key, known)
        return signature

    def _inside(self, args: Args, kwargs: Kwargs) -> PyTree:
        """Called by another remote function, in a worker, or by the `propagate` of one: nothing is issued."""
        if patterns.propagating() and self._propagate != "cached":
            return None if self._propagate == "inspect" else self._propagate(*args, **kwargs)
        return functions.undecorated(self)(*args, **kwargs)

    def _local_tensors(self, args: Args, kwargs: Kwargs, leaves: Sequence[object]) -> TypeError:
        mesh = active_mesh()
        code = "NO_MESH" if mesh is None and not any(type(leaf) is Tensor for leaf in leaves) else "LOCAL_TENSOR"
        problems = [
            OperandProblem(leaf, code) for leaf in leaves if isinstance(leaf, torch.Tensor) and type(leaf) is not Tensor
        ]
        return misuse.incorrect(self._label, args, kwargs, problems, mesh, _streams.stream)

    # --- adverbs

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Future[ValueMesh[R_co]]:
        """A Future of a ValueMesh: what it returned on each rank of the active mesh."""
        mesh = self._mesh()
        return follow(self._ask(mesh, args, kwargs, "call"), self._gatherer(mesh))

    def call_one(self, *args: P.args, **kwargs: P.kwargs) -> Future[R_co]:
        """A Future of what it returned on the one rank of the active mesh. ValueError when it has more."""
        mesh = self._mesh()
        if len(mesh.processes) != 1:
            raise ValueError(f"call_one requires exactly 1 actor, but mesh has {len(mesh.processes)}")
        return self._one(mesh, args, kwargs)

    def choose(self, *args: P.args, **kwargs: P.kwargs) -> Future[R_co]:
        """A Future of what it returned on one rank of the active mesh, any one."""
        mesh = self._mesh()
        return self._one(_rank_mesh(mesh, random.randrange(len(mesh.processes))), args, kwargs)

    def stream(self, *args: P.args, **kwargs: P.kwargs) -> Iterator[Future[R_co]]:
        """Futures of what it returned, one for each rank of the active mesh. It runs whether or not they are looked at.

        They come as ranks answer, where its tensors live on the active mesh; else in the order of the ranks.
        """
        mesh = self._mesh()
        if self._wide(mesh, pytree.tree_leaves((args, kwargs))) is not mesh:
            futures = [self._one(_rank_mesh(mesh, place), args, kwargs) for place in range(len(mesh.processes))]
            return iter(futures)
        found = self._ask(mesh, args, kwargs, "stream")
        return (follow(future, mesh.client.value_of) for future in found)

    def broadcast(self, *args: Any, **kwargs: Any) -> None:
        """Runs it on every rank of the active mesh; nobody waits for it."""
        mesh = self._mesh()
        _, call, inputs = self._value_call(mesh, args, kwargs)
        mesh.client.do(mesh.place(_streams.stream), call.call, [tensor._record.ref for tensor in inputs], 0)
        _mutated(inputs, call.mutates, None)

    def _send(self, args: Args, kwargs: Kwargs, port: Port[Any] | None = None, selection: str = "all") -> None:
        """Does what `send` does for endpoints: results and RemoteExceptions go to `port`, one for each rank."""
        if selection not in ("all", "choose"):
            raise ValueError(f"Invalid selection: {selection!r} (expected 'all' or 'choose')")
        futures = list(self.stream(*args, **kwargs)) if selection == "all" else [self.choose(*args, **kwargs)]
        if port is not None:
            start_thread(bind_context(_pass_on), "monarch-remote-send", futures, port)

    def _mesh(self) -> DeviceMesh:
        mesh = active_mesh()
        if mesh is None:
            raise _needs_mesh(self._label)
        return mesh

    def _one(self, mesh: DeviceMesh, args: Args, kwargs: Kwargs) -> Future[Any]:
        return follow(self._ask(mesh, args, kwargs, "call"), lambda answers: _values(mesh.client, answers)[0])

    def _gatherer(self, mesh: DeviceMesh) -> Callable[[Any], Any]:
        labels, sizes = mesh.names, list(mesh.sizes.values())
        shape = Shape(list(labels), NDSlice.new_row_major(sizes))
        return lambda answers: ValueMesh(shape, _values(mesh.client, answers))

    def _ask(self, mesh: DeviceMesh, args: Args, kwargs: Kwargs, adverb: str) -> Any:
        wide, call, inputs = self._value_call(mesh, args, kwargs)
        refs = [tensor._record.ref for tensor in inputs]
        taints = [tensor._record.storage.taint for tensor in inputs]
        found = mesh.client.ask(mesh, wide, call, refs, taints, adverb, _streams.stream)
        if call.mutates:
            _mutated(inputs, call.mutates, None)
        return found

    def _value_call(self, mesh: DeviceMesh, args: Args, kwargs: Kwargs) -> tuple[DeviceMesh, ValueCall, list[Tensor]]:
        """(the mesh of its tensors, the call, its tensors)"""
        leaves, shape = pytree.tree_flatten((args, kwargs))
        if function_arguments.has_tensors(leaves):
            raise self._local_tensors(args, kwargs, leaves)
        wide = self._wide(mesh, leaves)
        inputs = [leaf for leaf in leaves if type(leaf) is Tensor]
        tree, numbers = function_arguments.template(args, kwargs, leaves, shape)
        fill = filler(tree)
        mutates: tuple[int, ...] = ()
        if callable(self._propagate):
            outcome = patterns.propagated(self._propagate, lambda fakes: fill(fakes, numbers), inputs)
            mutates = outcome.mutates
        if inputs:
            _check(self._label, args, kwargs, inputs, mutates, wide.place(_streams.stream))
        between = any(function_arguments.between_ranks(leaf) for leaf in leaves)
        call = FunctionCall(
            self._target(), function_arguments.with_numbers(tree, numbers), (), mutates, None, between, self._label
        )
        return wide, ValueCall(call), inputs

    def _wide(self, mesh: DeviceMesh, leaves: Sequence[object]) -> DeviceMesh:
        """The mesh of the tensors among `leaves`. ValueError unless it has all ranks of `mesh`."""
        first = next((leaf for leaf in leaves if type(leaf) is Tensor), None)
        if first is None:
            return mesh
        wide: DeviceMesh = first._record.place.mesh
        if wide is mesh:
            return wide
        if wide.client is not mesh.client or not set(mesh.processes) <= set(wide.processes):
            raise ValueError(
                f"the current mesh {mesh} is not a subset of {wide}, the mesh of the tensors passed to {self._label}: "
                f"activate that mesh or a slice of it, or bring the tensors over with .to_mesh(...)"
            )
        return wide


def _pass_on(futures: list[Future[Any]], port: Port[Any]) -> None:
    """Results are decoded here and not where they arrive: that is the program's code."""
    for future in futures:
        try:
            port.send(future.get())
        except Exception as exc:
            port.exception(exc)


def call_on_shard_and_fetch(
    function: object, *args: object, shard: Mapping[str, int] | None = None, **kwargs: object
) -> Future[Any]:
    """A Future of what `function`, a Remote, returned on the rank at coordinate `shard` (default: the first), the only
    one that runs it. The mesh is that of its tensors, else the active one.

    ValueError and KeyError as with `fetch_shard`. The Future raises RemoteException when it fails there, or a tensor is the
    result of a failure on any rank.
    """
    if not isinstance(function, Remote):
        function = Remote(function)
    leaves = pytree.tree_leaves((args, kwargs))
    first = next((leaf for leaf in leaves if type(leaf) is Tensor), None)
    mesh = first._record.place.mesh if first is not None else function._mesh()
    wanted = rank_at(mesh, shard, {})
    found: Future[Any] = function._one(_rank_mesh(mesh, list(mesh.processes).index(wanted)), args, kwargs)
    return found


class _KnownFunctionCall(KnownCall):
    """A known call of a remote function. `signature` is -1 while it is sent with each call."""

    __slots__ = ("between", "call", "key")

    def __init__(self, outcome: PropagatedOutcome, call: FunctionCall, between: bool) -> None:
        super().__init__(-1, outcome)
        self.call = call
        self.between = between
        self.key: Hashable = None  # of its signature, if it can have one

    def call_with(self, numbers: Sequence[Scalar]) -> FunctionCall:
        """The call with its numbers filled in, to be sent by itself."""
        call = self.call
        tree = function_arguments.with_numbers(call.tree, numbers)
        made = FunctionCall(call.function, tree, call.keeps, call.mutates, call.count, call.between_ranks, call.label)
        made.outcome, made.expected = call.outcome, call.expected
        return made


def _expected(outcome: PropagatedOutcome) -> tuple[tuple[Layout, bool], ...]:
    """Returns what the tensors have to be that a call gives, and whether each is in its own memory."""
    return tuple(
        (Layout(tuple(meta.shape), meta.stride, meta.dtype), leaf.view == -1 and not meta.deferred)
        for leaf in outcome.fresh
        if (meta := leaf.meta) is not None
    )


def _rebuild(found: Any, propagate: Any) -> Remote:
    return Remote(found.resolve(), propagate)


def _check(
    label: str, args: Args, kwargs: Kwargs, inputs: list[Tensor], mutates: tuple[int, ...], place: StreamPlacement
) -> Any:
    """TypeError unless the inputs can be used on the mesh of `place` and the active stream. Where it runs."""
    stream = _streams.stream
    if place.stream is not stream and torch._C._current_graph_task_id() != -1:
        stream = place.stream  # derivatives run where their operations ran
    wanted = place.mesh.place(stream)
    problems = [
        problem
        for index, tensor in enumerate(inputs)
        if (problem := trouble(tensor, wanted, index in mutates)) is not None
    ]
    if problems:
        raise misuse.incorrect(label, args, kwargs, problems, active_mesh(), stream)
    return wanted


def _mutated(inputs: Sequence[Tensor], places: Sequence[int], taint: Taint | None) -> None:
    """Tells autograd and the storages that the workers write to these inputs."""
    for place in places:
        storage = inputs[place]._record.storage
        storage.taint = merge(taint, storage.taint)
        storage.known, storage.flags = None, storage.flags & ~KNOWN
    torch.autograd.graph.increment_version([inputs[place] for place in places])


def _rank_mesh(mesh: DeviceMesh, place: int) -> DeviceMesh:
    """The mesh of the one rank at `place` in `mesh`."""
    coordinates = {}
    for name, size in reversed(list(mesh.sizes.items())):
        place, coordinates[name] = divmod(place, size)
    return mesh.slice(**coordinates) if coordinates else mesh


def _values(engine: TensorEngine, answers: Any) -> list[Any]:
    """The answers of the ranks that ran it, in order. RemoteException for the failure issued first."""
    found = [answer for answer in answers.values() if answer is not None]
    failed = [answer for answer in found if isinstance(answer[0], Failed)]
    if failed:
        engine.value_of(min(failed, key=lambda answer: answer[0].order))
    return [answer[0] for answer in found]


def _needs_mesh(label: str) -> ValueError:
    return ValueError(
        f"a call of remote function {label} requires an active proc_mesh, and there is no active device mesh: make it inside "
        f"`with proc_mesh.activate():`"
    )
