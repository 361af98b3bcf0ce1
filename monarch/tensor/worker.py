"""The actor that holds the local tensors of one process."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from monarch.actor import Actor, Port, current_rank, endpoint, start_thread
from monarch.tensor import executor


class TensorWorker(Actor):
    """One a process of an engine's mesh. Its own thread only hands commands out; each stream runs on a thread of its own.

    `environment`: variables set before anything else, for libraries that read them (RANK, WORLD_SIZE, LOCAL_RANK, ...).
    """

    def __init__(self, environments: Sequence[dict[str, str]], services: Any) -> None:
        rank = current_rank().rank
        os.environ.update(environments[rank])
        self.executor = executor.Executor(rank)
        self.services = services
        self._streams = executor.Streams(self.executor, start_thread, self._enter)

    @endpoint(explicit_response_port=True, instrument=False)
    def execute(self, port: Port[Any], number: int, data: bytes, payloads: tuple[Any, ...]) -> None:
        """One batch of commands. Answers, where its last command asks, with (value or failure, failures, ident)."""
        self._streams.take(number, data, payloads, port.send)

    @contextlib.contextmanager
    def _enter(self, name: str) -> Iterator[None]:
        """Around a stream's thread."""
        executor._local.worker = self
        if torch.accelerator.is_available() and name != "main":
            with torch.Stream():
                yield
            return
        yield

    def __cleanup__(self, exc: Exception | None) -> None:
        self._streams.close()
        for close in list(self.executor.extras.values()):
            if hasattr(close, "close"):
                close.close()
