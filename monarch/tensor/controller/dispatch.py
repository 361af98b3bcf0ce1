"""An operation of the program becomes a command: checked, its outcome looked up, issued, its result wrapped.

The hot path. What an operation gives is worked out once for each metadata of its inputs (`propagation`) and looked up by
a key after that. Numbers that cannot change a result's metadata are not part of the key: they travel with the command.

Over 600 lines because an operation passes through all of it, and each step of that knows the one before.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from monarch.tensor import metadata, propagation
from monarch.tensor.controller import handles, misuse
from monarch.tensor.controller.absent_devices import _strangers, meant
from monarch.tensor.controller.checks import check
from monarch.tensor.controller.constants import constant, goes_along, replica
from monarch.tensor.controller.derivations import replaced
from monarch.tensor.controller.dynamic_shapes import by_indices, computed, decided, indexes
from monarch.tensor.controller.fetched import run_here, was_fetched
from monarch.tensor.controller.handles import MadeInInference, layout, make, wrapper
from monarch.tensor.controller.known_numbers import KnownNumber, RecordedFloat, in_commands
from monarch.tensor.controller.known_values import is_known, kept, know, known_scalar, known_values
from monarch.tensor.controller.misuse import OperandProblem
from monarch.tensor.controller.records import (
    KNOWN,
    TensorRecord,
    TensorStorage,
    recorder,
    recorders,
    share,
)
from monarch.tensor.controller.rng_draws import given_state
from monarch.tensor.controller.stream import _active as _streams
from monarch.tensor.controller.stream_placement import StreamPlacement
from monarch.tensor.controller.taint import merge
from monarch.tensor.metadata import Meta
from monarch.tensor.signature import CONTIGUOUS, Layout, NumberHole, OpCall, TensorHole, op_name

if TYPE_CHECKING:
    from collections.abc import Hashable

    from torch._ops import OpOverload
    from torch.utils._pytree import PyTree

    from monarch.tensor.controller.engine import TensorEngine
    from monarch.tensor.controller.mesh import DeviceMesh
    from monarch.tensor.controller.taint import Taint
    from monarch.tensor.controller.tensor import Tensor
    from monarch.tensor.signature import Args, Kwargs, Scalar
else:
    # The class: see `handles`. A name of this module too, because every operation needs it.
    Tensor = None
_wrap = torch.Tensor._make_wrapper_subclass
_inference = torch.is_inference_mode_enabled


def bind(cls: type[Tensor]) -> None:
    """Takes `cls` as the class of distributed tensors."""
    globals()["Tensor"] = cls
    handles.bind(cls)


class KnownCall:
    """A known call: its number on the workers and its outcome.

    `parts`: of several results, each as its metadata, how it is wrapped and the input that it views (-1: none), or the value
    that it is; `put`: what puts them together. `small`: some are so small that their values may be worth knowing. `bends`:
    inputs that have other metadata or other memory afterwards.
    """

    __slots__ = (
        "bends",
        "fresh",
        "kind",
        "meta",
        "outcome",
        "parts",
        "put",
        "same",
        "signature",
        "small",
        "view",
        "wrap",
    )

    # kinds: a new tensor; a view of input `view`; input `same` itself; several of these in a row; none, and inputs are
    # changed in place; anything else
    NEW, VIEW, SAME, SEVERAL, WRITES, OTHER = range(6)

    def __init__(self, signature: int, outcome: propagation.PropagatedOutcome) -> None:
        self.signature = signature
        self.outcome = outcome
        self.fresh = len(outcome.fresh)
        self.kind, self.view, self.same = KnownCall.OTHER, -1, -1
        self.meta: Meta = None  # type: ignore[assignment]  # set but for OTHER, as is `wrap`
        self.bends = tuple({at for at, _ in (*outcome.changed, *outcome.moved)})
        self.parts: list[tuple[Meta | None, Any, int]] = []
        self.put: Callable[[list[Any]], Any] = list
        self.small = any(kept(leaf.meta) for leaf in outcome.fresh if leaf.meta is not None)
        leaf = outcome.leaves[0] if outcome.structure is None else None
        deferred = leaf is not None and leaf.meta is not None and leaf.meta.deferred and leaf.same < 0
        if leaf is not None and leaf.meta is not None and not self.bends and not deferred:
            self.meta = leaf.meta
            if leaf.same >= 0:
                self.kind, self.same = KnownCall.SAME, leaf.same
            elif outcome.mutates:
                pass
            elif leaf.view >= 0:
                self.kind, self.view = KnownCall.VIEW, leaf.view
            else:
                self.kind = KnownCall.NEW
        elif outcome.structure is not None and not self.bends:
            self._in_a_row(outcome)
        if self.meta is not None:
            self.wrap = wrapper(self.meta)

    def _in_a_row(self, outcome: propagation.PropagatedOutcome) -> None:
        """Prepares for results in one flat list or tuple, if they are."""
        assert outcome.structure is not None
        if outcome.mutates:
            if all(leaf.meta is None for leaf in outcome.leaves):
                self.kind, self.put = KnownCall.WRITES, outcome.structure
            return
        places = list(range(len(outcome.leaves)))
        empty = outcome.structure(places)
        if type(empty) not in (list, tuple) or list(empty) != places:
            return
        for leaf in outcome.leaves:
            if leaf.same >= 0 or leaf.view < -1 or (leaf.meta is not None and leaf.meta.deferred):
                return
        self.parts = [
            (None, leaf.value, -1) if leaf.meta is None else (leaf.meta, wrapper(leaf.meta), leaf.view)
            for leaf in outcome.leaves
        ]
        self.kind, self.put = KnownCall.SEVERAL, type(empty)


class _KnownOp:
    """A torch operation: which of its arguments are numbers that leave metadata alone, and special handling."""

    __slots__ = ("lists", "names", "op", "places", "random", "special")

    def __init__(self, op: OpOverload) -> None:
        self.op = op
        self.places, self.names = free_numbers(op)
        self.lists = free_lists(op)
        self.special: Callable[..., object] | None = _special.get(op_name(op))
        name = op._schema.name
        random = torch.Tag.nondeterministic_seeded in op.tags
        self.random = random or not name.startswith("aten::") or "empty" in name  # or else of unknown contents

    def free(self, where: int | str) -> bool:
        """True if a number in the argument of that position or name travels with the command."""
        return where in self.places or where in self.names or where in self.lists


# Operations whose numbers say how many elements there are.
_COUNTING = frozenset({"arange", "range", "linspace", "logspace", "arange_start"})
_VALUES = frozenset({"number", "float", "Tensor", "Optional[number]", "Optional[float]", "Optional[Tensor]"})


def free_numbers(op: OpOverload) -> tuple[frozenset[int], frozenset[str]]:
    """Returns positions and names of the arguments of `op` (an OpOverload) that are numbers which cannot change the metadata
    of what it gives, by their types in its schema.

    Shapes are given by integers (SymInt) and sequences; a `Scalar` or `float`, or a number in a tensor's place, is a
    value that is computed with. Only torch's own operations are trusted to keep to that. Their type (int or float) still
    counts: it takes part in type promotion.
    """
    schema = op._schema
    namespace, _, name = schema.name.partition("::")
    if namespace != "aten" or name in _COUNTING:
        return frozenset(), frozenset()
    places, names = set(), set()
    for index, argument in enumerate(schema.arguments):
        if str(argument.type) in _VALUES:
            names.add(argument.name)
            if not argument.kwarg_only:
                places.add(index)
    return frozenset(places), frozenset(names)


def free_lists(op: OpOverload) -> frozenset[int]:
    """Returns the positions of the arguments of `op` that have a number for each of several tensors."""
    if not op._schema.name.startswith("aten::_foreach_"):
        return frozenset()
    return frozenset(at for at, one in enumerate(op._schema.arguments) if str(one.type) in _LISTS)


_LISTS = frozenset({"List[number]", "List[float]"})
_ops: dict[int, _KnownOp] = {}  # by the operation's id: an OpOverload hashes in Python


def known_op(func: OpOverload) -> _KnownOp:
    """Returns what is known of an operation."""
    op = _ops.get(id(func))
    if op is None:
        op = _ops[id(func)] = _KnownOp(func)
    return op


def operate(func: OpOverload, args: Args, kwargs: Kwargs, mesh: DeviceMesh | None) -> PyTree:
    """Runs `func` on the mesh of its distributed tensors, on `mesh` (the active one) when it has none."""
    op = _ops.get(id(func))
    if op is None:
        op = _ops[id(func)] = _KnownOp(func)
    if op.special is not None:
        handled = op.special(func, args, kwargs, mesh)
        if handled is not NotImplemented:
            return handled
    if _strangers and kwargs.get("device") is not None:
        kwargs = kwargs | {"device": meant(kwargs["device"])}
    inputs: list[Tensor] = []
    numbers: list[Scalar] = []
    key: list[object] = [op]
    places = op.places
    for index, arg in enumerate(args):
        kind = type(arg)
        if kind is Tensor:
            key.append(arg._record.meta)
            inputs.append(arg)
        elif index in places and (kind is float or (kind is int and -_INT < arg < _INT) or kind is RecordedFloat):
            key.append(kind)
            numbers.append(arg)
        elif kind is list or kind is tuple:
            if index in op.lists and _free(arg):
                key.append((kind, *map(type, arg)))
                numbers.extend(arg)
            elif index in op.lists and not _NUMBERS.isdisjoint(map(type, arg)):
                return operate(func, *in_commands(op.free, args, kwargs), mesh)
            else:
                key.append(_nested(arg, inputs))
        elif kind is int or kind is bool:
            key.append((kind, arg))
        else:
            if isinstance(arg, torch.Tensor):
                inputs.append(arg)
            elif kind in _NUMBERS:
                return operate(func, *in_commands(op.free, args, kwargs), mesh)
            key.append(_plain(kind, arg))
    if kwargs:
        for name, value in kwargs.items():
            key.append(name)
            kind = type(value)
            if kind is Tensor:
                key.append(value._record.meta)
                inputs.append(value)
            elif name in op.names and (
                kind is float or (kind is int and -_INT < value < _INT) or kind is RecordedFloat
            ):
                key.append(kind)
                numbers.append(value)
            elif kind is list or kind is tuple:
                key.append(_nested(value, inputs))
            else:
                if isinstance(value, torch.Tensor):
                    inputs.append(value)
                elif kind in _NUMBERS:
                    return operate(func, *in_commands(op.free, args, kwargs), mesh)
                key.append(_plain(kind, value))
    if (default := _default_dtype()) is not _float32:
        key.append(default)
    # where it runs
    if inputs:
        first = inputs[0]
        if type(first) is not Tensor:
            return _with_locals(func, args, kwargs, inputs, mesh)
        place = first._record.place
        closer = place.stream is not _streams.stream
        known = False
        refs = []
        taint = first._record.storage.taint
        for tensor in inputs:
            if type(tensor) is not Tensor:
                return _with_locals(func, args, kwargs, inputs, mesh)
            record = tensor._record
            storage = record.storage
            if record.place is not place:
                closer = True
            if storage.flags:
                known = True
                closer = closer or storage.flags != KNOWN
            if storage.taint is not taint:
                taint = merge(taint, storage.taint)
            refs.append(record.ref)
    elif mesh is not None:
        place = mesh.place(_streams.stream)
        closer, known, taint, refs = False, True, None, []
    else:
        return func(*args, **kwargs)  # nothing of ours in it
    engine = place.engine
    frozen = tuple(key)
    try:
        entry = engine.entries.get(frozen)
    except TypeError:  # an argument that cannot be hashed
        entry, frozen = None, None  # type: ignore[assignment]
    if entry is None:
        if (drawn := given_state(func, args, kwargs, place)) is not None:  # what has a generator is never known
            return operate(*drawn, mesh)
        if closer:
            check(func, args, kwargs, inputs, (), place, mesh)
        try:
            entry = _learn(op, args, kwargs, inputs, engine, frozen)
        except misuse.DynamicShapeError:
            if not decided(func, args, inputs):
                raise
            if indexes(func):
                return operate(*by_indices(func, args, place), {}, mesh)
            return computed(func, args, kwargs, inputs, place)
    if closer:
        place = check(func, args, kwargs, inputs, entry.outcome.mutates, place, mesh)
    if entry.bends:
        for index in entry.bends:
            if inputs[index]._record.shared:
                own(inputs[index])
        refs = [tensor._record.ref for tensor in inputs]
    here = recorder() if recorders else None
    if here is not None:
        here.read(inputs)
    ident = engine.run(place, entry.signature, refs, numbers, entry.fresh)
    how = entry.kind
    if how == 0:  # NEW
        if _inference():
            MadeInInference.inference = True
        meta = entry.meta
        made = entry.wrap()
        made._record = record = TensorRecord(ident, meta, place, TensorStorage(taint))
        if here is not None:
            here.born(record)
        if not known or not kept(meta, func):
            return made
        know(op, entry.outcome, args, kwargs, inputs, [made])
        return made
    if how == 1:  # VIEW
        source = inputs[entry.view]
        made = _view_of(source, entry.wrap) if _inference() else entry.wrap()
        above = source._record
        made._record = record = TensorRecord(ident, entry.meta, place, above.storage)
        if here is not None:
            here.born(record)
        share(above, record)
        return made
    if how == 2:  # SAME
        made = inputs[entry.same]
        storage = made._record.storage
        storage.taint = taint
        for other in entry.outcome.mutates:
            inputs[other]._record.storage.taint = taint
        if known:
            know(op, entry.outcome, args, kwargs, inputs, [])
        return made
    if how == 3 and not (known and entry.small):  # SEVERAL
        return _several(entry, inputs, place, ident, taint, here)
    if how == 4:  # WRITES
        for other in entry.outcome.mutates:
            inputs[other]._record.storage.taint = taint
        if known:
            know(op, entry.outcome, args, kwargs, inputs, [])
        return entry.put([leaf.value for leaf in entry.outcome.leaves])
    return _finish(op, entry, args, kwargs, inputs, place, ident, taint)


def _several(
    entry: KnownCall, inputs: list[Tensor], place: StreamPlacement, ident: int, taint: Taint | None, here: Any
) -> PyTree:
    """Returns the results of a call that gives several."""
    leaves: list[Any] = []
    inference = _inference()
    for meta, how, view in entry.parts:
        if meta is None:
            leaves.append(how)
            continue
        if view < 0:
            made = how()
            record = TensorRecord(ident, meta, place, TensorStorage(taint))
            if inference:
                MadeInInference.inference = True
        else:
            made = _view_of(inputs[view], how) if inference else how()
            above = inputs[view]._record
            record = TensorRecord(ident, meta, place, above.storage)
            share(above, record)
        made._record = record
        ident += 1
        if here is not None:
            here.born(record)
        leaves.append(made)
    return entry.put(leaves)


def _view_of(source: Tensor, wrap: Callable[[], Tensor]) -> Tensor:
    """Returns a wrapper for a view that inference mode makes: one of an ordinary tensor is ordinary, as torch wants it."""
    if source.is_inference():
        MadeInInference.inference = True
        return wrap()
    with torch.inference_mode(False):
        return wrap()


_INT = 1 << 62
_NUMBERS = frozenset({torch.SymFloat, KnownNumber})


def _free(values: Sequence[Any]) -> bool:
    """True if all numbers of a list, one for each of several tensors, can travel with the command."""
    return all(
        type(value) is float or type(value) is RecordedFloat or (type(value) is int and -_INT < value < _INT)
        for value in values
    )


_float32 = torch.float32
_default_dtype = torch.get_default_dtype


def _plain(kind: type, value: object) -> Hashable:
    """Returns the key of an argument: numbers that are equal and yet differ (0.0 and -0.0) have different ones, and
    NaN is like NaN."""
    if kind is float or kind is complex:
        return kind, repr(value)
    return kind, value


def _nested(value: Any, inputs: list[Tensor]) -> tuple[Any, ...]:
    """Returns the key of a list or tuple argument; its tensors go to `inputs`."""
    if len(value) > 3 and set(map(type, value)) == {Tensor}:
        inputs.extend(value)
        return type(value), *[item._record.meta for item in value]
    key: list[object] = [type(value)]
    for item in value:
        kind = type(item)
        if kind is Tensor:
            key.append(item._record.meta)
            inputs.append(item)
        elif kind is int or item is None:
            key.append(item)
        elif kind is list or kind is tuple:
            key.append(_nested(item, inputs))
        else:
            if isinstance(item, torch.Tensor):
                inputs.append(item)
            key.append(_plain(kind, item))
    return tuple(key)


def template(args: Args, kwargs: Kwargs, op: _KnownOp | None) -> tuple[list[object], dict[str, object], list[Tensor]]:
    """Returns the arguments with TensorHoles for tensors and, where `op` lets them, NumberHoles for numbers; and the
    tensors in the order of `operate`."""
    tensors: list[Tensor] = []
    count = itertools.count()
    places = op.places if op is not None else ()
    names = op.names if op is not None else ()
    lists = op.lists if op is not None else ()
    held = [_hole(arg, index in places, tensors, count, index in lists) for index, arg in enumerate(args)]
    named = {name: _hole(value, name in names, tensors, count) for name, value in kwargs.items()}
    return held, named, tensors


# A function of the module, as every recursive one is that sees tensors: a closure that names itself is garbage that only the
# collector finds, and would keep them until then.
def _hole(value: Any, free: bool, tensors: list[Tensor], count: Iterator[int], each: bool = False) -> object:
    kind = type(value)
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return TensorHole(len(tensors) - 1)
    if free and (kind is float or (kind is int and -_INT < value < _INT) or kind is RecordedFloat):
        return NumberHole(next(count))
    if kind in (list, tuple):
        return kind(_hole(item, each and _free(value), tensors, count) for item in value)
    return value


def _learn(
    op: _KnownOp, args: Args, kwargs: Kwargs, inputs: list[Tensor], engine: TensorEngine, key: object
) -> KnownCall:
    """Works out what a call gives that was not made before, and defines it on the workers."""
    values, named, _ = template(args, kwargs, None)
    if op.op._schema.name.startswith("aten::quantize_per_"):  # torch predicts a plain tensor
        raise metadata.not_dense("quantized")
    metas = [tensor._record.meta for tensor in inputs]
    try:
        outcome = propagation.propagate(op.op, values, named, metas)
    except propagation.DataDependentOutputException:
        raise misuse.data_dependent(str(op.op)) from None
    except propagation.DynamicOutputShapeException:
        raise misuse.DynamicShapeError(str(op.op)) from None
    except propagation.UnsupportedOperatorException:
        raise misuse.no_prediction(str(op.op)) from None
    except AssertionError as exc:
        if not str(exc).startswith("NYI"):
            raise
        raise misuse.no_prediction(str(op.op)) from None
    held, free, _ = template(args, kwargs, op)
    strides, exact = None, None
    if op.op._schema.name.partition("::")[0] in _TORCH:
        strides = tuple(_expected(leaf) for leaf in outcome.fresh)
        strides = strides if any(step is not None for step in strides) else None
    else:
        exact = tuple(
            Layout(tuple(meta.shape), meta.stride, meta.dtype) for leaf in outcome.fresh if (meta := leaf.meta)
        )
    default = None if torch.get_default_dtype() is torch.float32 else torch.get_default_dtype()
    signature = engine.define(
        (op.op, _frozen(held), _frozen(free), outcome.keeps, default, strides, exact),
        OpCall(op_name(op.op), held, free, outcome.keeps, outcome.mutates, default, strides, exact),
    )
    entry = KnownCall(signature, outcome)
    if key is not None:
        engine.remember(key, entry)
    return entry


# Whose kernels and predictions torch keeps together. They may still lay out a result differently, on some device.
_TORCH = frozenset(
    {"aten", "prims", "profiler", "quantized", "mkldnn", "inductor", "c10d_functional", "_c10d_functional"}
)


def _expected(leaf: propagation.Leaf) -> tuple[int, ...] | str | None:
    """Returns the strides that workers have to give a new tensor; None for views, which follow from those of what
    they view."""
    if leaf.meta is None or leaf.view != -1 or leaf.meta.deferred:
        return None
    return CONTIGUOUS if leaf.meta.is_contiguous() else leaf.meta.stride


def _frozen(value: Any) -> Hashable:
    """Returns a key for a template: equal ones mean the same call."""
    kind = type(value)
    if kind in (list, tuple):
        return (kind, *(_frozen(item) for item in value))
    if kind is dict:
        return (dict, *((name, _frozen(item)) for name, item in value.items()))
    return _plain(kind, value)


def _finish(
    op: _KnownOp,
    entry: KnownCall,
    args: Args,
    kwargs: Kwargs,
    inputs: list[Tensor],
    place: StreamPlacement,
    ident: int,
    taint: Taint | None,
) -> PyTree:
    """Returns results of every form: several, nested, none, of changed metadata."""
    outcome = entry.outcome
    for index in outcome.mutates:
        inputs[index]._record.storage.taint = taint
    for index, meta in outcome.changed:
        tensor = inputs[index]
        tensor._record.meta = meta
        change_meta(op.op, args, kwargs, tensor, meta)
    for index, source in outcome.moved:
        _move(inputs[index]._record, inputs[source]._record if source >= 0 else None, taint)
    leaves = fresh_leaves(outcome, inputs, place, ident, taint)
    made = [
        leaf for leaf, known in zip(leaves, outcome.leaves, strict=True) if known.meta is not None and known.same < 0
    ]
    know(op, entry.outcome, args, kwargs, inputs, made)
    return leaves[0] if outcome.structure is None else outcome.structure(leaves)


def fresh_leaves(
    outcome: propagation.PropagatedOutcome,
    inputs: list[Tensor],
    place: StreamPlacement,
    ident: int,
    taint: Taint | None,
) -> list[Any]:
    """Returns the leaves of a result: new tensors with the references from `ident` on, inputs that come back, other
    values."""
    leaves: list[object] = []
    fresh: list[Tensor] = []
    for leaf in outcome.leaves:
        if leaf.meta is None:
            leaves.append(leaf.value)
            continue
        if leaf.same >= 0:
            leaves.append(inputs[leaf.same])
            continue
        source = None
        if leaf.view >= 0:
            source = inputs[leaf.view]._record
        elif leaf.view < -1:
            source = fresh[-2 - leaf.view]._record
        storage = source.storage if source is not None else TensorStorage(taint)
        made = make(TensorRecord(ident + len(fresh), leaf.meta, place, storage))
        if source is not None:
            share(source, made._record)
        fresh.append(made)
        leaves.append(made)
    return leaves


def change_meta(op: OpOverload, args: Args, kwargs: Kwargs, tensor: Tensor, meta: Meta) -> None:
    """Gives a wrapper the metadata that its local tensors have after an operation in place (`transpose_`, `resize_`)."""
    with _disable_current_modes(), torch._C._DisableTorchDispatch():
        # A storage that does not exist cannot grow: take a larger one.
        if meta.nbytes > torch.Tensor.untyped_storage(tensor).nbytes():
            larger = _wrap(Tensor, *layout(meta))
            torch.Tensor.data.__set__(tensor, larger)
            return
        torch.ops.aten.set_.source_Storage_storage_offset(
            tensor, torch.Tensor.untyped_storage(tensor), meta.offset, meta.shape, meta.stride
        )


def _move(record: TensorRecord, source: TensorRecord | None, taint: Taint | None) -> None:
    """Puts a tensor in the storage of another from here on, or in its own (`set_`)."""
    before = record.storage.records
    if before is not None:
        before[:] = [known for known in before if known() is not record]
    record.storage = source.storage if source is not None else TensorStorage(taint)
    if source is not None:
        share(source, record)


# --- local tensors among the inputs -----------------------------------------------------------------------------


def _with_locals(func: OpOverload, args: Args, kwargs: Kwargs, inputs: list[Tensor], mesh: DeviceMesh | None) -> PyTree:
    """Handles local tensors among the inputs. What a distributed tensor is to be a copy of (`copy_`, and with it
    `load_state_dict`) is sent; so are constants that a derivative made outside any mesh, and there torch's own
    scalars: it makes one of the number in `t[0] = 1` or `torch.where(mask, t, 0.0)`."""
    ours = [tensor for tensor in inputs if type(tensor) is Tensor]
    place = ours[0]._record.place if ours else None
    others = [tensor for tensor in inputs if type(tensor) is not Tensor]
    if place is not None and func is _copy and type(args[0]) is Tensor:
        return operate(func, (args[0], replica(place, args[1]), *args[2:]), kwargs, mesh)
    if place is not None and all(goes_along(tensor, mesh) for tensor in others):
        sent = {id(tensor): constant(place, tensor) for tensor in others}
        return operate(func, replaced(args, sent), {k: replaced(v, sent) for k, v in kwargs.items()}, mesh)
    if place is None and all(map(was_fetched, others)):
        return run_here(func, args, kwargs)
    code = "LOCAL_TENSOR" if mesh is not None or ours else "NO_MESH"
    problems = [OperandProblem(tensor, code) for tensor in others]
    error = misuse.incorrect(func, args, kwargs, problems, mesh, _streams.stream)
    if place is None and misuse.in_operator():
        raise misuse.LocalOperandsError(str(error))
    raise error


_copy = torch.ops.aten.copy_.default
_full = torch.ops.aten.full.default


# --- operations that are not what they seem ------------------------------------------------------------------


def _item(func: OpOverload, args: Args, kwargs: Kwargs, mesh: DeviceMesh | None) -> object:
    if type(args[0]) is Tensor:
        return known_scalar(args[0])
    return func(*args, **kwargs)


def _lift(func: OpOverload, args: Args, kwargs: Kwargs, mesh: DeviceMesh | None) -> object:
    """`torch.tensor([...])` under a mesh: its values go to every rank."""
    if type(args[0]) is Tensor:
        return NotImplemented
    if mesh is None:
        return func(*args, **kwargs)
    if recorders and (here := recorder()) is not None and here.evolving is not None:
        number = here.evolving.made_of(args[0])
        if number is not None:
            return operate(_full, ([], number), {"dtype": args[0].dtype, "device": args[0].device}, mesh)
    return constant(mesh.place(_streams.stream), args[0], listed=True)


def _local(func: OpOverload, args: Args, kwargs: Kwargs, mesh: DeviceMesh | None) -> object:
    """Handles operations that stay local for local tensors, also under a mesh."""
    if any(type(arg) is Tensor for arg in args):
        return NotImplemented
    return func(*args, **kwargs)


def _detach(func: OpOverload, args: Args, kwargs: Kwargs, mesh: DeviceMesh | None) -> object:
    """Answers autograd, which keeps a copy of what an operation gave, and makes one more of that when it computes the
    derivative. Nobody else sees these, and the memory and metadata are the tensor's: they share its record, and there is
    nothing to tell the workers. What the program detaches comes from torch's dispatcher, and is a tensor of its own."""
    tensor = args[0]
    if type(tensor) is not Tensor:
        return func(*args, **kwargs)
    record = tensor._record
    if (
        recorders
        or _skipped(_VIEWS)
        or record.storage.flags & ~KNOWN
        or record.meta.deferred
        or record.place.stream is not _streams.stream
        or _inference()
    ):
        return NotImplemented
    record.shared = True
    made = wrapper(record.meta)()
    made._record = record
    return made


