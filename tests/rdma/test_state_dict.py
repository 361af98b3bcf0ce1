"""Weights of one process, read whole by others while they change."""

from __future__ import annotations

import asyncio
import os
import pickle
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from monarch.actor import Actor, Channel, NotSendableError, endpoint
from monarch.rdma import (
    BufferDroppedError,
    OwnerEndedError,
    RDMABuffer,
    RDMAMemoryError,
    RDMAReadOnlyError,
    RDMATimeoutError,
    Shard,
    StateDict,
    StateDictBusyError,
    StateDictMismatchError,
    block_gather,
    entries,
    state_dict_handle,
)
from monarch.rdma.registry import registry
from tests.support.patience import TIMEOUT, a_second_a_look
from tests.support.processes import kill
from tests.support.tiers import first_of, full

pytestmark = [pytest.mark.procs, pytest.mark.usefixtures("torch_preloaded")]
ROOT = Path(__file__).resolve().parents[2]


class Peer(Actor):
    """Another process: runs functions there, with itself as the argument, and keeps what they leave in it."""

    weights: StateDict
    model: Any

    @endpoint
    def do(self, work: Callable[[Any], Any]) -> Any:
        return work(self)


def there(peer: Any, work: Callable[[Any], Any]) -> Any:
    return peer.do.call_one(work).get(TIMEOUT)


def publish(peer: Any, make: Callable[[], Any], double_buffer: bool = False) -> Any:
    """Makes `peer.model` and `peer.weights` there; the handle."""

    def work(self: Any) -> Any:
        self.model = make()
        self.weights = StateDict(self.model, double_buffer=double_buffer)
        return self.weights.handle

    return there(peer, work)


@pytest.fixture
def peer(shared_procs: Any) -> Iterator[Any]:
    mesh = shared_procs.slice(who=0).spawn("weights", Peer)
    yield mesh
    there(mesh, lambda self: self.__dict__.pop("weights").drop().get() if "weights" in self.__dict__ else None)
    mesh.stop().get(timeout=TIMEOUT)


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """`use(path)`: this process takes no other."""
    from monarch.rdma import paths

    def only(path: str) -> None:
        monkeypatch.setattr(paths, "BACKENDS", paths.BACKENDS)
        paths.allow(path)

    return only


quiet = pytest.mark.filterwarnings("ignore::UserWarning")  # sockets are slower, we know
paths = pytest.mark.parametrize("path", ["local", "process_vm", "tcp", "actor"])
both = pytest.mark.parametrize("double_buffer", [False, True], ids=["in place", "double buffer"])


def zoo() -> dict[str, Any]:
    """Everything a dict of weights may hold."""
    fused = torch.arange(60, dtype=torch.float32).reshape(10, 6)
    return {
        "plain": torch.arange(12, dtype=torch.float32).reshape(3, 4),
        "half": torch.linspace(-1, 1, 7, dtype=torch.bfloat16),
        "truth": torch.tensor([True, False, True]),
        "complex": torch.tensor([1 + 2j, 3 - 4j]),
        "step": torch.tensor(41, dtype=torch.int64),
        "nothing": torch.empty(0, 5),
        "tied": fused,
        "again": fused,
        "rows": fused[2:4],
        "learned": torch.nn.Parameter(torch.ones(3)),
        "large": torch.arange(2_500_000, dtype=torch.int32),
        "optimizer": {"state": {0: {"moment": torch.full((2, 2), 0.5)}}, "lr": 0.1, "betas": (0.9, 0.99)},
        "array": numpy.arange(6, dtype=numpy.uint16).reshape(2, 3),
        "scalar": numpy.array(2.5),
        "raw": bytearray(b"some bytes"),
        "name": "zoo",
        "none": {},
    }


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, numpy.ndarray):
        return one.dtype == other.dtype and numpy.array_equal(one, other)
    return bool(one == other)


# --- what is read


@quiet
@paths
@both
def test_a_new_dict_is_the_same_dict(peer: Any, use: Any, path: str, double_buffer: bool) -> None:
    if path == "local":
        weights = StateDict(zoo(), double_buffer=double_buffer)
        handle = weights.handle
    else:
        handle = publish(peer, zoo, double_buffer)
    use(path)
    version, read = handle.read_into_new().get(TIMEOUT)
    assert (version, handle.path) == (0, path)
    assert same(zoo(), read)
    assert read["tied"] is read["again"]
    read["large"].zero_()
    assert handle.read_into(read).get(TIMEOUT) == 0
    assert same(zoo(), read)
    assert handle.values["optimizer.betas"] == (0.9, 0.99)
    assert handle.shapes["plain"] == (3, 4)
    assert handle.dtypes["half"] == "bfloat16"
    if path == "local":
        weights.drop().get(TIMEOUT)


