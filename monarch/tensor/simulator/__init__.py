"""Clusters that are not there: how long a program with distributed tensors would take on one, and how much memory.

    communication  what collectives and messages take, by bytes and ranks
    estimates      what everything takes
    machine        devices, the clocks of their streams, their memory, and who waits for whom
    task           what is done
    effects        what a call gives, by metadata
    interpreter    commands of an engine, in simulated time
    trace, history, ir
                   what is told of them
    reports        the files
    engine         an Engine that hands its batches to the interpreter
    simulator, patch
                   what programs touch

Everything above `reports` does without I/O.
"""

from __future__ import annotations

from monarch.tensor.simulator import communication
from monarch.tensor.simulator.estimates import RuntimeEstimator, TimingType, by_communication
from monarch.tensor.simulator.ir import IRGraph
from monarch.tensor.simulator.patch import patch_tensor_engine
from monarch.tensor.simulator.reports import SimulateMode
from monarch.tensor.simulator.simulated_engine import set_meta
from monarch.tensor.simulator.simulator import Simulator
from monarch.tensor.simulator.task import Task
from monarch.tensor.simulator.trace_file import TraceMode

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
