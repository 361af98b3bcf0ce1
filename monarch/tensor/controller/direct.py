"""Operators and methods that go straight to the mesh, around torch's dispatcher.

To bring `x + y` from the program to `dispatch.operate` takes torch's dispatcher as long as everything that is done there.
Where it would do nothing else, because no derivative is recorded and nobody asked to see operations, the method finds the
known call itself. All the rest goes torch's way, calls that were not made before too: there they are learned.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd import forward_ad

from monarch.tensor.controller import dispatch, misuse
from monarch.tensor.controller.activation import _active as _activations
from monarch.tensor.controller.dispatch import _INT, KnownCall
from monarch.tensor.controller.handles import MadeInInference
from monarch.tensor.controller.known_values import change_known
from monarch.tensor.controller.records import KNOWN, TensorRecord, TensorStorage, recorders
from monarch.tensor.controller.stream import _active as _streams
from monarch.tensor.controller.taint import merge

if TYPE_CHECKING:
    from monarch.tensor.controller.tensor import Tensor

_aten = torch.ops.aten
# Methods that mostly have more arguments, or derivatives, are not among them: for these the way past here is a detour.
# Of these, `method(tensor)` or `method(tensor, tensor or number)` is the operation on the same arguments, and nothing else.
OPERATIONS = {
    **dict.fromkeys(("__add__", "__radd__", "add"), _aten.add.Tensor),
    **dict.fromkeys(("__sub__", "sub"), _aten.sub.Tensor),
    **dict.fromkeys(("__mul__", "__rmul__", "mul"), _aten.mul.Tensor),
    **dict.fromkeys(("__truediv__", "div"), _aten.div.Tensor),
    **dict.fromkeys(("__iadd__", "add_"), _aten.add_.Tensor),
    **dict.fromkeys(("__isub__", "sub_"), _aten.sub_.Tensor),
    **dict.fromkeys(("__imul__", "mul_"), _aten.mul_.Tensor),
    **dict.fromkeys(("__itruediv__", "div_"), _aten.div_.Tensor),
    **dict.fromkeys(("__neg__", "neg"), _aten.neg.default),
    **dict.fromkeys(("__matmul__", "matmul", "mm"), _aten.mm.default),  # of matrices: only for these is it ever known
    **dict.fromkeys(("__pow__", "pow"), _aten.pow.Tensor_Tensor),
    **dict.fromkeys(("__eq__", "eq"), _aten.eq.Tensor),
    **dict.fromkeys(("__ne__", "ne"), _aten.ne.Tensor),
    **dict.fromkeys(("__lt__", "lt"), _aten.lt.Tensor),
    **dict.fromkeys(("__le__", "le"), _aten.le.Tensor),
    **dict.fromkeys(("__gt__", "gt"), _aten.gt.Tensor),
    **dict.fromkeys(("__ge__", "ge"), _aten.ge.Tensor),
    "abs": _aten.abs.default,
    "clone": _aten.clone.default,
    "exp": _aten.exp.default,
    "log": _aten.log.default,
    "relu": _aten.relu.default,
    "rsqrt": _aten.rsqrt.default,
    "sigmoid": _aten.sigmoid.default,
    "sqrt": _aten.sqrt.default,
    "tanh": _aten.tanh.default,
    "zero_": _aten.zero_.default,
}
# What some of these are with a number in the place of the second tensor; of the others it is the same operation.
WITH_NUMBER = {
    _aten.pow.Tensor_Tensor: _aten.pow.Tensor_Scalar,
    **{getattr(_aten, name).Tensor: getattr(_aten, name).Scalar for name in ("eq", "ne", "lt", "le", "gt", "ge")},
}
# Of these `method(tensor, tensor, number)` or `method(tensor, tensor, tensor, value=number)`: optimizers are made of them.
SEVERAL = {"lerp_": _aten.lerp_.Scalar, "addcmul_": _aten.addcmul_.default, "addcdiv_": _aten.addcdiv_.default}

_AUTOCASTS = [key for key in torch._C.DispatchKey.__members__ if key.startswith("Autocast")]
_autocast = torch._C._is_any_autocast_enabled
_modes = torch._C._len_torch_dispatch_stack
_function_modes = torch._C._is_torch_function_mode_enabled
_inference = torch.is_inference_mode_enabled
_transforms = torch._C._functorch.maybe_current_level
_profiled = torch._C._autograd._profiler_enabled
_traced = torch._C._get_tracing_state
_grad = torch.is_grad_enabled
_default_dtype = torch.get_default_dtype
_float32 = torch.float32
_gather = torch._C._profiler.gather_traceback
_count_change = torch._C._increment_version
_NEW, _SAME = KnownCall.NEW, KnownCall.SAME
_NOTHING: Any = object()


def direct(name: str, Tensor: type[Tensor]) -> Callable[..., Any]:
    """The method `name` of OPERATIONS or SEVERAL for Tensor, the class of distributed tensors."""
    plain: Callable[..., Any] = getattr(torch.Tensor, name)
    several = name in SEVERAL
    operation = SEVERAL[name] if several else OPERATIONS[name]
    known = dispatch.known_op(operation)
    with_number = dispatch.known_op(WITH_NUMBER.get(operation, operation))
    in_place = known.op._schema.is_mutable
    casts = any(torch._C._dispatch_has_kernel_for_dispatch_key(operation.name(), key) for key in _AUTOCASTS)

    def method(self: Any, other: Any = _NOTHING, *more: Any, alpha: Any = _NOTHING, **named: Any) -> Any:
        kind = type(other)
        if not (
            _function_modes()  # first: such a mode would see the attributes read
            or (_grad() and (several or self.requires_grad or (kind is Tensor and other.requires_grad)))
            or (bool(more or named) is not several)
            or recorders
            or _modes() != _activations.modes
            or _transforms() is not None
            or _profiled()
            or _traced() is not None
            or (casts and _autocast())
            or forward_ad._current_level >= 0
            or _default_dtype() is not _float32
        ):
            record = self._record
            place, storage = record.place, record.storage
            taint, usable = storage.taint, not storage.flags and place.stream is _streams.stream
            counts = not usable and storage.flags == KNOWN and place.stream is _streams.stream and in_place
            inputs: Any = (record.ref,)
            numbers: Any = ()
            key: Any
            if several:
                usable = usable and len(more) == 1 and kind is Tensor and len(named) <= ("value" in named)
                found = (other, *more, *named.values())
                key, inputs, numbers, taint, usable = _parts(known, record, found, named, Tensor, usable)
            elif kind is Tensor:
                second = other._record
                key = (known, record.meta, second.meta)
                inputs = (record.ref, second.ref)
                if second.place is not place or second.storage.flags:
                    usable = False
                elif second.storage.taint is not taint:
                    taint = merge(taint, second.storage.taint)
            elif other is _NOTHING:
                key = (known, record.meta)
            else:
                usable = (usable or counts) and (kind is float or (kind is int and -_INT < other < _INT))
                key = (with_number, record.meta, kind)
                numbers = (other,)
            if alpha is not _NOTHING:
                usable = usable and not counts and type(alpha) in (int, float) and -_INT < alpha < _INT
                key += ("alpha", type(alpha))
                numbers += (alpha,)
            engine = place.engine
            entry = engine.entries.get(key) if usable else None
            if entry is None:
                pass
            elif entry.kind == _NEW:
                if _inference():
                    MadeInInference.inference = True
                made = entry.wrap()
                ident = engine.run(place, entry.signature, inputs, numbers, 1, _gather(True, False, False))
                made._record = TensorRecord(ident, entry.meta, place, TensorStorage(taint))
                return made
            elif entry.kind == _SAME and in_place and (not MadeInInference.inference or not self.is_inference()):
                engine.run(place, entry.signature, inputs, numbers, 0, _gather(True, False, False))
                _count_change((self,))  # autograd's: what it has saved must not have changed
                storage.taint = taint
                if counts:
                    change_known(known.op, record, numbers[0])
                return self
        if other is not _NOTHING and alpha is _NOTHING and not more and not named:
            result = plain(self, other)
            return misuse.explained(plain, self, other) if result is NotImplemented else result
        if other is not _NOTHING:
            more = (other, *more)
        if alpha is not _NOTHING:
            named["alpha"] = alpha
        return plain(self, *more, **named)

    method.__name__ = name
    method.__qualname__ = f"Tensor.{name}"
    method.__doc__ = plain.__doc__
    return method


def _parts(
    known: Any, record: TensorRecord, given: tuple[Any, ...], named: dict[str, Any], Tensor: type[Tensor], usable: bool
) -> tuple[Any, Any, Any, Any, bool]:
    """Returns the key of a known call on that tensor and what is `given`, of which what is `named` are the last; its inputs
    and numbers; its taint; and whether it is `usable` as it is."""
    key: list[Any] = [known, record.meta]
    inputs, numbers, taint = [record.ref], [], record.storage.taint
    names = iter(named)
    for at, value in enumerate(given):
        kind = type(value)
        if at >= len(given) - len(named):
            key.append(next(names))
        if kind is Tensor:
            other = value._record
            key.append(other.meta)
            inputs.append(other.ref)
            usable = usable and other.place is record.place and not other.storage.flags
            if other.storage.taint is not taint:
                taint = merge(taint, other.storage.taint)
        else:
            key.append(kind)
            numbers.append(value)
            usable = usable and (kind is float or (kind is int and -_INT < value < _INT))
    return tuple(key), inputs, numbers, taint, usable
