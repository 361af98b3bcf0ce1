"""The meaning of a Run command: an operation and its arguments, with holes where tensors and numbers go.

Defined once on each worker, then run by number. A Call is pickled by the controller, `prepare`d once by the worker and then
called with the local tensors (and numbers) of each Run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch

from monarch._linux.locks import Lock
from monarch.tensor import generators
from monarch.tensor.failures import OneLine

if TYPE_CHECKING:
    from torch._ops import OpOverload
    from torch.utils._pytree import PyTree


Scalar = int | float
Args = tuple[Any, ...]  # the positional arguments of an operation or a function
Kwargs = dict[str, Any]
Runner = Callable[[Sequence[torch.Tensor], Sequence[Scalar]], Any]


class WorkerCall(Protocol):
    """`keeps`: which of the flattened results become references, in order; None when the only result does.

    `mutates`: the positions of inputs whose memory it changes: if it fails, they and all that shares their memory are lost.
    """

    keeps: tuple[int, ...] | None
    mutates: tuple[int, ...]

    def prepare(self, executor: Any) -> Runner:
        """Returns the function of (tensors, numbers) that does it, in the worker, on the thread of its stream."""

    def name(self) -> str:
        """Returns its name as reports of failures show it."""


class TensorHole(int):
    """The hole for the n-th input tensor."""

    __slots__ = ()


class NumberHole(int):
    """The hole for the n-th number."""

    __slots__ = ()


CONTIGUOUS = "contiguous"  # in place of strides


class Layout(NamedTuple):
    """The shape, strides and dtype that a result has to have."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    def fits(self, tensor: torch.Tensor) -> bool:
        """True if `tensor` is so. Strides count where a dimension has a second element."""
        return tensor.shape == self.shape and tensor.dtype is self.dtype and same_strides(tensor, self.stride)

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')}{list(self.shape)} with strides {tuple(self.stride)}"


class OpCall:
    """A torch operation. `args` and `kwargs` are nested lists, tuples and dicts with TensorHoles and NumberHoles in them.
    `default`: the program's default dtype where it is not float32. `strides`: those the controller expects of each
    result that is kept, or CONTIGUOUS (None: it is a view, whose follow from those of what it views). A result of torch's
    own kernels that has others is copied into these. Operations of others have `exact`: what each result has to be, or
    else the operation has failed.
    """

    def __init__(
        self,
        target: str,
        args: Sequence[object],
        kwargs: Kwargs,
        keeps: tuple[int, ...] | None,
        mutates: tuple[int, ...],
        default: torch.dtype | None = None,
        strides: tuple[tuple[int, ...] | str | None, ...] | None = None,
        exact: tuple[Layout, ...] | None = None,
    ) -> None:
        self.strides = strides
        self.exact = exact
        self.default = default
        self.target = target
        self.args = args
        self.kwargs = kwargs
        self.keeps = keeps
        self.mutates = mutates

    def name(self) -> str:
        return self.target

    @property
    def plain(self) -> bool:
        """True if the operation itself is all that it does, but for looking at a result that is to be contiguous."""
        return (self.strides is None or self.contiguous) and self.default is None and self.exact is None

    @property
    def contiguous(self) -> bool:
        """True if it has one result, and this is contiguous."""
        return self.keeps is None and self.strides == (CONTIGUOUS,)

    def prepare(self, executor: Any) -> Runner:
        operation = resolve_op(self.target)
        if self.contiguous:
            run = runner(operation, self.args, self.kwargs, contiguous=True)
        else:
            run = runner(operation, self.args, self.kwargs)
            if self.strides is not None:
                run = _laid_out(run, self.keeps, self.strides)
        if self.exact is not None:
            run = _exactly(self.target, run, self.keeps, self.exact)
        return run if self.default is None else _with_default(self.default, run)


def _laid_out(run: Runner, keeps: tuple[int, ...] | None, strides: Sequence[tuple[int, ...] | str | None]) -> Runner:
    """Runs, and gives results in the layout that the controller believes them to have."""

    def laid_out(tensors: Sequence[torch.Tensor], numbers: Sequence[Scalar]) -> object:
        result = run(tensors, numbers)
        if keeps is None:
            return with_strides(result, strides[0])
        leaves = flatten(result)
        for index, wanted in zip(keeps, strides, strict=True):
            leaves[index] = with_strides(leaves[index], wanted)
        return leaves

    return laid_out


def _exactly(target: str, run: Runner, keeps: tuple[int, ...] | None, exact: Sequence[Layout]) -> Runner:
    """Runs, and raises when a result is not what the operation's fake implementation says."""

    def exactly(tensors: Sequence[torch.Tensor], numbers: Sequence[Scalar]) -> object:
        result = run(tensors, numbers)
        leaves = flatten(result)
        for index, wanted in zip((0,) if keeps is None else keeps, exact, strict=True):
            found = leaves[index]
            if not wanted.fits(found):
                now = Layout(tuple(found.shape), found.stride(), found.dtype)
                raise OneLine(
                    f"{target} gave {now}, and its fake implementation says {wanted}: make the two agree "
                    f"(torch.library.opcheck tests that), because the program goes by what the fake one says"
                )
        return result

    return exactly