_skipped = torch._C._dispatch_tls_is_dispatch_key_excluded
_VIEWS = torch._C.DispatchKey.ADInplaceOrView


def own(tensor: Tensor) -> None:
    """Gives a tensor whose record others may share a record of its own."""
    alias: Any = operate(torch.ops.aten.alias.default, (tensor,), {}, None)
    tensor._record, alias._record = alias._record, tensor._record


def _equal(func: OpOverload, args: Args, kwargs: Kwargs, mesh: DeviceMesh | None) -> object:
    ours = [arg for arg in args[:2] if type(arg) is Tensor]
    if not ours:
        return NotImplemented
    if len(ours) == 2 and all(map(is_known, ours)):
        known = {id(tensor): known_values(tensor, f"torch.{func._schema.name[6:]}()") for tensor in ours}
        with _disable_current_modes():
            return func(*replaced(args, known), **kwargs)
    raise misuse.data_dependent(str(func))


def _empty(func: OpOverload, args: Args, kwargs: Kwargs, mesh: DeviceMesh | None) -> object:
    """Torch rebuilds a tensor that it has read (torch.load, a message of its own) as an empty one that it then gives the
    storage it has read: that is in this process (torch._utils._rebuild_tensor)."""
    if mesh is None or list(args[0]) != [0] or not misuse.asked_by(_REBUILDING):
        return NotImplemented
    return func(*args, **kwargs)


