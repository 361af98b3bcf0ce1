"""Guards of a recording's constants: a snapshot of the Python values that a function may have read, quick to compare.

The functions that a call ran (`observed`) and what their code reads (`reads`) say where to look: variables of the functions
around them, globals, attributes, entries of containers. Values are the same when they are the same object, or plain and
equal. Tensors count by identity; their contents are the workers'.
"""

from __future__ import annotations

import functools
import io
import threading
import zlib
from collections import ChainMap, OrderedDict, UserDict, UserList, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from itertools import chain
from operator import call, is_, itemgetter
from types import CodeType, FunctionType, GetSetDescriptorType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

import torch

from monarch.tensor.controller.tensor import Tensor
from monarch.tensor.recording import outside
from monarch.tensor.recording.observed import PLAIN, ObservedCalls, followed, foreign
from monarch.tensor.recording.reads import WHOLE, Node, ReadKey, Reads, merged, reads_of

VALUES = 1 << 16  # that one snapshot holds, at most; what is beyond that is not compared
DEPTH = 8  # of what hangs in one another, from a variable on

# What torch's own code counts and never decides a computation by.
_BOOKKEEPING = frozenset({"_step_count", "_opt_called"})
_EVERYTHING: Node = {WHOLE: {}}
_NOTHING: Node = {}
_HOLDERS = frozenset({"_parameters", "_buffers", "_modules"})
_FIELDS = frozenset(torch.nn.Module().__dict__) - {"training"}
_ABSENT = object()


class Change:
    """`name`, the entry `key` of `where` if it lies in a mapping, was `old` and is `new`."""

    __slots__ = ("key", "name", "new", "old", "where")

    def __init__(self, name: str, old: object, new: object, where: object = None, key: object = None) -> None:
        self.name = name
        self.old = old
        self.new = new
        self.where = where
        self.key = key

    def __str__(self) -> str:
        if isinstance(self.old, PLAIN) and isinstance(self.new, PLAIN):
            return f"{self.name} (from {_shown(self.old)} to {_shown(self.new)})"
        return self.name

    @property
    def replaced(self) -> bool:
        """True if a tensor has gone from its place."""
        before = self.old if isinstance(self.old, (list, tuple)) else (self.old,)
        return any(isinstance(value, torch.Tensor) for value in before)

    @property
    def lost(self) -> bool:
        """True if a replay would leave it out, if the recording run made it: of numbers, flags, and what a list
        holds. Tensors that take the place of others have new values after each replay."""
        if isinstance(self.new, dict) and isinstance(self.old, list):  # entries that came or went
            return not all(isinstance(value, torch.Tensor) for value in (*self.old, *self.new.values()))
        if isinstance(self.new, (list, deque)) and isinstance(self.old, list):
            return True
        values = (self.old, self.new)
        if any(isinstance(value, torch.Tensor) for value in values):
            return not all(value is None or value is _ABSENT or isinstance(value, torch.Tensor) for value in values)
        return any(
            value is not None and value is not _ABSENT and isinstance(value, (*PLAIN, tuple)) for value in values
        )


class _Entries:
    """The former content of one container: the values of `names` of a mapping (`whole`: of all that is in it), or of
    a sequence."""

    __slots__ = ("label", "names", "values", "where", "whole")

    def __init__(self, where: Any, names: Sequence[object], values: Sequence[object], label: str, whole: bool) -> None:
        self.where = where
        self.names = list(names)
        self.values = list(values)
        self.label = label
        self.whole = whole

    @property
    def plain(self) -> bool:
        """True if loops of the interpreter see what is in it: no method of the container's own class is called."""
        return type(self.where) in _PLAIN_CONTAINERS

    def now(self) -> list[Any]:
        if not isinstance(self.where, dict):
            return _items(self.where)
        return [dict.get(self.where, name, _ABSENT) for name in self.names]

    def restructured(self) -> bool:
        """True if entries came or went."""
        if not self.whole:
            return False
        now = _items(self.where)
        return len(now) != len(self.names) or (isinstance(self.where, dict) and not all(map(_equal, self.names, now)))

    def same(self) -> bool:
        """True if every object is the one that it was, whatever methods the container's class has."""
        if self.whole:
            now = _items(self.where)
            if len(now) != len(self.names) or (isinstance(self.where, dict) and not all(map(is_, now, self.names))):
                return False
        return all(map(is_, self.now(), self.values))