def model() -> Any:
    layers = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 8))
    layers[2].weight = layers[0].weight
    return layers


@both
def test_a_module_is_read_into_another(peer: Any, double_buffer: bool) -> None:
    def trained() -> Any:
        torch.manual_seed(7)
        return model()

    handle, mine = publish(peer, trained, double_buffer), model()
    handle.read_into(mine).get(TIMEOUT)
    assert same(dict(mine.state_dict()), dict(trained().state_dict()))
    assert mine[2].weight is mine[0].weight


def test_it_can_be_awaited(peer: Any) -> None:
    handle = publish(peer, lambda: {"a": torch.ones(3)})

    async def main() -> None:
        mine = {"a": torch.zeros(3)}
        assert await handle.read_into(mine) == 0
        assert await handle.version() == 0
        assert mine["a"].sum() == 3

    asyncio.run(main())


def test_a_storage_is_registered_once() -> None:
    before = len(registry())
    flat = torch.zeros(1000)
    source = {str(i): flat[i * 10 : i * 10 + 10] for i in range(100)} | {"all": flat, "array": flat.numpy()}
    weights = StateDict(source)
    assert len(registry()) == before + 2  # the other one holds the counters
    weights.drop().get(TIMEOUT)
    assert len(registry()) == before


@quiet
@pytest.mark.parametrize("path", first_of(["process_vm", "tcp", "actor"]))
@both
def test_two_thousand_tensors(peer: Any, use: Any, path: str, double_buffer: bool) -> None:
    handle = publish(peer, lambda: {f"w{i}": torch.full((i % 40,), float(i)) for i in range(2000)}, double_buffer)
    use(path)
    mine = {f"w{i}": torch.zeros(i % 40) for i in range(2000)}
    reader = handle.reader(mine)
    for version in range(3):
        assert reader.read().get(TIMEOUT) == version
        assert all(bool((mine[f"w{i}"] == i + version).all()) for i in range(2000))

        def update(self: Any) -> None:
            with self.weights.updating():
                for tensor in self.model.values():
                    tensor.add_(1)

        there(peer, update)


def test_handles_are_small(peer: Any) -> None:
    handle = publish(peer, lambda: {f"layers.{i}.weight": torch.zeros(1000, 10) for i in range(1000)})
    assert len(pickle.dumps(handle)) < 200 * 1000
    assert repr(handle).startswith("<StateDictHandle of 1000 tensors, 40000000 bytes, of process ")


# --- shards


PARTS: list[Any] = [
    (slice(10, 300), slice(None)),
    (slice(None), slice(5, 9)),
    (slice(-100, None), slice(3, 500)),
    slice(7, 8),
    (slice(4, 4),),
    Shard(1, 2, 3),
    Shard(0, 0, 2),
]


@quiet
@paths
def test_a_part_of_a_weight(peer: Any, use: Any, path: str) -> None:
    def make() -> Any:
        return {"w": torch.arange(1500 * 700, dtype=torch.int32).reshape(1500, 700), "b": torch.arange(9)}

    owned = StateDict(make()) if path == "local" else None
    handle = owned.handle if owned else publish(peer, make)
    use(path)
    full = make()["w"]
    for part in PARTS:
        wanted = full.chunk(part.count, part.dim)[part.index] if isinstance(part, Shard) else full[part]
        rows, columns = wanted.shape
        mine = {"w": torch.full((rows + 2, columns), -1, dtype=torch.int32), "b": torch.zeros(9).long()}
        inner = {"w": mine["w"][1:-1], "b": mine["b"]}
        assert handle.read_into(inner, shards={"w": part}).get(TIMEOUT) == 0
        assert torch.equal(inner["w"], wanted), part
        assert torch.equal(mine["b"], torch.arange(9))
        assert bool((mine["w"][0] == -1).all()) and bool((mine["w"][-1] == -1).all())
        assert torch.equal(handle.read_into_new(shards={"w": part}).get(TIMEOUT)[1]["w"], wanted), part
    if owned:
        owned.drop().get(TIMEOUT)


