"""Memory that the kernel maps, by its own calls. Python's `mmap` keeps a descriptor a mapping, and moves none."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from functools import cache
from typing import Any

READ_WRITE, SHARED, PRIVATE, ANONYMOUS, NO_RESERVE = 3, 0x01, 0x02, 0x20, 0x4000  # mmap(2)
MAY_MOVE, FIXED = 1, 2  # mremap(2)
DONT_NEED, POPULATE_WRITE = 4, 23  # madvise(2)


@cache
def libc() -> Any:
    """Returns libc's own calls."""
    import ctypes  # for the few processes that map something

    made = ctypes.CDLL(None, use_errno=True)
    made.mmap.restype = made.mremap.restype = ctypes.c_void_p
    made.mmap.argtypes = [
        ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
    ]  # fmt: skip
    made.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    made.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    made.mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
    return made


def failed() -> OSError:
    """Returns what the last call failed with."""
    import ctypes

    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))


def map_memory(fd: int, size: int, flags: int, offset: int = 0) -> int:
    """Returns the address of `size` bytes of the file, or of none (-1, `ANONYMOUS`); `libc().munmap` ends it."""
    address = libc().mmap(None, size, READ_WRITE, flags, fd, offset)
    if address is None or address == 2**64 - 1:
        raise failed()
    return int(address)


def bytes_of(array: Any) -> memoryview:
    """Views an array of ctypes as bytes, and keeps it. Its own format is not that of bytes."""
    import pickle

    return pickle.PickleBuffer(array).raw()


@contextlib.contextmanager
def address_of(data: memoryview) -> Iterator[int]:
    """The address of the bytes of a contiguous buffer, which may be read-only; it is held meanwhile."""
    import ctypes

    class Buffer(ctypes.Structure):
        """Py_buffer of Python's C API, of which the first field is read; room for the others."""

        _fields_ = (("start", ctypes.c_void_p), ("others", ctypes.c_void_p * 15))

    buffer = Buffer()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(data), ctypes.byref(buffer), 0)
    try:
        yield int(buffer.start or 0)
    finally:
        ctypes.pythonapi.PyBuffer_Release(ctypes.byref(buffer))