class Guards:
    """A snapshot. `holds()` compares; `changes()` says what is different now."""

    __slots__ = ("_empty", "_entries", "_getters", "_quick", "_single", "generators", "iterators")

    def __init__(self, walk: _Walk) -> None:
        self._empty: list[tuple[Any, str]] = []
        self._entries: list[_Entries] = []
        self._single: list[tuple[Any, list[Any], str]] = [
            (cell, [_content(cell)], label) for cell, label in walk.cells.values()
        ]
        self._getters = [(give, [give()], label) for give, label in walk.getters]
        self.generators = walk.generators  # of random numbers: by id, with their names
        self.iterators = walk.iterators  # the names of iterators, which have a state that nobody can see
        for mapping, names, label in walk.parts.values():
            there = sorted(name for name in names if dict.__contains__(mapping, name))
            if there:
                values = [dict.__getitem__(mapping, name) for name in there]
                self._entries.append(_Entries(mapping, there, values, label, False))
            for name in names - set(there):
                give = functools.partial(dict.get, mapping, name, _ABSENT)
                self._getters.append((give, [_ABSENT], _below(label, name)))
        for whole, label in walk.wholes.values():
            items = _items(whole)
            if not items and type(whole) in _PLAIN_CONTAINERS:
                self._empty.append((whole, label))
            elif isinstance(whole, dict):
                values = [dict.__getitem__(whole, key) for key in items]
                self._entries.append(_Entries(whole, items, values, label, True))
            else:
                self._entries.append(_Entries(whole, range(len(items)), items, label, True))
        self._quick = _Quick(self._entries, self._empty)

    def holds(self) -> bool:
        """True if everything is as it was."""
        return self._same() or self._equal()

    def changes(self) -> list[Change]:
        """Returns what is not as it was, by name."""
        return list(self._different())

    def groups(self) -> list[dict[str, Any]]:
        """Groups of parameters of optimizers whose learning rates are numbers."""
        mappings = [one.where for one in self._entries if "lr" in one.names and "params" in one.names]
        return [group for group in mappings if type(group["lr"]) is float]

    def release(self, mapping: dict[str, Any], name: str) -> None:
        """The entry `name` of `mapping` may change from here on."""
        for one in self._entries:
            if one.where is mapping and name in one.names:
                at = one.names.index(name)
                del one.names[at], one.values[at]
                one.whole = False
        self._quick = _Quick(self._entries, self._empty)

    # --- comparing

    def _same(self) -> bool:
        """True if every object is the one that it was: the quick way to know that nothing has changed."""
        try:
            if not self._quick.same():
                return False
            for cell, (value,), _ in self._single:
                if cell.cell_contents is not value:
                    return False
            for give, (value,), _ in self._getters:
                if give() is not value:
                    return False
        except Exception:  # an entry is gone; another thread changes a container; code of the program fails
            return False
        return True

    def _equal(self) -> bool:
        """Compares by value, where values are plain: equal ones take the place of those before them."""
        for _ in self._different():
            return False
        self._quick = _Quick(self._entries, self._empty)
        return True

    def _different(self) -> Iterator[Change]:
        for whole, label in self._empty:
            if len(whole):
                yield Change(label.rstrip("."), [], whole)
        for one in self._entries:
            if one.restructured():
                yield Change(one.label.rstrip("."), one.values, one.where)
                continue
            names = [_below(one.label, name) for name in one.names]
            yield from _compared(one.values, one.now(), names, one.where, one.names)
        for cell, kept, label in self._single:
            yield from _compared(kept, [_content(cell)], [label])
        for give, kept, label in self._getters:
            yield from _compared(kept, [give()], [label])


