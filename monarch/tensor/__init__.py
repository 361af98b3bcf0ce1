"""Distributed tensors: one tensor here stands for a local one on each process of a mesh, and torch works on it.

    commands      what the controller tells the workers
    metadata, signature, propagation, scalars, taint, records, issued, failures, misuse
                  what the controller knows and says, without any I/O
    engine, engines
                  commands numbered, batched, sent; answers taken; which engine is on which mesh
    dispatch      a torch operation becomes a command
    tensor, mesh, stream, activation, fetch, ranks
                  what programs touch
    executor      a worker's tensors and how commands change them, without any I/O
    worker, worker_mesh, own_device
                  the actor around it, and what it knows of itself
    remote, functions, arguments, patterns, function_call, opaque_*, remote_*
                  functions of the program that run in the workers, objects that stay there
    collectives, reductions, moves, groups, process_groups, stream_group, rendezvous, dtensor
                  between ranks
    borrows       between streams
    recording, recorded, replaying, function, compiled, coalescing
                  many commands as one
    claims, rref  together with actors
    gradients, rng, timing, profiling, memory_history
                  helpers
    simulator/    engines without processes

Uses only the public API, `monarch.actor`, as a user's program does. Needs torch (extra `torch`).
"""

from __future__ import annotations

import importlib
from typing import Any

from monarch.tensor import claims as claims  # how tensors are pickled for actors
from monarch.tensor.activation import get_active_mesh, no_mesh
from monarch.tensor.coalescing import coalescing
from monarch.tensor.compiled import compile
from monarch.tensor.failures import RemoteException
from monarch.tensor.fetch import fetch_shard, inspect, show
from monarch.tensor.function import function
from monarch.tensor.mesh import DeviceMesh
from monarch.tensor.stream import Stream, get_active_stream
from monarch.tensor.tensor import Tensor

__all__ = [
    "DeviceMesh",
    "RemoteException",
    "RemoteProcessGroup",
    "Stream",
    "Tensor",
    "coalescing",
    "compile",
    "fetch_shard",
    "from_dtensor",
    "function",
    "get_active_mesh",
    "get_active_stream",
    "inspect",
    "no_mesh",
    "reduce",
    "reduce_",
    "show",
    "slice_mesh",
    "to_dtensor",
    "to_mesh",
    "torch_mesh",
]

# Loaded when first touched: torch's own distributed tensors import for a second.
_LATER = {
    "RemoteProcessGroup": "monarch.tensor.groups",
    "from_dtensor": "monarch.tensor.dtensor",
    "reduce": "monarch.tensor.collectives",
    "reduce_": "monarch.tensor.collectives",
    "slice_mesh": "monarch.tensor.moves",
    "to_dtensor": "monarch.tensor.dtensor",
    "to_mesh": "monarch.tensor.moves",
    "torch_mesh": "monarch.tensor.dtensor",
}


def __getattr__(name: str) -> Any:
    home = _LATER.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(home), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
