"""Names for packages built on actors, not for programs: `monarch.rdma`, `monarch.tensor` and others are made of it."""

from __future__ import annotations

from monarch._mesh.actors.arity import annotations_of
from monarch._mesh.actors.behaviour import argument_fetcher, explain_errors
from monarch._mesh.actors.receivers import Receivers, encode_for, lives_here, own_key, reduce_for
from monarch._mesh.inspection.status_tables import StatusTable, tell_table
from monarch._mesh.process.named_actors import process_service, service_of
from monarch._mesh.process.process_watch import own_process, watch_processes
from monarch._mesh.process.residents import hold_health
from monarch._runtime.awaited_future import follow_as
from monarch._runtime.dropped_future import read_if_dropped
from monarch._runtime.event_loops import Blocking
from monarch._runtime.future import follow, when_ready
from monarch._runtime.loop import start_thread
from monarch._runtime.open_stream import open_stream, serve_streams, stream_encrypted, stream_obstacle
from monarch._runtime.progress import WatchedProgress
from monarch._runtime.promise import in_thread
from monarch._runtime.shown_waits import show_waits
from monarch._shape.refusals import arithmetic, refuse
from monarch._wire.address import host_of
from monarch._wire.auth import Acceptor, Dialler, Secret, load_secret
from monarch._wire.codec import importable
from monarch._wire.culprit import explain as explain_unsendable
from monarch._wire.memory_pool import MemoryPool, PooledMemory
from monarch._wire.sealed import Sealed
from monarch._wire.unpickling import Unpickler
from monarch.actor._pickling import pickle_from

__all__ = [
    "Acceptor",
    "Blocking",
    "Dialler",
    "MemoryPool",
    "PooledMemory",
    "Receivers",
    "Sealed",
    "Secret",
    "StatusTable",
    "Unpickler",
    "WatchedProgress",
    "annotations_of",
    "argument_fetcher",
    "arithmetic",
    "encode_for",
    "explain_errors",
    "explain_unsendable",
    "follow",
    "follow_as",
    "hold_health",
    "host_of",
    "importable",
    "in_thread",
    "lives_here",
    "load_secret",
    "open_stream",
    "own_key",
    "own_process",
    "process_service",
    "read_if_dropped",
    "reduce_for",
    "refuse",
    "serve_streams",
    "service_of",
    "show_waits",
    "start_thread",
    "stream_encrypted",
    "stream_obstacle",
    "tell_table",
    "watch_processes",
    "when_ready",
]

for _name in __all__:
    pickle_from(__name__, _name, globals()[_name])
