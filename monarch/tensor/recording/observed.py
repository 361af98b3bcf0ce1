"""The Python functions that a call runs, and their objects: what a recording may have read is among what these can reach."""

from __future__ import annotations

import gc
import inspect
import sys
import weakref
from collections.abc import Callable
from types import CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any

import torch

from monarch.tensor.frames import TORCH
from monarch.tensor.recording import outside
from monarch.tensor.recording.reads import arguments_of

# Parts of torch that read flags and numbers of the program's objects. What the others do is no decision of the program.
_TORCH = ("torch.nn.", "torch.optim.", "torch.utils.checkpoint", "torch.amp.", "torch.distributions.")
_FOREIGN = frozenset(sys.stdlib_module_names) | {"monarch", "torch", "builtins", "typing_extensions"}
MET = 1 << 14  # pairs of a function and an object that are kept, at most

# Values in which nothing else hangs.
PLAIN = (
    type(None), type(...), bool, int, float, complex, str, bytes,
    torch.dtype, torch.device, torch.layout, torch.memory_format,
)  # fmt: skip
# Objects that say nothing as arguments: containers and functions are found where the program keeps them.
_PASSED_OVER = (
    *PLAIN, list, tuple, dict, set, frozenset, torch.Tensor, ModuleType, FunctionType, MethodType,
    torch.autograd.function.FunctionCtx,
)  # fmt: skip
_HEAP_TYPE = 1 << 9  # of type.__flags__: a class that Python code defined


# Of this package, those that call functions of the program. What the others call while they work is none of it.
_CALLING = ("monarch.tensor.recording", "monarch.tensor.controller.gradients")


def foreign(module: object) -> bool:
    """True if the module of this name is Python's, torch's or ours."""
    return isinstance(module, str) and module.partition(".")[0] in _FOREIGN


def followed(module: object) -> bool:
    """True if functions of the module of this name are looked into."""
    return not foreign(module) or f"{module}.".startswith(_TORCH)


class ObservedCalls:
    """The functions that calls ran so far. `codes`: functions, with their globals.

    An object counts once two calls have met it: what a call makes for itself is of no interest. Objects are held weakly
    where that is possible.
    """

    def __init__(self) -> None:
        self.codes: dict[CodeType, dict[str, Any]] = {}
        self._met: dict[tuple[CodeType, int, str], Any] = {}  # what gives the object, by function and argument
        self._first: dict[int, int] = {}  # the call that met an object first, by the object's id
        self._again: set[int] = set()  # objects that a later call has met as well
        self._call = 0
        self.taken = ""  # what the latest call took from outside, and where
        self._generators: outside.Generators | None = None  # whose state the latest call may change
        self.variables: set[str] = set()  # of the environment, that were read: "" for all
        self._skipped: dict[CodeType, bool] = {}  # functions that are not looked into; whether those are that they call

    def receivers(self, lasting: bool) -> list[tuple[CodeType, str, Any]]:
        """(function, its argument, or "" for `*args`, the object) for all that live; with `lasting` those that count."""
        found = []
        for (code, number, name), give in list(self._met.items()):
            value = give()
            if value is None:
                self._met.pop((code, number, name))
                self._first.pop(number, None)
                self._again.discard(number)
            elif not lasting or number in self._again:
                found.append((code, name, value))
        return found

    def names(self, key: str) -> bool:
        """True if a function that is not torch's has this string in it."""
        return any(key in code.co_consts for code in self.codes if not code.co_filename.startswith(TORCH))

    def watching(self, generators: outside.Generators | None = None) -> _Watching:
        """A block whose calls, in this thread, are observed. `generators`: it may draw from them."""
        self.receivers(False)  # forgets those that are gone: their ids may be given again
        self._call += 1
        self.taken = ""
        self._generators = generators
        return _Watching(self)

    def called(self, frame: FrameType) -> bool:
        """A function begins. Whether what it calls is of interest."""
        code = frame.f_code
        if (known := self._skipped.get(code)) is not None:
            return known
        if code not in self.codes:
            module = frame.f_globals.get("__name__")
            if outside.quiet(module):
                self._skipped[code] = False
                return False
            if (name := outside.variable(frame)) is not None:
                if len(self.variables) < MET:
                    self.variables.add(name)
                return True
            if what := outside.taken_by(frame):
                self._take(what, frame)
                return True
            if not code.co_flags & inspect.CO_OPTIMIZED or not followed(module):
                ours = isinstance(module, str) and module.startswith("monarch.") and not module.startswith(_CALLING)
                self._skipped[code] = not ours
                return not ours
            self.codes[code] = frame.f_globals
        values = frame.f_locals
        for name in arguments_of(code):
            value = values.get(name)
            if type(value) is tuple:
                for item in value:
                    self._meet(code, "", item)
            else:
                self._meet(code, name, value)
        return True

    def called_c(self, frame: FrameType, function: object) -> None:
        """A function that is written in C begins, called by `frame`."""
        if self.taken:
            return
        module = frame.f_globals.get("__name__")
        if what := outside.taken(function, not foreign(module), module):
            self._take(what, frame)

    def returned(self, frame: FrameType) -> None:
        """A function has ended."""
        if self._generators is None or self.taken or not (line := outside.drawing_line(frame.f_code)):
            return
        if followed(frame.f_globals.get("__name__")) and (what := self._generators.drawn()):
            self.taken = f"{what} ({frame.f_code.co_filename}:{line} in {frame.f_code.co_name})"

    def _take(self, what: str, frame: FrameType) -> None:
        self.taken = self.taken or f"{what} ({_line(frame)})"

    def _meet(self, code: CodeType, name: str, value: object) -> None:
        if isinstance(value, _PASSED_OVER):
            return
        number = id(value)
        if self._first.setdefault(number, self._call) < self._call:
            self._again.add(number)
        if (code, number, name) not in self._met and len(self._met) < MET:
            self._met[code, number, name] = _giver(value)


