"""`coalescing` and `compile` under their older path; see `monarch.tensor`."""

from __future__ import annotations

from monarch.tensor.recording.coalescing import coalescing
from monarch.tensor.recording.function import compile

__all__ = ["coalescing", "compile"]
