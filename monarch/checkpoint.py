"""State dicts of distributed tensors in files of torch.distributed.checkpoint: `save`, `save_async`, `read`, `load`."""

from __future__ import annotations

from monarch.tensor.remote.checkpoint import CheckpointError, load, read, save, save_async

__all__ = ["CheckpointError", "load", "read", "save", "save_async"]
