"""Hosts of a Ray cluster: see docs/ray.md. `host` runs on each of them, `job` has RayJob."""

from __future__ import annotations

from monarch.job.ray.job import RayJob

__all__ = ["RayJob"]
