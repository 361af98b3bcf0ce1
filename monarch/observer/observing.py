"""What an observer holds: the tables, the servers, the program it looks into."""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING

from monarch.observer import config as configs
from monarch.observer import http
from monarch.observer.config import ADMIN_PORT, Addresses, ObserverConfig
from monarch.observer.observed import ObservedProgram

if TYPE_CHECKING:
    from monarch.telemetry.store import Store

logger = logging.getLogger("monarch.observer")


class Observing:
    def __init__(self) -> None:
        self.program = ObservedProgram()
        self.store: Store | None = None
        self._config = ObserverConfig()
        self._servers = http.HttpServer()
        self._opening = threading.Lock()
        self._urls: dict[str, str] = {}
        self._notes: list[str] = []

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
            if config.telemetry and self.store is None:
                from monarch.telemetry.store import Store

                self.store = Store()
                self._open("telemetry", http.api_site(self.store, self.program))
            self._config = config  # what follows is less than all: what cannot be opened is noted
            if config.dashboard:
                self._open("dashboard", http.dashboard_site(config, self.store, self.program, token))
            if config.admin:
                host, port = _place(config.admin_addr)
                self._open("admin", http.admin_site(config, self.store, self.program, host, port, token))
            return Addresses(
                pid=os.getpid(),
                telemetry_url=self._urls.get("telemetry"),
                dashboard_url=self._urls.get("dashboard"),
                admin_url=self._urls.get("admin"),
                notes=[*self._notes, *notes],
            )

    def _open(self, name: str, site: http.Site) -> None:
        if name in self._urls:
            return
        try:
            served = self._servers.serve(site)
        except OSError as exc:
            self._notes.append(f"{name} cannot be served at {site.host}:{site.port}: {exc.strerror or exc}")
            return
        self._urls[name] = served.url
        if served.note:
            self._notes.append(f"{name}: {served.note}")

    def take_rows(self, batch: bytes) -> None:
        """What a process has recorded."""

    def flush(self) -> None:
        """What was taken is in the tables."""

    def close(self) -> None:
        self._servers.close()
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
