"""Progress that packages would show of the work of others, to check that it adds up."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from types import ModuleType

import pytest

Far = Callable[[], tuple[int, int]]


def record_watched(monkeypatch: pytest.MonkeyPatch, module: ModuleType) -> list[tuple[str, Far]]:
    """Returns where the titles go of what that module shows, and what says how far it is."""
    found: list[tuple[str, Far]] = []

    def watched(title: str, far: Far, of_bytes: bool = False) -> nullcontext[None]:
        found.append((title, far))
        return nullcontext()

    monkeypatch.setattr(module, "WatchedProgress", watched)
    return found