def with_strides(tensor: torch.Tensor, wanted: tuple[int, ...] | str | None) -> torch.Tensor:
    """Returns `tensor`, or a copy of it that has these strides."""
    if wanted is None:
        return tensor
    if wanted == CONTIGUOUS:
        return tensor.contiguous()
    if tensor.stride() == wanted or same_strides(tensor, wanted):
        return tensor
    return torch.empty_strided(tensor.shape, wanted, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def same_strides(tensor: torch.Tensor, wanted: tuple[int, ...] | str) -> bool:
    """True if its elements lie where these strides say."""
    if tensor.stride() == wanted or not tensor.numel():
        return True
    return all(
        step == other or size == 1 for size, step, other in zip(tensor.shape, tensor.stride(), wanted, strict=True)
    )


_defaulting = Lock()


def _with_default(dtype: torch.dtype, run: Runner) -> Runner:
    """Runs with another default dtype. Torch has one for all threads of a process, so streams take turns at that."""

    def changed(tensors: Sequence[torch.Tensor], numbers: Sequence[Scalar]) -> object:
        with _defaulting:
            before = torch.get_default_dtype()
            torch.set_default_dtype(dtype)
            try:
                return run(tensors, numbers)
            finally:
                torch.set_default_dtype(before)

    return changed


def op_name(op: OpOverload) -> str:
    """`aten.add.Tensor`, from which `resolve_op` finds it in another process."""
    return str(op)


# Operations that keep what their derivative needs only while grad is on. It is off in the workers, which record no graph.
_ASK_GRAD_MODE = frozenset({"aten.mkldnn_rnn_layer.default"})


def resolve_op(name: str) -> Any:
    """Returns the operation called `namespace.name.overload`. AttributeError when this process has not registered it."""
    if (inner := generators.drawn_op(name)) is not None:
        return generators.drawing(_overload(inner))
    op = _overload(name)
    if name in _ASK_GRAD_MODE:
        return torch.enable_grad()(op)
    return getattr(op, "_op", op)  # the builtin behind the OpOverload: same arguments, less on the way


def _overload(name: str) -> Any:
    namespace, packet, overload = name.split(".")
    try:
        return getattr(getattr(getattr(torch.ops, namespace), packet), overload)
    except AttributeError:
        raise AttributeError(
            f"torch operation {name!r} is not registered in this process: import the module that registers it in the workers "
            f"too, in the bootstrap function of spawn_procs() or in a remote function"
        ) from None


def runner(function: Callable[..., Any], args: Sequence[object], kwargs: Kwargs, contiguous: bool = False) -> Runner:
    """`lambda tensors, numbers: function(...)` with the holes filled; made as code once, because it runs often. With
    `contiguous` the result is so: nearly always it is already, and to ask costs a twentieth of a microsecond."""
    constants: list[object] = []
    written = [_expression(arg, constants) for arg in args]
    written += [f"{name}={_expression(value, constants)}" for name, value in kwargs.items()]
    called = f"f({', '.join(written)})"
    source = f"lambda t, n: {contiguously(called) if contiguous else called}"
    made: Runner = eval(source, {"f": function, "c": constants})
    return made


def contiguously(call: str) -> str:
    """Returns the expression `call`, whose value is made contiguous if it is not."""
    return f"r if (r := {call}).is_contiguous() else r.contiguous()"


def _expression(value: Any, constants: list[object]) -> str:
    kind = type(value)
    if kind is TensorHole:
        return f"t[{int(value)}]"
    if kind is NumberHole:
        return f"n[{int(value)}]"
    if kind is bool or kind is int or value is None:
        return repr(value)
    if kind in (list, tuple) and has_hole(value):
        inner = ", ".join(_expression(item, constants) for item in value)
        if kind is list:
            return f"[{inner}]"
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    constants.append(here(value))
    return f"c[{len(constants) - 1}]"


def here(value: Any) -> object:
    """Replaces a device of the controller's: `cuda`, whatever its number, is the one that this thread uses. All else
    stays as it is."""
    if type(value) is not torch.device or value.index is None or value.type == "cpu":
        return value
    module = getattr(torch, value.type, None)
    if module is None or not module.is_available():
        return value
    return torch.device(value.type, module.current_device())


def has_hole(value: Any) -> bool:
    """True if a tensor or a number that travels with each call belongs somewhere in `value`."""
    if type(value) in (list, tuple):
        return any(has_hole(item) for item in value)
    return type(value) in (TensorHole, NumberHole)


def flatten(result: PyTree) -> list[Any]:
    """Returns the leaves of what an operation gave: nested lists and tuples in order."""
    if type(result) in (list, tuple):
        return [leaf for item in result for leaf in flatten(item)]
    return [result]
