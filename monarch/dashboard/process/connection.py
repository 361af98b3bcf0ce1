"""One connection to an observer: what is asked of it, and what a program has recorded."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from typing import Any

import msgspec

from monarch.dashboard.process.config import ObserverConfig
from monarch.dashboard.process.observer_state import Observing
from monarch.telemetry import frames

logger = logging.getLogger("monarch.observer")


class Talk:
    """Called once, on a thread of its own: until the other side has gone."""

    def __init__(self, connection: socket.socket, observing: Observing, end: Callable[[], Any]) -> None:
        self._connection = connection
        self._observing = observing
        self._end = end

    def __call__(self) -> None:
        with self._connection:
            try:
                while True:
                    kind, body = frames.receive(self._connection)
                    answer = self._take(kind, body)
                    if answer:
                        self._connection.sendall(answer)
            except (OSError, EOFError):
                pass
            except ValueError as exc:  # of another version, perhaps
                logger.warning("a connection is closed: %s", exc)

    def _take(self, kind: int, body: bytes) -> bytes:
        observing = self._observing
        if kind == frames.ROWS:
            observing.take_rows(body)
        elif kind == frames.SERVE:
            return self._serve(msgspec.msgpack.decode(body, type=frames.Serve))
        elif kind == frames.PROGRAM:
            observing.program_here(msgspec.msgpack.decode(body, type=frames.ProgramHere).folder)
        elif kind == frames.MARK:
            observing.flush()
            return frames.pack(frames.MARKED, body)
        elif kind == frames.END:
            self._end()
        else:
            raise ValueError(f"a frame of kind {kind}, which this version does not know")
        return b""

    def _serve(self, asked: frames.Serve) -> bytes:
        observing = self._observing
        try:
            config = msgspec.convert(asked.config, ObserverConfig)
            if asked.folder:
                observing.program_here(asked.folder)
            return frames.pack_struct(frames.SERVING, observing.serve(config, asked.token))
        except Exception as exc:  # told to whoever asks
            logger.exception("what was asked cannot be served")
            return frames.pack(frames.FAILED, f"{type(exc).__name__}: {exc}".encode())