def test_columns_into_columns(peer: Any) -> None:
    """A target that is not contiguous is filled from spare memory."""
    handle = publish(peer, lambda: {"w": torch.arange(100.0).reshape(10, 10)})
    mine = torch.zeros(10, 10)
    handle.read_into({"w": mine[:, 2:4]}, shards={"w": (slice(None), slice(6, 8))}).get(TIMEOUT)
    wanted = torch.zeros(10, 10)
    wanted[:, 2:4] = torch.arange(100.0).reshape(10, 10)[:, 6:8]
    assert torch.equal(mine, wanted)


# --- mistakes


def test_differences_name_the_keys(peer: Any) -> None:
    handle = publish(peer, lambda: {"a": torch.zeros(2, 3), "b": torch.ones(4), "n": 3})
    mine: dict[str, Any]
    with pytest.raises(StateDictMismatchError, match=r"'a' is float32\[2, 3\] at the owner and float32\[3, 2\] here"):
        handle.read_into({"a": torch.zeros(3, 2), "b": torch.zeros(4)})
    with pytest.raises(StateDictMismatchError, match=r"'b' is float32\[4\] at the owner and float64\[4\] here"):
        handle.read_into({"a": torch.zeros(2, 3), "b": torch.zeros(4).double()})
    mine = {"b": torch.zeros(4), "c": torch.zeros(1)}
    with pytest.raises(StateDictMismatchError, match=r"does not have 'c'; only the owner has 'a'.*strict=False"):
        handle.read_into(mine)
    assert handle.read_into(mine, strict=False).get(TIMEOUT) == 0
    assert (float(mine["b"].sum()), float(mine["c"].sum())) == (4, 0)
    with pytest.raises(StateDictMismatchError, match="does not have 'c', 'n' "):
        handle.read_into(mine | {"a": torch.zeros(2, 3), "n": torch.zeros(1)})
    with pytest.raises(StateDictMismatchError, match=r"shards of tensors.*'z'"):
        handle.read_into(mine, shards={"z": slice(1)})
    with pytest.raises(ValueError, match="the shard of 'b': invalid part 7"):
        handle.read_into({"b": mine["b"]}, strict=False, shards={"b": 7})
    one = torch.zeros(4)
    other = publish(peer, lambda: {"x": torch.zeros(4), "y": torch.ones(4)})
    with pytest.raises(StateDictMismatchError, match="'x' and 'y' are one tensor here and two at the owner"):
        other.read_into({"x": one, "y": one})
    with pytest.raises(TypeError, match="a dict or an object with state_dict"):
        handle.read_into([one])
    with pytest.raises(OverflowError):
        handle.read_into(mine, timeout=-1)


def test_read_only_targets_are_refused_and_read_only_sources_are_not(peer: Any) -> None:
    handle = publish(peer, lambda: {"a": memoryview(b"constant")})
    mine = bytearray(8)
    handle.read_into({"a": mine}).get(TIMEOUT)
    assert mine == b"constant"
    with pytest.raises(RDMAReadOnlyError, match="'a' is read-only"):
        handle.read_into({"a": memoryview(bytes(8))})


def test_what_cannot_be_registered_names_the_key() -> None:
    before = len(registry())
    with pytest.raises(RDMAMemoryError, match=r"'b\.c'.*not contiguous"):
        StateDict({"a": torch.zeros(3), "b": {"c": torch.zeros(4, 4).t()}})
    with pytest.raises(RDMAMemoryError, match=r"'m'.*device meta"):
        StateDict({"m": torch.zeros(3, device="meta")})
    with pytest.raises(RDMAMemoryError, match="'many' is a list with tensors in it"):
        StateDict({"many": [torch.zeros(3)]})
    with pytest.raises(ValueError, match=r"two entries are named 'a\.b'"):
        StateDict({"a": {"b": torch.zeros(1)}, "a.b": torch.zeros(1)})
    with pytest.raises(TypeError, match="got list"):
        StateDict([])
    weights = StateDict({})
    with pytest.raises(NotSendableError, match="send its `handle`"):
        pickle.dumps(weights)
    assert weights.handle.read_into({}).get(TIMEOUT) == 0
    weights.drop().get(TIMEOUT)
    assert len(registry()) == before


def test_strides_are_no_matter_to_two_copies(peer: Any) -> None:
    def make() -> Any:
        return {"t": torch.arange(12.0).reshape(3, 4).t(), "n": numpy.arange(12).reshape(3, 4)[:, ::2]}

    _, read = publish(peer, make, double_buffer=True).read_into_new().get(TIMEOUT)
    assert same(make(), read)