class _Quick:
    """The entries of many containers, laid out so that loops of the interpreter's own compare them."""

    __slots__ = (
        "_counted",
        "_counts",
        "_empty",
        "_getters",
        "_keyed",
        "_keys",
        "_mappings",
        "_others",
        "_picked",
        "_values",
        "_whole",
    )

    def __init__(self, entries: Sequence[_Entries], empty: Sequence[tuple[Any, str]]) -> None:
        self._empty = [where for where, _ in empty]
        self._others = [one for one in entries if not one.plain]
        entries = [one for one in entries if one.plain]
        parts = [one for one in entries if not one.whole and one.names]
        self._getters = [itemgetter(*one.names, one.names[0]) for one in parts]  # one more: it gives tuples then
        self._mappings = [one.where for one in parts]
        self._picked = [value for one in parts for value in (*one.values, one.values[0])]
        wholes = [one for one in entries if one.whole]
        dicts = [one.where for one in wholes if isinstance(one.where, dict)]
        lists = [one.where for one in wholes if not isinstance(one.where, dict)]
        self._counted = [*dicts, *lists]
        self._counts = [len(where) for where in self._counted]
        self._whole = dicts, lists
        ordered = [one for one in wholes if isinstance(one.where, dict)]
        ordered += [one for one in wholes if not isinstance(one.where, dict)]
        self._values = [value for one in ordered for value in one.values]
        # Plain values may be the same object under another key.
        keyed = [
            one for one in ordered if isinstance(one.where, dict) and any(isinstance(v, PLAIN) for v in one.values)
        ]
        self._keyed = [one.where for one in keyed]
        self._keys = [key for one in keyed for key in one.names]

    def same(self) -> bool:
        dicts, lists = self._whole
        return (
            not any(self._empty)
            and all(map(is_, chain.from_iterable(map(call, self._getters, self._mappings)), self._picked))
            and list(map(len, self._counted)) == self._counts
            and all(
                map(is_, chain(chain.from_iterable(map(dict.values, dicts)), chain.from_iterable(lists)), self._values)
            )
            and all(map(is_, chain.from_iterable(self._keyed), self._keys))
            and all(one.same() for one in self._others)
        )


def _compared(
    values: list[Any], now: Sequence[object], names: Sequence[str], where: object = None, keys: Sequence[object] = ()
) -> Iterator[Change]:
    for at, (value, name) in enumerate(zip(now, names, strict=False)):
        if values[at] is not value:
            if _equal(values[at], value):
                values[at] = value
            else:
                yield Change(name, values[at], value, where, keys[at] if keys else None)


def _equal(old: Any, new: Any) -> bool:
    if old is new:
        return True
    if type(old) is not type(new):
        return False
    if isinstance(old, (float, complex)):
        return repr(old) == repr(new)  # 0.0 is not -0.0, and NaN is NaN
    if isinstance(old, tuple):
        return len(old) == len(new) and all(map(_equal, old, new))
    if type(old) is MethodType:
        return old.__self__ is new.__self__ and old.__func__ is new.__func__
    return isinstance(old, (*PLAIN, range, slice)) and bool(old == new)


def _content(cell: Any) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # not set
        return _ABSENT


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


# --- where to look ------------------------------------------------------------------------------------------


def watched(function: Callable[..., Any], observed: ObservedCalls, lasting: bool) -> Guards:
    """A snapshot of what `function` may read now. With `lasting` only objects that two calls have met count."""
    walk = _Walk()
    walk.value(function, _EVERYTHING, frozenset(), "", 0)
    for code, names in list(observed.codes.items()):
        walk.globals(names, reads_of(code))
    for variable in sorted(observed.variables):
        label = f"os.environ[{variable!r}]" if variable else "os.environ"
        walk.getters.append((functools.partial(outside.in_environment, variable), label))
    for code, name, value in observed.receivers(lasting):
        reads = reads_of(code)
        walk.value(value, reads.arguments.get(name, {}), reads.loose, walk.label(value), 0)
    return Guards(walk)


