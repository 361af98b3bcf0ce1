"""By which module's name public functions are pickled."""

from __future__ import annotations

from types import FunctionType
from typing import Any


def pickle_from(module: str, name: str, found: Any) -> None:
    """Has a function pickled by its public name, so that the process that unpickles it loads all it needs. Classes keep the
    module in which tools look for their source."""
    if isinstance(found, FunctionType) and found.__qualname__ == name:
        found.__module__ = module
