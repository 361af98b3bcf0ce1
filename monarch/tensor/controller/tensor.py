"""`monarch.Tensor`: stands for one local tensor on each process of a mesh."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from monarch.tensor.controller import dispatch, known_values, misuse
from monarch.tensor.controller.absent_devices import numbered
from monarch.tensor.controller.activation import in_this_thread, no_modes
from monarch.tensor.controller.agreement import answers_of
from monarch.tensor.controller.checks import trouble
from monarch.tensor.controller.constants import on_device_of, replica
from monarch.tensor.controller.direct import OPERATIONS, SEVERAL, direct
from monarch.tensor.controller.handles import is_distributed
from monarch.tensor.controller.records import DROPPED, KNOWN, TensorRecord, tensors_of
from monarch.tensor.controller.stream import get_active_stream
from monarch.tensor.worker.function_call import ItemCall

_SCALER = torch.amp.grad_scaler.__file__
_SAVING = torch.serialization.__file__
_TO_PARAMETER = "_process_value_according_to_param_policy"  # torch/optim/optimizer.py, from 2.0 on

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

    from torch._ops import OpOverload

    from monarch.tensor.controller.mesh import DeviceMesh
    from monarch.tensor.controller.stream import Stream
    from monarch.tensor.signature import Args, Kwargs


class Tensor(torch.Tensor):
    """One local tensor of the same metadata on each process of `mesh`, worked on from here.

    Every torch operation on it is issued to the workers and returns at once with a tensor whose metadata is known; values
    come back with `fetch_shard` and `inspect`. Operations whose shape does not fit raise torch's own error here; what fails
    in a worker is raised by a fetch of something that depends on it. Autograd works: its graph lives here.
    """

    __slots__ = ("_record",)  # found faster than in a __dict__, which most tensors then do without
    _record: TensorRecord

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(
        cls, func: OpOverload, types: Sequence[type], args: Args = (), kwargs: Kwargs | None = None
    ) -> object:
        return dispatch.operate(func, args, kwargs or {}, None)

    # --- what it is

    @property
    def mesh(self) -> DeviceMesh:
        """The mesh of its local tensors."""
        return self._record.place.mesh

    @property
    def stream(self) -> Stream:
        """The stream on which it may be used."""
        return self._record.place.stream

    @property
    def device(self) -> torch.device:
        """The device of its local tensors, whether this process has one or not."""
        device: torch.device = self._record.meta.device
        return device

    @property
    def is_cuda(self) -> bool:
        return bool(self._record.meta.device.type == "cuda")

    @property
    def is_meta(self) -> bool:
        return bool(self._record.meta.device.type == "meta")

    def to(self, *args: object, **kwargs: object) -> Any:
        """Returns it with another dtype or on another device, as in torch."""
        kwargs = {name: numbered(value) for name, value in kwargs.items()}
        return super().to(*map(numbered, args), **kwargs)

    def cuda(self, device: object = None, non_blocking: bool = False, **kwargs: object) -> Any:
        """Returns it with another dtype or on another device, as in torch."""
        where = torch.device("cuda", device) if isinstance(device, int) else device
        return self.to(where if where is not None else "cuda", non_blocking=non_blocking, **kwargs)

    def get_device(self) -> int:
        """The index of its device; -1 for the CPU."""
        device = self._record.meta.device
        return -1 if device.type == "cpu" else device.index or 0

    @property
    def ref(self) -> int | None:
        """Its number on the workers; None once dropped."""
        return None if self.dropped else self._record.ref

    @property
    def dropped(self) -> bool:
        """True if `drop()` has deleted its memory."""
        return bool(self._record.storage.flags & DROPPED)

    def __repr__(self, *, tensor_contents: object = None) -> str:
        meta = self._record.meta
        grad = ", requires_grad=True" if self.requires_grad else ""
        dropped = ", dropped" if self.dropped else ""
        return (
            f"monarch.Tensor(mesh={self.mesh}, stream={self.stream}, size={tuple(meta.shape)}, dtype={meta.dtype}, "
            f"device={meta.device}{grad}{dropped})"
        )

    # --- life

    @property
    def data(self) -> Any:
        """The same memory without autograd's history. Assigning another distributed tensor makes this one an alias of it,
        assigning a local one gives it those values in each process."""
        made = torch.Tensor.data.__get__(self)
        if made._record.shared:  # torch makes it as it makes copies for autograd
            dispatch.own(made)
        return made

    @data.setter
    def data(self, value: Any) -> None:
        record = self._record
        if isinstance(value, torch.Tensor) and type(value) is not Tensor:
            value = on_device_of(value, replica(record.place, value))
        problem = trouble(value, record.place, False) if isinstance(value, torch.Tensor) else None
        if problem is not None and problem.code != "WRONG_MESH":
            raise misuse.incorrect("data", (self, value), {}, [problem], record.place.mesh, record.place.stream)
        with torch.no_grad():
            alias = value.detach() if isinstance(value, Tensor) else value
        torch.Tensor.data.__set__(self, alias)  # raises what torch does for values that do not fit
        self._record, alias._record = alias._record, record

    def drop(self) -> None:
        """Deletes it and all its views on the workers now. Using one of them later is a TypeError that shows this line."""
        storage, own = self._record.storage, self._record
        if storage.flags & DROPPED:
            return
        storage.why = misuse.here()
        storage.flags |= DROPPED
        for record in tensors_of(storage, own):
            record.place.dead.append(record.ref)
            record.ref = -1

    def backward(
        self,
        gradient: object = None,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        inputs: object = None,
    ) -> None:
        """Computes gradients as in torch. Derivatives are issued by this thread, whatever device the tensors are on,
        so that a failure is told with this line."""
        with in_this_thread():
            super().backward(gradient, retain_graph, create_graph, inputs)

    def __setitem__(self, index: Any, value: Any) -> None:
        """Writes as in torch. Where a mask chooses the elements, and one value that requires grad goes to all of them, its
        derivative is a sum by the mask: torch's own takes the chosen ones out, of which nobody here knows how many there
        are."""
        masked = is_distributed(index) and index.dtype is torch.bool and is_distributed(value) and value.requires_grad
        rest = self.shape[index.dim() :] if masked else ()
        if (
            masked
            and torch.is_grad_enabled()
            and _spreads(value.shape, rest)
            and index.shape == self.shape[: index.dim()]
        ):
            wide = index.reshape(*index.shape, *(1 for _ in rest))
            self.copy_(torch.where(wide, value.reshape(value.shape[-len(rest) :] if rest else ()).to(self.dtype), self))
            return
        super().__setitem__(index, value)

    # --- between ranks

    def to_mesh(self, mesh: object, stream: Stream | None = None) -> Tensor:
        """A copy on another mesh, whose dimensions are matched by name (see `monarch.to_mesh`)."""
        from monarch.tensor.controller.moves import to_mesh

        return to_mesh(self, mesh, stream)  # type: ignore[no-any-return]

    def slice_mesh(self, **dims: object) -> Any:
        """Part of the ranks of its mesh, to be sent with `.to_mesh` (see `monarch.slice_mesh`)."""
        from monarch.tensor.controller.moves import slice_mesh

        return slice_mesh(self, **dims)

    def reduce(
        self, dims: str | Sequence[str] = (), reduction: str = "sum", scatter: bool = False,
        mesh: DeviceMesh | None = None, out: Tensor | None = None,
        async_op: bool = False,
    ) -> Any:  # fmt: skip
        """A collective along `dims` (see `monarch.reduce`): a Tensor, or with `async_op` a PendingReduce."""
        from monarch.tensor.controller.collectives import reduce_tensor

        return reduce_tensor(self, dims, reduction, scatter, mesh, False, out, async_op)

    def reduce_(
        self,
        dims: str | Sequence[str] = (),
        reduction: str = "sum",
        scatter: bool = False,
        mesh: DeviceMesh | None = None,
        async_op: bool = False,
    ) -> Any:
        """A collective along `dims` whose result replaces the input's contents (see `monarch.reduce_`)."""
        from monarch.tensor.controller.collectives import reduce_tensor

        return reduce_tensor(self, dims, reduction, scatter, mesh, True, None, async_op)

    def delete_ref(self, ref: int) -> None:
        """Deletes reference `ref` on the workers. For the parts of the engine."""
        self._record.place.dead.append(ref)

    # --- values

    def item(self) -> Any:
        """Its number, where this process knows it: a scalar that was computed from constants alone, and so is the same on
        every rank. Otherwise an error that says what to do, but to a torch.amp.GradScaler, which waits for it."""
        if not self._record.storage.flags & (KNOWN | DROPPED) and _asked_by_scaler():
            return _agreed(self)
        return known_values.known_scalar(self)

    def __bool__(self) -> bool:
        if self.numel() != 1:
            raise RuntimeError("Boolean value of Tensor with other than one element is ambiguous")
        return bool(known_values.known_scalar(self))

    def __int__(self) -> int:
        return int(known_values.known_scalar(self))

    def __float__(self) -> float:
        return float(known_values.known_scalar(self))

    def __complex__(self) -> complex:
        return complex(known_values.known_scalar(self))

    def __index__(self) -> int:
        value = known_values.known_scalar(self)
        if not isinstance(value, int):
            raise TypeError("only integer tensors of a single element can be converted to an index")
        return int(value)

    def tolist(self) -> Any:
        """Returns the same as `item`, for tensors whose values this process knows."""
        value = known_values.known_values(self, "tolist()")
        with no_modes():
            return value.tolist()

    def numpy(self, *, force: bool = False) -> Any:
        """A NumPy array of the same values, as `tolist`; it cannot be written to. RuntimeError when they are not known."""
        if not known_values.is_known(self):
            raise misuse.data_dependent("numpy()", RuntimeError)
        if self.requires_grad and not force:
            raise RuntimeError("Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead.")
        value = known_values.known_values(self, "numpy()")
        with no_modes():
            array = value.clone().numpy()
        array.flags.writeable = False
        return array

    def __array__(self, dtype: Any = None, *args: object, **kwargs: object) -> Any:
        array = self.numpy()
        return array if dtype is None else array.astype(dtype, copy=False)

    def __dlpack__(self, *args: object, **kwargs: object) -> NoReturn:
        raise misuse.no_memory("__dlpack__()")

    def data_ptr(self) -> int:
        raise misuse.no_memory("data_ptr()")

    def untyped_storage(self) -> NoReturn:
        raise misuse.no_memory("untyped_storage()")

    def storage(self) -> NoReturn:
        raise misuse.no_memory("storage()")

    def share_memory_(self) -> NoReturn:
        raise misuse.no_memory("share_memory_()")

    def apply_(self, *args: object) -> NoReturn:
        raise misuse.data_dependent("apply_()")

    def map_(self, *args: object) -> NoReturn:
        raise misuse.data_dependent("map_()")

    def map2_(self, *args: object) -> NoReturn:
        raise misuse.data_dependent("map2_()")

    def __format__(self, spec: str) -> str:
        if not self.shape and (spec or known_values.is_known(self)):
            return format(known_values.known_scalar(self), spec)
        return object.__format__(self, spec)

    def __copy__(self) -> Any:
        copy = self.detach().requires_grad_(self.requires_grad)
        for name, value in self.__dict__.items():
            setattr(copy, name, value)
        return copy

    def __reduce_ex__(self, protocol: object) -> Any:
        if _asked_by_save():
            return _saved(self).__reduce_ex__(protocol)
        raise misuse.not_sendable(self)

    def __deepcopy__(self, memo: dict[int, object]) -> Any:
        if id(self) in memo:
            return memo[id(self)]
        if not self.is_leaf:
            raise RuntimeError("only tensors made by the program (graph leaves) can be deep-copied: detach() it first")
        with torch.no_grad():
            copy = self.detach().clone()
        copy.requires_grad_(self.requires_grad)
        for name, value in self.__dict__.items():
            setattr(copy, name, value)
        if self.grad is not None:
            copy.grad = self.grad.__deepcopy__(memo)
        memo[id(self)] = copy
        return copy


