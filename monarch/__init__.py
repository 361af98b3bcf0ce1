"""pymonarch: one Python script drives a cluster of processes and GPUs as if it were one machine.

General layout, from the inside out (a file imports from above, never from below):

    _text       text of programs made fit to send and to read
    _errors     every exception
    _linux      what the kernel offers: /proc, local sockets, private files, helper processes
    _devices    GPUs: which there are, whose they are, their memory
    config      the table of settings
    _shape      coordinates: extents, points, regions
    _wire       bytes between two processes
    _runtime    one process: mailboxes, ports, actors
    _mesh       many processes as arrays
    actor       the public actor API: names, and nothing else; actor.lowlevel for packages built on it

    testing     for those who test their actors: a cluster in memory

    rdma        memory of one process, read and written by others
    tensor      tensors spread over processes, worked on from one
    spmd        the processes of a mesh as ranks of torch.distributed
    references  results that stay where they were made, and tasks
    service     replicas of an actor class behind one handle
    graph       endpoints called again and again in one order, without messages
    remotemount, gather_mount
                folders of the client on every host, and of all hosts in one of the client's
    builtins, checkpoint, memory, profiler, random, simulator, timer
                further public paths of what is in tensor

    telemetry, metrics, admin, dashboard
                looking inside a program: what is recorded, what it logs of itself, what is asked, and the process beside
                it with its pages
    debugger, trace, replay
                breakpoints in ranks; time lines and profiles; recorded messages given to an actor again

    job         hosts that schedulers give
    tools       the command `monarch`
    _older_paths
                what only older programs import

Names below are loaded when first touched; `import monarch` itself loads nothing.
"""

from __future__ import annotations

import importlib
from typing import Any

# public name -> (module, name there; "" is the module itself)
_HOMES = {
    "Extent": ("monarch._shape.extent", "Extent"),
    "Shape": ("monarch._shape.region", "Shape"),
    "NDSlice": ("monarch._shape.slice", "NDSlice"),
    "ActorFuture": ("monarch._runtime.future", "Future"),
    "Future": ("monarch._runtime.future", "Future"),
    "progress": ("monarch._runtime.progress", "progress"),
    "configure": ("monarch.config", "configure"),
    "configured": ("monarch.config", "configured"),
    "get_global_config": ("monarch.config", "get_global_config"),
    "get_runtime_config": ("monarch.config", "get_runtime_config"),
    "clear_runtime_config": ("monarch.config", "clear_runtime_config"),
    "Tensor": ("monarch.tensor.controller.tensor", "Tensor"),
    "Stream": ("monarch.tensor.controller.stream", "Stream"),
    "get_active_stream": ("monarch.tensor.controller.stream", "get_active_stream"),
    "get_active_mesh": ("monarch.tensor.controller.mesh", "get_active_mesh"),
    "no_mesh": ("monarch.tensor.controller.activation", "no_mesh"),
    "fetch_shard": ("monarch.tensor.controller.fetch", "fetch_shard"),
    "inspect": ("monarch.tensor.controller.fetch", "inspect"),
    "agreed_values": ("monarch.tensor.controller.agreement", "agreed_values"),
    "replicate": ("monarch.tensor.controller.distribute", "replicate"),
    "shard": ("monarch.tensor.controller.distribute", "shard"),
    "gather": ("monarch.tensor.controller.distribute", "gather"),
    "DataLoaders": ("monarch.tensor.remote.data_loaders", "DataLoaders"),
    "checkpoint": ("monarch.checkpoint", ""),
    "coalescing": ("monarch.tensor.recording.coalescing", "coalescing"),
    "function": ("monarch.tensor.recording.function", "function"),
    "show": ("monarch.tensor.controller.fetch", "show"),
    "grad_function": ("monarch.tensor.controller.gradients", "grad_function"),
    "grad_generator": ("monarch.tensor.controller.gradients", "grad_generator"),
    "reduce": ("monarch.tensor.controller.collectives", "reduce"),
    "PendingReduce": ("monarch.tensor.controller.pending", "PendingReduce"),
    "reduce_": ("monarch.tensor.controller.collectives", "reduce_"),
    "to_mesh": ("monarch.tensor.controller.moves", "to_mesh"),
    "slice_mesh": ("monarch.tensor.controller.moves", "slice_mesh"),
    "RemoteProcessGroup": ("monarch.tensor.controller.groups", "RemoteProcessGroup"),
    "remote": ("monarch.tensor.remote.remote_function", "remote"),
    "call_on_shard_and_fetch": ("monarch.tensor.remote.remote_function", "call_on_shard_and_fetch"),
    "function_resolvers": ("monarch.tensor.functions", "function_resolvers"),
    "OpaqueRef": ("monarch.tensor.remote.opaque_ref", "OpaqueRef"),
    "Simulator": ("monarch.tensor.simulator", "Simulator"),
    "set_meta": ("monarch.tensor.simulator", "set_meta"),
    "builtins": ("monarch.builtins", ""),
    "timer": ("monarch.timer", ""),
    "mesh_controller": ("monarch.mesh_controller", ""),
    "actor": ("monarch.actor", ""),
    "config": ("monarch.config", ""),
    "graph": ("monarch.graph", ""),
    "rdma": ("monarch.rdma", ""),
    "references": ("monarch.references", ""),
    "service": ("monarch.service", ""),
    "spmd": ("monarch.spmd", ""),
    "tensor": ("monarch.tensor", ""),
    "testing": ("monarch.testing", ""),
}

__version__ = "0.1.0"

# What older programs import, such as `monarch.fetch`, are files of that folder; stubs/ says so to type checkers.
__path__.append(f"{__path__[0]}/_older_paths")
__all__ = [*_HOMES, "__version__"]  # noqa: PLE0604  a computed list of names


def __getattr__(name: str) -> Any:
    try:
        module, attribute = _HOMES[name]
    except KeyError:
        raise AttributeError(
            f"module 'monarch' has no attribute {name!r} (it has: {', '.join(sorted(_HOMES))})"
        ) from None
    found = importlib.import_module(module)
    value = getattr(found, attribute) if attribute else found
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
