"""Telemetry of the program that runs here: begins with `start`, ends with the program or `Telemetry.stop`."""

from __future__ import annotations

import logging
import os
import threading
from typing import Any

from monarch._mesh import plugins
from monarch._runtime.context import here
from monarch.telemetry.client import QueryEngineClient
from monarch.telemetry.store import engine

logger = logging.getLogger("monarch.telemetry")

FOLDER = "observer"  # in the program's run folder


class Telemetry:
    """What records this program. `url`: for queries, from this machine. `dashboard_url`: for people, None without one."""

    def __init__(self, url: str, dashboard_url: str | None, observer: Any) -> None:
        self.url = url
        self.dashboard_url = dashboard_url
        self.client = QueryEngineClient(url)
        self._observer = observer

    def query(self, sql: str, timeout: float | None = None) -> dict[str, Any]:
        """As `QueryEngineClient.query`."""
        return self.client.query(sql, timeout)

    def stop(self) -> None:
        """Nothing is recorded any more, and what was is gone. May be called again."""
        global _running
        with _lock:
            if _running is self:
                _running = None
        self._observer.end()

    def __enter__(self) -> Telemetry:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<Telemetry {self.url}>"


_lock = threading.Lock()
_running: Telemetry | None = None


def start(
    *,
    dashboard: bool = False,
    dashboard_host: str = "127.0.0.1",
    dashboard_port: int = 8265,
    retention_secs: float = 3600.0,
    snapshot_interval_secs: float = 30.0,
    host_metrics_interval_secs: float = 1.0,
    gpu_metrics_interval_secs: float = 1.0,
    include_system: bool = False,
) -> Telemetry:
    """Records what this program's processes do, from now on, for SQL (and people, with `dashboard`).

    Starts a process beside the program, which keeps the tables and ends with it. Times in seconds, 0 never
    (`retention_secs`: for ever). `dashboard_host` beyond this machine is for whoever has the URL that is printed, which has a
    token in it. Called again it gives what runs; the first call's arguments hold.

    ImportError when DuckDB is not installed; RuntimeError in a process that is no program of its own, or when the process
    beside it cannot be started.
    """
    global _running
    engine()
    folder = run_folder()
    with _lock:
        if _running is not None:
            return _running
        launcher = plugins.load("observer.launcher")
        addresses = launcher.start(
            os.path.join(folder, FOLDER),
            program=folder,
            telemetry=True,
            retention_secs=retention_secs,
            snapshot_interval_secs=snapshot_interval_secs,
            host_metrics_interval_secs=host_metrics_interval_secs,
            gpu_metrics_interval_secs=gpu_metrics_interval_secs,
            include_system=include_system,
            dashboard=dashboard,
            dashboard_host=dashboard_host,
            dashboard_port=dashboard_port,
        )
        for note in addresses.notes:
            logger.warning("%s", note)
        observer = launcher.observer_at(os.path.join(folder, FOLDER))
        _running = Telemetry(addresses.telemetry_url, addresses.dashboard_url, observer)
    if addresses.dashboard_url:
        print(f"Monarch Dashboard: {addresses.dashboard_url}", flush=True)
    return _running


def running() -> Telemetry | None:
    """That of this program, if it records."""
    return _running


def run_folder() -> str:
    """The run folder of this program, which becomes a client if it is none. RuntimeError in a process of a mesh."""
    here()
    client = plugins.load("_mesh.process.client").client()
    if client is None:
        raise RuntimeError("telemetry is started by the program, and this is a process of one of its meshes")
    return str(client.directory)
