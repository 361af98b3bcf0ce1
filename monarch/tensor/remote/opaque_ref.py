"""OpaqueRef: any Python object that stays in the workers; the program holds a reference to one on each rank."""

from __future__ import annotations

import itertools
import weakref
from typing import Any

import torch
from torch.utils import _pytree as pytree

from monarch.tensor import patterns
from monarch.tensor.worker import current

_EXTRA = "opaque"


class OpaqueTable:
    """The objects of one worker, by key. An entry goes when the last tensor with the memory of its key has."""

    def __init__(self) -> None:
        self.values: dict[int, Any] = {}
        self._keys = itertools.count(1)

    def add(self, value: object) -> torch.Tensor:
        """A key for `value`: an int64 scalar."""
        number = next(self._keys)
        self.values[number] = value
        key = torch.tensor(number, dtype=torch.int64)
        weakref.finalize(key.untyped_storage(), self.values.pop, number, None).atexit = False
        return key

    def close(self) -> None:
        self.values.clear()


def table() -> OpaqueTable:
    """Returns the table of the worker whose stream this thread is. RuntimeError elsewhere."""
    found: OpaqueTable = current.worker().executor.extras.setdefault(_EXTRA, OpaqueTable())
    return found


class OpaqueRef:
    """`OpaqueRef(value)` inside a remote function keeps `value` in that worker and can be returned; the program passes
    it to other remote functions, which find the object as `.value` (and may set it). When the program releases it, so do
    the workers.

    To torch it is a tree with one leaf, an int64 scalar. A `propagate` function returns `OpaqueRef(None)` in its place. The
    program itself has no value to look at: making one, reading and setting `value` are a RuntimeError there.
    """

    __slots__ = ("_key", "_value")

    def __init__(self, value: object) -> None:
        self._value = None
        if patterns.propagating():
            self._key: Any = torch.zeros((), dtype=torch.int64)
            self._value = value
        else:
            self._key = _table("create").add(value)

    @property
    def value(self) -> Any:
        """The object, in its worker. Inside `propagate` what was put there, None for a reference that was passed in."""
        if patterns.propagating():
            return self._value
        return _table("access").values[int(self._key)]

    @value.setter
    def value(self, value: object) -> None:
        if patterns.propagating():
            self._value = value
        else:
            _table("set").values[int(self._key)] = value

    def __repr__(self) -> str:
        return f"OpaqueRef({self._key!r})"

    def __reduce__(self) -> tuple[object, ...]:
        return _of, (self._key,)


def _of(key: object) -> OpaqueRef:
    made = OpaqueRef.__new__(OpaqueRef)
    made._key, made._value = key, None
    return made


def _table(attempt: str) -> OpaqueTable:
    if current.thread.worker is None:
        raise RuntimeError(
            f"the client attempted to {attempt} the value of an OpaqueRef: it is in the workers. Do it in a remote function "
            f"that takes or returns the OpaqueRef"
        )
    return table()


pytree.register_pytree_node(
    OpaqueRef,
    lambda ref: ([ref._key], None),
    lambda keys, _: _of(next(iter(keys))),
    serialized_type_name="monarch.OpaqueRef",
)
