"""Entries of a model or a dict: named tensors (memory), and values. Torch and numpy are never imported here.

Names are those of `state_dict()`; nested dicts are joined by dots: {"optimizer": {"step": t}} has "optimizer.step".
"""

from __future__ import annotations

import socket
import sys
from array import array
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from monarch._devices.modes import locally
from monarch._errors import RDMAMemoryError
from monarch.rdma.local_memory import LocalMemory, memory_of
from monarch.rdma.shards import Range, ranges_after, shape_of

_FORMATS = {
    "?": "bool", "b": "int8", "B": "uint8", "h": "int16", "H": "uint16", "i": "int32", "I": "uint32", "l": "int64",
    "L": "uint64", "q": "int64", "Q": "uint64", "e": "float16", "f": "float32", "d": "float64",
}  # fmt: skip


class TensorEntry(NamedTuple):
    """A tensor, array or buffer as it stands in this process. `dtype` is its name in torch and numpy: "float32".

    `kind` is "torch", "numpy" or "buffer"; `path` the keys that lead to it. `data` is what this process has of it: of
    a DTensor the local tensor. `whole` is the shape of the tensor that this is a part of, `start` where the part begins
    there; None where it is all of it.
    """

    name: str
    path: tuple[Any, ...]
    data: Any
    kind: str
    dtype: str
    shape: tuple[int, ...]
    item: int
    whole: tuple[int, ...] | None = None
    start: tuple[int, ...] | None = None

    def memory(self) -> LocalMemory:
        """RDMAMemoryError, with the name, for what is not contiguous, or on a device whose memory cannot be read."""
        try:
            return memory_of(self.data)
        except RDMAMemoryError as exc:
            raise RDMAMemoryError(f"{self.name!r}: {exc}") from None

    def at(self, address: int) -> bool:
        """True if its memory begins there and is contiguous."""
        if self.kind == "torch":
            return bool(self.data.data_ptr() == address and self.data.is_contiguous())
        return self.memory().address == address

    def storage(self) -> Any:
        """Equal for tensors that share their storage."""
        if self.kind == "torch":
            return "torch", self.data.untyped_storage().data_ptr()
        if self.kind == "numpy":
            root = self.data
            while type(root.base) is type(root):
                root = root.base
            return "numpy", id(root)
        return "buffer", self.memory().address

    def strided(self) -> bool:
        """True if it could be copied element by element though its memory is not contiguous or not the CPU's."""
        if self.kind == "torch":
            return str(self.data.layout) == "torch.strided" and not self.data.is_quantized
        return self.kind == "numpy" and not self.data.dtype.hasobject

    def array(self, memory: memoryview) -> Any:
        """`memory`, bytes of the right number, as what this entry is."""
        return shown(self.kind, self.dtype, self.shape, memory)

    def copy_from(self, other: Any) -> None:
        """Copies what `array` gave into the entry, whatever its device and strides."""
        copy(self.kind, other, self.data)

    def copy_to(self, other: Any) -> None:
        copy(self.kind, self.data, other)


class ValueEntry(NamedTuple):
    """Something else: a number, a string, a list."""

    path: tuple[Any, ...]
    value: Any


def device_of(entry: TensorEntry) -> str:
    """The device that a tensor is on, "cuda:1"; "" for the host's memory and what is no tensor."""
    if entry.kind != "torch" or entry.data.device.type == "cpu":
        return ""
    return str(entry.data.device)


def entries_of(source: Any) -> tuple[dict[str, TensorEntry], dict[str, ValueEntry]]:
    """The tensors and the values of a dict, or of anything with a `state_dict()`, by name.

    TypeError for anything else. ValueError for two of one name, RDMAMemoryError for tensors in a list.
    """
    if not isinstance(source, Mapping):
        state = getattr(source, "state_dict", None)
        if not callable(state):
            raise TypeError(f"expected a dict or an object with state_dict(), got {type(source).__qualname__}")
        source = state()
    tensors: dict[str, TensorEntry] = {}
    values: dict[str, ValueEntry] = {}
    for path, data in _leaves(source, ()):
        name = ".".join(map(str, path))
        if name in tensors or name in values:
            raise ValueError(f"two entries are named {name!r}: keys are joined by dots, rename one")
        entry = _entry(name, path, data)
        if entry is not None:
            tensors[name] = entry
        elif isinstance(data, list | tuple) and any(_entry(name, path, one) for one in data):
            raise RDMAMemoryError(f"{name!r} is a {type(data).__name__} with tensors in it; put them into a dict")
        else:
            values[name] = ValueEntry(path, data)
    return tensors, values


def _leaves(node: Mapping[Any, Any], path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    for key, value in node.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, (*path, key))
        else:
            yield (*path, key), value