class _Walk:
    """A walk from functions and objects to the containers in which the values lie that are read."""

    def __init__(self) -> None:
        self.parts: dict[int, tuple[Any, set[Any], str]] = {}  # some entries of a mapping
        self.wholes: dict[int, tuple[Any, str]] = {}  # containers with all that is in them
        self.cells: dict[int, tuple[Any, str]] = {}
        self.getters: list[tuple[Callable[[], Any], str]] = []
        self.iterators: list[str] = []
        self.generators: dict[int, tuple[object, str]] = {}
        self._seen: dict[tuple[int, int, frozenset[str]], Node] = {}
        self._labels: dict[int, str] = {}
        self._kept: list[Any] = []  # what `_seen` names by id
        self._room = VALUES

    def label(self, value: object) -> str:
        """The name of an object: what it was first found by, or its class."""
        return self._labels.get(id(value)) or type(value).__name__

    def value(self, value: object, node: Node, loose: frozenset[str], label: str, depth: int) -> None:
        """Looks into `value`, of which `node` is read."""
        if isinstance(value, PLAIN) or type(value) is Tensor or depth > DEPTH or self._room <= 0:
            return
        if (id(value), id(node), loose) in self._seen:
            return
        self._seen[id(value), id(node), loose] = node
        self._kept.append(value)
        if label and not isinstance(value, (tuple, ModuleType)):
            self._labels.setdefault(id(value), label)
        if isinstance(value, FunctionType):
            self.function(value, label, depth)
        elif isinstance(value, MethodType):
            self.value(value.__func__, _EVERYTHING, loose, label, depth + 1)
            self._method(value, depth)
        elif isinstance(value, functools.partial):
            for place, inner in enumerate((value.func, value.args, value.keywords)):
                self.value(inner, _EVERYTHING, loose, f"{label}.{('func', 'args', 'keywords')[place]}", depth + 1)
        elif isinstance(value, (staticmethod, classmethod)):
            self.value(value.__func__, node, loose, label, depth + 1)
        elif isinstance(value, torch.Tensor):  # of this process: its contents are
            self.getters.append((functools.partial(_version, value), label))
        elif isinstance(value, dict):
            self._dict(value, node, loose, label, depth)
        elif isinstance(value, (list, tuple, deque)):
            self._sequence(value, loose, label, depth)
        elif outside.generator_of(value):
            self.generators[id(value)] = (value, label)
        elif isinstance(value, ContextVar):
            self.getters.append((functools.partial(value.get, _ABSENT), label))
            self.value(value.get(None), _EVERYTHING, loose, label, depth + 1)
        elif isinstance(value, (set, frozenset)):
            self.getters.append((functools.partial(_members, value), label))
        elif type(value).__module__ == "numpy" and hasattr(value, "tobytes"):
            self.getters.append((functools.partial(_bytes, value), label))
        elif hasattr(type(value), "__next__") and not isinstance(value, io.IOBase):
            self.iterators.append(label)
        else:
            self._object(value, node, loose, label, depth)

    def function(self, function: FunctionType, label: str, depth: int) -> None:
        """Guards what a function reads: its variables, defaults and globals."""
        reads = reads_of(function.__code__)
        prefix = f"{label}." if label else ""
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
            self.cells.setdefault(id(cell), (cell, name))
            self._room -= 1
            content = _content(cell)
            if content is not _ABSENT:
                self.value(content, reads.free.get(name, {}), reads.loose, name, depth + 1)
        for default in (function.__defaults__, function.__kwdefaults__):
            if default:
                self.value(default, _EVERYTHING, reads.loose, f"{prefix}{function.__name__}'s defaults", depth + 1)
        if followed(function.__module__):
            self.globals(function.__globals__, reads, depth)
        inner = getattr(function, "__wrapped__", None)
        if inner is not None:
            self.value(inner, _EVERYTHING, frozenset(), label, depth + 1)

    def globals(self, names: dict[str, Any], reads: Reads, depth: int = 0) -> None:
        """The globals that a function reads."""
        there = {name for name in reads.globals if name in names}
        self._some(names, there, "")
        for name in there:
            self.value(names[name], reads.globals[name], reads.loose, name, depth + 1)

    def _method(self, method: MethodType, depth: int) -> None:
        function = _code_of(method.__func__)
        if function is not None and function.co_argcount:
            reads = reads_of(function)
            node = reads.arguments.get(function.co_varnames[0], {})
            self.value(method.__self__, node, reads.loose, self.label(method.__self__), depth + 1)

    def _dict(self, value: Any, node: Node, loose: frozenset[str], label: str, depth: int) -> None:
        label = label if label.endswith(".") else f"{label}[]"
        keys = {key.value for key in node if type(key) is ReadKey and key is not WHOLE}
        plain = type(value) in _PLAIN_CONTAINERS  # methods of another class may read other keys than they are given
        if plain and WHOLE not in node and keys and not any(type(name) is str for name in node):
            self._some(value, keys, label)
            for key in keys & dict.keys(value):
                self.value(dict.__getitem__(value, key), node[ReadKey(key)], loose, _below(label, key), depth + 1)
        elif id(value) not in self.wholes and dict.__len__(value) <= self._room:
            self.wholes[id(value)] = (value, label)
            self._room -= dict.__len__(value)
            for key, item in list(dict.items(value)):
                self.value(item, _EVERYTHING, loose, _below(label, key), depth + 1)

    def _sequence(self, value: Any, loose: frozenset[str], label: str, depth: int) -> None:
        if _raw(value).__len__(value) > self._room:
            return
        items = _items(value)
        if not isinstance(value, tuple):
            self.wholes[id(value)] = (value, f"{label}[]")
        self._room -= len(items)
        for at, item in enumerate(items):
            self.value(item, _EVERYTHING, loose, f"{label}[{at}]", depth + 1)

    def _object(self, value: Any, node: Node, loose: frozenset[str], label: str, depth: int) -> None:
        if isinstance(value, ModuleType) and not followed(value.__name__):
            return
        own: Any = {}
        nodes: Node = {name: inner for name, inner in node.items() if type(name) is str}
        kind = value if isinstance(value, type) else type(value)
        if not isinstance(value, type):
            if isinstance(value, threading.local):
                return self._of_thread(value, node, loose, label, depth)
            own = getattr(value, "__dict__", None) if kind.__dictoffset__ else {}
            if not isinstance(own, dict):
                return
            if not isinstance(value, ModuleType):
                nodes = {name: nodes.get(name, _NOTHING) for name in nodes.keys() | loose}
        through = nodes.get("__dict__", _NOTHING)
        for key in through:
            if key is WHOLE:
                nodes |= {name: nodes.get(name, _NOTHING) for name in own}
            elif type(key) is ReadKey:
                nodes[key.value] = merged(nodes.get(key.value, _NOTHING), through[key])
        nodes |= _held(value, kind, own, nodes)
        if "__wrapped__" in own:
            self.value(own["__wrapped__"], _EVERYTHING, frozenset(), label, depth + 1)
        # A Module's own dictionaries stay the same objects; what is in them goes by the Module's name.
        fields = _FIELDS if isinstance(value, torch.nn.Module) else frozenset()
        wanted = nodes.keys() - _BOOKKEEPING
        self._some(own, (wanted & own.keys()) - fields, label)
        for name in wanted:
            below = f"{label}." if name in _HOLDERS and name in fields else f"{label}.{name}"
            if name in own:
                self.value(own[name], nodes[name], loose, below, depth + 1)
            else:
                self._of_class(value, kind, name, nodes[name], loose, below, depth)

    def _of_thread(self, value: object, node: Node, loose: frozenset[str], label: str, depth: int) -> None:
        """Looks into what a `threading.local` holds for the thread that asks."""
        for name in {name for name in node if type(name) is str} | loose:
            if name in value.__dict__:
                self.getters.append((functools.partial(getattr, value, name, _ABSENT), f"{label}.{name}"))
                self.value(value.__dict__[name], node.get(name, _NOTHING), loose, f"{label}.{name}", depth + 1)

    def _of_class(
        self, value: object, kind: type, name: str, node: Node, loose: frozenset[str], label: str, depth: int
    ) -> None:
        """An attribute that is no entry of the object's own: of its class, or a slot."""
        owner = next((owner for owner in kind.__mro__ if name in owner.__dict__), None)
        if owner is None:
            return
        found = owner.__dict__[name]
        slot = isinstance(found, MemberDescriptorType) and not isinstance(value, type)
        if isinstance(found, (property, GetSetDescriptorType)) and not isinstance(value, type) and _of_python(owner):
            slot = isinstance(getattr(value, name, _ABSENT), PLAIN)  # computed by code that is not looked into
        plain = isinstance(found, (*PLAIN, list, dict, tuple, set, frozenset)) and not foreign(owner.__module__)
        if slot or plain:
            self.getters.append((functools.partial(getattr, value, name, _ABSENT), label))
            self.value(getattr(value, name, None), node, loose, label, depth + 1)

    def _some(self, mapping: dict[Any, Any], names: set[Any], label: str) -> None:
        if not names:
            return
        known = self.parts.get(id(mapping))
        if known is None:
            self.parts[id(mapping)] = (mapping, set(names), label)
            self._room -= len(names)
        else:
            self._room -= len(names - known[1])
            known[1].update(names)


