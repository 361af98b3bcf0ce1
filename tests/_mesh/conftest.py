"""The fixtures that users of monarch.testing get, for the tests of this folder."""

from __future__ import annotations

from monarch.testing.fixtures import cluster, no_leaks, virtual_clock

__all__ = ["cluster", "no_leaks", "virtual_clock"]
