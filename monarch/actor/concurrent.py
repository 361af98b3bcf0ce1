"""Endpoints whose calls overlap."""

from __future__ import annotations

from monarch._mesh.actors.endpoint import concurrent_endpoint

__all__ = ["concurrent_endpoint"]