def _code_of(function: object) -> CodeType | None:
    """The code of a Python function; None for others."""
    return getattr(function, "__code__", None)


# Containers whose class has no methods of the program's. What is in others is looked at with the methods of these.
_PLAIN_CONTAINERS = frozenset({dict, OrderedDict, list, tuple, deque})
_KINDS: tuple[Any, ...] = (OrderedDict, dict, list, tuple, deque)


def _raw(value: object) -> Any:
    """Returns the class of C that a container is of, whatever methods its own class has."""
    return next(kind for kind in _KINDS if isinstance(value, kind))


def _items(value: Any) -> list[Any]:
    """Returns what is in a container, the keys of a mapping: no method of the program is called."""
    return list(_raw(value).__iter__(value))


def _of_python(kind: type) -> bool:
    """True if Python's own library defines a class."""
    module = kind.__module__
    return foreign(module) and module.partition(".")[0] not in ("torch", "monarch", "typing", "typing_extensions")


def _held(value: object, kind: type, own: dict[str, Any], nodes: Node) -> Node:
    """Returns what an object of Python's own library holds, whose methods are not looked into: numbers and flags, and the
    containers that a mapping or sequence stands for, also one of a class derived by the program."""
    if not own or isinstance(value, (type, ModuleType)):
        return {}
    found: Node = {}
    if _of_python(kind):
        found = {name: nodes.get(name, _NOTHING) for name, item in own.items() if isinstance(item, PLAIN)}
    if isinstance(value, (UserDict, UserList, ChainMap)) or (_of_python(kind) and isinstance(value, Mapping)):
        containers = (dict, list, set, deque)
        found |= {name: _EVERYTHING for name, item in own.items() if isinstance(item, containers)}
    return found


