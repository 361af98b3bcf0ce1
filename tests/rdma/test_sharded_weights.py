"""Weights that several owners have parts of, read together."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from monarch.actor import Actor, current_rank, endpoint, this_host
from monarch.rdma import (
    BufferDroppedError,
    OwnerEndedError,
    RDMAMemoryError,
    Shard,
    StateDict,
    StateDictBusyError,
    StateDictHandle,
    StateDictMismatchError,
    reading,
    state_dict_handle,
)
from tests.support.patience import TIMEOUT, a_second_a_look
from tests.support.processes import kill
from tests.support.tiers import full

pytestmark = [pytest.mark.procs, pytest.mark.usefixtures("torch_preloaded")]
LONG = 120  # for processes that import much of torch
FULL = {"w": torch.arange(60.0).reshape(10, 6), "b": torch.arange(7), "same": torch.tensor(3.0)}


def parts_of(rank: int, count: int) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Returns what a rank has of FULL: rows, uneven ones too, and all of what is small."""
    shards = {name: (tuple(FULL[name].shape), Shard(0, rank, count)) for name in ("w", "b")}
    cut = {name: (*FULL[name].chunk(count), *[FULL[name][:0]] * count)[rank].clone() for name in shards}
    return cut | {"same": FULL["same"].clone()}, shards


class Ranks:
    """Trainers, all in this process."""

    def __init__(self, count: int, **options: Any) -> None:
        self.sources: list[dict[str, torch.Tensor]] = []
        self.weights: list[StateDict] = []
        for rank in range(count):
            source, shards = parts_of(rank, count)
            self.sources.append(source)
            self.weights.append(StateDict(source | {"rank": rank}, shards=shards, **options))

    @property
    def handle(self) -> StateDictHandle:
        return StateDictHandle.combine([one.handle for one in self.weights])

    def add(self, number: float, *ranks: int) -> None:
        for rank in ranks or range(len(self.weights)):
            with self.weights[rank].updating():
                for tensor in self.sources[rank].values():
                    tensor.add_(number)

    def drop(self) -> None:
        for one in self.weights:
            one.drop().get(TIMEOUT)


@pytest.fixture
def ranks() -> Iterator[Any]:
    made = []

    def make(count: int, **options: Any) -> Ranks:
        made.append(Ranks(count, **options))
        return made[-1]

    yield make
    for one in made:
        one.drop()


def check(read: dict[str, Any], more: float = 0) -> None:
    for name, tensor in FULL.items():
        assert torch.equal(read[name], tensor + more), name


@pytest.mark.parametrize("count", [1, 3, 4])
@pytest.mark.parametrize("double_buffer", [False, True], ids=["in place", "double buffer"])
def test_all_of_it_and_parts_of_other_shapes(ranks: Any, count: int, double_buffer: bool) -> None:
    trainers = ranks(count, double_buffer=double_buffer)
    handle = pickle.loads(pickle.dumps(trainers.handle))
    assert handle.shapes == {name: tuple(tensor.shape) for name, tensor in FULL.items()}
    assert handle.values == {"rank": 0}
    version, read = handle.read_into_new().get(TIMEOUT)
    assert version == 0
    check(read)
    columns = {"w": torch.zeros(10, 2), "b": torch.zeros(3, dtype=torch.int64), "same": torch.tensor(0.0)}
    parts = {"w": Shard(1, 1, 3), "b": slice(2, 5)}
    reader = handle.reader(columns, shards=parts)
    for more in range(3):
        assert reader.read().get(TIMEOUT) == more
        assert torch.equal(columns["w"], FULL["w"][:, 2:4] + more)
        assert torch.equal(columns["b"], FULL["b"][2:5] + more)
        assert columns["same"] == 3 + more
        trainers.add(1)
    assert (handle.version().get(TIMEOUT), handle.wait_newer(2).get(TIMEOUT)) == (3, 3)


