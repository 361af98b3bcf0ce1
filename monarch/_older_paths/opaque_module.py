"""Modules that live in the processes of a mesh."""

from __future__ import annotations

from monarch.tensor.remote.opaque_module import OpaqueModule

__all__ = ["OpaqueModule"]
