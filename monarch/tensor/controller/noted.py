"""A command as it was issued, for what notes commands to issue them later, or again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


class Noted:
    """A command as it was issued: at `place`, call `call` (the signature `signature`, or 0 for a call that is made once)."""

    __slots__ = ("call", "ident", "inputs", "numbers", "place", "results", "signature", "stack")

    def __init__(
        self, place: Any, ident: int, call: Any, inputs: tuple[int, ...], numbers: tuple[Any, ...], results: int,
        signature: int, stack: Any,
    ) -> None:  # fmt: skip
        self.place = place
        self.ident = ident
        self.call = call
        self.inputs = inputs
        self.numbers = numbers
        self.results = results
        self.signature = signature
        self.stack = stack

    def name(self) -> str:
        return str(self.call.name())


class Repeat:
    """A signature.Call that gives a tensor the program sent: a new copy each time, because it may be changed."""

    keeps = None
    mutates = ()
    repeatable = True

    def __init__(self, value: Any) -> None:
        self.value = value

    def name(self) -> str:
        return "a constant"

    def prepare(self, executor: Any) -> Callable[[Sequence[Any], Sequence[Any]], Any]:
        return lambda tensors, numbers: self.value.clone()
