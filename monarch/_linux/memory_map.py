"""Memory that the kernel maps, by its own calls. Python's `mmap` keeps a descriptor a mapping, and moves none."""

from __future__ import annotations

import contextlib
import os
import resource
import weakref
from collections.abc import Iterator
from functools import cache
from typing import Any

READ_WRITE, SHARED, PRIVATE, ANONYMOUS, NO_RESERVE = 3, 0x01, 0x02, 0x20, 0x4000  # mmap(2)
MAY_MOVE, FIXED = 1, 2  # mremap(2)
DONT_NEED, REMOVE, POPULATE_WRITE = 4, 9, 23  # madvise(2)

_PAGEMAP_SCAN, _OF_FILE, _THERE, _SWAPPED = 0xC0606610, 4, 8, 16  # ioctl of /proc/self/pagemap, and what pages are
_ENTRY, _PAGEMAP_PART = 8, 1 << 20  # bytes of /proc/self/pagemap: of a page, and read at once
# The last byte of an entry: 0x80 a page is there, 0x40 in the swap, 0x20 the file's own.
_NOT_OF_ITS_OWN = bytes(flags for flags in range(256) if flags & 0x20 or not flags & 0xC0)


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


def view_of(fd: int, size: int) -> memoryview:
    """Maps `size` bytes of the file until no view of them is left; the descriptor may be closed at once."""
    import ctypes

    address = map_memory(fd, size, SHARED)
    array = (ctypes.c_ubyte * size).from_address(address)
    weakref.finalize(array, libc().munmap, address, size).atexit = False
    return bytes_of(array)


def is_written(address: int, size: int) -> bool:
    """Returns whether a private mapping of a file, from a page on, has pages of its own, for they were written to; True where
    the kernel does not say."""
    try:
        file = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return True
    try:
        try:
            return _scanned(file, address, size)
        except OSError:  # a kernel before 6.7
            return _has_own_pages(file, address, size)
    except OSError:
        return True
    finally:
        os.close(file)


def _scanned(file: int, address: int, size: int) -> bool:
    """Asks the kernel, which takes 10 ms a GiB: the first page that is no file's and is there or in the swap."""
    import fcntl
    import struct

    found = bytearray(24)
    with address_of(memoryview(found)) as where:
        end = address + -(-size // resource.getpagesize()) * resource.getpagesize()
        asked = struct.pack("<12Q", 96, 0, address, end, 0, where, 1, 1, _OF_FILE, _OF_FILE, _THERE | _SWAPPED, _THERE)
        return bool(fcntl.ioctl(file, _PAGEMAP_SCAN, bytearray(asked)))


def _has_own_pages(file: int, address: int, size: int) -> bool:
    """Reads what the kernel says of each page, which takes 40 ms a GiB."""
    page = resource.getpagesize()
    end = -(-(address + size) // page) * _ENTRY
    for at in range(address // page * _ENTRY, end, _PAGEMAP_PART):
        entries = os.pread(file, min(_PAGEMAP_PART, end - at), at)
        if entries[_ENTRY - 1 :: _ENTRY].translate(None, _NOT_OF_ITS_OWN):
            return True
    return False


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
