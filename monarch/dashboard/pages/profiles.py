"""Traces that people asked for in the browser: taken one at a time, offered as files that have no name any more, so that
nothing is left behind however this process ends."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from monarch._linux.locks import Lock

LONGEST = 120.0  # seconds of one
MOST_KEPT = 20  # the oldest goes

Take = Callable[[float, str], None]  # seconds, path


class TraceUnderWay(RuntimeError):
    """The refusal while another trace is being taken."""


@dataclass
class TraceFile:
    id: str
    seconds: float
    begun_us: int
    state: str = "recording"  # then ready, or failed
    problem: str = ""
    size: int | None = None


class TraceFiles:
    """The traces of this process. Any thread."""

    def __init__(self, take: Take) -> None:
        self._take = take
        self._lock = Lock()
        self._kept: list[TraceFile] = []
        self._number = 0
        self._files: dict[str, int] = {}  # descriptors, by id

    def start(self, seconds: float) -> TraceFile:
        """Begins one. Busy while another is taken."""
        with self._lock:
            if any(profile.state == "recording" for profile in self._kept):
                raise TraceUnderWay("a trace is being recorded; wait for its end")
            self._number += 1
            profile = TraceFile(f"trace-{self._number}", seconds, int(time.time() * 1e6))
            self._kept.append(profile)
            while len(self._kept) > MOST_KEPT:
                self._close(self._kept.pop(0).id)
        threading.Thread(target=self._run, args=(profile,), name="trace", daemon=True).start()
        return profile

    def _run(self, profile: TraceFile) -> None:
        try:
            with tempfile.TemporaryDirectory(prefix="monarch-traces-") as folder:
                path = os.path.join(folder, profile.id)
                self._take(profile.seconds, path)
                file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except Exception as exc:
            with self._lock:
                profile.state, profile.problem = "failed", str(exc) or type(exc).__name__
        else:
            with self._lock:
                self._files[profile.id] = file
                profile.state, profile.size = "ready", os.fstat(file).st_size

    def listed(self) -> list[dict[str, Any]]:
        """Returns them, newest first."""
        with self._lock:
            return [dict(vars(profile)) for profile in reversed(self._kept)]

    def path(self, name: str) -> str | None:
        """Returns where the file of one that is ready can be read."""
        with self._lock:
            file = self._files.get(name)
        return None if file is None else f"/proc/self/fd/{file}"

    def close(self) -> None:
        with self._lock:
            for name in list(self._files):
                self._close(name)

    def _close(self, name: str) -> None:
        file = self._files.pop(name, None)
        if file is not None:
            os.close(file)

    def __del__(self) -> None:
        for file in self._files.values():  # without the lock, which nobody has any more
            os.close(file)
