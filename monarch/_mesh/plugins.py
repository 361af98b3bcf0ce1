"""The only reach upwards: functions of outer layers that are called from below (OUTER), and what outer layers and programs
put into the trunk. Looked up when needed."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from typing import Any

from monarch._runtime.context import here, start_client_with
from monarch._wire.unpickling import import_packages

# name -> (module of monarch, function). Nothing else is called of outer layers; tests/test_import_order.py checks that all
# of these exist and are used. Those of `debugger` and `telemetry` that answer are questions: see `inspection.questions`.
OUTER: dict[str, tuple[str, str]] = {
    "admin.spawn_admin": ("admin.starting", "spawn_admin"),
    "dashboard.serve": ("dashboard.starting", "serve"),
    "debugger.controller": ("debugger.controller", "debug_controller"),
    "debugger.editor.begin": ("debugger.editor_rank", "begin"),
    "debugger.editor.check": ("debugger.editor_rank", "check"),
    "debugger.editor.end": ("debugger.editor_rank", "end"),
    "debugger.editor.exchange": ("debugger.editor_rank", "exchange"),
    "debugger.on_exception": ("debugger.visit", "set_on_exception"),
    "debugger.serve": ("debugger.visit", "serve"),
    "debugger.stop": ("debugger.stopped", "stop"),
    "debugger.stop_at": ("debugger.stopped", "stop_at"),
    "graph.bind": ("graph.nodes", "bind"),
    "graph.serve": ("graph.driver", "serve"),
    "job.hosts_from_config": ("job.project_file", "hosts_from_config"),
    "observer.at": ("dashboard.process.launcher", "observer_at"),
    "observer.config": ("dashboard.process.observer_config", "ObserverConfig"),
    "observer.start": ("dashboard.process.launcher", "start"),
    "observer.telemetry": ("dashboard.process.launcher", "telemetry_at"),
    "references.fetching": ("references.fetched", "fetching"),
    "references.keep": ("references.keep", "keep"),
    "references.kept": ("references.keep", "KeptEndpoint"),
    "references.marked": ("references.fetched", "marked"),
    "references.service": ("references.store", "ReferenceService"),
    "references.submit": ("references.tasks", "submit"),
    "replay.folder": ("replay.selection", "recording_folder"),
    "replay.record": ("replay.actor_recorder", "begin"),
    "spmd.setup": ("spmd.setup", "setup"),
    "telemetry.export": ("telemetry.otel", "set_up"),
    "telemetry.measure": ("telemetry.machine", "measure"),
    "tensor.device_mesh": ("tensor.controller.engines", "device_mesh"),
    "tensor.keep": ("tensor.worker.actor_transfers", "keep"),
    "tensor.rref": ("tensor.remote.rref", "rref"),
    "trace.begin": ("trace.local_sink", "begin"),
    "trace.finish": ("trace.local_sink", "finish"),
    "trace.flame": ("trace.flame", "Flame"),
    "trace.sample": ("trace.sampling", "sample"),
    "workspace.sync": ("_mesh.workspace.sync", "sync_hosts"),
}


def outer(name: str) -> Any:
    """The function of an outer layer that goes by that name in OUTER; its module is loaded with the first use. ImportError
    names what is not installed."""
    module, function = OUTER[name]
    return getattr(load(module), function)


_on_client_started: list[Callable[[Any], Any]] = []


def when_client_starts(fn: Callable[[Any], Any]) -> None:
    """`fn(client)` once this process has become a client; at once is not promised."""
    _on_client_started.append(fn)


def client_started(client: Any) -> None:
    for fn in list(_on_client_started):
        fn(client)


_on_client_ending: list[Callable[[], Any]] = []


def when_client_ends(fn: Callable[[], Any]) -> None:
    """`fn()` when the client of this process ends in order, its processes having ended, and can still send."""
    _on_client_ending.append(fn)


def client_ending() -> None:
    for fn in list(_on_client_ending):
        try:
            fn()
        except Exception as exc:  # of a face; the program ends all the same
            logging.getLogger("monarch").debug("at the end of the client: %s", exc)


_end_client: Callable[[float], Any] | None = None


def end_client_with(fn: Callable[[float], Any]) -> None:
    """`fn(timeout)` ends the client of this process, if it has one; returns when it has ended, or cannot be ended in time."""
    global _end_client
    _end_client = fn


def end_client(timeout: float) -> None:
    if _end_client is not None:
        _end_client(timeout)


def _load_and_start() -> Any:
    """Loads what runs a client, with the first one. `actor` as well: where something of ours was unpickled, that has
    brought its own file only."""
    load("actor")
    load("_mesh.process.client")
    return here()


start_client_with(_load_and_start)  # until `process.client` says how


def load(name: str) -> Any:
    """Imports `monarch.<name>`."""
    try:
        import_packages(f"monarch.{name}")  # other threads may import others of its modules just now
        return importlib.import_module(f"monarch.{name}")
    except ModuleNotFoundError as exc:
        if exc.name == "torch":
            raise ImportError(
                "distributed tensors need torch: pip install 'pymonarch[torch]' here and in the workers", name="torch"
            ) from None
        raise