_REBUILDING = torch._utils.__file__


def _packed(func: OpOverload, args: Args, kwargs: Kwargs, mesh: DeviceMesh | None) -> object:
    """Refuses what torch's recurrent networks and `pad_packed_sequence` would read in the memory of this process."""
    if not any(type(arg) is Tensor for arg in args):
        return NotImplemented
    raise NotImplementedError(
        "pack_padded_sequence(): torch reads the lengths of packed sequences in the memory of this process, and those of a "
        "distributed tensor are in the processes of its mesh. Give the network the padded batch, and leave out of the loss "
        "what is beyond each length (torch.where(mask, loss, 0.0)); or run it in a monarch.remote function"
    )


def _pinned(func: OpOverload, args: Args, kwargs: Kwargs, mesh: object) -> object:
    return False


_special: dict[str, Callable[..., object]] = {
    "aten._local_scalar_dense.default": _item,
    "aten.lift_fresh.default": _lift,
    "aten.lift_fresh_copy.default": _lift,
    "aten.allclose.default": _equal,
    "aten.equal.default": _equal,
    "aten.is_pinned.default": _pinned,
    "aten._pack_padded_sequence.default": _packed,
    "aten.empty.memory_format": _empty,
    "aten.detach.default": _detach,
    "aten.alias.default": _local,
    "aten.set_.source_Storage": _local,
    "aten.set_.source_Storage_storage_offset": _local,
    "profiler._record_function_exit.default": _local,
    "profiler._record_function_exit._RecordFunction": _local,
    "profiler._record_function_enter_new.default": _local,
}
