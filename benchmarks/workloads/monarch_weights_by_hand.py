"""Weights read by another process as an API without StateDict lets programs do it: an RDMABuffer for each, one RDMAAction.

Nothing looks whether the weights change meanwhile.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from _workload import Params, Samples, main, rates, times

import monarch.actor
from monarch.actor import Actor, endpoint, shutdown_context, this_host
from monarch.rdma import RDMAAction, RDMABuffer


class Owner(Actor):
    """Registers memory and sleeps."""

    @endpoint
    def make(self, tensors: int, size: int) -> list[RDMABuffer]:
        self.data = [bytearray(b"\x01" * size) for _ in range(tensors)]
        return [RDMABuffer(memoryview(one)) for one in self.data]


def reading(params: Params) -> Callable[[], Any]:
    owner = this_host().spawn_procs({"procs": 1}).spawn("owner", Owner)
    action = RDMAAction()
    for buffer in owner.make.call_one(params["tensors"], params["size"]).get():
        action.read_remote(memoryview(bytearray(b"\x02" * params["size"])), buffer)
    return lambda: action.submit().get()


def whole(params: Params) -> Samples:
    """Bytes a second."""
    return {"reader": rates(reading(params), params["tensors"] * params["size"], params)}


def many(params: Params) -> Samples:
    """Durations, from the call to the result."""
    return {"reader": times(reading(params), params)}


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # a peer that has no faster way says so for each transfer
    monarch.actor.unhandled_fault_hook = lambda failure: None
    try:
        main({f.__name__: f for f in (whole, many)})
    finally:
        shutdown_context().get()
