"""What the kernel asks of a gather mount, asked of its owner; in the process that serves the mount.

Keeps little: attributes for a moment, after a folder was listed, and of each open file what was read ahead.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

KEPT = 0.2  # seconds
_FIRST = 256 << 10  # bytes read at a time; twice as many at each read that goes on where the last one ended
_MOST = 4 << 20
_NAMES = 100_000  # whose attributes are kept at most


class GatherView:
    """`ask(what, path, offset, size)`: "attributes", "names", "target" or "read" of a path. OSError as it was there."""

    def __init__(self, ask: Callable[..., Any]) -> None:
        self._ask = ask
        self.ready = threading.Event()
        self.ready.set()
        self._kept: dict[str, tuple[float, dict[str, int]]] = {}

    def take(self, message: Any) -> None:
        """Nothing is told to it unasked."""

    def close(self) -> None:
        self._kept = {}

    def attributes(self, path: str) -> dict[str, int]:
        until, kept = self._kept.get(path, (0.0, {}))
        if time.monotonic() < until:
            return kept
        found: dict[str, int] = self._ask("attributes", path)
        return found

    def names(self, path: str) -> dict[str, int]:
        listed = {os.fsdecode(name): attributes for name, attributes in self._ask("names", path)}
        now = time.monotonic()
        kept = {old: value for old, value in self._kept.items() if value[0] > now}
        if len(kept) + len(listed) <= _NAMES:
            folder = path.rstrip("/")
            kept.update({f"{folder}/{name}": (now + KEPT, found) for name, found in listed.items()})
        self._kept = kept
        return {name: attributes["st_mode"] for name, attributes in listed.items()}

    def target(self, path: str) -> str:
        return os.fsdecode(self._ask("target", path))

    def open(self, path: str) -> ReadAhead:
        return ReadAhead(lambda offset, size: self._ask("read", path, offset, size), time.monotonic)

    def read(self, path: str, opened: ReadAhead, size: int, offset: int) -> bytes:
        return opened.read(offset, size)

    def release(self, opened: ReadAhead) -> None:
        return


class ReadAhead:
    """An open file: a piece of it, read ahead while it is read in order, and as fresh as attributes are."""

    def __init__(self, fetch: Callable[[int, int], bytes], clock: Callable[[], float]) -> None:
        self._fetch = fetch
        self._clock = clock
        self._reading = threading.Lock()
        self._start = 0
        self._piece = b""
        self._until = 0.0
        self._ahead = _FIRST

    def read(self, offset: int, size: int) -> bytes:
        with self._reading:
            end = self._start + len(self._piece)
            if not (self._start <= offset and offset + size <= end and self._clock() < self._until):
                in_order = self._piece and self._start <= offset <= end
                self._ahead = min(2 * self._ahead, _MOST) if in_order else _FIRST
                self._piece = self._fetch(offset, max(size, self._ahead if in_order or not offset else size))
                self._start, self._until = offset, self._clock() + KEPT
            at = offset - self._start
            return self._piece[at : at + size]
