"""Engines of distributed tensors, and what fails in their workers."""

from __future__ import annotations

from monarch.tensor.controller.engines import spawn_tensor_engine
from monarch.tensor.failures import RemoteException

__all__ = ["RemoteException", "spawn_tensor_engine"]
