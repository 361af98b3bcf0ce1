"""The public actor API: names, and nothing else.

Programs and the optional packages beside it import from here; what is behind these names may change.
"""

from __future__ import annotations

import importlib
from types import FunctionType
from typing import TYPE_CHECKING, Any

from monarch._errors import (
    ActorError,
    BackpressureTimeout,
    ClientClosedError,
    DeadlockError,
    ForkedClientError,
    MessageTooLargeError,
    NoStreamError,
    NotSendableError,
    SpawnError,
    SupervisionError,
    UnhandledFaultError,
    WorkspaceError,
)
from monarch._mesh.actors.actor import Actor
from monarch._mesh.actors.endpoint import (
    Endpoint,
    EndpointProperty,
    concurrent_endpoint,
    endpoint,
    send,
)
from monarch._mesh.actors.receivers import Receivers, lives_here, own_key, reduce_for
from monarch._mesh.failures.fault_hook import default_fault_hook as unhandled_fault_hook
from monarch._mesh.failures.ledger import MeshFailure
from monarch._mesh.failures.main_thread import faults
from monarch._mesh.failures.replace_policy import ReplacePolicy
from monarch._mesh.failures.restart_policy import RestartPolicy
from monarch._mesh.failures.undeliverable import UndeliverableMessageEnvelope
from monarch._mesh.meshes.actor_mesh import Accumulator, ActorMesh, NotAnEndpoint, as_endpoint
from monarch._mesh.meshes.host_mesh import HostMesh, this_host, this_proc
from monarch._mesh.meshes.proc_mesh import (
    ProcMesh,
    get_active_proc_meshes,
    register_proc_mesh_spawn_callback,
    unregister_proc_mesh_spawn_callback,
)
from monarch._mesh.meshes.replacements import Replacement
from monarch._mesh.process.context import (
    Context,
    bind_context,
    context,
    current_actor_name,
    current_rank,
    current_size,
)
from monarch._mesh.start.launch_spec import BootstrapCommand, default_bootstrap_cmd
from monarch._runtime.future import Future, Promise, follow, read_if_dropped, when_ready
from monarch._runtime.leader import WouldBlockRuntime
from monarch._runtime.loop import start_thread
from monarch._runtime.port import Channel, Port, PortReceiver, RankedPortReceiver
from monarch._shape.extent import Extent, Point
from monarch._shape.region import Shape
from monarch._shape.slice import NDSlice
from monarch._shape.value_mesh import ValueMesh
from monarch._shape.view import MeshTrait
from monarch._wire.codec import importable
from monarch._wire.ids import ActorAddr, ProcId, Uid
from monarch.actor import config
from monarch.config.transport import ChannelTransport

if TYPE_CHECKING:
    from monarch._mesh.actors.breakpoints import debug_controller
    from monarch._mesh.inspection.diagnosis import Diagnosis
    from monarch._mesh.inspection.doctor import diagnose
    from monarch._mesh.inspection.stacks_of_program import Stacks
    from monarch._mesh.inspection.wait_graph import WaitGraph, wait_graph
    from monarch._mesh.meshes.attach import attach_to_workers, hosts_from_config, two_local_hosts
    from monarch._mesh.meshes.legacy import local_proc_mesh, proc_mesh
    from monarch._mesh.meshes.torch_groups import on_actor_threads, setup_torch_distributed
    from monarch._mesh.process.client import shutdown_context
    from monarch._mesh.process.named_actors import get_or_spawn_controller, process_service
    from monarch._mesh.start.transports import attach, enable_transport
    from monarch._mesh.start.worker import (
        run_worker_loop_forever,
        run_worker_loop_until_shutdown,
        start_worker_loop_forever,
    )
    from monarch._runtime.completions import as_completed
    from monarch._runtime.instrument import get_meter, span, traced
    from monarch._runtime.open_stream import open_stream, serve_streams, stream_encrypted, stream_obstacle
    from monarch._runtime.returns_future import returns_future
    from monarch._runtime.thread_task import in_thread
    from monarch._wire.sealed import Sealed

