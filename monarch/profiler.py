"""torch's profiler in the processes of a mesh."""

from __future__ import annotations

from monarch.tensor.remote.profiling import Schedule, profile, record_function

__all__ = ["Schedule", "profile", "record_function"]
