"""The public actor API: names, and nothing else.

Programs import from here; what is behind these names may change. `monarch.actor.lowlevel` has what packages built on
actors need besides.
"""

from __future__ import annotations

import importlib
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
from monarch._runtime.future import Future
from monarch._runtime.leader import WouldBlockRuntime
from monarch._runtime.port import Channel, Port, PortReceiver, RankedPortReceiver
from monarch._shape.extent import Extent, Point
from monarch._shape.region import Shape
from monarch._shape.slice import NDSlice
from monarch._shape.value_mesh import ValueMesh
from monarch._shape.view import MeshTrait
from monarch._wire.ids import ActorAddr, ProcId, Uid
from monarch.actor import config
from monarch.actor._pickling import pickle_from
from monarch.config.transport import ChannelTransport

if TYPE_CHECKING:
    from monarch._mesh.actors.breakpoints import debug_controller
    from monarch._mesh.inspection.diagnosis import Diagnosis
    from monarch._mesh.inspection.doctor import diagnose, wait_graph
    from monarch._mesh.inspection.stacks_of_program import Stacks
    from monarch._mesh.inspection.wait_graph import WaitGraph
    from monarch._mesh.meshes.attach import attach_to_workers, hosts_from_config, two_local_hosts
    from monarch._mesh.meshes.legacy import local_proc_mesh, proc_mesh
    from monarch._mesh.meshes.torch_groups import on_actor_threads, setup_torch_distributed
    from monarch._mesh.process.client import shutdown_context
    from monarch._mesh.process.named_actors import get_or_spawn_controller
    from monarch._mesh.start.transports import attach, enable_transport
    from monarch._mesh.start.worker import (
        run_worker_loop_forever,
        run_worker_loop_until_shutdown,
        start_worker_loop_forever,
    )
    from monarch._runtime.completions import as_completed
    from monarch._runtime.instrument import get_meter, span, traced
    from monarch._runtime.promise import Promise
    from monarch._runtime.returns_future import returns_future
    from monarch.actor.lowlevel import Receivers as Receivers
    from monarch.actor.lowlevel import Sealed as Sealed
    from monarch.actor.lowlevel import follow as follow
    from monarch.actor.lowlevel import importable as importable
    from monarch.actor.lowlevel import in_thread as in_thread
    from monarch.actor.lowlevel import lives_here as lives_here
    from monarch.actor.lowlevel import open_stream as open_stream
    from monarch.actor.lowlevel import own_key as own_key
    from monarch.actor.lowlevel import process_service as process_service
    from monarch.actor.lowlevel import read_if_dropped as read_if_dropped
    from monarch.actor.lowlevel import reduce_for as reduce_for
    from monarch.actor.lowlevel import serve_streams as serve_streams
    from monarch.actor.lowlevel import start_thread as start_thread
    from monarch.actor.lowlevel import stream_encrypted as stream_encrypted
    from monarch.actor.lowlevel import stream_obstacle as stream_obstacle
    from monarch.actor.lowlevel import when_ready as when_ready

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
    "ReplacePolicy",
    "Replacement",
    "RestartPolicy",
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
    "get_active_proc_meshes",
    "get_meter",
    "get_or_spawn_controller",
    "hosts_from_config",
    "local_proc_mesh",
    "on_actor_threads",
    "proc_mesh",
    "register_proc_mesh_spawn_callback",
    "returns_future",
    "run_worker_loop_forever",
    "run_worker_loop_until_shutdown",
    "send",
    "setup_torch_distributed",
    "shutdown_context",
    "span",
    "start_worker_loop_forever",
    "this_host",
    "this_proc",
    "traced",
    "two_local_hosts",
    "unhandled_fault_hook",
    "unregister_proc_mesh_spawn_callback",
    "wait_graph",
]

# Loaded on first touch: most programs do not need them, or not before they have started something.
_LATER = {
    "Diagnosis": "monarch._mesh.inspection.diagnosis",
    "Promise": "monarch._runtime.promise",
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
    "returns_future": "monarch._runtime.returns_future",
    "shutdown_context": "monarch._mesh.process.client",
    "span": "monarch._runtime.instrument",
    "traced": "monarch._runtime.instrument",
    "wait_graph": "monarch._mesh.inspection.doctor",
    "on_actor_threads": "monarch._mesh.meshes.torch_groups",
    "setup_torch_distributed": "monarch._mesh.meshes.torch_groups",
    "attach_to_workers": "monarch._mesh.meshes.attach",
    "hosts_from_config": "monarch._mesh.meshes.attach",
    "two_local_hosts": "monarch._mesh.meshes.attach",
    "run_worker_loop_forever": "monarch._mesh.start.worker",
    "run_worker_loop_until_shutdown": "monarch._mesh.start.worker",
    "start_worker_loop_forever": "monarch._mesh.start.worker",
}


for _name in __all__:
    if _name in globals():
        pickle_from(__name__, _name, globals()[_name])


faults.listen()  # now: a thread may start the client, and only the main thread can set a handler of signals


def __getattr__(name: str) -> Any:
    home = _LATER.get(name)
    if home is None:
        # Its names are found here as well, where they once were. `from monarch.actor import` would ask here for it.
        lowlevel = importlib.import_module("monarch.actor.lowlevel")
        if name not in lowlevel.__all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(lowlevel, name)
    found = globals()[name] = getattr(importlib.import_module(home), name)
    pickle_from(__name__, name, found)
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
