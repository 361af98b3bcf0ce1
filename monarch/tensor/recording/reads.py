"""The names around a Python function that it may read, from its bytecode alone: names of attributes, by where they hang.

`self.model.scale * limits["top"]` reads `scale` of `model` of `self`, and the key "top" of `limits`. What cannot be followed
(an attribute of a local variable, of a result) is a loose name: an attribute of any object that the function meets.
"""

from __future__ import annotations

import dis
import functools
import inspect
from types import CodeType
from typing import Any

# What is read of a value: attributes by name, Keys of containers, and WHOLE when the value itself is used.
Node = dict[Any, Any]


class ReadKey:
    """A constant key of a container, as in `limits["top"]`."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value

    def __hash__(self) -> int:
        return hash((ReadKey, self.value))

    def __eq__(self, other: object) -> bool:
        return type(other) is ReadKey and type(self.value) is type(other.value) and bool(self.value == other.value)


WHOLE = ReadKey(ReadKey)

_STARTS = frozenset(name for name in dis.opmap if name.startswith(("LOAD_FAST", "LOAD_DEREF", "LOAD_CLASSDEREF"))) | {
    "LOAD_GLOBAL",
    "LOAD_NAME",
}


class Reads:
    """The reads of one code object: nodes by name of its arguments (those that are not assigned to), its free
    variables and its globals, and the loose names."""

    __slots__ = ("arguments", "free", "globals", "loose")

    def __init__(self) -> None:
        self.arguments: dict[str, Node] = {}
        self.free: dict[str, Node] = {}
        self.globals: dict[str, Node] = {}
        self.loose: frozenset[str] = frozenset()


def arguments_of(code: CodeType) -> tuple[str, ...]:
    """The names of its arguments, `*args` and `**kwargs` among them."""
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return code.co_varnames[:count]


@functools.lru_cache(maxsize=4096)
def reads_of(code: CodeType) -> Reads:
    """Returns what `code` reads, and the functions and comprehensions written inside it."""
    found = Reads()
    loose: set[str] = set()
    instructions = list(dis.get_instructions(code))
    assigned = {name for one in instructions if "STORE" in one.opname for name in _names(one.argval)}
    known = set(arguments_of(code)) - assigned
    at: Node | None = None  # of the value on top of the stack, where it is known
    key: ReadKey | None = None  # a constant above it
    left: ReadKey | None = None  # a constant below it
    asked: Node | None = None  # of the value whose method `get` is on top of the stack
    before = ""
    for one in instructions:
        name, value = one.opname, one.argval
        if name in ("NOP", "CACHE", "PUSH_NULL", "EXTENDED_ARG"):
            continue
        if before != "LOAD_CONST" and name in _STARTS:
            left = None
        before = name
        if key is not None:  # what becomes of (value, constant)
            if at is not None and (name == "BINARY_SUBSCR" or (name == "BINARY_OP" and one.argrepr == "[]")):
                at, key = at.setdefault(key, {}), None
                continue
            _whole(at)
            at = key = None
        if asked is not None:  # what `get` is called with
            if name == "LOAD_CONST" and _key(value) is not None:
                asked.setdefault(_key(value), {})[WHOLE] = {}
            else:
                asked["get"] = {}
            asked = None
        if name in ("LOAD_ATTR", "LOAD_METHOD"):
            if at is None:
                loose.add(value)
            elif value == "get":
                asked, at = at, None
            else:
                at = at.setdefault(value, {})
        elif name == "LOAD_CONST":
            left = _key(value)
            if at is not None:
                key = left
                if key is None:
                    _whole(at)
                    at = None
            continue
        elif name == "CONTAINS_OP" and at is not None and left is not None:
            at.setdefault(left, {})[WHOLE] = {}
            at = None
        elif name == "LOAD_SUPER_ATTR":
            _whole(at)
            at = None
            loose.add(value)
        elif name == "LOAD_GLOBAL" or name == "LOAD_NAME":
            _whole(at)
            at = found.globals.setdefault(value, {})
            continue
        elif name in ("LOAD_DEREF", "LOAD_CLASSDEREF"):
            _whole(at)
            at = _variable(found, code, value, known)
            continue
        elif name in _STARTS:
            _whole(at)
            for variable in _names(value):
                at = _variable(found, code, variable, known)
                if len(_names(value)) > 1:
                    _whole(at)
            continue
        else:
            _whole(at)
            at = None
        if name not in ("LOAD_ATTR", "LOAD_METHOD"):
            left = None
    if found.globals.keys() & {"getattr", "hasattr", "attrgetter"}:
        loose |= {value for value in code.co_consts if type(value) is str and value.isidentifier()}
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            loose |= _merge(found, reads_of(inner), code, known)
    found.loose = frozenset(loose)
    return found


def merged(first: Node, second: Node) -> Node:
    """Returns all that either reads."""
    if not second or first is second:
        return first
    both = dict(first)
    for name, node in second.items():
        both[name] = merged(both[name], node) if name in both else node
    return both


def _merge(found: Reads, inner: Reads, code: CodeType, known: set[str]) -> frozenset[str]:
    """Adds what a function written inside `code` reads; its loose names, those of our local variables too."""
    for name, node in inner.globals.items():
        found.globals[name] = merged(found.globals.get(name, {}), node)
    loose = set(inner.loose)
    for name, node in inner.free.items():
        mine = _variable(found, code, name, known)
        if mine is None:
            loose |= _attributes(node)
        else:
            mine.update(merged(mine, node))
    for node in inner.arguments.values():
        loose |= _attributes(node)
    return frozenset(loose)


def _attributes(node: Node) -> set[str]:
    found = {name for name in node if type(name) is str}
    for inner in node.values():
        if inner is not None:
            found |= _attributes(inner)
    return found


def _variable(found: Reads, code: CodeType, name: str, known: set[str]) -> Node | None:
    if name in code.co_freevars:
        return found.free.setdefault(name, {})
    return found.arguments.setdefault(name, {}) if name in known else None


def _whole(node: Node | None) -> None:
    if node is not None:
        node[WHOLE] = {}


def _key(value: object) -> ReadKey | None:
    return ReadKey(value) if type(value) in (str, int, bool) else None


def _names(value: object) -> tuple[str, ...]:
    """Returns the names of variables: newer Pythons load or store two with one instruction."""
    return (value,) if type(value) is str else tuple(value) if isinstance(value, tuple) else ()
