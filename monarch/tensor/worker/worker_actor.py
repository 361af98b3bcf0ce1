"""The actor that holds the local tensors of one process."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

import torch

from monarch._devices import own_device
from monarch.actor import Actor, Port, bind_context, context, current_rank, endpoint
from monarch.actor.lowlevel import own_key, start_thread
from monarch.tensor.worker import executor
from monarch.tensor.worker.actor_transfers import waiting
from monarch.tensor.worker.current import thread

_CLOSING = 5.0  # seconds that a worker's end waits for operations under way


class TensorWorker(Actor):
    """One a process of an engine's mesh. Its own thread only hands commands out; each stream runs on a thread of its own.

    `environments`: by rank, variables set before anything else, for libraries that read them (RANK, WORLD_SIZE,
    LOCAL_RANK, ...). Unless OMP_NUM_THREADS is set, torch gets its share of the host's cores. `services`: the engine's
    Rendezvous, and its name. `last_words`: takes the failures that no answer has told of, when the worker ends in order.
    """

    def __init__(
        self, environments: Sequence[dict[str, str]], services: tuple[Any, str], last_words: Port[list[Any]]
    ) -> None:
        rank = current_rank().rank
        os.environ.update(environments[rank])
        self._cores = 0
        if "OMP_NUM_THREADS" not in os.environ:
            # Processes that each take every core of a host stand in each other's way.
            self._cores = max(1, len(os.sched_getaffinity(0)) // int(environments[rank]["LOCAL_WORLD_SIZE"]))
        self.executor = executor.Executor(rank)
        self.executor.end = context().actor_instance.abort
        self.key = own_key()
        waiting.open(self.key)
        self.services = services
        self._last_words = last_words
        self.ranks = len(environments)
        self.ask = bind_context(_ask)
        self.address = urlsplit(context().actor_instance.actor_id.addr).hostname or "127.0.0.1"
        self._streams = executor.StreamThreads(self.executor, start_thread, self._enter)

    @endpoint(explicit_response_port=True, instrument=False)
    def execute(self, port: Port[Any], number: int, data: bytes, payloads: tuple[object, ...]) -> None:
        """One batch of commands. Answers, where its last command asks, with (value or failure, failures, ident)."""
        self._streams.take(number, data, payloads, port.send)

    @endpoint(instrument=False)
    def fail_kept(self, name: tuple[object, ...], error: BaseException) -> None:
        """The result of an rref will not come, unless it is here already."""
        waiting.put_if_absent(name, error, time.monotonic())

    @contextlib.contextmanager
    def _enter(self, name: str) -> Iterator[None]:
        """Surrounds the work of a stream's thread."""
        thread.worker = self
        if self._cores:
            torch.set_num_threads(self._cores)  # OpenMP has a number for each thread
        # Operations come here below torch's Python functions, which are what initialises its devices.
        own_device.start()
        if torch.accelerator.is_available() and name != "main":
            with torch.Stream():
                yield
            return
        yield

    def __cleanup__(self, exc: Exception | None) -> None:
        waiting.close(self.key)
        for close in list(self.executor.extras.values()):  # first: a stream may wait for a peer in a process group
            if hasattr(close, "close"):
                close.close()
        self._streams.close(_CLOSING)
        self._last_words.send(self.executor.told())


def _ask(endpoint: Any, seconds: float, *args: Any) -> Any:
    """Calls another actor in the worker's name and waits, from whatever thread."""
    return endpoint.call_one(*args).get(timeout=seconds)
