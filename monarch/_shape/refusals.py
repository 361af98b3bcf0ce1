"""Operators and calls that are mistakes, with a text that says what to write instead. For classes that users confuse with
what they stand for: a Future with its result, a Point with its rank, a mesh with a list.

What is made here is put on classes at run time only, so that type checkers still find the mistake.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

_BINARY = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**", "matmul": "@",
}  # fmt: skip
_ORDER = {"lt": "<", "le": "<=", "gt": ">", "ge": ">="}

Explain = Callable[[Any, str], str]  # (the object, the mistake as Python calls it) -> the text


def arithmetic(explain: Explain) -> dict[str, Callable[..., Any]]:
    """Methods that refuse numbers' operators, comparisons but for equality, `int` and `float`, by name."""
    found = {f"__{name}__": refuse(_unsupported(sign), explain) for name, sign in (_BINARY | _ORDER).items()}
    found |= {f"__r{name}__": refuse(_unsupported(sign, reflected=True), explain) for name, sign in _BINARY.items()}
    found["__float__"] = refuse(lambda self: f"float() does not take a {type(self).__name__!r}", explain)
    found["__int__"] = refuse(lambda self: f"int() does not take a {type(self).__name__!r}", explain)
    return found


def refuse(mistake: Callable[..., str], explain: Explain) -> Callable[..., Any]:
    """A method that raises TypeError. `mistake` gets what the method gets."""

    def refused(self: Any, *others: Any) -> Any:
        raise TypeError(explain(self, mistake(self, *others)))

    return refused


def _unsupported(sign: str, reflected: bool = False) -> Callable[..., str]:
    def mistake(self: Any, other: Any, *_: Any) -> str:
        kinds = [f"'{type(self).__name__}'", f"'{type(other).__name__}'"]
        if reflected:
            kinds.reverse()
        return f"unsupported operand type(s) for {sign}: {' and '.join(kinds)}"

    return mistake


def called_as(function: Any, example: str) -> Any:
    """`function`, whose TypeErrors for arguments that it does not take are followed by an example."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except TypeError as exc:
            if exc.__traceback__ is not None and exc.__traceback__.tb_next is None:  # raised by the call itself
                raise TypeError(f"{exc}: it is called as in {example}") from None
            raise

    return call