def _giver(value: object) -> Callable[[], Any]:
    """Returns what gives `value` for as long as it lives."""
    try:
        return weakref.ref(value)
    except TypeError:  # of a class with __slots__, or of the interpreter's own
        return (lambda: value) if type(value).__flags__ & _HEAP_TYPE else (lambda: None)


def _line(frame: FrameType) -> str:
    """Returns the program's own line that led to a call by `frame`."""
    inner: FrameType | None = frame
    while inner is not None and foreign(inner.f_globals.get("__name__")):
        inner = inner.f_back
    inner = inner or frame
    return f"{inner.f_code.co_filename}:{inner.f_lineno} in {inner.f_code.co_name}"


class _Watching:
    """Python's profile hook of this thread, beside a profiler that has it."""

    def __init__(self, observed: ObservedCalls) -> None:
        self._observed = observed
        self._before: Any = None

    def __enter__(self) -> None:
        called, called_c, returned = self._observed.called, self._observed.called_c, self._observed.returned
        before: Any = sys.getprofile()
        self._before = before
        chained: Any = before if callable(before) else None
        inside: FrameType | None = None
        # Comes amid anything, and is not the program's.
        collector = {getattr(one, "__code__", None) for one in gc.callbacks}

        def hook(frame: FrameType, event: str, arg: object) -> None:
            nonlocal inside
            if inside is None:
                if event == "call":
                    inside = None if frame.f_code not in collector and called(frame) else frame
                elif event == "c_call":
                    called_c(frame, arg)
                elif event == "return":
                    returned(frame)
            elif frame is inside and event == "return":
                inside = None
            if chained is not None:
                chained(frame, event, arg)

        if before is not None and chained is None and hasattr(before, "disable"):
            before.disable()  # cProfile: counts nothing meanwhile
        sys.setprofile(hook)

    def __exit__(self, *exc: object) -> None:
        before = self._before
        if before is None or callable(before):
            sys.setprofile(before)
        else:
            sys.setprofile(None)
            if hasattr(before, "enable"):
                before.enable()
