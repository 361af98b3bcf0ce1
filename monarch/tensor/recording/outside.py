"""Values that a call takes from outside of the program's variables, so that no comparison of variables would show another
value: random numbers, clocks, files, queues, the environment.

Functions written in C are noticed when they are called, generators of random numbers by their state, which a call that drew
from them has changed.
"""

from __future__ import annotations

import ctypes
import dis
import functools
import io
import os
import queue
import random
import socket
import sys
import time
from types import CodeType, FrameType
from typing import Any

import torch

_RANDOM = "draws numbers with Python's random"
_ENTROPY = "takes random bytes of the system"
_CLOCK = "reads a clock"
_FILE = "reads files"
_MESSAGE = "takes what another thread or process has sent"

# Functions by what a call of them does. Others of their modules (sleep, write) give nothing to compute with.
_CLOCKS = ("time", "monotonic", "perf_counter", "process_time", "thread_time")
_FUNCTIONS: dict[Any, str] = {
    os.urandom: _ENTROPY,
    open: _FILE,
    input: "asks a person",
    **{getattr(time, name): _CLOCK for clock in _CLOCKS for name in (clock, f"{clock}_ns")},
    **{getattr(time, name): _CLOCK for name in ("localtime", "gmtime", "ctime", "asctime", "strftime")},
    **{getattr(os, name): _FILE for name in ("open", "read", "pread", "stat", "lstat", "listdir", "scandir", "access")},
    **{getattr(os, name): _ENTROPY for name in ("getrandom",) if hasattr(os, name)},
}
# Methods of C by the class of their object.
_METHODS: dict[type, tuple[str, frozenset[str]]] = {
    queue.SimpleQueue: (_MESSAGE, frozenset({"get", "get_nowait", "empty", "qsize"})),
    **dict.fromkeys(
        (io.FileIO, io.BufferedReader, io.BufferedRandom, io.TextIOWrapper),
        (_FILE, frozenset({"read", "read1", "readall", "readinto", "readinto1", "readline", "readlines", "peek"})),
    ),
}
_OF_CLASSES = {"now": "datetime", "utcnow": "datetime", "today": "datetime"}
_SOCKETS = frozenset({"recv", "recv_into", "recvfrom", "recvfrom_into", "recvmsg", "recvmsg_into"})
_UUIDS = frozenset({"generate_time_safe", "UuidCreate"})

# Functions of Python's own that do the same, by their code; and parts of it whose files and clocks are for messages and
# modules.
_CODES: dict[CodeType, str] = {
    method.__code__: _MESSAGE for method in (queue.Queue.get, queue.Queue.empty, queue.Queue.qsize)
}
_ENVIRONMENT = type(os.environ)
_QUIET = (
    "importlib",
    "linecache",
    "tokenize",
    "traceback",
    "inspect",
    "logging",
    "warnings",
    "zipimport",
    "contextlib",
)
_LOADING = "torch.serialization"


def quiet(module: object) -> bool:
    """True if what functions of this module of Python's own take from outside is no value of a program."""
    return isinstance(module, str) and module.partition(".")[0] in _QUIET


def taken(function: Any, own: bool, module: object) -> str:
    """Returns what a call of `function`, written in C, takes from outside; "" if nothing. `own`: the caller is of the
    program; `module`: its name."""
    owner = getattr(function, "__self__", None)
    kind = type(owner)
    if isinstance(owner, random.Random):
        return _RANDOM
    try:
        found = _FUNCTIONS.get(function, "")
    except TypeError:  # an object of the program that cannot be hashed
        return ""
    if not found and kind in _METHODS:
        what, names = _METHODS[kind]
        found = what if function.__name__ in names else ""
    elif not found and isinstance(owner, socket.socket.__mro__[1]):
        found = _MESSAGE if function.__name__ in _SOCKETS else ""
    elif (
        not found
        and isinstance(owner, type)
        and _OF_CLASSES.get(function.__name__) in {one.__module__ for one in owner.__mro__}
    ):
        found = _CLOCK
    elif not found and getattr(function, "__module__", None) == "_uuid" and function.__name__ in _UUIDS:
        return _CLOCK
    if found == _CLOCK:
        return found if own else ""
    if found == _FILE and isinstance(module, str) and module.partition(".")[0] in ("torch", "monarch"):
        return found if module == _LOADING else ""
    return found


