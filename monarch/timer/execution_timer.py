"""An older path of what `monarch.timer` has."""

from __future__ import annotations

from monarch.timer import ExecutionTimer

__all__ = ["ExecutionTimer"]
