"""Distributed tensors: one tensor here stands for a local one on each process of a mesh, and torch works on it.

Both sides know the files beside this one: what the controller tells the workers (`commands`, `signature`, `functions`),
what an operation gives (`metadata`, `propagation`, `patterns`), what failed (`failures`, `frames`). The folders import
from those above them in this list, and never the other way:

    worker/       in the processes of a mesh: `executor` has the local tensors and does what commands say, `actor` takes
                  these; `collectives`, `moves`, `groups` and their connections between ranks; `events` and `handover`
                  between streams; `actor_transfers` to actors; `function_call` for functions of the program
    controller/   in the program: `tensor`, `mesh`, `stream` are what it touches. `dispatch` makes a command of an
                  operation, `direct` takes the short way there, `engine` numbers, batches and sends commands and takes
                  the answers, `engines` has one for each mesh; `actor_transfers` hands tensors to actors
    recording/    many commands as one: `function`, `coalescing`
    remote/       functions and objects of the program that live in the workers, and what is built on them
    simulator/    engines without processes

Uses only the public API, `monarch.actor`, as a user's program does. Needs torch (extra `torch`).
"""

from __future__ import annotations

import importlib
from typing import Any

from monarch._devices import torch_versions as torch_versions  # refuses a torch that is too old
from monarch.tensor.controller import actor_transfers as actor_transfers  # how tensors are pickled for actors
from monarch.tensor.controller import borrows as borrows  # how streams borrow
from monarch.tensor.controller import torch_random
from monarch.tensor.controller.activation import no_mesh
from monarch.tensor.controller.agreement import DisagreementError, agreed_values
from monarch.tensor.controller.distribute import gather, replicate, shard
from monarch.tensor.controller.fetch import fetch_shard, inspect, show
from monarch.tensor.controller.mesh import DeviceMesh, get_active_mesh
from monarch.tensor.controller.stream import Stream, get_active_stream
from monarch.tensor.controller.tensor import Tensor
from monarch.tensor.failures import RemoteException
from monarch.tensor.recording.coalescing import coalescing
from monarch.tensor.recording.function import compile, function
from monarch.tensor.remote import torch_nn

torch_random.install()
torch_nn.install()

__all__ = [
    "DeviceMesh",
    "DisagreementError",
    "PendingReduce",
    "RemoteException",
    "RemoteProcessGroup",
    "Stream",
    "Tensor",
    "agreed_values",
    "coalescing",
    "compile",
    "fetch_shard",
    "from_dtensor",
    "function",
    "gather",
    "get_active_mesh",
    "get_active_stream",
    "inspect",
    "no_mesh",
    "reduce",
    "reduce_",
    "replicate",
    "shard",
    "show",
    "slice_mesh",
    "to_dtensor",
    "to_mesh",
    "torch_mesh",
]

# Loaded when first touched: torch's own distributed tensors import for a second.
_LATER = {
    "PendingReduce": "monarch.tensor.controller.pending",
    "RemoteProcessGroup": "monarch.tensor.controller.groups",
    "from_dtensor": "monarch.tensor.worker.dtensor",
    "reduce": "monarch.tensor.controller.collectives",
    "reduce_": "monarch.tensor.controller.collectives",
    "slice_mesh": "monarch.tensor.controller.moves",
    "to_dtensor": "monarch.tensor.worker.dtensor",
    "to_mesh": "monarch.tensor.controller.moves",
    "torch_mesh": "monarch.tensor.worker.dtensor",
}


def __getattr__(name: str) -> Any:
    home = _LATER.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(home), name)
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
