"""Starts the observer of a program or of a job, once, and says what it is to serve."""

from __future__ import annotations

import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import msgspec

from monarch._linux import local_socket
from monarch.dashboard.process.observer_config import Addresses, ObserverConfig
from monarch.telemetry import frames

_READY = 60.0  # seconds for an observer to start
_SERVES = 60.0  # to serve what is asked: the engine is loaded
_ENDS = 3.0  # to end, before it is killed
_BETWEEN = 0.05
_TRIES = 5
_pause = threading.Event()
_SAID = 2000  # characters of its log that an error shows


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
        self.socket = os.path.join(folder, "socket")
        self.token = secrets.token_urlsafe(24)
        self._starting = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def serve(self, config: ObserverConfig, program: str = "") -> Addresses:
        """Starts it unless it runs; serves what is wanted. `program`: the run folder of the program that it looks into.
        ObserverFailed in its words."""
        with self._starting:
            for _ in range(_TRIES - 1):
                if not self._answers():
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
                f"the observer did not answer within {_SERVES:g} s; it wrote: {self._said()}"
            ) from None
        except (OSError, EOFError) as exc:
            raise ObserverLost(f"the observer does not answer ({exc}); it wrote: {self._said()}") from None
        if kind == frames.SERVING:
            return msgspec.msgpack.decode(body, type=Addresses)
        raise ObserverFailed(body.decode(errors="replace"))

    def connect(self, timeout: float | None) -> socket.socket:
        """A connection to it. OSError when it does not run."""
        return local_socket.connect(self.socket, timeout, root=True)

    def look(self) -> Addresses:
        """What it serves. ObserverFailed when it does not run."""
        return self._ask(ObserverConfig(), "")

    def end(self) -> None:
        """Ends it, if it is this process's. May be called again."""
        if self._start_elsewhere is not None:
            return
        try:
            with self.connect(_ENDS) as connection:
                connection.sendall(frames.pack(frames.END))
        except OSError:
            pass
        process = self._process
        if process is not None:
            try:
                process.wait(_ENDS)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.wait(_ENDS)

    def _answers(self) -> bool:
        try:
            self.connect(_ENDS).close()
        except OSError:
            return False
        return True

    def start(self) -> None:
        """Starts it as a child of this process, and waits until it answers. ObserverFailed in its words."""
        os.makedirs(self.folder, mode=0o700, exist_ok=True)
        log = os.open(os.path.join(self.folder, "log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        ready, said = os.pipe2(os.O_CLOEXEC)
        try:
            process = self._process = subprocess.Popen(
                [sys.executable, "-m", "monarch.dashboard.process.program", self.folder, str(os.getpid()), str(said)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[said],
                cwd="/",
                env=_environment(),
                start_new_session=True,
            )
        finally:
            os.close(log)
            os.close(said)
        threading.Thread(target=process.wait, name="monarch-observer", daemon=True).start()
        try:
            select.select([ready], [], [], _READY)  # it listens, or it has ended
        finally:
            os.close(ready)
        for _ in range(int(_ENDS / _BETWEEN)):  # one that another thread of this user has started may not listen yet
            if self._answers():
                return
            _pause.wait(_BETWEEN)
        raise ObserverFailed(f"the observer did not start; it wrote: {self._said()}")

    def _said(self) -> str:
        try:
            with open(os.path.join(self.folder, "log"), errors="replace") as file:
                return file.read()[-_SAID:].strip() or "nothing"
        except OSError:
            return "nothing"


def _environment() -> dict[str, str]:
    paths = [path for path in sys.path if os.path.isabs(path)]
    kept = {name: value for name, value in os.environ.items() if name not in _OF_PROGRAM}
    return {
        **kept,
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONSAFEPATH": "1",
        "HYPERACTOR_PROCESS_NAME": "observer",
        "OMP_NUM_THREADS": "1",
    }


_OF_PROGRAM = ("MONARCH_RUN", "OTEL_EXPORTER_OTLP_ENDPOINT")


# --- the one of this process

_observers: dict[str, Observer] = {}
_known = threading.Lock()


def observer_at(folder: str) -> Observer:
    """The observer of that folder, as this process starts and asks it."""
    with _known:
        return _observers.setdefault(folder, Observer(folder))


def start(folder: str, config: ObserverConfig | None = None, program: str = "", **wanted: Any) -> Addresses:
    """Starts the observer at `folder` unless it runs, and has it serve what is wanted: a config, or its fields."""
    return observer_at(folder).serve(config or ObserverConfig(**wanted), program)