def test_each_byte_comes_from_one_owner_and_replicas_share_the_work(ranks: Any) -> None:
    first, second = ranks(2), ranks(2)
    handle = StateDictHandle.combine([first.handle, second.handle, first.handle])
    assert repr(handle).startswith("<StateDictHandle of 3 tensors, ")
    assert "of 4 owners (process " in repr(handle)
    mine = {"w": torch.zeros(10, 6)}
    plan = handle.reader(mine, strict=False)._plan
    given = [plan.route.bytes_of(owner) for owner in range(4)]
    assert sum(given) == 240
    assert given[0] + given[2] == given[1] + given[3] == 120
    both = {str(i): torch.full((64,), float(i)) for i in range(10)}
    copies = [StateDict(both) for _ in range(5)]
    plan = StateDictHandle.combine([one.handle for one in copies]).reader(both)._plan
    assert [plan.route.bytes_of(owner) for owner in range(5)] == [512] * 5
    for one in copies:
        one.drop().get(TIMEOUT)


def test_stages_of_a_pipeline_have_tensors_of_their_own() -> None:
    stages = [StateDict({f"layers.{i}": torch.full((3,), float(i))}) for i in range(3)]
    handle = StateDictHandle.combine([one.handle for one in stages])
    version, read = handle.read_into_new().get(TIMEOUT)
    assert (version, {name: tensor.tolist() for name, tensor in read.items()}) == (
        0,
        {"layers.0": [0] * 3, "layers.1": [1] * 3, "layers.2": [2] * 3},
    )
    # Only the owners that are read from have to agree.
    with stages[2].updating():
        pass
    assert handle.read_into({"layers.0": torch.zeros(3)}, strict=False).get(TIMEOUT) == 0
    for one in stages:
        one.drop().get(TIMEOUT)


def test_what_owners_tie_is_tied_in_a_new_dict() -> None:
    tied = [torch.full((2, 2), float(rank)) for rank in range(2)]
    shards = {name: ((4, 2), Shard(0, rank, 2)) for rank in range(2) for name in ("a", "b")}
    owners = [
        StateDict({"a": one, "b": one}, shards={name: ((4, 2), Shard(0, rank, 2)) for name in shards})
        for rank, one in enumerate(tied)
    ]
    handle = StateDictHandle.combine([one.handle for one in owners])
    _, read = handle.read_into_new().get(TIMEOUT)
    assert read["a"] is read["b"]
    assert read["a"].tolist() == [[0, 0], [0, 0], [1, 1], [1, 1]]
    for one in owners:
        one.drop().get(TIMEOUT)


# --- versions


def test_a_version_is_read_only_if_all_owners_have_it(ranks: Any) -> None:
    trainers = ranks(2)
    trainers.add(1, 0)
    handle, mine = trainers.handle, {name: torch.zeros_like(tensor) for name, tensor in FULL.items()}
    text = r"owner 1 \(process .*\) has published 0 and owner 0 \(process .*\) has published 1\. All owners have"
    with pytest.raises(StateDictBusyError, match=text), a_second_a_look(state_dict_handle):
        handle.read_into(mine, timeout=20).get(TIMEOUT)
    assert handle.version().get(TIMEOUT) == 0
    with (
        pytest.raises(StateDictBusyError, match=r"no version newer than 0 .* has published 0"),
        a_second_a_look(state_dict_handle),
    ):
        handle.wait_newer(0, 20).get(TIMEOUT)
    waiting = handle.read_into(mine, timeout=TIMEOUT)
    trainers.add(1, 1)
    assert waiting.get(TIMEOUT) == 1
    check(mine, 1)
    update = trainers.weights[1].updating()
    update.__enter__()
    with (
        pytest.raises(StateDictBusyError, match=r"owner 1 \(process .*\) is in the middle of making version 2"),
        a_second_a_look(state_dict_handle),
    ):
        handle.read_into(mine, timeout=20).get(TIMEOUT)
    update.__exit__(None, None, None)


def test_with_two_copies_an_owner_may_be_one_version_ahead(ranks: Any) -> None:
    trainers = ranks(2, double_buffer=True)
    trainers.add(1, 0)
    version, read = trainers.handle.read_into_new().get(TIMEOUT)
    assert version == 0
    check(read)


def test_no_read_is_torn_between_owners(ranks: Any) -> None:
    """Owners that update one after the other: a read has the same version of all."""
    trainers = ranks(3)
    handle, stop = trainers.handle, threading.Event()
    mine = {name: torch.zeros_like(tensor) for name, tensor in FULL.items()}
    reader = handle.reader(mine)

    def hammer() -> None:
        while not stop.wait(0.01):  # as if it computed a gradient
            for rank in range(3):
                trainers.add(1, rank)

    thread = threading.Thread(target=hammer)
    thread.start()
    try:
        for _ in range(20):
            check(mine, reader.read(timeout=TIMEOUT).get(TIMEOUT))
    finally:
        stop.set()
        thread.join(TIMEOUT)