__all__ = [
    "Accumulator",
    "Actor",
    "ActorAddr",
    "ActorError",
    "ActorMesh",
    "BackpressureTimeout",
    "BootstrapCommand",
    "Channel",
    "ChannelTransport",
    "ClientClosedError",
    "Context",
    "DeadlockError",
    "Diagnosis",
    "Endpoint",
    "EndpointProperty",
    "Extent",
    "ForkedClientError",
    "Future",
    "HostMesh",
    "MeshFailure",
    "MeshTrait",
    "MessageTooLargeError",
    "NDSlice",
    "NoStreamError",
    "NotAnEndpoint",
    "NotSendableError",
    "Point",
    "Port",
    "PortReceiver",
    "ProcId",
    "ProcMesh",
    "Promise",
    "RankedPortReceiver",
    "Receivers",
    "ReplacePolicy",
    "Replacement",
    "RestartPolicy",
    "Sealed",
    "Shape",
    "SpawnError",
    "Stacks",
    "SupervisionError",
    "Uid",
    "UndeliverableMessageEnvelope",
    "UnhandledFaultError",
    "ValueMesh",
    "WaitGraph",
    "WorkspaceError",
    "WouldBlockRuntime",
    "as_completed",
    "as_endpoint",
    "attach",
    "attach_to_workers",
    "bind_context",
    "concurrent_endpoint",
    "config",
    "context",
    "current_actor_name",
    "current_rank",
    "current_size",
    "debug_controller",
    "default_bootstrap_cmd",
    "diagnose",
    "enable_transport",
    "endpoint",
    "follow",
    "get_active_proc_meshes",
    "get_meter",
    "get_or_spawn_controller",
    "hosts_from_config",
    "importable",
    "in_thread",
    "lives_here",
    "local_proc_mesh",
    "on_actor_threads",
    "open_stream",
    "own_key",
    "proc_mesh",
    "process_service",
    "read_if_dropped",
    "reduce_for",
    "register_proc_mesh_spawn_callback",
    "returns_future",
    "run_worker_loop_forever",
    "run_worker_loop_until_shutdown",
    "send",
    "serve_streams",
    "setup_torch_distributed",
    "shutdown_context",
    "span",
    "start_thread",
    "start_worker_loop_forever",
    "stream_encrypted",
    "stream_obstacle",
    "this_host",
    "this_proc",
    "traced",
    "two_local_hosts",
    "unhandled_fault_hook",
    "unregister_proc_mesh_spawn_callback",
    "wait_graph",
    "when_ready",
]

# Loaded on first touch: most programs do not need them, or not before they have started something.
_LATER = {
    "Sealed": "monarch._wire.sealed",
    "Diagnosis": "monarch._mesh.inspection.diagnosis",
    "Stacks": "monarch._mesh.inspection.stacks_of_program",
    "WaitGraph": "monarch._mesh.inspection.wait_graph",
    "diagnose": "monarch._mesh.inspection.doctor",
    "as_completed": "monarch._runtime.completions",
    "attach": "monarch._mesh.start.transports",
    "debug_controller": "monarch._mesh.actors.breakpoints",
    "enable_transport": "monarch._mesh.start.transports",
    "get_meter": "monarch._runtime.instrument",
    "get_or_spawn_controller": "monarch._mesh.process.named_actors",
    "local_proc_mesh": "monarch._mesh.meshes.legacy",
    "proc_mesh": "monarch._mesh.meshes.legacy",
    "process_service": "monarch._mesh.process.named_actors",
    "returns_future": "monarch._runtime.returns_future",
    "in_thread": "monarch._runtime.thread_task",
    "shutdown_context": "monarch._mesh.process.client",
    "span": "monarch._runtime.instrument",
    "traced": "monarch._runtime.instrument",
    "wait_graph": "monarch._mesh.inspection.wait_graph",
    "on_actor_threads": "monarch._mesh.meshes.torch_groups",
    "setup_torch_distributed": "monarch._mesh.meshes.torch_groups",
    "open_stream": "monarch._runtime.open_stream",
    "serve_streams": "monarch._runtime.open_stream",
    "stream_encrypted": "monarch._runtime.open_stream",
    "stream_obstacle": "monarch._runtime.open_stream",
    "attach_to_workers": "monarch._mesh.meshes.attach",
    "hosts_from_config": "monarch._mesh.meshes.attach",
    "two_local_hosts": "monarch._mesh.meshes.attach",
    "run_worker_loop_forever": "monarch._mesh.start.worker",
    "run_worker_loop_until_shutdown": "monarch._mesh.start.worker",
    "start_worker_loop_forever": "monarch._mesh.start.worker",
}


def _pickle_from_here(name: str, found: Any) -> None:
    """Functions are pickled by their public name, so that whoever unpickles one loads all it needs. Classes keep the module
    in which tools look for their source."""
    if isinstance(found, FunctionType) and found.__qualname__ == name:
        found.__module__ = __name__


for _name, _found in [(name, globals()[name]) for name in __all__ if name in globals()]:
    _pickle_from_here(_name, _found)


faults.listen()  # now: a thread may start the client, and only the main thread can set a handler of signals


def __getattr__(name: str) -> Any:
    home = _LATER.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(home), name)
    _pickle_from_here(name, found)
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
