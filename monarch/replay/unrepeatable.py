"""Names in code that a replay cannot give again, as far as its names show."""

from __future__ import annotations

import dis
import types
from collections.abc import Iterator

_MODULES = {
    "time": "the time",
    "datetime": "the time",
    "secrets": "random bytes of the system",
    "uuid": "random bytes of the system",
    "threading": "which of several threads is first",
    "multiprocessing": "other processes",
    "subprocess": "other programs",
    "socket": "the network",
    "requests": "the network",
    "httpx": "the network",
}
_ATTRIBUTES = {
    "datetime": {"now", "utcnow", "today"},
    "time": {"time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns"},
    "uuid": {"uuid1", "uuid4"},
}
_BUILTINS = {"open": "files"}
_CLASSES = {"RDMABuffer": "contents of RDMA buffers", "RDMAAction": "contents of RDMA buffers"}
_DEVICE = {"cuda", "xpu"}


def used_by(cls: type) -> list[str]:
    """Lines for people: "Trainer.step uses time.monotonic: the time is not as then". Its own methods and functions of its
    module that they name are looked at; what others do is not seen."""
    found: dict[str, None] = {}
    seen: set[types.CodeType] = set()
    for owner in cls.__mro__:
        if owner.__module__.startswith("monarch.") or owner is object:
            continue
        for name, member in vars(owner).items():
            function = getattr(member, "_method", None) or getattr(member, "__func__", None) or member
            if isinstance(function, types.FunctionType):
                _look(f"{owner.__name__}.{name}", function, found, seen)
    return list(found)


def _look(label: str, function: types.FunctionType, found: dict[str, None], seen: set[types.CodeType]) -> None:
    if function.__code__ in seen or len(seen) > 500:
        return
    seen.add(function.__code__)
    scope = function.__globals__
    for code in _codes(function.__code__):
        attributes = _attributes(code)
        for name in code.co_names:
            if name in _BUILTINS and name not in scope:
                found[f"{label} uses {name}(): {_BUILTINS[name]} are not as then"] = None
            if name in _DEVICE:
                found[f"{label} uses {name}: the contents of devices are not as then"] = None
            value = scope.get(name)
            if isinstance(value, types.ModuleType) and value.__name__ in _MODULES:
                _module(label, value.__name__, attributes.get(name, set()), found)
            elif isinstance(value, type) and value.__name__ in _CLASSES:
                found[f"{label} uses {name}: {_CLASSES[value.__name__]} are not as then"] = None
            elif isinstance(value, (types.BuiltinFunctionType, type)) and value.__module__ in _MODULES:
                _module(label, value.__module__, {*attributes.get(name, set()), name}, found)
            elif isinstance(value, types.FunctionType) and value.__module__ == function.__module__:
                _look(name, value, found, seen)


def _module(label: str, module: str, names: set[str], found: dict[str, None]) -> None:
    wanted = _ATTRIBUTES.get(module)
    used = sorted(names & wanted) if wanted is not None else [""]
    for name in used:
        shown = f"{module}.{name}" if name else module
        verb = "are" if _MODULES[module].startswith(("random", "other")) else "is"
        found[f"{label} uses {shown}: {_MODULES[module]} {verb} not as then"] = None


def _attributes(code: types.CodeType) -> dict[str, set[str]]:
    """Returns, by global name, what is taken of it, as `monotonic` of `time`."""
    found: dict[str, set[str]] = {}
    name = ""
    for instruction in dis.get_instructions(code):
        if name and instruction.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            found.setdefault(name, set()).add(str(instruction.argval))
        name = str(instruction.argval) if instruction.opname == "LOAD_GLOBAL" else ""
    return found


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """It, and those of functions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)
