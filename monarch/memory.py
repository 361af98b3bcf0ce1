"""The memory of the accelerators in a mesh, recorded and written to files."""

from __future__ import annotations

from monarch.tensor.remote.memory_history import dump_memory_snapshot, record_memory_history

__all__ = ["dump_memory_snapshot", "record_memory_history"]
