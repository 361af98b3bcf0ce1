"""The cluster in memory on which the expected types are run."""

from __future__ import annotations

from monarch.testing.fixtures import cluster, no_leaks, virtual_clock

__all__ = ["cluster", "no_leaks", "virtual_clock"]
