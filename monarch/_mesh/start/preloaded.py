"""Modules that a fork server has imported for its processes: these do not take them apart when they end.

An interpreter ends by clearing every module, then its own tables, and the C library by destroying what libraries in C++
hold. Of torch that is half a second of a processor in each process, of our own modules 15 ms, and the kernel takes back
their memory anyway. What the program itself has made, opened or registered ends as ever: threads are waited for, callbacks
of atexit run, its modules and objects go and flush their files, then what its libraries in C have registered is called and
files of C are flushed.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import ctypes
import os
import sys
import threading
import weakref
from collections.abc import Iterator

_names: set[str] = set()  # those of this process, and of the fork servers that it was forked from


@contextlib.contextmanager
def noted() -> Iterator[None]:
    """In its block a fork server imports modules for its processes."""
    before = set(sys.modules)
    yield
    _names.update(sys.modules.keys() - before)
    # torch takes the kernels of its own libraries apart one by one. Its finalizers are not listed by a public name.
    for finalizer in list(getattr(weakref.finalize, "_registry", ())):
        found = finalizer.peek()
        if found is not None and getattr(found[1], "__module__", "") == "torch.library":
            finalizer.atexit = False


def stay_at_exit() -> None:
    """Asks the C library of a forked process to end without what their libraries have registered so far. What the program
    loads and registers later is still called, before that."""
    libc = ctypes.CDLL(None)
    if _names and hasattr(libc, "on_exit"):  # glibc
        # Called from the last to the first, so nothing that was registered before these two is called.
        libc.on_exit(libc._exit, None)
        libc.__cxa_atexit(libc.fflush, None, None)


def end() -> None:
    """Does the first half of an interpreter's end, and lets the second, which begins when the main thread is through, find
    the modules gone."""
    if _names:
        threading._shutdown()  # type: ignore[attr-defined]  # as multiprocessing does in its processes
        atexit._run_exitfuncs()
        atexit.register(_forget)
        _let_threads_of_cpp_be()
        # The last that an interpreter takes apart of what programs can see, unless they put something there later.
        vars(builtins)["monarch_end"] = _End()


class _End:
    """The end of the process when it is finalized: before the tables of interned strings and types, which writes to every
    page that is shared with the fork server."""

    def __init__(self) -> None:
        self._exit_of_c = ctypes.PyDLL(None).exit  # keeps the interpreter lock: no other thread runs Python any more

    def __del__(self) -> None:
        self._exit_of_c(0)


def _let_threads_of_cpp_be() -> None:
    """Has a thread wait that C++ would end the process for. Until Python 3.14 an interpreter that ends exits a thread of its
    own which asks for its lock; in the midst of an exception of C++, such as one that torch raises because the connection
    to another rank is gone, that is an abort with a report of a fatal error."""
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL("libstdc++.so.6", mode=os.RTLD_NOLOAD)
        library["_ZSt13set_terminatePFvvE"](ctypes.CDLL(None).pause)


def _forget() -> None:
    modules = {name: sys.modules.pop(name) for name in _names if name in sys.modules}
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(modules))