def _spreads(shape: torch.Size, rest: torch.Size) -> bool:
    """True if one value of `shape` fits each chosen element, of shape `rest`: no value for each."""
    extra = len(shape) - len(rest)
    last = shape[max(extra, 0) :]
    return all(size == 1 for size in shape[: max(extra, 0)]) and all(
        size in (1, wanted) for size, wanted in zip(last, rest[len(rest) - len(last) :], strict=True)
    )


# --- torch.amp.GradScaler: what it asks of its tensors is fetched ---------------------------------------------
#
# The scaler decides in Python whether the optimizer makes a step: `found_inf.item()`. Each process has its own value, and
# there is one decision, so the answer is the largest of them, and where they differ each process gets that: an infinity in
# the gradients of one process keeps all from their step, and the scale stays the same everywhere.


def _asked_by_scaler() -> bool:
    """True if it is a GradScaler that wants the value of a tensor: its `step`, `get_scale`, `state_dict`."""
    return misuse.asked_by(_SCALER)


def _agreed(tensor: Tensor) -> Any:
    """The number of a distributed scalar: the largest of all processes, and from here on that of each. Waits until they have
    it. RemoteException when it failed in any."""
    values = answers_of(tensor, ItemCall())
    largest = max(values)
    if largest != min(values):
        with torch.no_grad():
            tensor.fill_(largest)
    return largest


