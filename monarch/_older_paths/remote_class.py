"""Classes with one object in each process of a mesh, whose methods return nothing."""

from __future__ import annotations

from monarch.tensor.remote.classes import ControllerRemoteClass, WorkerRemoteClass

__all__ = ["ControllerRemoteClass", "WorkerRemoteClass"]
