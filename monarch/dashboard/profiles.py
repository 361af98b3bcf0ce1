"""Traces that people asked for in the browser: taken one at a time, kept in a folder of this process, offered as files."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

LONGEST = 120.0  # seconds of one
MOST_KEPT = 20  # the oldest goes
_ID = re.compile(r"trace-\d+")

Take = Callable[[float, str], None]  # seconds, path


class Busy(RuntimeError):
    """One is being taken."""


@dataclass
class Profile:
    id: str
    seconds: float
    begun_us: int
    state: str = "recording"  # then ready, or failed
    problem: str = ""
    size: int | None = None


class Profiles:
    """Any thread. The folder goes with this object."""

    def __init__(self, take: Take) -> None:
        self._take = take
        self._lock = threading.Lock()
        self._kept: list[Profile] = []
        self._number = 0
        self._folder = ""

    def start(self, seconds: float) -> Profile:
        """Begins one. Busy while another is taken."""
        with self._lock:
            if any(profile.state == "recording" for profile in self._kept):
                raise Busy("a trace is being recorded; wait for its end")
            if not self._folder:
                self._folder = tempfile.mkdtemp(prefix="monarch-traces-")
                weakref.finalize(self, shutil.rmtree, self._folder, True)
            self._number += 1
            profile = Profile(f"trace-{self._number}", seconds, int(time.time() * 1e6))
            self._kept.append(profile)
            while len(self._kept) > MOST_KEPT:
                self._remove(self._kept.pop(0))
        threading.Thread(target=self._run, args=(profile,), name="trace", daemon=True).start()
        return profile

    def _run(self, profile: Profile) -> None:
        path = self._path(profile.id)
        try:
            self._take(profile.seconds, path)
            size = os.path.getsize(path)
        except Exception as exc:
            with self._lock:
                profile.state, profile.problem = "failed", str(exc) or type(exc).__name__
        else:
            with self._lock:
                profile.state, profile.size = "ready", size

    def listed(self) -> list[dict[str, Any]]:
        """Newest first."""
        with self._lock:
            return [dict(vars(profile)) for profile in reversed(self._kept)]

    def path(self, name: str) -> str | None:
        """The file of one that is ready."""
        with self._lock:
            ready = any(profile.id == name and profile.state == "ready" for profile in self._kept)
        return self._path(name) if ready and _ID.fullmatch(name) else None

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, name + ".pftrace")

    def _remove(self, profile: Profile) -> None:
        try:
            os.unlink(self._path(profile.id))
        except OSError:
            pass