def test_a_tensor_that_was_replaced_is_noticed() -> None:
    source = {"kept": torch.zeros(3), "replaced": torch.zeros(3)}
    weights = StateDict(source)
    with pytest.raises(RDMAMemoryError, match=r"not where they were registered.*'replaced'"), weights.updating():
        source["replaced"] = torch.ones(3)
    assert weights.version == 0
    with pytest.raises(StateDictMismatchError, match=r"have changed since.*'more'"), weights.updating():
        source["more"] = torch.ones(3)
    twice = StateDict(source, double_buffer=True)
    source["kept"] = torch.ones(3)
    assert twice.publish() == 1
    assert twice.handle.read_into_new().get(TIMEOUT)[1]["kept"].sum() == 3
    source["kept"] = torch.ones(4)
    with pytest.raises(StateDictMismatchError, match="'kept'"):
        twice.publish()
    for one in (weights, twice):
        one.drop().get(TIMEOUT)


# --- versions


@both
def test_versions_count_updates(double_buffer: bool) -> None:
    source = {"a": torch.zeros(3)}
    weights = StateDict(source, double_buffer=double_buffer)
    handle, mine = weights.handle, {"a": torch.zeros(3)}
    assert handle.wait_newer(-1, 0).get(TIMEOUT) == 0
    waiting = handle.wait_newer(0, TIMEOUT)
    with weights.updating():
        source["a"] += 5
        with pytest.raises(RuntimeError, match="is already being made"), weights.updating():
            pass
    assert waiting.get(TIMEOUT) == 1
    assert (weights.version, handle.version().get(TIMEOUT), handle.read_into(mine).get(TIMEOUT)) == (1, 1, 1)
    assert mine["a"].sum() == 15
    with pytest.raises(StateDictBusyError, match=r"no version newer than 1 within 0\.02 s: process \d+ on "):
        handle.wait_newer(1, 0.02).get(TIMEOUT)
    if not double_buffer:
        with pytest.raises(RuntimeError, match="double_buffer=True"):
            weights.publish()
    weights.drop().get(TIMEOUT)
    with pytest.raises(BufferDroppedError):
        handle.read_into(mine).get(TIMEOUT)
    with pytest.raises(BufferDroppedError):
        handle.version().get(TIMEOUT)


def test_a_reader_reads_one_time_after_the_other(peer: Any) -> None:
    handle = publish(peer, lambda: {"a": torch.arange(1_000_000)})
    reader = handle.reader({"a": torch.zeros(1_000_000, dtype=torch.int64)})
    assert [read.get(TIMEOUT) for read in [reader.read() for _ in range(5)]] == [0] * 5
    mine = {"a": torch.zeros(500_000, dtype=torch.int64)}
    handle.reader(mine, shards={"a": Shard(0, 1, 2)}, staged=True).read().get(TIMEOUT)
    assert torch.equal(mine["a"], torch.arange(500_000, 1_000_000))


def test_no_time_at_all_times_out(peer: Any) -> None:
    handle = publish(peer, lambda: {"a": torch.zeros(3)})
    with pytest.raises(RDMATimeoutError, match="timed out"):
        handle.read_into({"a": torch.zeros(3)}, timeout=0).get(TIMEOUT)


def test_an_owner_in_the_middle_is_named(peer: Any) -> None:
    handle = publish(peer, lambda: {"a": torch.zeros(3)})
    mine = {"a": torch.full((3,), 9.0)}

    def begin(self: Any) -> int:
        self.update = self.weights.updating()
        self.update.__enter__()
        self.model["a"][:2] = 1
        return os.getpid()

    pid = there(peer, begin)
    with (
        pytest.raises(StateDictBusyError, match=rf"process {pid} on .* in the middle of making version 1") as info,
        a_second_a_look(state_dict_handle),
    ):
        handle.read_into(mine, timeout=20).get(TIMEOUT)
    assert isinstance(info.value, RDMATimeoutError)
    assert mine["a"].tolist() == [9, 9, 9]
    with pytest.raises(StateDictBusyError, match="is making the next"), a_second_a_look(state_dict_handle):
        handle.wait_newer(0, 20).get(TIMEOUT)
    waiting = handle.read_into(mine, timeout=TIMEOUT)

    def end(self: Any) -> None:
        self.model["a"][2] = 1
        self.update.__exit__(None, None, None)

    there(peer, end)
    assert waiting.get(TIMEOUT) == 1
    assert mine["a"].tolist() == [1, 1, 1]


