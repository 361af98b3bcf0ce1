"""Paths of another implementation's compiled part that libraries import from: aliases, made from one table."""

from __future__ import annotations

import importlib.util

from monarch._older_paths import _alias_modules

__all__ = ["has_tensor_engine"]

_alias_modules.install()


def has_tensor_engine() -> bool:
    """Tells whether distributed tensors can be used: with torch they can."""
    return importlib.util.find_spec("torch") is not None
