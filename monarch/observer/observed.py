"""The program that an observer looks into: asked through its door."""

from __future__ import annotations

import threading
from typing import Any

from monarch._mesh import plugins


class ObservedProgram:
    """The one that was here last, with the methods of `monarch.admin.programs.Program`. A job's programs follow one
    another, so it may change; there may be none for a while."""

    def __init__(self) -> None:
        self._folder = ""
        self._lock = threading.Lock()
        self._found: Any = None

    def use(self, folder: str) -> None:
        with self._lock:
            if folder != self._folder:
                self._folder, self._found = folder, None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._program(), name)

    def _program(self) -> Any:
        with self._lock:
            if self._found is None:
                self._found = plugins.load("admin.programs").program_at(self._folder)
            return self._found
