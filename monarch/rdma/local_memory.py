"""Memory as it is described here: an address, a size, whether it may be written to, and whom it belongs to.

Torch and numpy are never imported here; their objects are known by what they say of themselves. Knows nothing of
processes.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

from monarch._devices.memory import Card, interface
from monarch._devices.modes import locally
from monarch._errors import RDMAMemoryError

# ctypes.memmove itself checks its arguments for longer than 4 KiB take to copy. Without the interpreter lock.
memmove = ctypes.CDLL(None).memmove
memmove.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
memmove.restype = None


class LocalMemory:
    """`size` bytes from `address` on. `keep` is what must stay alive so that they stay there; `shown` says what it is.

    `dtype` and `shape` are a tensor's; "" and the number of bytes for everything else. `device` is None for the host's
    memory. That of a device cannot be touched by its address: `keep` is the bytes as a flat tensor.
    """

    __slots__ = ("address", "device", "dtype", "keep", "shape", "shown", "size", "writable")

    def __init__(
        self,
        address: int,
        size: int,
        writable: bool,
        keep: Any,
        shown: str,
        dtype: str = "",
        shape: tuple[int, ...] | None = None,
        device: Card | None = None,
    ) -> None:
        self.address = address
        self.size = size
        self.writable = writable
        self.keep = keep
        self.shown = shown
        self.dtype = dtype
        self.shape = (size,) if shape is None else shape
        self.device = device

    def __repr__(self) -> str:
        return f"<Memory {self.shown}, {self.size} bytes{'' if self.writable else ', read-only'}>"


@locally
def memory_of(data: Any) -> LocalMemory:
    """The memory of a tensor, on the CPU or a device, a numpy array, or any object with the buffer protocol (bytearray,
    memoryview, mmap, ...).

    Any dtype and any number of dimensions, as long as it is contiguous in C order. What the result keeps alive is the
    storage: a view made for this call may be forgotten, and a bytearray cannot be resized meanwhile. RDMAMemoryError
    for everything else; a size of 0 is none of its business.
    """
    torch = sys.modules.get("torch")
    if torch is not None:
        tensor = getattr(torch, "Tensor", None)  # absent while torch is still being imported
        if tensor is not None and isinstance(data, tensor):
            return _of_tensor(torch, data)
    if hasattr(data, "__array_interface__"):
        return _of_array(data)
    try:
        view = memoryview(data)
    except TypeError:
        raise _refused(data, f"it is of type {type(data).__qualname__}, which gives no access to its memory") from None
    return _of_view(data, view)


def _refused(data: Any, why: str) -> RDMAMemoryError:
    return RDMAMemoryError(
        "only a contiguous tensor, numpy array or buffer (c-contiguous memoryview, bytearray, mmap, ...) is supported: "
        f"{why}. Got {_short(data)}"
    )


def _short(data: Any) -> str:
    text = str(data)
    return text if len(text) <= 200 else f"{text[:200]}..."


def _of_tensor(torch: Any, data: Any) -> LocalMemory:
    if data.layout is not torch.strided or data.is_quantized:
        raise _refused(data, f"a tensor with layout {data.layout} has no plain memory")
    kind = data.device.type
    if kind != "cpu" and not hasattr(getattr(torch, kind, None), "current_stream"):
        raise _refused(data, f"it is on device {data.device}, which RDMA cannot read; copy it to the CPU")
    if not data.is_contiguous():
        raise _refused(data, f"it is not contiguous (shape {tuple(data.shape)}, strides {data.stride()})")
    if data.is_conj() or data.is_neg():
        raise _refused(data, "it is a lazy conjugate or negation; use .resolve_conj() or .resolve_neg()")
    address, size = data.data_ptr(), data.nbytes
    if not address and size:
        raise _refused(data, f"a {type(data).__qualname__} has no memory of its own")
    dtype, shape = str(data.dtype)[6:], tuple(data.shape)
    if kind != "cpu":
        flat = interface().flat(data)
        return LocalMemory(address, size, True, flat, f"tensor on {data.device}", dtype, shape, interface().card(flat))
    return LocalMemory(address, size, True, data.untyped_storage(), "tensor", dtype, shape)


def _of_array(data: Any) -> LocalMemory:
    interface = data.__array_interface__
    if data.dtype.hasobject:
        raise _refused(data, "an array of Python objects holds pointers, which mean nothing in another process")
    if not data.flags.c_contiguous:
        raise _refused(data, f"it is not contiguous (shape {data.shape}, strides {data.strides})")
    address, read_only = interface["data"]
    return LocalMemory(address, data.nbytes, not read_only, data, "array")


def _of_view(data: Any, view: memoryview) -> LocalMemory:
    if "O" in view.format:
        raise _refused(data, "Python objects are pointers, which mean nothing in another process")
    if not view.c_contiguous:
        raise _refused(data, f"it is not c-contiguous (shape {view.shape}, strides {view.strides})")
    return LocalMemory(_address(view), view.nbytes, not view.readonly, view, type(data).__name__)


def _address(view: memoryview) -> int:
    if not view.readonly and view.nbytes:
        return ctypes.addressof(ctypes.c_char.from_buffer(view))
    shown = _PyBuffer()
    _get_buffer(view, ctypes.byref(shown), _STRIDES)  # raises what memoryview raises
    try:
        return shown.buf or 0
    finally:
        _release_buffer(ctypes.byref(shown))


class _PyBuffer(ctypes.Structure):
    """`Py_buffer` of the C API: the only way to the address of read-only memory without numpy."""

    _fields_ = (
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.c_void_p),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    )


_STRIDES = 0x0018  # PyBUF_STRIDES: with fewer flags a view with several dimensions or items of several bytes is refused
_get_buffer = ctypes.pythonapi.PyObject_GetBuffer
_get_buffer.argtypes = (ctypes.py_object, ctypes.c_void_p, ctypes.c_int)
_release_buffer = ctypes.pythonapi.PyBuffer_Release
_release_buffer.argtypes = (ctypes.c_void_p,)
_release_buffer.restype = None