def _version(value: torch.Tensor) -> object:
    """Another after each change in place."""
    return _ABSENT if value.is_inference() else value._version


_SAMPLE = 1 << 16  # elements of an array of more than 16 times as many bytes


def _bytes(value: Any) -> object:
    """The contents of an array, or what stands for those of a large one: a checksum, of a sample beyond a MiB."""
    if value.nbytes <= 1 << 14:
        return bytes(value.tobytes())
    if value.dtype.hasobject:
        return value.nbytes
    if value.nbytes > 16 * _SAMPLE:
        flat = value.reshape(-1)
        value = flat[:: -(-flat.size // _SAMPLE)]
    return value.nbytes, zlib.crc32(value.tobytes())


def _members(value: Any) -> object:
    """Returns the content of a set of plain values as something to compare."""
    return tuple(sorted(map(repr, value))) if all(isinstance(item, PLAIN) for item in value) else len(value)


def _below(label: str, name: object) -> str:
    """The name of an entry: of a container, whose label ends in "[]", or an attribute."""
    if label.endswith("[]"):
        return f"{label[:-1]}{_shown(name)}]" if isinstance(name, PLAIN) else f"{label[:-1]}a {type(name).__name__}]"
    return f"{label.rstrip('.')}.{name}" if label else str(name)
