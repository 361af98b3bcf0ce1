"""Telemetry of the program that runs here: begins with `start`, ends with the program or `Telemetry.stop`."""

from __future__ import annotations

import datetime
import logging
import os
import socket
import threading
import time
from typing import Any

import msgspec

from monarch._linux.locks import Lock
from monarch._linux.maker import Maker
from monarch._mesh import plugins
from monarch._mesh.inspection import recording, survey
from monarch._runtime.context import here
from monarch._wire.address import host_of
from monarch.config import configure
from monarch.telemetry import frames, runs
from monarch.telemetry.client import QueryEngineClient
from monarch.telemetry.relay import RowRelay
from monarch.telemetry.store import check_installed

logger = logging.getLogger("monarch.telemetry")

FOLDER = "observer"  # in the program's run folder
_ASK = 5.0  # seconds for processes to begin to record, and to hand over what they have
_LOOK = 2.0  # seconds between two looks at hosts that nobody measures
_CONNECT = 5.0
_LAST = 2.0  # for the last rows of a program that ends
_STARTS = 3  # times that an observer which has gone is started again ...
_WITHIN = 600.0  # ... in so many seconds


class Telemetry:
    """The recorder of this program. `url`: for queries, from this machine. `dashboard_url`: for people, None without one."""

    def __init__(self, observer: Any, config: Any, addresses: Any, folder: str) -> None:
        self.url: str = addresses.telemetry_url
        self.dashboard_url: str | None = addresses.dashboard_url
        self.admin_url: str | None = addresses.admin_url
        self.client = QueryEngineClient(self.url)
        self._observer = observer
        self._pid = addresses.pid
        self._config = config
        self._folder = folder
        self._words = "on,system" if config.include_system else "on"
        self._proc = here()
        self._relay = RowRelay(self._proc, self._on_lost)
        self._lost = threading.Event()
        self._ended = False
        self._maker = Maker()
        self._starts: list[float] = []
        self._measured: dict[str, str] = {}  # by host: who measures it
        self._connect()
        configure(telemetry_recording=self._words)  # for processes to come
        self._record(self._words)
        plugins.when_client_ends(self._last)
        threading.Thread(target=self._look, name="monarch-telemetry", daemon=True).start()

    def _last(self) -> None:
        """The client ends: what it has heard so far is kept, where that outlives it."""
        if not self._ended:
            recording.finish()
            self._relay.flush(_LAST)
            self._ended = True
            self._lost.set()
            self._relay.close()
            self._observer.end()

    def query(self, sql: str, timeout: float | None = None) -> dict[str, Any]:
        """Asks as `QueryEngineClient.query`. What the program did in the last second may not be there yet: see `flush`."""
        return self.client.query(sql, timeout)

    def flush(self, timeout: float = 10.0) -> bool:
        """Returns when everything recorded so far is in the tables; False when that takes longer, or something is missing."""
        until = time.monotonic() + timeout
        answers = survey.ask("telemetry.flush", timeout=timeout).get(timeout + 1.0)
        done = self._relay.flush(max(0.1, until - time.monotonic()))
        return done and not answers.silent

    def stop(self) -> None:
        """Nothing is recorded any more, and what was is gone. May be called again."""
        self._maker.check("telemetry")
        global _running
        with _lock:
            if _running is self:
                _running = None
        if self._ended:
            return
        self._ended = True
        self._lost.set()
        configure(telemetry_recording="")
        if self._proc.closed is None:
            self._record("")
        self._relay.close()
        self._observer.end()

    def __enter__(self) -> Telemetry:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._maker.is_here:
            self.stop()

    def __repr__(self) -> str:
        return f"<Telemetry {self.url}>"

    def _connect(self) -> None:
        sock = self._observer.connect(_CONNECT)
        try:
            sock.sendall(frames.pack_struct(frames.PROGRAM, frames.UseProgram(self._folder, os.getpid())))
        except BaseException:
            sock.close()
            raise
        self._relay.connect(sock)

    def _record(self, words: str) -> None:
        """Tells all processes that there are."""
        answers = survey.ask("telemetry.record", msgspec.msgpack.encode(words), timeout=_ASK).get(_ASK + 1.0)
        for address, why in answers.silent.items():
            logger.warning("telemetry: process %s does not record: %s", address, why)

    # --- a thread of its own

    def _on_lost(self) -> None:
        """On the I/O thread."""
        self._lost.set()

    def _look(self) -> None:
        while not self._ended and self._proc.closed is None:
            if self._lost.wait(_LOOK):
                self._lost.clear()
                if self._ended or self._proc.closed is not None or not self._start_again():
                    return
            try:
                self._measure()
            except Exception as exc:  # the program ends
                logger.debug("no host is asked to measure: %s", exc)

    def _start_again(self) -> bool:
        """The observer has gone, and with it what was recorded. Whether there is another."""
        now = time.monotonic()
        self._starts = [start for start in self._starts if start > now - _WITHIN]
        if len(self._starts) >= _STARTS:
            logger.error(
                "telemetry has ended: its process (the observer) has ended, or closed the connection, %d times within %g s. "
                "The program goes on without; start it again with monarch.telemetry.start(). Its log: %s",
                _STARTS + 1, _WITHIN, os.path.join(self._observer.folder, "log"),
            )  # fmt: skip
            self._give_up()
            return False
        self._starts.append(now)
        try:
            addresses = self._observer.serve(self._config, self._folder)
            self._connect()
            self._record(f"{self._words},again")
        except Exception as exc:
            if not self._ended and self._proc.closed is None:
                logger.error("telemetry has ended: %s. The program goes on without", exc)
                self._give_up()
            return False
        if addresses.pid == self._pid:
            logger.warning(
                "telemetry's process (the observer) has closed the connection; it still has what it kept, and recording goes "
                "on. Its log: %s",
                os.path.join(self._observer.folder, "log"),
            )
        else:
            lost = f"what it kept is in {self._config.path}" if self._config.path else "what it kept is lost"
            logger.warning(
                "telemetry's process (the observer) has ended, and %s; another runs, at %s",
                lost,
                addresses.telemetry_url,
            )
        self._pid = addresses.pid
        self.client.url = self.url = addresses.telemetry_url
        self.dashboard_url, self.admin_url = addresses.dashboard_url, addresses.admin_url
        return True

    def _give_up(self) -> None:
        global _running
        with _lock:
            if _running is self:
                _running = None
        self._ended = True
        configure(telemetry_recording="")
        self._record("")
        self._relay.close()

    def _measure(self) -> None:
        """One process of each host measures it; the observer does for its own. When that process ends, another does."""
        if self._config.host_metrics_interval_secs <= 0 and self._config.gpu_metrics_interval_secs <= 0:
            return
        living = {address for address, peer in self._proc.processes.known() if peer.ended is None}
        own = host_of(self._proc.address)
        for host, address in list(self._relay.hosts.items()):
            if address not in living and address != self._proc.address:
                del self._relay.hosts[host]  # the next batch brings another
                self._measured.pop(host, None)
            elif host != own and self._measured.get(host) != address:
                argument = msgspec.msgpack.encode(
                    (
                        self._config.host_metrics_interval_secs,
                        self._config.gpu_metrics_interval_secs,
                        socket.gethostname(),
                    )
                )
                answers = survey.ask("telemetry.measure", argument, timeout=_ASK, only=[address]).get(_ASK + 1.0)
                if address in answers.replies:
                    self._measured[host] = address


