"""Simulated clusters for programs with distributed tensors: see `Simulator`, and "Simulating a cluster" in
docs/tensors.md."""

from __future__ import annotations

from monarch.tensor.simulator import (
    IRGraph,
    RuntimeEstimator,
    SimulateMode,
    Simulator,
    Task,
    TimingType,
    TraceMode,
    by_communication,
    communication,
    patch_tensor_engine,
    set_meta,
)

__all__ = [
    "IRGraph",
    "RuntimeEstimator",
    "SimulateMode",
    "Simulator",
    "Task",
    "TimingType",
    "TraceMode",
    "by_communication",
    "communication",
    "patch_tensor_engine",
    "set_meta",
]
