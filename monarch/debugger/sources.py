"""Source text that a rank shows in its debugger: its own if it can read it, else the client's."""

from __future__ import annotations

import linecache
import os
import sys
from collections.abc import Callable

_LARGEST = 4 << 20  # characters of a file that are given

Fetch = Callable[[str], tuple[str, str] | None]


def find(filename: str) -> tuple[str, str] | None:
    """Returns, in the client, the full name and the text of a Python source, also of a notebook's cell. None when there
    is none."""
    for name in (filename, *_places(filename)):
        lines = linecache.getlines(name)
        if lines:
            text = "".join(lines)
            return (name, text) if len(text) <= _LARGEST else None
    return None


def _places(filename: str) -> list[str]:
    if os.path.isabs(filename) or not filename.endswith(".py"):
        return []
    return [os.path.abspath(os.path.join(folder, filename)) for folder in (".", *sys.path)]


class FetchedSources:
    """Sources in a rank, which asks `fetch` for what is not here, once each."""

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch
        self._asked: dict[str, str] = {}  # name -> full name, "" when nobody has it

    def provide(self, filename: str, module_globals: dict[str, object] | None = None) -> str:
        """Sees to it that `linecache` has the file, if anybody has. Its full name, or ""."""
        if linecache.getlines(filename, module_globals):
            return filename
        known = self._asked.get(filename)
        if known is None:
            found = self._fetch(filename)
            known = self._asked[filename] = "" if found is None else found[0]
            if found is not None:
                self._keep(found[0], found[1])
        return known

    def _keep(self, name: str, text: str) -> None:
        # Without a time of change: linecache does not look for the file again.
        linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name
