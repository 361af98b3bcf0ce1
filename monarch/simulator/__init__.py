"""Simulated clusters for programs with distributed tensors: see `Simulator`, and "Simulating a cluster" in
docs/tensors.md."""

from __future__ import annotations

from monarch.tensor import simulator
from monarch.tensor.simulator import *  # noqa: F403  # the same names

__all__ = simulator.__all__
