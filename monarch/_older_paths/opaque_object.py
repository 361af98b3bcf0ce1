"""Objects that live in the processes of a mesh."""

from __future__ import annotations

from monarch.tensor.remote.opaque_object import OpaqueObject, opaque_method

__all__ = ["OpaqueObject", "opaque_method"]