@both
def test_an_update_that_fails_is_not_published(double_buffer: bool) -> None:
    source = {"a": torch.zeros(2)}
    weights = StateDict(source, double_buffer=double_buffer)
    mine = {"a": torch.zeros(2)}
    with pytest.raises(ZeroDivisionError), weights.updating():
        source["a"][0] = 1
        raise ZeroDivisionError
    if double_buffer:
        assert weights.handle.read_into(mine).get(TIMEOUT) == 0
        assert mine["a"].tolist() == [0, 0]
    else:
        with pytest.raises(StateDictBusyError, match="or that update failed"), a_second_a_look(state_dict_handle):
            weights.handle.read_into(mine, timeout=20).get(TIMEOUT)
    with weights.updating():
        source["a"].fill_(2)
    assert weights.handle.read_into(mine).get(TIMEOUT) == 1
    assert mine["a"].tolist() == [2, 2]
    weights.drop().get(TIMEOUT)


def test_reads_that_are_overtaken_each_time_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    source = {"a": torch.zeros(2)}
    weights = StateDict(source)
    real, stop = block_gather.BlockGather.read, threading.Event()

    async def overtaken(self: Any, timeout: float, after: Any) -> None:
        await real(self, timeout, after)
        if not stop.is_set():
            with weights.updating():
                source["a"] += 1

    monkeypatch.setattr(block_gather.BlockGather, "read", overtaken)
    mine = {"a": torch.zeros(2)}
    with (
        pytest.raises(StateDictBusyError, match=r"each of \d+ reads was overtaken.*double_buffer=True"),
        a_second_a_look(state_dict_handle),
    ):
        weights.handle.read_into(mine, timeout=20).get(TIMEOUT)
    stop.set()
    assert weights.handle.read_into(mine).get(TIMEOUT) == weights.version
    assert mine["a"].tolist() == [weights.version] * 2
    weights.drop().get(TIMEOUT)


