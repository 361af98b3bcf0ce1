"""Weights of two ranks that have rows of them, brought to two ranks that have rows of one half and columns of the other.

Three ways: `StateDict`, which reads out of the trainers' tensors what each generator needs; what programs write by hand
around a store of shards: trainers copy theirs into shared buffers, and whoever needs a part of a shard fetches all of it;
and `torch.save` into files in memory, the way that needs no library.
"""

from __future__ import annotations

import os
import tempfile
import time
from typing import Any

from _torch import torch
from _workload import Params, Samples, main, times

import monarch.actor
from monarch.actor import Actor, current_rank, endpoint, shutdown_context, this_host
from monarch.rdma import RDMABuffer, Shard, StateDict, StateDictHandle, empty

RANKS = 2


class Trainer(Actor):
    """Has its rows of every tensor."""

    def __init__(self, layers: int, side: int, folder: str) -> None:
        torch.set_num_threads(1)
        self.rank = current_rank().rank
        self.file = os.path.join(folder, f"{self.rank}.pt")
        full = (side, side)
        names = [f"{kind}{i}" for i in range(layers) for kind in ("up", "down")]
        self.source = {name: torch.full((side // RANKS, side), float(self.rank + 1)) for name in names}
        self.weights = StateDict(self.source, shards={name: (full, Shard(0, self.rank, RANKS)) for name in names})

    @endpoint
    def handle(self) -> StateDictHandle:
        return self.weights.handle

    @endpoint
    def update(self) -> None:
        """Makes a version: the counters move."""
        with self.weights.updating():
            pass

    @endpoint
    def register(self) -> dict[str, RDMABuffer]:
        self.store = {name: empty(tuple(tensor.shape), torch.float32) for name, tensor in self.source.items()}
        return {name: RDMABuffer(tensor) for name, tensor in self.store.items()}

    @endpoint
    def put(self) -> None:
        for name, tensor in self.source.items():
            self.store[name].copy_(tensor)

    @endpoint
    def forget(self) -> None:
        self.store.clear()

    @endpoint
    def save(self) -> None:
        torch.save(self.source, self.file)


class Generator(Actor):
    """Has rows of "up", columns of "down"."""

    def __init__(self, layers: int, side: int, folder: str) -> None:
        torch.set_num_threads(1)
        self.rank, self.folder, self.side = current_rank().rank, folder, side
        self.mine = {}
        for i in range(layers):
            self.mine[f"up{i}"] = torch.zeros(side // RANKS, side)
            self.mine[f"down{i}"] = torch.zeros(side, side // RANKS)
        self.spare = torch.zeros(side // RANKS, side)

    @endpoint
    def open(self, handle: StateDictHandle) -> None:
        parts = {name: Shard(0 if name.startswith("up") else 1, self.rank, RANKS) for name in self.mine}
        self.reader = handle.reader(self.mine, shards=parts)

    @endpoint
    async def read(self) -> int:
        return await self.reader.read()

    @endpoint
    async def fetch(self, stores: list[dict[str, RDMABuffer]]) -> None:
        """Every shard that has something of ours, whole."""
        for name, mine in self.mine.items():
            if name.startswith("up"):
                await stores[self.rank][name].read_into(mine)
                continue
            for rank, store in enumerate(stores):
                await store[name].read_into(self.spare)
                self._columns(mine, rank, self.spare)

    @endpoint
    def load(self) -> None:
        for rank in range(RANKS):
            saved = torch.load(os.path.join(self.folder, f"{rank}.pt"))
            for name, mine in self.mine.items():
                if name.startswith("down"):
                    self._columns(mine, rank, saved[name])
                elif rank == self.rank:
                    mine.copy_(saved[name])

    def _columns(self, mine: Any, rank: int, shard: Any) -> None:
        half = self.side // RANKS
        mine[rank * half : (rank + 1) * half].copy_(shard[:, self.rank * half : (self.rank + 1) * half])

    @endpoint
    def check(self) -> bool:
        """Whether everything is there; it is gone afterwards."""
        half = self.side // RANKS
        right = all(
            bool((mine == self.rank + 1).all())
            if name.startswith("up")
            else bool((mine[:half] == 1).all() and (mine[half:] == 2).all())
            for name, mine in self.mine.items()
        )
        for mine in self.mine.values():
            mine.zero_()
        return right


def sync(params: Params) -> Samples:
    """Durations, from when the trainers have made new weights until all generators have them."""
    samples: Samples = {}
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        procs = this_host().spawn_procs({"ranks": 2 * RANKS})
        args = params["layers"], params["side"], folder
        trainers = procs.slice(ranks=slice(0, RANKS)).spawn("trainers", Trainer, *args)
        generators = procs.slice(ranks=slice(RANKS, 2 * RANKS)).spawn("generators", Generator, *args)
        handle = StateDictHandle.combine(list(trainers.handle.call().get().values()))
        start = time.perf_counter()
        generators.open.call(handle).get()
        samples["plan"] = [time.perf_counter() - start]

        def checked(key: str, step: Any) -> None:
            samples[key] = times(step, params)
            if not all(generators.check.call().get().values()):
                raise RuntimeError(f"{key}: wrong weights")

        def state_dict() -> None:
            trainers.update.call().get()
            generators.read.call().get()

        def store() -> None:
            trainers.put.call().get()
            generators.fetch.call(stores).get()

        def saved() -> None:
            trainers.save.call().get()
            generators.load.call().get()

        checked("state_dict", state_dict)
        stores = list(trainers.register.call().get().values())
        checked("store", store)
        trainers.forget.call().get()
        checked("saved", saved)
    return samples


if __name__ == "__main__":
    monarch.actor.unhandled_fault_hook = lambda failure: None
    try:
        main({"sync": sync})
    finally:
        shutdown_context().get()
