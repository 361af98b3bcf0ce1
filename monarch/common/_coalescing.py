"""`coalescing` and `compile` under their older path; see `monarch.tensor`."""

from __future__ import annotations

from monarch.tensor.coalescing import coalescing
from monarch.tensor.compiled import compile

__all__ = ["coalescing", "compile"]
