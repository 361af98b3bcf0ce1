"""Engines of distributed tensors, what fails in their workers, and names of actors under the names that they have there."""

from __future__ import annotations

from monarch._mesh.process.context import ActorInstance as Instance  # noqa: F401
from monarch.actor import ActorAddr, Point
from monarch.actor import Port as OncePortRef
from monarch.actor import Port as PortRef
from monarch.tensor.controller.engines import spawn_tensor_engine
from monarch.tensor.failures import RemoteException

__all__ = ["ActorAddr", "OncePortRef", "Point", "PortRef", "RemoteException", "spawn_tensor_engine"]
