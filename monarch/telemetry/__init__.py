"""Tables for SQL of all that a program does: `monarch.telemetry.start()` records it. See docs/telemetry.md."""

from __future__ import annotations

from monarch.telemetry.client import QueryEngineClient
from monarch.telemetry.starting import Telemetry, running, start

__all__ = ["QueryEngineClient", "Telemetry", "running", "start"]