# --- owners that are gone


def test_replicas_stand_in_for_an_owner_that_is_gone(ranks: Any) -> None:
    first, second = ranks(2), ranks(2)
    handle = StateDictHandle.combine([first.handle, second.handle])
    mine = {name: torch.zeros_like(tensor) for name, tensor in FULL.items()}
    reader = handle.reader(mine)
    first.weights[0].drop().get(TIMEOUT)
    second.weights[1].drop().get(TIMEOUT)
    for _ in range(2):
        assert reader.read().get(TIMEOUT) == 0
        check(mine)
    assert handle.version().get(TIMEOUT) == 0
    first.weights[1].drop().get(TIMEOUT)
    text = r"(?s)owner 1 of 4 \(process .*\) is gone, and no other has 'b'\[4:7\], 'w'\[5:10, 0:6\]: .*dropped"
    with pytest.raises(BufferDroppedError, match=text):
        reader.read().get(TIMEOUT)
    with pytest.raises(BufferDroppedError, match="no other has"):
        handle.version().get(TIMEOUT)
    with pytest.raises(BufferDroppedError, match="no other has"):
        handle.wait_newer(-1).get(TIMEOUT)


class Trainer(Actor):
    @endpoint
    def publish(self) -> StateDictHandle:
        rank = current_rank().rank
        self.source, shards = parts_of(rank % 2, 2)
        self.weights = StateDict(self.source, shards=shards)
        return self.weights.handle

    @endpoint
    def pid(self) -> int:
        import os

        return os.getpid()


@full
def test_a_replica_stands_in_for_a_process_that_was_killed() -> None:
    procs = this_host().spawn_procs({"ranks": 3}, name="trainers")
    try:
        trainers = procs.spawn("trainers", Trainer)
        handle = StateDictHandle.combine(trainers.publish.call().get(TIMEOUT))
        pids = list(trainers.pid.call().get(TIMEOUT).values())
        mine = {name: torch.zeros_like(tensor) for name, tensor in FULL.items()}
        reader = handle.reader(mine)
        assert reader.read().get(TIMEOUT) == 0
        kill(pids[0])
        for tensor in mine.values():
            tensor.zero_()
        assert reader.read().get(TIMEOUT) == 0
        check(mine)
        kill(pids[1])
        with pytest.raises(
            OwnerEndedError, match=rf"(?s)owner 1 of 3 \(process {pids[1]} on .*\) is gone, and no other has 'b'"
        ):
            reader.read().get(TIMEOUT)
    finally:
        procs.stop().get(TIMEOUT)


# --- mistakes


def test_what_nobody_has_is_named(ranks: Any) -> None:
    trainers = ranks(4)
    handle = StateDictHandle.combine([one.handle for one in trainers.weights[:2] + trainers.weights[3:]])
    mine = {name: torch.zeros_like(tensor) for name, tensor in FULL.items()}
    with pytest.raises(StateDictMismatchError, match=r"no owner has 'b'\[4:6\], 'w'\[6:9, 0:6\]$"):
        handle.read_into(mine)
    with pytest.raises(StateDictMismatchError, match=r"no owner has 'w'\[3:10, 0:6\]\. StateDictHandle\.combine\(\)"):
        trainers.weights[0].handle.read_into({"w": mine["w"]}, strict=False)
    last = {"w": torch.zeros(1, 6)}
    assert handle.read_into(last, strict=False, shards={"w": Shard(0, 3, 4)}).get(TIMEOUT) == 0
    assert torch.equal(last["w"], FULL["w"][9:])


