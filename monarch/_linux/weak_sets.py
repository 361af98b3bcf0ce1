"""Weak sets that several threads use."""

from __future__ import annotations

from typing import TypeVar
from weakref import WeakSet

T = TypeVar("T")


def members(of: WeakSet[T]) -> list[T]:
    """Returns what is in it now. Until Python 3.13 `list` of a weak set raises RuntimeError when another thread adds to it
    meanwhile."""
    while True:
        try:
            return list(of)
        except RuntimeError:
            pass
