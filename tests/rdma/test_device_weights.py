"""Weights on a card, read in place: between cards, to the host, in few copies, of one version. The card is a fake."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from monarch._devices import memory
from monarch.actor import Actor, ProcMesh, endpoint
from monarch.rdma import RDMAMemoryError, Shard, StateDict, StateDictBusyError, StateDictHandle, device_batches
from monarch.rdma.device_batches import DeviceBatch, batches, bucket
from monarch.rdma.layout import Block, block
from tests._devices.fake import plain
from tests._devices.queued import QueuedCard
from tests.rdma.buffers import use_path
from tests.support.patience import TIMEOUT
from tests.support.tiers import first_of, full

pytestmark = [
    pytest.mark.procs,
    pytest.mark.usefixtures("torch_preloaded"),
    pytest.mark.filterwarnings("ignore::monarch.rdma.RDMATcpFallbackWarning"),
]


@pytest.fixture
def card() -> Iterator[QueuedCard]:
    fake = QueuedCard()
    before = memory.replace(fake)
    yield fake
    memory.replace(before)
    fake.close()
    assert fake.begun == fake.waited


def numbered(card: QueuedCard, *shape: int, start: float = 0, dtype: torch.dtype = torch.float32) -> Any:
    made = card.zeros(*shape, dtype=dtype)
    plain(made).copy_((torch.arange(made.numel()) + start).reshape(shape))
    return made


# --- what is read


def test_weights_on_a_card_are_read_where_they_stand(card: QueuedCard) -> None:
    source = {f"w{i}": numbered(card, 3, 5, start=i) for i in range(20)} | {"host": torch.ones(4)}
    flat = numbered(card, 100)
    source |= {"left": flat[:50], "right": flat[50:], "none": card.zeros(0)}
    weights = StateDict(source)
    assert len(weights.handle.registered()) == 1 + 20 + 1 + 1, "a storage is registered once, none for its names"
    assert weights.handle.path == "local"
    begun = card.begun
    mine = {name: torch.zeros(tensor.shape) for name, tensor in source.items()}
    assert weights.handle.read_into(mine).get(TIMEOUT) == 0
    for name, tensor in source.items():
        assert torch.equal(mine[name], plain(tensor)), name
    assert card.begun == begun + 1, "small tensors come to the host by one copy that is waited for"
    there = {name: card.zeros(*tensor.shape) for name, tensor in source.items()}
    assert weights.handle.read_into(there).get(TIMEOUT) == 0
    for name, tensor in source.items():
        assert torch.equal(plain(there[name]), plain(tensor)), name
    assert card.begun == begun + 3, "one between tensors on the card, one for what comes from the host"
    _, new = weights.handle.read_into_new().get(TIMEOUT)
    assert torch.equal(new["left"], plain(flat[:50]))
    weights.drop().get(TIMEOUT)


@pytest.mark.parametrize("where", ["cuda", "cpu"])
def test_parts_in_columns(card: QueuedCard, where: str) -> None:
    """Transfers as boxes, not row by row."""
    owners = [
        StateDict({"w": numbered(card, 40, 12, start=480 * rank)}, shards={"w": ((80, 12), Shard(0, rank, 2))})
        for rank in range(2)
    ]
    handle = StateDictHandle.combine([one.handle for one in owners])
    mine = card.zeros(80, 4) if where == "cuda" else torch.zeros(80, 4)
    copied = card.copied
    handle.read_into({"w": mine}, shards={"w": Shard(1, 1, 3)}).get(TIMEOUT)
    assert torch.equal(plain(mine), torch.arange(960.0).reshape(80, 12)[:, 4:8])
    assert card.copied - copied <= 4
    for one in owners:
        one.drop().get(TIMEOUT)


@pytest.mark.parametrize("small", [False, True])
def test_staged_and_strided_targets_on_a_card(card: QueuedCard, small: bool) -> None:
    size = 4 if small else 200_000
    weights = StateDict({"a": numbered(card, size, 2), "b": torch.arange(6.0).reshape(2, 3)})
    wide, rows = card.zeros(size, 4), card.zeros(3, 2)
    weights.handle.read_into({"a": wide[:, 1:3], "b": rows.t()}).get(TIMEOUT)
    assert torch.equal(plain(wide)[:, 1:3], torch.arange(2.0 * size).reshape(size, 2))
    assert not plain(wide)[:, ::3].any()
    assert torch.equal(plain(rows).t(), torch.arange(6.0).reshape(2, 3))
    mine = {"a": card.zeros(size, 2), "b": card.zeros(2, 3)}
    weights.handle.read_into(mine, staged=True).get(TIMEOUT)
    assert torch.equal(plain(mine["a"]), torch.arange(2.0 * size).reshape(size, 2))
    weights.drop().get(TIMEOUT)


def test_what_a_card_holds_may_be_too_large_for_a_bucket(card: QueuedCard, monkeypatch: pytest.MonkeyPatch) -> None:
    from monarch.rdma import device_gather

    monkeypatch.setattr(device_gather, "BUCKET", 4096)
    monkeypatch.setattr(device_batches, "BETWEEN", 4096)
    monkeypatch.setattr(device_batches, "PIECE", 4096)
    source = {str(i): torch.arange(700.0) + i for i in range(9)}
    on_card = {name: card.zeros(700) for name in source}
    weights = StateDict(source)
    weights.handle.read_into(on_card).get(TIMEOUT)
    there = StateDict(on_card)
    back = {name: torch.zeros(700) for name in source}
    there.handle.read_into(back).get(TIMEOUT)
    again = {name: card.zeros(700) for name in source}
    there.handle.read_into(again).get(TIMEOUT)
    for name, tensor in source.items():
        assert torch.equal(back[name], tensor)
        assert torch.equal(plain(again[name]), tensor)
    for one in (weights, there):
        one.drop().get(TIMEOUT)


# --- versions


def test_a_version_is_published_when_the_card_has_written_it(card: QueuedCard) -> None:
    source = {"a": card.zeros(10), "b": card.zeros(10)}
    weights, mine = StateDict(source), {"a": torch.zeros(10), "b": torch.zeros(10)}
    with weights.updating():
        card.fill(source["a"], 1)
        card.fill(source["b"], 1)
        with pytest.raises(StateDictBusyError, match="in the middle of making version 1"):
            weights.handle.read_into(mine, timeout=0.02).get(TIMEOUT)
    assert weights.handle.read_into(mine).get(TIMEOUT) == 1
    assert mine["a"].tolist() == mine["b"].tolist() == [1] * 10
    assert card.drained == 1
    weights.drop().get(TIMEOUT)


def test_a_read_that_an_update_came_into_is_done_over(card: QueuedCard) -> None:
    """The card writes while a copy is under way: the counters are looked at after the copy was waited for."""
    source = {"a": card.zeros(1000)}
    weights, mine = StateDict(source), {"a": card.zeros(1000)}
    real, came = card.begin_all, []

    def begin_all(copies: Any, after: Any = ()) -> Any:
        wait = real(copies, after)

        def done() -> None:
            if not came:
                came.append(1)
                with weights.updating():
                    card.fill(source["a"][:500], 1)  # the half of it is seen by this copy
                card.fill(source["a"][500:], 1)
                card.drain("cuda:0")
            wait()

        return done

    card.begin_all = begin_all  # type: ignore[method-assign]
    assert weights.handle.read_into(mine).get(TIMEOUT) == 1
    assert bool((plain(mine["a"]) == 1).all())
    weights.drop().get(TIMEOUT)


def test_a_read_comes_after_what_the_reader_gave_its_card_to_do(card: QueuedCard) -> None:
    weights = StateDict({"a": torch.ones(10)})
    mine = card.zeros(10)
    reader = weights.handle.reader({"a": mine})
    card.fill(mine, 7)  # a forward pass that still uses, or here writes to, the old weights
    reader.read().get(TIMEOUT)
    card.drain("cuda:0")
    assert plain(mine).tolist() == [1] * 10
    weights.drop().get(TIMEOUT)


@pytest.mark.parametrize("where", ["host", "device", True])
def test_two_copies(card: QueuedCard, where: Any) -> None:
    source = {"a": card.zeros(5, 4), "t": numbered(card, 4, 6).t(), "host": torch.zeros(3)}
    weights = StateDict(source, double_buffer=where)
    devices = {buffer._handle.device is not None for buffer in weights.handle.registered()[1:]}
    assert devices == ({True, False} if where == "device" else {False})
    card.fill(source["a"], 3)
    assert weights.publish() == 1
    card.fill(source["a"], 9)
    card.drain("cuda:0")
    mine = {"a": torch.zeros(5, 4), "t": torch.zeros(6, 4), "host": torch.ones(3)}
    assert weights.handle.read_into(mine).get(TIMEOUT) == 1
    assert bool((mine["a"] == 3).all()), "what was queued before it, nothing that came after"
    assert torch.equal(mine["t"], torch.arange(24.0).reshape(4, 6).t())
    there = {"a": card.zeros(5, 4), "t": card.zeros(6, 4), "host": card.zeros(3)}
    assert weights.handle.read_into(there).get(TIMEOUT) == 1
    assert bool((plain(there["a"]) == 3).all())
    weights.drop().get(TIMEOUT)


def test_what_cannot_be_read_in_place_names_the_tensor(card: QueuedCard) -> None:
    with pytest.raises(RDMAMemoryError, match=r"'t': .*not contiguous"):
        StateDict({"a": card.zeros(3), "t": card.zeros(4, 5).t()})


# --- copies, one by one


def test_small_blocks_cross_the_bus_together(card: QueuedCard) -> None:
    flat = card.flat(numbered(card, 300_000))
    small = [Block(40 * i, 0, 20) for i in range(5)]
    strided = block(((0, 10), (0, 8)), ((0, 10), (0, 2)), ((0, 10), (0, 2)), 4)
    host = torch.zeros(2 << 20, dtype=torch.uint8)
    large = Block(4096, 0, device_batches.SMALL)
    copies = bucket([(flat, one, None) for one in (*small, strided, large)], host, to_device=False)
    crossing = [(target, source) for target, source in copies if not isinstance(target, type(flat))]
    assert len(crossing) == 2, "one for all small ones, one for what is large"
    card.begin_all(copies)()
    at = 0
    for one in (*small, strided, large):
        wanted = b"".join(bytes(plain(flat)[there : there + size].numpy()) for there, _, size in one.pieces())
        assert bytes(host[at : at + one.total].numpy()) == wanted
        at += device_batches.room([one])


def test_batches_are_bounded(card: QueuedCard) -> None:
    blocks = [(0, Block(0, 0, 10), None)] * 3000 + [(0, Block(0, 0, 10 * device_batches.PIECE), None)]
    nobody: Any = None
    made: list[DeviceBatch] = batches([], blocks, True, nobody)
    assert all(one.total <= device_batches.PIECE for one in made)
    assert len(made) == 3 + 10


# --- another process


class Side(Actor):
    """A process with a card."""

    def __init__(self) -> None:
        import warnings

        from monarch.rdma import RDMATcpFallbackWarning

        warnings.simplefilter("ignore", RDMATcpFallbackWarning)
        self.card = QueuedCard()
        self.before = memory.replace(self.card)

    def __cleanup__(self, exc: Exception | None) -> None:
        from monarch.rdma import paths

        memory.replace(self.before)
        self.card.close()
        paths.BACKENDS = self.backends if hasattr(self, "backends") else paths.BACKENDS

    @endpoint
    def publish(self, count: int) -> StateDictHandle:
        self.source = {f"w{i}": numbered(self.card, 7, 300, start=i) for i in range(count)}
        self.weights = StateDict(self.source)
        return self.weights.handle

    @endpoint
    def update(self) -> None:
        with self.weights.updating():
            for tensor in self.source.values():
                self.card.launch(lambda tensor=tensor: plain(tensor).add_(1))  # type: ignore[misc]

    @endpoint
    def drop(self) -> None:
        self.weights.drop().get(TIMEOUT)

    @endpoint
    def read(self, handle: StateDictHandle, path: str, where: str) -> tuple[Any, ...]:
        from monarch.rdma import paths

        self.backends = paths.BACKENDS
        use_path(path, "process_vm")
        try:
            zeros = self.card.zeros if where == "cuda" else torch.zeros
            mine = {name: zeros(7, 100) for name in handle.shapes}
            reader = handle.reader(mine, shards={name: Shard(1, 1, 3) for name in mine})
            seen = []
            for _ in range(2):
                version = reader.read(timeout=TIMEOUT).get(TIMEOUT)
                seen.append((version, {name: plain(tensor).clone() for name, tensor in mine.items()}))
            return handle.path, seen
        finally:
            paths.BACKENDS = self.backends

    @endpoint
    def refuse(self) -> None:
        self.card.ipc = "the allocator uses expandable segments"


@pytest.fixture
def sides(shared_procs: ProcMesh) -> Iterator[tuple[Any, Any]]:
    one = shared_procs.slice(who=0).spawn("owner", Side)
    other = shared_procs.slice(who=1).spawn("reader", Side)
    yield one, other
    for mesh in (one, other):
        mesh.stop().get(timeout=TIMEOUT)


@full
@pytest.mark.parametrize("path", first_of(["device_ipc", "tcp", "actor"]))
@pytest.mark.parametrize("where", first_of(["cuda", "cpu"]))
def test_from_another_process(sides: Any, path: str, where: str) -> None:
    owner, reader = sides
    handle = owner.publish.call_one(30).get(TIMEOUT)
    for more in range(2):
        took, seen = reader.read.call_one(handle, path, where).get(TIMEOUT)
        assert took == path
        for version, tensors in seen:
            assert version == more
            for i in range(30):
                wanted = (torch.arange(2100.0).reshape(7, 300) + i + more)[:, 100:200]
                assert torch.equal(tensors[f"w{i}"], wanted)
        owner.update.call_one().get(TIMEOUT)
    owner.drop.call_one().get(TIMEOUT)


def test_an_owner_that_does_not_lend_its_memory_is_reached_otherwise(sides: Any) -> None:
    owner, reader = sides
    handle = owner.publish.call_one(3).get(TIMEOUT)
    owner.refuse.call_one().get(TIMEOUT)
    path, seen = reader.read.call_one(handle, "", "cuda").get(TIMEOUT)
    assert path == "tcp"
    assert torch.equal(seen[1][1]["w2"], (torch.arange(2100.0).reshape(7, 300) + 2)[:, 100:200])
    owner.drop.call_one().get(TIMEOUT)