# --- torch.save: the file has plain tensors, with the values of the first process of their mesh -----------------
#
# Pickling one for anybody else stays an error: only the program can know whether the values of one process will do. Who saves
# a state dict has said so, as training has made the parameters the same in each process; parts of one tensor that differ
# from process to process are saved with `monarch.checkpoint`, or whole with `monarch.gather`.


def _asked_by_save() -> bool:
    """True if it is torch.save that pickles: its pickler runs in C, so the caller is a function of that file."""
    return misuse.asked_by(_SAVING)


def _saved(tensor: Tensor) -> torch.Tensor:
    """A plain tensor on the CPU with what the first process of the tensor's mesh has; a Parameter for a Parameter. Waits."""
    record = tensor._record
    place = record.place
    problem = trouble(tensor, place, False)
    if problem is not None:
        raise misuse.incorrect("torch.save", (tensor,), {}, [problem], place.mesh, get_active_stream())
    first = next(iter(place.mesh.processes))
    (value,) = place.engine.fetch(place.mesh, first, [record.ref], [record.storage.taint], list, place.stream).get()
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(value, tensor.requires_grad)
    value.requires_grad_(tensor.requires_grad)
    return value


# --- optimizer.load_state_dict(state) with local tensors: they go to where the parameters are -------------------
#
# Torch moves each value to the parameter's device and dtype in one static method of its class Optimizer, of which it lets
# subclasses make their own. There is no hook for all optimizers, so the method is wrapped: for distributed parameters alone,
# and for others nothing changes.


