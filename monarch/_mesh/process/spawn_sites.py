"""Where the meshes of this process were spawned: a line that leaves many of them alive is named once.

A mesh lives until it is stopped, its owner ends or the program exits, whether or not the program still holds it: others may
have been sent it, and what was broadcast to it may still run. So a loop that spawns and does not stop fills the host.
"""

from __future__ import annotations

import logging
import threading

from monarch._mesh.failures import stacks
from monarch._mesh.failures.stacks import Line

MANY = 20  # living meshes of one line that are worth a word
_TOLD = 100  # lines that are named; after that, none

logger = logging.getLogger("monarch")


class SpawnSites:
    """One for the proc meshes of a process, one for its actor meshes; `what` they are is for people. Any thread."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._lock = threading.Lock()
        self._site_of: dict[str, Line] = {}  # of each living mesh
        self._living: dict[Line, int] = {}
        self._told: set[Line] = set()

    def spawned(self, key: str) -> None:
        """The program is spawning a mesh, in this thread."""
        site = stacks.caller()
        if site is None:
            return
        with self._lock:
            self._site_of[key] = site
            count = self._living[site] = self._living.get(site, 0) + 1
            if count < MANY or site in self._told or len(self._told) >= _TOLD:
                return
            self._told.add(site)
        file, line, function = site
        logger.warning(
            "%d %s that were spawned at %s:%d in %s run at the same time. A mesh lives until it is stopped, its owner ends "
            "or the program exits, also when nothing refers to it any more. If they are not all needed: mesh.stop().get(), "
            "or `async with`, for each before the next one. (Said once for this line.)",
            count, self._what, file, line, function,
        )  # fmt: skip

    def gone(self, key: str) -> None:
        with self._lock:
            site = self._site_of.pop(key, None)
            if site is not None:
                left = self._living[site] = self._living[site] - 1
                if not left:
                    del self._living[site]
