"""The way of a function to the workers: by name where they can import it, else by value.

`function_resolvers` is a list that programs may change: each entry takes what was given to `remote` and returns an object
with `resolve()`, which is called in the worker (so it has to be picklable), or None when it does not know. The first
answer counts.
"""

from __future__ import annotations

import importlib
import itertools
import os
import sys
import types
import uuid
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import torch

from monarch.actor.lowlevel import Sealed, importable
from monarch.tensor.failures import OneLine

if TYPE_CHECKING:
    from torch.utils._pytree import PyTree

OPENED = 4096  # functions by value that a worker keeps; beyond that it starts over


class Resolvable(Protocol):
    """A thing that travels in place of a function."""

    def resolve(self) -> Callable[..., PyTree]:
        """The function, in the worker. Raises whatever stands in its way."""


class TorchOp:
    """An operation of torch, by its name."""

    __slots__ = ("path",)

    def __init__(self, path: str) -> None:
        self.path = path

    def resolve(self) -> Callable[..., PyTree]:
        found: Any = torch.ops
        for part in self.path.split("."):
            found = getattr(found, part)
        resolved: Callable[..., PyTree] = found
        return resolved

    def __reduce__(self) -> tuple[object, ...]:
        return TorchOp, (self.path,)

    def __repr__(self) -> str:
        return f'<function "torch.ops.{self.path}">'


class Named:
    """A function that the workers import: a dotted path, or a module and the path inside it."""

    __slots__ = ("module", "path")

    def __init__(self, module: str, path: str) -> None:
        self.module = module
        self.path = path

    def resolve(self) -> Callable[..., PyTree]:
        found: Any = importlib.import_module(self.module)
        at = self.module
        for part in self.path.split("."):
            at = f"{at}.{part}"
            try:
                found = getattr(found, part)
            except AttributeError:
                if not isinstance(found, types.ModuleType):
                    raise
                try:
                    found = importlib.import_module(at)
                except ModuleNotFoundError as exc:
                    if exc.name != at:
                        raise
                    raise AttributeError(f"module {found.__name__!r} has no attribute {part!r}") from None
        return undecorated(found)  # type: ignore[no-any-return]

    def __reduce__(self) -> tuple[object, ...]:
        return Named, (self.module, self.path)

    def __repr__(self) -> str:
        return f'<function "{self.module}.{self.path}">'


class ByValue:
    """A function that only this process can name. Every worker opens it once, so what it keeps, it keeps between calls."""

    __slots__ = ("_label", "_sealed", "_token")

    def __init__(self, sealed: Sealed, token: str, label: str) -> None:
        self._sealed = sealed
        self._token = token
        self._label = label

    def resolve(self) -> Callable[..., PyTree]:
        found = _opened.get(self._token)
        if found is None:
            if len(_opened) >= OPENED:
                _opened.clear()
            found = _opened.setdefault(self._token, undecorated(self._sealed.open()))
        return found

    def __reduce__(self) -> tuple[object, ...]:
        return ByValue, (self._sealed, self._token, self._label)

    def __repr__(self) -> str:
        return f'<function "{self._label}" by value>'


_opened: dict[str, Callable[..., PyTree]] = {}  # in a worker
_numbers = itertools.count(1)
_here = uuid.uuid4().hex


def torch_op(target: object) -> Resolvable | None:
    """Resolves an operation of torch, which processes find by its name."""
    if isinstance(target, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        return TorchOp(str(target))
    return None


def dotted(target: object) -> Resolvable | None:
    """A string with a dot: nothing is imported here."""
    if isinstance(target, str) and "." in target:
        module, _, path = target.partition(".")
        return Named(module, path)
    return None


def importable_function(target: object) -> Resolvable | None:
    """A function that is found under its own name in a module which other processes can import, decorated or not."""
    module, path = getattr(target, "__module__", None), getattr(target, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(path, str) or "<" in path or not importable(module):
        return None
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    return Named(module, path) if found is not None and undecorated(found) is target else None


def by_value(target: object) -> Resolvable | None:
    """Anything else that is callable, pickled by the rules for messages. So is a string without a dot: no worker can
    call it."""
    if not callable(target) and not isinstance(target, str):
        return None
    return ByValue(Sealed(target), f"{_here}.{os.getpid()}.{next(_numbers)}", label(target))


def named(target: object) -> Resolvable | None:
    """Returns how workers find it by a name alone, if they can."""
    return torch_op(target) or dotted(target) or importable_function(target)


function_resolvers: list[Callable[[Any], Any]] = [torch_op, dotted, importable_function, by_value]

_weakly: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
_strings: dict[str, Any] = {}


def resolvable(target: object) -> Any:
    """Returns what `function_resolvers` make of `target`; the same object each time.

    ValueError when none of them knows it; whatever pickling raises for a function that cannot be sent.
    """
    known = _strings.get(target) if isinstance(target, str) else _known(target)
    if known is not None:
        return known
    for resolver in function_resolvers:
        found = resolver(target)
        if found is not None:
            if isinstance(target, str):
                return _strings.setdefault(target, found)
            try:
                return _weakly.setdefault(target, found)
            except TypeError:  # neither hashable nor weakly referable: its Remote keeps what was found
                return found
    raise ValueError(
        f"Unsupported target for a remote call: {target!r}. It takes a function or another callable, a torch operation, or "
        f"the dotted path of one; monarch.function_resolvers says how each gets to the workers"
    )


def _known(target: object) -> Any:
    try:
        return _weakly.get(target)
    except TypeError:
        return None


def undecorated(found: object) -> Any:
    """Returns what `remote` was given, if `found` is what it returned: a string is the path of the function."""
    inner = wrapped(found)
    return resolvable(inner).resolve() if isinstance(inner, str) and inner is not found else inner


def wrapped(found: Any) -> Any:
    """Returns what `remote` was given, if `found` is what it returned."""
    return found._function if getattr(found, "_is_remote", False) else found


def label(target: object) -> str:
    """Returns its name as reports show it."""
    if isinstance(target, str):
        return target
    return str(getattr(target, "__qualname__", None) or getattr(target, "__name__", None) or target)


def resolve(found: Any) -> Callable[..., PyTree]:
    """The function, in a worker. OneLine when that is not possible."""
    try:
        return found.resolve()  # type: ignore[no-any-return]
    except Exception as exc:
        raise OneLine(
            f"invalid remote function: failed to resolve function {found!r}: {type(exc).__name__}: {exc}"
        ) from exc
