"""Starts the observer of a program or of a job, once, and says what it is to serve."""

from __future__ import annotations

import secrets
import socket
import subprocess
import threading
from collections.abc import Callable
from typing import Any

import msgspec

from monarch._linux import companion
from monarch._linux.companion import Companion
from monarch._linux.locks import Lock
from monarch.dashboard.process.observer_config import Addresses, ObserverConfig
from monarch.telemetry import frames

_SERVES = 60.0  # seconds to serve what is asked: the engine is loaded
_BETWEEN = 0.05
_TRIES = 5
_pause = threading.Event()


class ObserverFailed(RuntimeError):
    """There is no observer, and why."""


class ObserverLost(ObserverFailed):
    """It does not answer, or has ended meanwhile."""


class Observer:
    """The one of a folder. Any thread. It ends with the process that started it: this one, or the one in which `start` has
    it started."""

    def __init__(self, folder: str, start: Callable[[], object] | None = None) -> None:
        self.folder = folder
        self._start_elsewhere = start
        self._companion = Companion(folder)
        self.socket = self._companion.socket
        self.token = secrets.token_urlsafe(24)
        self._starting = Lock()

    def serve(self, config: ObserverConfig, program: str = "") -> Addresses:
        """Starts it unless it runs; serves what is wanted. `program`: the run folder of the program that it looks into.
        ObserverFailed in its words."""
        with self._starting:
            for _ in range(_TRIES - 1):
                if not self._companion.answers():
                    (self._start_elsewhere or self.start)()
                try:
                    return self._ask(config, program)
                except ObserverLost:  # one that was just killed takes connections until it is quite gone
                    _pause.wait(_BETWEEN)
            return self._ask(config, program)

    def _ask(self, config: ObserverConfig, program: str) -> Addresses:
        asked = frames.Serve(msgspec.structs.asdict(config), program, self.token)
        try:
            with self.connect(_SERVES) as connection:
                connection.sendall(frames.pack_struct(frames.SERVE, asked))
                kind, body = frames.receive(connection)
        except TimeoutError:
            raise ObserverFailed(
                f"the observer did not answer within {_SERVES:g} s; it wrote: {self._companion.said()}"
            ) from None
        except (OSError, EOFError) as exc:
            raise ObserverLost(f"the observer does not answer ({exc}); it wrote: {self._companion.said()}") from None
        if kind == frames.SERVING:
            return msgspec.msgpack.decode(body, type=Addresses)
        raise ObserverFailed(body.decode(errors="replace"))

    def connect(self, timeout: float | None) -> socket.socket:
        """Returns a connection to it. OSError when it does not run."""
        return self._companion.connect(timeout)

    @property
    def process(self) -> subprocess.Popen[bytes] | None:
        """The process, if this one has started it."""
        return self._companion.process

    def look(self) -> Addresses:
        """Asks for the addresses that it serves. Raises ObserverFailed when it does not run."""
        return self._ask(ObserverConfig(), "")

    def end(self) -> None:
        """Ends it, if it is this process's. May be called again."""
        if self._start_elsewhere is not None or self._companion.inherited:
            return
        try:
            with self.connect(companion.ENDS) as connection:
                connection.sendall(frames.pack(frames.END))
        except OSError:  # the run's folder has gone before it, and the socket with that
            if self.process is not None:
                self.process.terminate()
        self._companion.end()

    def start(self) -> None:
        """Starts it as a child of this process, and waits until it answers. ObserverFailed in its words."""
        without = ("OTEL_EXPORTER_OTLP_ENDPOINT",)
        environment = companion.environment(without, HYPERACTOR_PROCESS_NAME="observer", OMP_NUM_THREADS="1")
        try:
            self._companion.start("monarch.dashboard.process.program", environment, owned=True)
        except companion.CompanionFailed as exc:
            raise ObserverFailed(f"the observer did not start; it wrote: {exc}") from None


# --- the one of this process

_observers: dict[str, Observer] = {}
_known = Lock()


def observer_at(folder: str) -> Observer:
    """The observer of that folder, as this process starts and asks it."""
    with _known:
        return _observers.setdefault(folder, Observer(folder))


def telemetry_at(folder: str) -> str | None:
    """Returns where the telemetry is that the observer of that folder serves, whoever started it; None when there is none."""
    try:
        return Observer(folder, lambda: None).look().telemetry_url
    except ObserverFailed:
        return None


def start(folder: str, config: ObserverConfig | None = None, program: str = "", **wanted: Any) -> Addresses:
    """Starts the observer at `folder` unless it runs, and has it serve what is wanted: a config, or its fields."""
    return observer_at(folder).serve(config or ObserverConfig(**wanted), program)