def _entry(name: str, path: tuple[Any, ...], data: Any) -> TensorEntry | None:
    if _is(data, "torch.distributed.tensor", "DTensor"):
        return _distributed(name, path, data)
    if _is(data, "torch", "Tensor"):
        return TensorEntry(name, path, data, "torch", str(data.dtype)[6:], tuple(data.shape), data.element_size())
    if _is(data, "numpy", "ndarray"):
        dtype = data.dtype.name if data.dtype.isnative else data.dtype.str
        return TensorEntry(name, path, data, "numpy", dtype, tuple(data.shape), data.itemsize)
    if isinstance(data, bytearray | memoryview | array):
        view = memoryview(data)
        dtype = _FORMATS.get(view.format.lstrip("@="), view.format)
        return TensorEntry(name, path, data, "buffer", dtype, tuple(view.shape or ()), view.itemsize)
    return None


def _distributed(name: str, path: tuple[Any, ...], data: Any) -> TensorEntry:
    """The local tensor of a DTensor, and where it belongs."""
    import torch

    with torch.no_grad():  # or autograd would be told
        local = data.to_local()
        if hasattr(local, "wait"):  # an AsyncCollectiveTensor: what redistribute() still brings
            local = local.wait()
    entry = TensorEntry(name, path, local, "torch", str(local.dtype)[6:], tuple(local.shape), local.element_size())
    ranges = _ranges(name, data)
    if ranges is None:  # this rank is not in the mesh: it has nothing
        return entry._replace(whole=tuple(data.shape), start=(0,) * data.ndim)
    if shape_of(ranges) != entry.shape:
        raise RDMAMemoryError(
            f"{name!r}: a local tensor of shape {entry.shape} does not fit {tuple(data.shape)} placed as {data.placements}"
        )
    return entry._replace(whole=tuple(data.shape), start=tuple(low for low, _ in ranges))


def _ranges(name: str, data: Any) -> tuple[Range, ...] | None:
    """Returns which part of a DTensor this rank has, by its placements; None for none."""
    coordinate = data.device_mesh.get_coordinate()
    if coordinate is None:
        return None
    splits: list[list[tuple[int, int, int]]] = [[] for _ in data.shape]
    for number, (placement, index) in enumerate(zip(data.placements, coordinate, strict=True)):
        if placement.is_partial():
            raise RDMAMemoryError(
                f"{name!r} is placed as {data.placements}: ranks hold terms of a sum (Partial). Use redistribute() first"
            )
        if not placement.is_replicate():
            factor = getattr(placement, "split_factor", 1)  # of _StridedShard
            splits[placement.dim].append((data.device_mesh.size(number), index, factor))
    result = []
    for size, some in zip(data.shape, splits, strict=True):
        ranges = ranges_after(size, some) or [(0, 0)]
        if len(ranges) > 1:
            raise RDMAMemoryError(
                f"{name!r} is placed as {data.placements}: what this rank has of {size} does not lie together. Shard "
                "into parts of one size, or redistribute() first"
            )
        result.append(ranges[0])
    return tuple(result)


def _is(data: Any, module: str, name: str) -> bool:
    """True if it is of a class of a module that may not be imported, or not wholly yet."""
    return isinstance(data, getattr(sys.modules.get(module), name, ()))


@locally
def shown(kind: str, dtype: str, shape: tuple[int, ...], memory: memoryview) -> Any:
    """Bytes as a tensor, an array or a memoryview. Imports torch or numpy if that is what it is."""
    if kind == "torch":
        import torch

        if not memory.nbytes:
            return torch.empty(shape, dtype=getattr(torch, dtype), device="cpu")
        return torch.frombuffer(memory, dtype=torch.uint8).view(getattr(torch, dtype)).reshape(shape)
    if kind == "numpy":
        try:
            import numpy
        except ModuleNotFoundError:
            raise ModuleNotFoundError(
                f"what the owner registered is a numpy array, and numpy is not installed here (host {socket.gethostname()}, "
                f"interpreter {sys.executable}): pip install numpy",
                name="numpy",
            ) from None
        return numpy.frombuffer(memory, dtype=numpy.dtype(dtype)).reshape(shape)
    return memory


@locally
def shown_on(flat: Any, entry: TensorEntry) -> Any:
    """Bytes on a device, a flat tensor, as what the entry is."""
    import torch

    return flat.view(getattr(torch, entry.dtype)).view(entry.shape)


@locally
def copy(kind: str, source: Any, target: Any) -> None:
    """Copies from one tensor, array or buffer to another of the same dtype and shape."""
    if kind == "torch":
        import torch

        with torch.no_grad():
            target.copy_(source)
    elif kind == "numpy":
        target[...] = source
    else:
        view = memoryview(source)
        memoryview(target).cast("B")[:] = view.cast("B") if view.c_contiguous else view.tobytes()


def shorten(names: Collection[str], most: int = 10) -> str:
    """Returns the first names, for people."""
    first = sorted(names)[:most]
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(repr, first)) + more
