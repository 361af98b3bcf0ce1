"""RDMABuffer.read_into and write_from between two processes, the owner's memory on a card."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from _workload import Params, Samples, main, rates, times

import monarch.actor
from monarch.actor import Actor, endpoint, shutdown_context, this_host
from monarch.rdma import RDMABuffer


class Owner(Actor):
    """Registers memory of the card and sleeps."""

    @endpoint
    def make(self, size: int) -> RDMABuffer:
        self.data = torch.ones(size, dtype=torch.uint8, device="cuda")
        return RDMABuffer(self.data)


def copies(size: int, place: str) -> dict[str, Callable[[], Any]]:
    owner = this_host().spawn_procs({"procs": 1}).spawn("owner", Owner)
    buffer = owner.make.call_one(size).get()
    local = torch.zeros(size, dtype=torch.uint8, device="cuda" if place == "card" else "cpu")
    print(f"path: {buffer.path}", file=sys.stderr)
    return {"read": lambda: buffer.read_into(local).get(), "write": lambda: buffer.write_from(local).get()}


def transfer(params: Params) -> Samples:
    """Durations of single transfers, from the call to the result."""
    return {name: times(copy, params) for name, copy in copies(params["size"], params["place"]).items()}


def throughput(params: Params) -> Samples:
    """Bytes a second of single transfers."""
    size = params["size"]
    return {name: rates(copy, size, params) for name, copy in copies(size, params["place"]).items()}


if __name__ == "__main__":
    monarch.actor.unhandled_fault_hook = lambda failure: None
    try:
        main({f.__name__: f for f in (transfer, throughput)})
    finally:
        shutdown_context().get()