def test_owners_that_do_not_fit_each_other() -> None:
    owners = [
        StateDict({"w": torch.zeros(2, 3)}),
        StateDict({"w": torch.zeros(3, 2)}),
        StateDict({"w": torch.ones(2, 3).int()}),
    ]
    handles = [one.handle for one in owners]
    with pytest.raises(
        StateDictMismatchError, match=r"'w' is float32\[2, 3\] at one owner, and float32\[3, 2\] at owner 1"
    ):
        StateDictHandle.combine(handles[:2])
    with pytest.raises(StateDictMismatchError, match=r"and int32\[2, 3\] at owner 1 \(process"):
        StateDictHandle.combine([handles[0], handles[2]])
    with pytest.raises(ValueError, match="at least one owner"):
        StateDictHandle.combine([])
    with pytest.raises(TypeError, match="takes StateDictHandles, got StateDict"):
        StateDictHandle.combine(owners)  # type: ignore[arg-type]
    for one in owners:
        one.drop().get(TIMEOUT)


@pytest.mark.parametrize(
    ("spec", "error", "text"),
    [
        (
            ((4, 3), Shard(0, 1, 2)),
            StateDictMismatchError,
            r"'w' has shape \[3, 3\], and that part of \[4, 3\] has \[2, 3\]",
        ),
        (((6, 3), Shard(2, 0, 2)), ValueError, "the shard of 'w': invalid Shard"),
        (Shard(0, 0, 2), ValueError, "the shard of 'w': .*Expected the shape of the whole and the part"),
        ((6, 3), ValueError, "the shard of 'w': .*Expected the shape of the whole and the part"),
    ],
)
def test_a_part_that_is_none(spec: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        StateDict({"w": torch.zeros(3, 3)}, shards={"w": spec})


def test_parts_of_what_is_not_there() -> None:
    with pytest.raises(StateDictMismatchError, match="shards of tensors that are not there: 'x'"):
        StateDict({"w": torch.zeros(3)}, shards={"x": ((6,), Shard(0, 0, 2))})
    with pytest.raises(ValueError, match=r"invalid double_buffer 'gpu': expected False, True, 'host' or 'device'"):
        StateDict({"w": torch.zeros(3)}, double_buffer="gpu")  # type: ignore[arg-type]


# --- DTensors, of a mesh of one


@pytest.fixture
def mesh() -> Iterator[Any]:
    """A device mesh of this process alone."""
    from torch.distributed import destroy_process_group, init_process_group
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    init_process_group("fake", store=FakeStore(), rank=1, world_size=4)
    yield init_device_mesh("cpu", (2, 2), mesh_dim_names=("outer", "inner"))
    destroy_process_group()


def test_placements_say_which_part_it_is(mesh: Any) -> None:
    from torch.distributed import tensor as dt

    def placed(local: torch.Tensor, shape: tuple[int, ...], *placements: Any) -> Any:
        stride = torch.empty(shape).stride()
        return dt.DTensor.from_local(local, mesh, placements, run_check=False, shape=torch.Size(shape), stride=stride)

    rows = placed(torch.ones(2, 6), (7, 6), dt.Shard(0), dt.Shard(0))  # of 7: 4 and 3; of 4: 2 and 2
    columns = placed(torch.full((7, 3), 2.0), (7, 6), dt.Replicate(), dt.Shard(1))
    both = placed(torch.full((4, 3), 3.0), (7, 6), dt.Shard(0), dt.Shard(1))
    weights = StateDict({"rows": rows, "columns": columns, "both": both})
    handle = weights.handle
    assert handle.shapes == dict.fromkeys(("rows", "columns", "both"), (7, 6))
    with pytest.raises(
        StateDictMismatchError, match=r"no owner has .*'both'\[0:4, 0:3\], 'both'\[4:7, 0:6\], .*'rows'\[0:2, 0:6\]"
    ):
        handle.read_into_new()
    mine = {"rows": torch.zeros(1, 2), "columns": torch.zeros(7, 3), "both": torch.zeros(1, 1)}
    parts = {"rows": (slice(3, 4), slice(1, 3)), "columns": Shard(1, 1, 2), "both": (slice(3, 4), slice(5, 6))}
    handle.read_into(mine, shards=parts).get(TIMEOUT)
    assert [tensor.unique().tolist() for tensor in mine.values()] == [[1], [2], [3]]
    # And into DTensors.
    again = placed(torch.zeros(2, 6), (7, 6), dt.Shard(0), dt.Shard(0))
    handle.read_into({"rows": again}, strict=False).get(TIMEOUT)
    assert again.to_local().unique().tolist() == [1]
    with pytest.raises(
        StateDictMismatchError, match=r"'rows' is float32\[7, 6\] at the owner and float32\[7, 5\] here"
    ):
        handle.read_into({"rows": placed(torch.zeros(2, 5), (7, 5), dt.Shard(0), dt.Shard(0))}, strict=False)
    with pytest.raises(ValueError, match="the shard of 'rows': it is a DTensor"):
        handle.read_into({"rows": again}, strict=False, shards={"rows": slice(1)})
    weights.drop().get(TIMEOUT)


def test_sums_and_scattered_parts_are_refused(mesh: Any) -> None:
    from torch.distributed import tensor as dt
    from torch.distributed.tensor.placement_types import _StridedShard

    def placed(local: torch.Tensor, *placements: Any) -> Any:
        return dt.DTensor.from_local(local, mesh, placements, run_check=False, shape=torch.Size((8,)), stride=(1,))

    with pytest.raises(RDMAMemoryError, match=r"'sum' is placed as .*Partial.*redistribute\(\) first"):
        StateDict({"sum": placed(torch.zeros(8), dt.Replicate(), dt.Partial())})
    scattered = placed(torch.zeros(2), dt.Shard(0), _StridedShard(0, split_factor=2))
    with pytest.raises(RDMAMemoryError, match=r"'w' is placed as .*does not lie together"):
        StateDict({"w": scattered})
    over_tp = placed(torch.zeros(2), _StridedShard(0, split_factor=2), dt.Shard(0))
    weights = StateDict({"w": over_tp})
    place = weights.handle._owners[0].places["w"]
    assert place.box == ((4, 6),)
    weights.drop().get(TIMEOUT)


def test_columns_of_this_process_are_copied_many_at_a_time() -> None:
    weights = StateDict({"w": torch.arange(400_000.0).reshape(100_000, 4)})
    mine = {"w": torch.zeros(100_000, 1)}
    reader = weights.handle.reader(mine, shards={"w": Shard(1, 2, 4)})
    assert reader.read().get(TIMEOUT) == 0
    assert torch.equal(mine["w"][:, 0], torch.arange(400_000.0)[2::4])
    batches = reader._plan.route.gather(0, 0)._batches
    assert 90 < len(batches) < 100
    weights.drop().get(TIMEOUT)


def test_the_plan_is_made_once(ranks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = ranks(2).handle
    made = []
    real = reading.ReadRoute.__init__

    def init(self: Any, *args: Any) -> None:
        made.append(self)
        real(self, *args)

    monkeypatch.setattr(reading.ReadRoute, "__init__", init)
    reader = handle.reader({name: torch.zeros_like(tensor) for name, tensor in FULL.items()})
    for _ in range(3):
        reader.read().get(TIMEOUT)
    assert len(made) == 1


# --- FSDP2 to tensor parallel


@full
def test_what_fsdp_shards_is_read_tensor_parallel_and_whole(tmp_path: Path) -> None:
    """Uneven parts on both sides; full_tensor() of either side's own group says what is right."""
    from tests.rdma.fsdp_weights import Generator, Trainer, model

    procs = this_host().spawn_procs({"ranks": 4}, name="fsdp")
    try:
        trainers = procs.slice(ranks=slice(0, 2)).spawn("trainers", Trainer, str(tmp_path))
        generators = procs.slice(ranks=slice(2, 4)).spawn("generators", Generator, str(tmp_path))
        handle = StateDictHandle.combine(list(trainers.publish.call().get(LONG).values()))
        for version in range(2):
            wanted = next(iter(trainers.full.call().get(LONG).values()))
            assert {name: tuple(tensor.shape) for name, tensor in wanted.items()} == handle.shapes
            mine = model(3)
            assert handle.read_into(mine).get(LONG) == version
            whole = mine.state_dict()
            read = list(generators.read.call(handle).get(LONG).values())
            for got in (whole, *(tensors for _, _, tensors in read)):
                assert got.keys() == wanted.keys()
                assert all(torch.equal(got[name], tensor) for name, tensor in wanted.items())
            assert [seen for seen, _, _ in read] == [version] * 2
            every = sum(tensor.nbytes for tensor in wanted.values())
            assert all(moved < every for _, moved, _ in read), "a rank reads its own part"
            assert set(trainers.step.call().get(LONG).values()) == {version + 1}
        trainers.drop.call().get(LONG)
    finally:
        procs.stop().get(LONG)
