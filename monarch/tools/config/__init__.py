"""The objects that the tools work on."""

from __future__ import annotations

from monarch.tools.config.config import Config
from monarch.tools.config.workspace import Workspace

__all__ = ["Config", "Workspace"]
