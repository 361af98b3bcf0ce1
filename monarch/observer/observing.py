"""What an observer holds: the tables, the servers, the program it looks into."""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING

import msgspec

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
            if config.telemetry and self.store is None:
                from monarch.telemetry.store import Store

                self.store = Store()
                notes += self._open("telemetry", http.api_site(self.store, self.program))
            if config.dashboard:
                notes += self._open("dashboard", http.dashboard_site(config, self.store, self.program, token))
            if config.admin:
                notes += self._open("admin", http.admin_site(config, self.store, self.program, host, port, token))
            opened = {part: part in self._urls for part in ("telemetry", "dashboard", "admin")}
            self._config = msgspec.structs.replace(config, **opened)  # what could not be opened may be asked for again
            return Addresses(
                pid=os.getpid(),
                telemetry_url=self._urls.get("telemetry"),
                dashboard_url=self._urls.get("dashboard"),
                admin_url=self._urls.get("admin"),
                notes=notes,
            )

    def _open(self, name: str, site: http.Site) -> list[str]:
        """Notes for people."""
        if name in self._urls:
            return []
        try:
            served = self._servers.serve(site)
        except OSError as exc:
            return [f"{name} cannot be served at {site.host}:{site.port}: {exc.strerror or exc}"]
        self._urls[name] = served.url
        return [f"{name}: {served.note}"] if served.note else []

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
