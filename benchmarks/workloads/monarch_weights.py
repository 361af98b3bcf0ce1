"""A StateDict read by another process."""

from __future__ import annotations

from typing import Any

from _workload import Params, Samples, main, rates, times

import monarch.actor
from monarch.actor import Actor, endpoint, shutdown_context, this_host
from monarch.rdma import StateDict, StateDictHandle


class Owner(Actor):
    """Publishes weights and sleeps."""

    @endpoint
    def make(self, tensors: int, size: int) -> StateDictHandle:
        self.weights = StateDict({f"w{i}": bytearray(b"\x01" * size) for i in range(tensors)})
        return self.weights.handle

    @endpoint
    def square(self, side: int) -> StateDictHandle:
        self.weights = StateDict({"w": memoryview(bytearray(b"\x01" * (side * side * 4))).cast("f", (side, side))})
        return self.weights.handle


def owner() -> Any:
    return this_host().spawn_procs({"procs": 1}).spawn("owner", Owner)


def opened(params: Params) -> tuple[StateDictHandle, dict[str, bytearray]]:
    tensors, size = params["tensors"], params["size"]
    handle = owner().make.call_one(tensors, size).get()
    return handle, {f"w{i}": bytearray(b"\x02" * size) for i in range(tensors)}


def whole(params: Params) -> Samples:
    """Bytes a second."""
    handle, mine = opened(params)
    reader, total = handle.reader(mine), params["tensors"] * params["size"]
    return {
        "reader": rates(lambda: reader.read().get(), total, params),
        "read_into": rates(lambda: handle.read_into(mine).get(), total, params),
    }


def many(params: Params) -> Samples:
    """Durations, from the call to the result."""
    handle, mine = opened(params)
    reader = handle.reader(mine)
    return {
        "reader": times(lambda: reader.read().get(), params),
        "read_into": times(lambda: handle.read_into(mine).get(), params),
    }


def columns(params: Params) -> Samples:
    """Durations, from the call to the result."""
    side, wide = params["side"], params["columns"]
    handle = owner().square.call_one(side).get()
    mine = {"w": memoryview(bytearray(b"\x02" * (side * wide * 4))).cast("f", (side, wide))}
    shards = {"w": (slice(None), slice(0, wide))}
    reader = handle.reader(mine, shards=shards)
    return {
        "reader": times(lambda: reader.read().get(), params),
        "read_into": times(lambda: handle.read_into(mine, shards=shards).get(), params),
    }


if __name__ == "__main__":
    monarch.actor.unhandled_fault_hook = lambda failure: None
    try:
        main({f.__name__: f for f in (whole, many, columns)})
    finally:
        shutdown_context().get()
