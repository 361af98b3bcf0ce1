"""The arguments of a call that may be recorded or replayed: by what calls are told apart, and what stands for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from monarch.tensor.controller import dispatch
from monarch.tensor.controller.activation import active_mesh
from monarch.tensor.controller.records import KNOWN, TensorStorage
from monarch.tensor.controller.stream import get_active_stream
from monarch.tensor.controller.tensor import Tensor
from monarch.tensor.recording.recorder import CommandRecorder

if TYPE_CHECKING:
    from collections.abc import Hashable

    from torch.utils._pytree import PyTree

    from monarch.tensor.metadata import Meta
    from monarch.tensor.signature import Args, Kwargs


class Arguments:
    """The arguments of one call: `leaves` of the tree of them, of which `tensors` are distributed. `key`: equal for
    calls that a recording of one of them serves. Raises TypeError for arguments that cannot be compared."""

    __slots__ = ("before", "key", "leaves", "spec", "tensors")

    def __init__(self, args: Args, kwargs: Kwargs) -> None:
        self.spec: Any = None
        self.leaves: Sequence[Any] = args
        if kwargs or any(not isinstance(arg, torch.Tensor) and pytree._get_node_type(arg) in _NODES for arg in args):
            self.leaves, self.spec = pytree.tree_flatten((args, kwargs))
        self.tensors: list[Tensor] = []
        self.before: list[tuple[Meta, TensorStorage]] = []  # their metadata and memory
        key: list[Hashable] = [
            len(args) if self.spec is None else repr(self.spec), torch.is_grad_enabled(), active_mesh(), get_active_stream(),
            torch.get_default_dtype(), torch._C._is_any_autocast_enabled() and _autocast(),
            torch.is_inference_mode_enabled(), _switches(),
        ]  # fmt: skip
        storages: dict[int, int] = {}
        for leaf in self.leaves:
            if type(leaf) is Tensor:
                record = leaf._record
                self.tensors.append(leaf)
                self.before.append((record.meta, record.storage))
                alias = storages.setdefault(id(record.storage), len(storages))
                key.append((record.meta, record.place, leaf.requires_grad, alias))
            elif isinstance(leaf, torch.Tensor):
                raise TypeError("an argument is a tensor of this process alone: its values would stay as they are now")
            else:
                key.append((type(leaf), leaf))
        if len(self.tensors) > 1:  # the same tensor twice is not two views of it
            refs: dict[int, int] = {}
            key.append(tuple(refs.setdefault(tensor._record.ref, len(refs)) for tensor in self.tensors))
        self.key = tuple(key)
        hash(self.key)

    def call(self, function: Callable[..., PyTree], stand_ins: Sequence[object]) -> PyTree:
        """Calls `function` with `stand_ins` in place of the distributed tensors."""
        rest = iter(stand_ins)
        leaves = [next(rest) if type(leaf) is Tensor else leaf for leaf in self.leaves]
        if self.spec is None:
            return function(*leaves)
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        return function(*args, **kwargs)


_NODES = pytree.SUPPORTED_NODES


def _switches() -> tuple[bool, ...]:
    """Returns the flags that torch's own Python and its composite operations decide by."""
    return (
        torch._C._get_deterministic_algorithms(), torch._C._get_deterministic_algorithms_warn_only(),
        torch._C._get_flash_sdp_enabled(), torch._C._get_mem_efficient_sdp_enabled(), torch._C._get_math_sdp_enabled(),
    )  # fmt: skip


def _autocast() -> tuple[object, ...]:
    devices = [device for device in ("cpu", "cuda") if torch.is_autocast_enabled(device)]
    return tuple((device, torch.get_autocast_dtype(device)) for device in devices)


def aliased(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Other tensors of the same memory, so that a function's use of an argument is not mistaken for its use of a
    variable of its own that is the same tensor. Those that require grad, or may not be used now, stand for themselves."""
    found: dict[int, Tensor] = {}
    for tensor in tensors:
        if id(tensor) not in found:
            plain = not tensor.requires_grad and not tensor._record.storage.flags & ~KNOWN
            with tensor._record.place.stream.activate(), torch.no_grad():
                found[id(tensor)] = tensor.detach() if plain else tensor
    return [found[id(tensor)] for tensor in tensors]


def reshaped(noted: CommandRecorder, formals: Sequence[Tensor], arguments: Arguments, give: bool) -> None:
    """Stops a recording that gave an argument, one of `formals`, another shape or memory. With `give` the tensors that they
    stand for are given it too."""
    for formal, tensor, (meta, storage) in zip(formals, arguments.tensors, arguments.before, strict=True):
        record = formal._record
        if record.meta is meta and record.storage is storage:
            continue
        noted.refuse("it changes the shape or the memory of an argument")
        if give and formal is not tensor:
            tensor._record = record
            dispatch.change_meta(None, (), {}, tensor, record.meta)