@quiet
@both
@pytest.mark.parametrize(
    ("path", "reads", "large", "compute"),
    first_of([("process_vm", 2000, 3_000, 0.0005), ("process_vm", 60, 3_000_000, 0.02), ("actor", 100, 3_000, 0.02)]),
    ids=["inline", "threads", "sockets"],
)
def test_no_read_is_torn(
    peer: Any, use: Any, path: str, reads: int, large: int, compute: float, double_buffer: bool
) -> None:
    """The owner makes every tensor say the version, again and again; so must every tensor of a read."""
    sizes = [1, 100, large, 7, large // 2]
    handle = publish(peer, lambda: {str(i): torch.zeros(size) for i, size in enumerate(sizes)}, double_buffer)
    use(path)

    def hammer(self: Any) -> int:
        stop = bytearray(1)
        buffer, luck = RDMABuffer(stop), random.Random(1)
        port.send(buffer)
        while not stop[0]:
            with self.weights.updating():
                version = self.weights.version + 1
                for tensor in self.model.values():
                    tensor.fill_(version)
            pause = time.perf_counter() + luck.random() * compute  # as if it computed a gradient
            while time.perf_counter() < pause and not stop[0]:
                pass
        buffer.drop().get()
        return self.weights.version

    port, receiver = Channel[RDMABuffer].open()
    ended = peer.do.call_one(hammer)
    stop = receiver.recv().get(TIMEOUT)
    mine = {str(i): torch.zeros(size) for i, size in enumerate(sizes)}
    reader, seen = handle.reader(mine), set()
    try:
        for number in range(reads):
            version = reader.read(timeout=TIMEOUT).get(TIMEOUT)
            seen.add(version)
            if number % 10 == 0:
                handle.wait_newer(version, TIMEOUT).get(TIMEOUT)
            for name, tensor in mine.items():
                low, high = tensor.aminmax()
                assert low == high == version, name
    finally:
        stop.write_from(b"x").get(TIMEOUT)
    assert max(seen) <= ended.get(TIMEOUT)
    assert len(seen) >= reads // 10, "reads and updates took turns"


# --- deaths


def test_a_trainer_that_is_killed_in_the_middle_of_an_update(fresh: Any) -> None:
    trainer = fresh(Peer)
    handle = publish(trainer, lambda: {"a": torch.zeros(4), "b": torch.zeros(4)})
    mine = {"a": torch.ones(4), "b": torch.ones(4)}
    assert handle.read_into(mine).get(TIMEOUT) == 0

    def half(self: Any) -> int:
        self.update = self.weights.updating()
        self.update.__enter__()
        self.model["a"].fill_(5)
        return os.getpid()

    pid = there(trainer, half)
    waiting = handle.read_into(mine, timeout=TIMEOUT)
    kill(pid)
    for read in (waiting, handle.read_into(mine), handle.version(), handle.wait_newer(0)):
        with pytest.raises(OwnerEndedError, match=f"process {pid}"):
            read.get(TIMEOUT)
    assert mine["a"].tolist() == mine["b"].tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("batch", first_of([0, 3]))
def test_a_trainer_that_is_killed_in_the_middle_of_a_read(
    fresh: Any, monkeypatch: pytest.MonkeyPatch, batch: int
) -> None:
    trainer = fresh(Peer)
    handle = publish(trainer, lambda: {str(i): torch.full((1 << 20,), 1.0) for i in range(6)})
    pid = there(trainer, lambda self: os.getpid())
    mine = {str(i): torch.zeros(1 << 20) for i in range(6)}
    real, lock, calls = block_gather._Batch.read, threading.Lock(), []

    def read(self: Any, after: Any) -> None:
        with lock:
            calls.append(self)
            if len(calls) == batch + 1:
                kill(pid)
        real(self, after)

    monkeypatch.setattr(block_gather._Batch, "read", read)
    with pytest.raises(OwnerEndedError, match=f"process {pid}"):
        handle.read_into(mine, staged=True).get(TIMEOUT)
    assert len(calls) > batch
    assert all(bool((tensor == 0).all()) for tensor in mine.values()), "staged: nothing of it arrives"


def test_a_reader_that_is_killed_in_the_middle_of_a_read_harms_nobody(fresh: Any) -> None:
    source = {str(i): torch.zeros(1 << 20) for i in range(4)}
    weights = StateDict(source)
    handle = weights.handle

    def endless(self: Any) -> None:
        mine = {str(i): torch.zeros(1 << 20) for i in range(4)}
        handle.read_into(mine).get()
        port.send(os.getpid())
        while True:
            handle.read_into(mine).get()

    port, receiver = Channel[int].open()
    fresh(Peer).do.broadcast(endless)
    kill(receiver.recv().get(TIMEOUT))
    with weights.updating():
        for tensor in source.values():
            tensor.fill_(3)
    mine = {str(i): torch.zeros(1 << 20) for i in range(4)}
    assert handle.read_into(mine).get(TIMEOUT) == 1
    assert all(bool((tensor == 3).all()) for tensor in mine.values())
    weights.drop().get(TIMEOUT)


# --- without torch

PROGRAM = """
import sys
import numpy
from monarch.actor import Actor, endpoint, this_host, shutdown_context
from monarch.rdma import StateDict

class Owner(Actor):
    @endpoint
    def make(self, double_buffer):
        self.source = {"a": numpy.arange(6.0).reshape(2, 3), "deep": {"b": numpy.array(7), "k": "value"}}
        self.weights = StateDict(self.source, double_buffer=double_buffer)
        return self.weights.handle

    @endpoint
    def update(self):
        with self.weights.updating():
            self.source["a"] += 1
        return "torch" in sys.modules

if __name__ == "__main__":
    owner = this_host().spawn_procs().spawn("owner", Owner)
    for double_buffer in (False, True):
        handle = owner.make.call_one(double_buffer).get()
        assert owner.update.call_one().get() is False
        version, read = handle.read_into_new().get()
        assert version == 1 and (read["a"] == numpy.arange(1.0, 7).reshape(2, 3)).all(), read
        assert read["deep"]["b"] == 7 and read["deep"]["k"] == "value"
        part = {"a": numpy.zeros((2, 1))}
        handle.read_into(part, strict=False, shards={"a": (slice(None), slice(1, 2))}).get()
        assert part["a"].tolist() == [[2], [5]]
    assert "torch" not in sys.modules
    shutdown_context().get()
    print("fine")
"""


@full
def test_numpy_alone_is_enough(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    path = os.pathsep.join(p for p in (str(ROOT), os.environ.get("PYTHONPATH", "")) if p)
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr


def test_an_array_where_numpy_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numpy", None)
    with pytest.raises(
        ModuleNotFoundError, match=r"is a numpy array, and numpy is not installed here .*: pip install numpy"
    ):
        entries.shown("numpy", "float32", (1,), memoryview(bytearray(4)))