def taken_by(frame: FrameType) -> str:
    """Returns the same of a function of Python's own library that begins."""
    return _CODES.get(frame.f_code, "")


_LOOKED_UP = {_ENVIRONMENT.__getitem__.__code__: "key", _ENVIRONMENT.__iter__.__code__: ""}


def variable(frame: FrameType) -> str | None:
    """Returns the variable of the environment that a function which begins reads, "" for all of them; None if it reads
    none."""
    name = _LOOKED_UP.get(frame.f_code)
    if name is None:
        return None
    return str(frame.f_locals.get(name, "")) if name else ""


def in_environment(name: str) -> object:
    """Returns a variable of the environment; all of them where there is no name."""
    variables: dict[Any, Any] = os.environ._data  # type: ignore[attr-defined]
    return variables.get(os.environ.encodekey(name)) if name else tuple(variables.items())


# --- generators of random numbers, by their state ---------------------------------------------------------------


def generator_of(value: object) -> str:
    """Returns what draws from `value`, a generator of this process whose methods nothing sees called; "" for others."""
    if isinstance(value, torch._C.Generator):
        return "a generator of torch in this process"
    numpy = sys.modules.get("numpy.random")
    if numpy is not None and isinstance(value, (numpy.Generator, numpy.RandomState, numpy.BitGenerator)):
        return "NumPy's random"
    return ""


def _state(generator: Any) -> object:
    """Returns its state, as something to compare."""
    if isinstance(generator, torch._C.Generator):
        taken = generator.get_state()
        return ctypes.string_at(taken.data_ptr(), taken.numel())  # not by way of numpy, which torch does without
    bits = getattr(generator, "bit_generator", None) or getattr(generator, "_bit_generator", generator)
    state = bits.state
    key = state.get("state")
    if isinstance(key, dict) and hasattr(key.get("key"), "tobytes"):  # of MT19937: an array
        return key["key"].tobytes(), key["pos"], state.get("has_gauss"), state.get("gauss")
    return repr(state)


class Generators:
    """The states of the generators that a call may draw from: of NumPy's and torch's own, and of `reached`, by the
    names that the program has for them."""

    def __init__(self, reached: dict[int, tuple[object, str]]) -> None:
        found = dict(reached)
        numpy = sys.modules.get("numpy.random")
        if numpy is not None:
            found.setdefault(id(numpy.mtrand._rand), (numpy.mtrand._rand, "numpy.random"))
        found.setdefault(id(torch.default_generator), (torch.default_generator, "torch.default_generator"))
        if torch.cuda.is_initialized():
            for one in torch.cuda.default_generators:
                found.setdefault(id(one), (one, "torch.cuda.default_generators"))
        self._before = [(one, name, _without_modes(one)) for one, name in found.values()]

    def knows(self, reached: dict[int, tuple[object, str]]) -> str:
        """Returns the name of a generator of `reached` whose state was not taken; "" if there is none."""
        known = {id(one) for one, _, _ in self._before}
        return next((name for number, (_, name) in reached.items() if number not in known), "")

    def drawn(self) -> str:
        """Returns what has been drawn from since; "" if nothing."""
        for one, name, state in self._before:
            if _without_modes(one) != state:
                return f"draws numbers with {generator_of(one)} ({name})"
        return ""


def _without_modes(generator: Any) -> object:
    with torch.utils._python_dispatch._disable_current_modes():
        return _state(generator)


@functools.lru_cache(maxsize=4096)
def drawing_line(code: CodeType) -> int:
    """Returns the first line of a function at which it names what draws random numbers; 0 if it has none."""
    if _methods().isdisjoint(code.co_names):
        return 0
    line = code.co_firstlineno
    for one in dis.get_instructions(code):
        line = (one.positions and one.positions.lineno) or line
        if one.argval in _methods() and one.opname in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_GLOBAL", "LOAD_NAME"):
            return line
    return 0


@functools.cache
def _methods() -> frozenset[str]:
    """Returns the names of what draws."""
    numpy = sys.modules.get("numpy.random")
    kinds = (numpy.Generator, numpy.RandomState) if numpy is not None else ()
    return frozenset(name for kind in kinds for name in dir(kind) if not name.startswith("_")) - {"bit_generator"} | {
        "rand", "randn", "randint", "randperm", "bernoulli", "multinomial", "random_", "normal_", "uniform_",
    }  # fmt: skip
