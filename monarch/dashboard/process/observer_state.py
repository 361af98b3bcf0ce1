"""What an observer holds: the tables, the servers, the program it looks into."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from monarch._wire.loopback_peer import is_loopback
from monarch.dashboard.process import config as configs
from monarch.dashboard.process import http
from monarch.dashboard.process.config import ADMIN_PORT, Addresses, ObserverConfig
from monarch.dashboard.process.current_program import ObservedProgram

if TYPE_CHECKING:
    from monarch.telemetry.ingest import Ingest
    from monarch.telemetry.store import Store

logger = logging.getLogger("monarch.observer")


class Observing:
    def __init__(self) -> None:
        self.program = ObservedProgram()
        self.store: Store | None = None
        self.ingest: Ingest | None = None
        self._stops: list[Callable[[], object]] = []
        self._config = ObserverConfig()
        self._servers = http.HttpServer()
        self._opening = threading.Lock()
        self._served: dict[str, http.Served] = {}

    def program_here(self, folder: str) -> None:
        """The program with that run folder is the one to look into."""
        self.program.use(folder)

    def serve(self, wanted: ObserverConfig, token: str) -> Addresses:
        """Opens what is wanted and not served yet."""
        with self._opening:
            notes = [
                f"{name} stays as it was first given: {getattr(self._config, name)!r}"
                for name in configs.ignored(self._config, wanted)
            ]
            config = configs.more(self._config, wanted)
            host, port = _place(config.admin_addr)
            sites: dict[str, Callable[[], http.Site]] = {}
            if config.telemetry or config.dashboard:
                fresh = self.store is None
                store = self._keep(config)
                sites["telemetry"] = lambda: http.api_site(store, self.program)
                if config.dashboard:
                    sites["dashboard"] = lambda: http.dashboard_site(config, store, self.program, token)
                if fresh and "admin" in self._served:  # which has telemetry from now on
                    self._served["admin"].routing.use(
                        http.admin_site(config, store, self.program, host, port, token).routes
                    )
            if config.admin:
                sites["admin"] = lambda: http.admin_site(config, self.store, self.program, host, port, token)
            for name, site in sites.items():
                if name not in self._served:
                    notes += self._open(name, site())
            opened = {part: part in self._served for part in configs.PARTS}
            self._config = msgspec.structs.replace(config, **opened)  # what could not be opened may be asked for again
            urls = {f"{part}_url": self._served[part].url for part in configs.PARTS if part in self._served}
            return Addresses(pid=os.getpid(), notes=notes, **urls)

    def _open(self, name: str, site: http.Site) -> list[str]:
        """Notes for people."""
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

    def _keep(self, config: ObserverConfig) -> Store:
        """The tables, and what fills them and clears them up; made once."""
        if self.store is not None:
            return self.store
        from monarch.telemetry.ingest import Ingest
        from monarch.telemetry.machine import samplers
        from monarch.telemetry.retention import Retention
        from monarch.telemetry.store import Store

        store = self.store = Store()
        self.ingest = Ingest(store)
        store.missing.append(self.ingest.missing_hosts)
        self._stops.append(Retention(store, config.retention_secs).start())
        if config.snapshot_interval_secs > 0:
            from monarch.dashboard.process.capture import Capture

            capture = Capture(self.program, store, config.snapshot_interval_secs)
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

    def take_rows(self, batch: bytes) -> None:
        """What a process has recorded. May wait for room."""
        if self.ingest is not None:
            self.ingest.take(batch)

    def flush(self) -> None:
        """What was taken is in the tables."""
        if self.ingest is not None:
            self.ingest.flush()

    def close(self) -> None:
        self._servers.close()
        for stop in self._stops:
            stop()
        if self.ingest is not None:
            self.ingest.close()
        if self.store is not None:
            self.store.close()


def _place(address: str | None) -> tuple[str, int]:
    """host and port of `host:port`."""
    if not address:
        return "127.0.0.1", ADMIN_PORT
    host, _, port = address.rpartition(":")
    if not port.isdigit() or int(port) > 65535:
        raise ValueError(f"an address is host:port, got {address!r}")
    return host.strip("[]") or "127.0.0.1", int(port)