_lock = Lock()
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
    path: str | os.PathLike[str] | None = None,
) -> Telemetry:
    """Records what this program's processes do, from now on, for SQL (and people, with `dashboard`).

    Starts a process beside the program, which keeps the tables and ends with it. Times in seconds, 0 never
    (`retention_secs`: for ever). `include_system`: the runtime's own actors as well. `dashboard_host` beyond this machine is
    for those who have the URL that is printed, with its token. `path`: of a DuckDB file that the rows are written to as
    well, for `monarch-dashboard --db PATH` when the program has ended; it has them however that ends, at most 2 GiB, the
    newest. A file that was written so before is gone on with. Called again it gives what runs, with a dashboard if one
    is asked for now; otherwise the first call's arguments hold.

    ImportError when DuckDB is not installed; RuntimeError in a process that is no program of its own, or when the process
    beside it cannot be started, or may not write `path`.
    """
    check_installed()
    folder = run_folder()
    wanted = plugins.outer("observer.config")(
        telemetry=True,
        retention_secs=retention_secs,
        snapshot_interval_secs=snapshot_interval_secs,
        host_metrics_interval_secs=host_metrics_interval_secs,
        gpu_metrics_interval_secs=gpu_metrics_interval_secs,
        include_system=include_system,
        path="" if path is None else os.path.abspath(path),
        dashboard=dashboard,
        dashboard_host=dashboard_host,
        dashboard_port=dashboard_port,
        **tls_files(),
    )
    running = record(plugins.outer("observer.at")(os.path.join(folder, FOLDER)), wanted)
    if running.dashboard_url and dashboard:
        print(f"Monarch Dashboard: {running.dashboard_url}", flush=True)
    return running


