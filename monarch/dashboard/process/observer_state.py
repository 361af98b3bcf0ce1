"""The state of an observer: the tables, the servers, the program it looks into; and its end of a connection."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from monarch._http.server import HttpServer, OpenSite, Site
from monarch._linux.locks import Lock
from monarch._linux.loopback_peer import is_loopback
from monarch.admin.programs import Program, ProgramGone, program_at
from monarch.dashboard.process import observer_config, sites
from monarch.dashboard.process.observer_config import ADMIN_PORT, Addresses, ObserverConfig
from monarch.telemetry import frames

if TYPE_CHECKING:
    from monarch.telemetry.ingest import Ingest
    from monarch.telemetry.runs import RunWriter
    from monarch.telemetry.store import Store

logger = logging.getLogger("monarch.observer")

_LAST = 1.0  # seconds for the last rows of a run that is kept


class CurrentProgram(Program):
    """The program that used the observer last: a job's programs follow one another, and there may be none for a while; then
    `ask` and `stream` raise ProgramGone."""

    def __init__(self) -> None:
        super().__init__("", 0, 0.0, "")

    def use(self, folder: str) -> None:
        """The program with that run folder is the one to look into."""
        found = program_at(folder)
        if found is not None:
            self.pid, self.started, self.command = found.pid, found.started, found.command
        self.folder = folder

    def _connect(self, timeout: float) -> socket.socket:
        if not self.folder:
            raise ProgramGone("no program uses this job now: the tree and stacks are of programs that run")
        return super()._connect(timeout)


class ObserverState:
    """The tables, the servers and the program. Any thread. `end` ends the observer: it is called when the process with the
    tables has ended, and so all that was recorded is lost; the program starts another."""

    def __init__(self, end: Callable[[], object] = lambda: None) -> None:
        self._end = end
        self.program = CurrentProgram()
        self.store: Store | None = None
        self.ingest: Ingest | None = None
        self._stops: list[Callable[[], object]] = []
        self._config = ObserverConfig()
        self._servers = HttpServer()
        self._opening = Lock()
        self._served: dict[str, OpenSite] = {}
        self._run: RunWriter | None = None

    def use_program(self, folder: str) -> None:
        """The program with that run folder is the one to look into. Curves are of one program."""
        before = self.program.folder
        self.program.use(folder)
        if before and before != folder:
            self._end_run()
            self._config = msgspec.structs.replace(self._config, runs="", run="")
            if self.store is not None:
                self.store.curves.clear()

    def serve(self, wanted: ObserverConfig, token: str) -> Addresses:
        """Opens what is wanted and not served yet."""
        with self._opening:
            notes = [
                f"{name} stays as it was first given: {getattr(self._config, name)!r}"
                for name in observer_config.ignored(self._config, wanted)
            ]
            config = observer_config.more(self._config, wanted)
            host, port = _place(config.admin_addr)
            wanted_sites: dict[str, Callable[[], Site]] = {}
            if config.telemetry or config.dashboard:
                fresh = self.store is None
                store = self._keep(config)
                self._keep_run(config, store)
                wanted_sites["telemetry"] = lambda: sites.api_site(store, self.program)
                if config.dashboard:
                    wanted_sites["dashboard"] = lambda: sites.dashboard_site(config, store, self.program, token)
                if fresh and "admin" in self._served:  # which has telemetry from now on
                    self._served["admin"].routing.use(
                        sites.admin_site(config, store, self.program, host, port, token).routes
                    )
            if config.admin:
                wanted_sites["admin"] = lambda: sites.admin_site(config, self.store, self.program, host, port, token)
            for name, site in wanted_sites.items():
                if name not in self._served:
                    notes += self._open(name, site())
            opened = {part: part in self._served for part in observer_config.PARTS}
            self._config = msgspec.structs.replace(config, **opened)  # what could not be opened may be asked for again
            urls = {f"{part}_url": self._served[part].url for part in observer_config.PARTS if part in self._served}
            return Addresses(pid=os.getpid(), notes=notes, **urls)

    def _open(self, name: str, site: Site) -> list[str]:
        """Opens it. Returns notes for people."""
        try:
            served = self._served[name] = self._servers.serve(site)
        except OSError as exc:
            return [f"{name} cannot be served at {site.host}:{site.port}: {exc.strerror or exc}"]
        notes = [f"{name}: {served.note}"] if served.note else []
        if not is_loopback(site.host) and not site.certificate:
            notes.append(
                f"{name}: other machines reach {site.host} without TLS, so whoever can read the network can read the token; "
                "set MONARCH_TLS_CERT and MONARCH_TLS_KEY (`monarch certs DIRECTORY` makes them)"
            )
        return notes

    def _keep_run(self, config: ObserverConfig, store: Store) -> None:
        """Keeps what the program logs, as the run that it names."""
        from monarch.telemetry.runs import RunWriter, path_of

        if config.runs and (self._run is None or self._run.path != path_of(os.path.realpath(config.runs), config.run)):
            self._end_run()
            self._run = RunWriter(config.runs, config.run, store.curves).start()
            store.runs = config.runs

    def _end_run(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            run.close()

    def _keep(self, config: ObserverConfig) -> Store:
        """The tables, and what fills them and clears them up; made once."""
        if self.store is not None:
            return self.store
        from monarch.telemetry.ingest import Ingest
        from monarch.telemetry.machine import samplers
        from monarch.telemetry.retention import FILE, Retention
        from monarch.telemetry.store import Store

        store = self.store = Store(path=config.path)
        threading.Thread(target=self._watch, args=(store,), name="keeper", daemon=True).start()
        self.ingest = Ingest(store)
        store.missing.append(self.ingest.missing_hosts)
        self._stops.append(Retention(store.keeper, config.retention_secs).start())
        if store.saved is not None:
            self._stops.append(Retention(store.saved, 0.0, FILE).start())
        if config.snapshot_interval_secs > 0:
            from monarch.dashboard.process.snapshotter import Snapshotter

            capture = Snapshotter(self.program, store, config.snapshot_interval_secs)
            self._stops.append(capture.start())
            store.missing.append(capture.missing_hosts)
        measured = samplers(
            config.host_metrics_interval_secs,
            config.gpu_metrics_interval_secs,
            lambda row: store.insert_machine("host_metrics", row),
            lambda row: store.insert_machine("gpu_metrics", row),
        )
        for sampler in measured:
            sampler.start()
            self._stops.append(sampler.stop)
        return store

    def _watch(self, store: Store) -> None:
        ended = store.keeper.process.wait()
        logger.error("the process that keeps the tables has ended, status %d", ended)
        self._end()

    def close(self) -> None:
        if self._run is not None and self.ingest is not None:  # first: whoever ends it waits for a few seconds only
            self.ingest.flush(_LAST)
            self._end_run()
        self._servers.close()
        for stop in self._stops:
            stop()
        if self.ingest is not None:
            self.ingest.close()
        if self.store is not None:
            self.store.close()


def _place(address: str | None) -> tuple[str, int]:
    """Returns host and port of `host:port`."""
    if not address:
        return "127.0.0.1", ADMIN_PORT
    host, _, port = address.rpartition(":")
    if not port.isdigit() or int(port) > 65535:
        raise ValueError(f"an address is host:port, got {address!r}")
    return host.strip("[]") or "127.0.0.1", int(port)


# --- a connection


def answer_connection(connection: socket.socket, observer: ObserverState, end: Callable[[], Any]) -> None:
    """Does what the other side asks and takes what it has recorded, until it has gone. `end` ends the observer."""
    with connection:
        try:
            while True:
                kind, body = frames.receive(connection)
                answer = _answer(observer, end, kind, body)
                if answer:
                    connection.sendall(answer)
        except (OSError, EOFError):
            pass
        except ValueError as exc:  # of another version, perhaps
            logger.warning("a connection is closed: %s", exc)


def _answer(observer: ObserverState, end: Callable[[], Any], kind: int, body: bytes) -> bytes:
    if kind == frames.ROWS:
        if observer.ingest is not None:
            observer.ingest.take(body)  # may wait for room
    elif kind == frames.SERVE:
        return _serve(observer, msgspec.msgpack.decode(body, type=frames.Serve))
    elif kind == frames.PROGRAM:
        observer.use_program(msgspec.msgpack.decode(body, type=frames.UseProgram).folder)
    elif kind == frames.MARK:
        if observer.ingest is not None:
            observer.ingest.flush()
        return frames.pack(frames.MARKED, body)
    elif kind == frames.END:
        end()
    else:
        raise ValueError(f"a frame of kind {kind}, which this version does not know")
    return b""


def _serve(observer: ObserverState, asked: frames.Serve) -> bytes:
    try:
        config = msgspec.convert(asked.config, ObserverConfig)
        if asked.folder:
            observer.use_program(asked.folder)
        return frames.pack_struct(frames.SERVING, observer.serve(config, asked.token))
    except Exception as exc:  # told to the other side
        logger.exception("what was asked cannot be served")
        return frames.pack(frames.FAILED, f"{type(exc).__name__}: {exc}".encode())