def _follow_parameters() -> None:
    """Makes the state that any optimizer loads for a distributed parameter distributed, from here on. Idempotent."""
    plain = getattr(torch.optim.Optimizer, _TO_PARAMETER, None)
    if plain is None or hasattr(plain, "_follows_parameters"):
        return

    @functools.wraps(plain)
    def moved(param: object, value: object, *args: object, **kwargs: object) -> Any:
        if is_distributed(param) and isinstance(value, torch.Tensor) and not is_distributed(value):
            value = on_device_of(value, replica(param._record.place, value))
        return plain(param, value, *args, **kwargs)

    moved._follows_parameters = True  # type: ignore[attr-defined]
    setattr(torch.optim.Optimizer, _TO_PARAMETER, staticmethod(moved))


def _explained(name: str) -> Callable[[Tensor, object], object]:
    """A binary operator whose TypeError says what was wrong: torch's own turns every TypeError into NotImplemented, and
    Python's message for that says nothing of meshes."""
    plain = getattr(torch.Tensor, name)

    def operator(self: Tensor, other: object) -> Any:
        result = plain(self, other)
        return misuse.explained(plain, self, other) if result is NotImplemented else result

    operator.__name__ = name
    return operator


for _name in (
    "add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift",
):  # fmt: skip
    for _kind in ("__{}__", "__r{}__", "__i{}__"):
        if hasattr(torch.Tensor, _kind.format(_name)):
            setattr(Tensor, _kind.format(_name), _explained(_kind.format(_name)))
for _name in ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"):
    setattr(Tensor, _name, _explained(_name))
Tensor.__hash__ = torch.Tensor.__hash__  # type: ignore[method-assign]

for _name in (*OPERATIONS, *SEVERAL):
    setattr(Tensor, _name, direct(_name, Tensor))

dispatch.bind(Tensor)
_follow_parameters()