def record(observer: Any, wanted: Any) -> Telemetry:
    """Records into that observer, unless this program records already; into which, the first
    call says. `wanted`: an ObserverConfig."""
    global _running
    with _lock:
        if _running is not None:
            observer = _running._observer
        folder = run_folder()
        addresses = observer.serve(wanted, folder)
        for note in addresses.notes:
            logger.warning("%s", note)
        if _running is None:
            _running = Telemetry(observer, wanted, addresses, folder)
        _running.dashboard_url = addresses.dashboard_url
        _running.admin_url = addresses.admin_url
        return _running


def keep_run(folder: str, name: str) -> str:
    """Has what this program logs kept as a run: see `monarch.metrics.keep`. Returns the path of its file."""
    telemetry = _running or start()
    with _lock:
        kept = telemetry._config
        if kept.runs and (kept.runs, kept.run) != (folder, name or kept.run):
            raise ValueError(f"this program's run is kept already, in {runs.path_of(kept.runs, kept.run)}")
        name = kept.run or name or runs.new_name(folder, datetime.datetime.now())
        path = runs.path_of(folder, name)
        wanted = msgspec.structs.replace(kept, runs=folder, run=name)
        telemetry._observer.serve(wanted, telemetry._folder)
        telemetry._config = wanted
    return path


def running() -> Telemetry | None:
    """Returns the Telemetry of this program, if it records."""
    return _running


def tls_files() -> dict[str, str]:
    """The program's certificate, for what other machines reach; {} without one."""
    names = {"certificate": "MONARCH_TLS_CERT", "private_key": "MONARCH_TLS_KEY"}
    found = {field: os.environ.get(name, "") for field, name in names.items()}
    return found if all(os.path.isfile(path) for path in found.values()) else {}


def run_folder(what: str = "telemetry") -> str:
    """Returns the run folder of this program, which becomes a client if it is none. RuntimeError in a process of a mesh.

    `what`: is to be started, for the error.
    """
    here()
    from monarch._mesh.process.client import client as own_client  # loaded with the first client

    client = own_client()
    if client is None:
        raise RuntimeError(f"{what} is started by the program, and this is a process of one of its meshes")
    return str(client.directory)


def recorded_by(folder: str) -> QueryEngineClient | None:
    """Returns a client for what the program of that run folder records; None when it does not. Any process of this user."""
    path = os.path.join(folder, FOLDER)
    if not os.path.exists(os.path.join(path, "socket")):
        return None
    url = plugins.outer("observer.telemetry")(path)
    return None if url is None else QueryEngineClient(url)
