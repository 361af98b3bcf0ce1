"""Process groups in remote functions, where they meet, and what becomes of them when something fails."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import monarch
from monarch.actor import Actor, ProcMesh, SupervisionError, endpoint, this_host, this_proc
from monarch.tensor import RemoteException, Stream, inspect
from monarch.tensor.controller.engines import spawn_tensor_engine
from monarch.tensor.controller.taint import Taints, merge, unconfirmed
from monarch.tensor.remote.remote_function import remote
from monarch.tensor.worker import current, stream_group
from monarch.tensor.worker.rendezvous import MessageStore, Rendezvous
from tests.support.patience import TIMEOUT
from tests.support.tiers import first_of, full


@pytest.fixture
def mesh(square: ProcMesh) -> Iterator[Any]:
    with square.activate() as active:
        yield active


def like(tensor: Any, group: Any) -> Any:
    return torch.empty_like(tensor)


@remote(propagate=lambda group: torch.empty(4, dtype=torch.int64))
def who(group: Any) -> Any:
    import torch.distributed as dist

    ranks = dist.get_process_group_ranks(group)
    return torch.tensor([dist.get_rank(group), dist.get_world_size(group), dist.get_rank(), ranks[0]])


@remote(propagate=like)
def sum_over(tensor: Any, group: Any) -> Any:
    import torch.distributed as dist

    tensor = tensor.clone()
    dist.all_reduce(tensor, group=group)
    return tensor


@remote(propagate=lambda tensor, group: [torch.empty(1) for _ in range(9)])
def everything(tensor: Any, group: Any) -> Any:
    """One number of each kind of collective."""
    import torch.distributed as dist

    ranks = dist.get_process_group_ranks(group)
    me, size = dist.get_rank(group), len(ranks)
    found = []
    sent = tensor.clone()
    dist.broadcast(sent, src=ranks[1], group=group)
    found.append(sent)
    every = torch.zeros(size)
    dist.all_gather_into_tensor(every, tensor, group=group)
    found.append(every.sum().reshape(1))
    listed = [torch.zeros(1) for _ in ranks]
    dist.all_gather(listed, tensor, group=group)
    found.append(listed[-1])
    received = torch.zeros(1)
    work = dist.isend(tensor, ranks[(me + 1) % size], group=group)
    dist.irecv(received, ranks[(me - 1) % size], group=group).wait()
    work.wait()
    found.append(received)
    part = torch.zeros(1)
    dist.reduce_scatter_tensor(part, torch.arange(float(size)), group=group)
    found.append(part)
    swapped = torch.zeros(size)
    dist.all_to_all_single(swapped, torch.arange(float(size)) + 10 * me, group=group)
    found.append(swapped[-1:])
    objects: list[Any] = [None] * size
    dist.all_gather_object(objects, {"rank": me}, group=group)
    found.append(torch.tensor([float(objects[-1]["rank"])]))
    total = tensor.clone()
    dist.reduce(total, dst=ranks[0], op=dist.ReduceOp.MAX, group=group)
    found.append(total if me == 0 else torch.zeros(1))
    dist.barrier(group=group)
    batch = torch.zeros(1)
    other = ranks[(me + 1) % size]
    for work in dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, tensor, other, group), dist.P2POp(dist.irecv, batch, other, group)]
    ):
        work.wait()
    found.append(batch)
    return found


def test_what_a_function_gets(mesh: Any) -> None:
    group = mesh.process_group("gpu")
    assert (group.dims, group.size(), group.dropped) == (("gpu",), 2, False)
    found = who(group)
    for host in range(2):
        for gpu in range(2):
            rank = 2 * host + gpu
            assert inspect(found, host=host, gpu=gpu).tolist() == [gpu, 2, rank, 2 * host]
    whole = mesh.process_group(("host", "gpu"))
    assert whole.size() == 4 and mesh.process_group(()).dims == ("host", "gpu")
    assert inspect(who(whole), host=1, gpu=0).tolist() == [2, 4, 2, 0]
    with pytest.raises(KeyError, match="'row'"):
        mesh.process_group("row")


def test_every_collective(mesh: Any) -> None:
    group = mesh.process_group("gpu")
    with torch.no_grad():
        tensor = torch.ones(1) * mesh.process_idx()
    found = everything(tensor, group)
    for host, gpu in ((0, 0), (0, 1), (1, 0), (1, 1)):
        low = 2 * host
        got = [part.tolist()[0] for part in inspect(found, host=host, gpu=gpu)]
        assert got == [
            low + 1,  # from the second of the group
            2 * low + 1,
            low + 1,
            low + 1 - gpu,  # the neighbour's
            2 * gpu,
            10 + gpu,
            1,
            low + 1 if gpu == 0 else 0,
            low + 1 - gpu,
        ]


def test_groups_are_apart_and_so_are_streams(mesh: Any) -> None:
    one, two = mesh.process_group("gpu"), mesh.process_group("gpu")
    other = Stream("other")
    tensor = torch.ones(2)
    with other.activate():
        theirs = torch.ones(2)
    results = []
    for _ in range(5):
        results += [sum_over(tensor, one), sum_over(tensor, two)]
        with other.activate():
            theirs = sum_over(theirs, one)
    for result in results:
        assert inspect(result, host=0, gpu=1).tolist() == [2, 2]
    with other.activate():
        assert inspect(theirs, host=1, gpu=0).tolist() == [32, 32]


def test_streams_make_their_groups_known_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    alone: list[bool] = []

    def noted(*_args: Any) -> None:
        alone.append(stream_group._registering.locked())

    monkeypatch.setattr(stream_group, "_make_room_for_world", noted)
    monkeypatch.setattr(stream_group, "groups_of", lambda worker: SimpleNamespace(_store=torch.distributed.HashStore()))
    monkeypatch.setattr(stream_group.torch_versions, "register_group", noted)
    worker = SimpleNamespace(executor=SimpleNamespace(rank=0), services=(None, "engine"))
    stream_group.StreamGroup(worker, "label", (0, 1)).register()
    assert alone == [True, True]
    assert not stream_group._registering.locked()


def test_a_dropped_group(mesh: Any) -> None:
    group = mesh.process_group("gpu")
    tensor = torch.ones(2)
    before = sum_over(tensor, group)
    group.drop()
    group.drop()
    assert group.dropped
    assert inspect(before, host=0, gpu=0).tolist() == [2, 2]
    with pytest.raises(TypeError, match=r"was dropped(.|\n)*is dropped at:(.|\n)*group\.drop\(\)"):
        sum_over(tensor, group)


def test_it_needs_a_propagator(mesh: Any) -> None:
    with pytest.raises(TypeError, match="was passed a group of ranks"):
        remote(lambda tensor, group: tensor)(torch.ones(2), mesh.process_group("gpu"))


@remote(propagate=like)
def fail_on_one(tensor: Any, group: Any) -> Any:
    import torch.distributed as dist

    if dist.get_rank() == 1:
        raise ValueError("not on this rank")
    dist.all_reduce(tensor, group=group)
    return tensor


def test_a_failing_function_closes_its_group(mesh: Any) -> None:
    group, other = mesh.process_group("gpu"), mesh.process_group("gpu")
    tensor = torch.ones(2)
    assert inspect(sum_over(tensor, group), host=0, gpu=0).tolist() == [2, 2]
    broken = fail_on_one(tensor, group)
    for gpu in range(2):
        with pytest.raises(RemoteException, match="ValueError: not on this rank") as caught:
            inspect(broken, host=0, gpu=gpu)
        assert caught.value.rank == 1
    with pytest.raises(RemoteException, match="cannot be used any more"):
        inspect(sum_over(tensor, group), host=0, gpu=1)
    assert inspect(sum_over(tensor, other), host=0, gpu=1).tolist() == [2, 2]
    assert inspect(sum_over(tensor, mesh.process_group("gpu")), host=0, gpu=1).tolist() == [2, 2]


class Spmd(Actor):
    """A program in the same processes that has torch's default group for itself."""

    @endpoint
    def start(self, folder: str, rank_of: dict[int, int]) -> None:
        import os

        import torch.distributed as dist

        rank = int(os.environ["RANK"])
        dist.init_process_group(
            "gloo", store=dist.FileStore(f"{folder}/store", len(rank_of)), rank=rank, world_size=len(rank_of)
        )

    @endpoint
    def total(self) -> float:
        import torch.distributed as dist

        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        return float(tensor)

    @endpoint
    def finish(self) -> bool:
        import torch.distributed as dist

        dist.destroy_process_group()
        return dist.is_initialized()


@full
def test_the_default_group_is_the_programs_own(mesh: Any, square: ProcMesh, tmp_path: Any) -> None:
    group = mesh.process_group("gpu")
    tensor = torch.ones(2)
    assert inspect(sum_over(tensor, group), host=0, gpu=0).tolist() == [2, 2]
    program = square.spawn("spmd", Spmd)
    program.start.call(str(tmp_path), {rank: rank for rank in range(4)}).get(timeout=TIMEOUT)
    assert inspect(sum_over(tensor, group), host=0, gpu=0).tolist() == [2, 2]
    assert set(program.total.call().get(timeout=TIMEOUT).values()) == {4.0}
    assert inspect(who(group), host=1, gpu=1).tolist() == [1, 2, 3, 2]
    assert set(program.finish.call().get(timeout=TIMEOUT).values()) == {False}
    fresh = mesh.process_group("gpu")
    assert inspect(sum_over(tensor, fresh), host=0, gpu=0).tolist() == [2, 2]
    assert inspect(tensor.reduce("gpu"), host=0, gpu=0).tolist() == [2, 2]
    program.stop().get(timeout=TIMEOUT)


@remote(propagate="inspect")
def die(tensor: Any) -> None:
    import os
    import signal

    if current.worker().executor.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("how", first_of(["reduce", "move", "group"]))
def test_a_death_ends_what_waits_for_it(how: str) -> None:
    procs = this_host().spawn_procs({"gpus": 2}, name=f"mortal-{how}")
    try:
        mesh = spawn_tensor_engine(procs)
        group = mesh.process_group("gpus")
        with mesh.activate():
            tensor = torch.ones(3)
            inspect(tensor.reduce("gpus"), gpus=0)
            inspect(sum_over(tensor, group), gpus=0)
            die(tensor)
            left = mesh.slice(gpus=0)
            ends = pytest.raises((SupervisionError, RemoteException, RuntimeError), match=r"SIGKILL|ended|lost|closed")
            with ends:  # the operation raises by itself when the death is known already
                if how == "reduce":
                    inspect(tensor.reduce("gpus"), gpus=0)
                elif how == "move":
                    inspect(tensor.slice_mesh(gpus=1).to_mesh(left))
                else:
                    inspect(sum_over(tensor, group), gpus=0)
    finally:
        procs.stop().get(timeout=TIMEOUT)


class Look(Actor):
    """A look at what torch knows of groups in a process."""

    @endpoint
    def groups(self) -> tuple[int, bool]:
        import torch.distributed as dist
        from torch.distributed import distributed_c10d as c10d

        return len(c10d._world.pg_map), dist.is_initialized()


def test_an_engine_that_ended_leaves_no_group_behind() -> None:
    procs = this_host().spawn_procs({"gpus": 2}, name="again")
    try:
        look = procs.spawn("look", Look)
        for _ in range(2):
            mesh = spawn_tensor_engine(procs)
            group = mesh.process_group("gpus")
            with mesh.activate():
                tensor = torch.ones(3)
                assert inspect(sum_over(tensor, group), gpus=0).tolist() == [2, 2, 2]
                assert inspect(tensor.slice_mesh(gpus=1).to_mesh(mesh.slice(gpus=0))).tolist() == [1, 1, 1]
            assert set(look.groups.call().get(timeout=TIMEOUT).values()) == {(2, False)}
            mesh.exit()
            assert set(look.groups.call().get(timeout=TIMEOUT).values()) == {(0, False)}
    finally:
        procs.stop().get(timeout=TIMEOUT)


# --- where they meet ------------------------------------------------------------------------------------------


def test_a_rendezvous_answers_when_the_value_is_there() -> None:
    rendezvous: Any = this_proc().spawn("rendezvous", Rendezvous)

    def call(name: str, seconds: float, *args: Any) -> Any:
        return getattr(rendezvous, name).call_one(*args).get(timeout=seconds)

    store = MessageStore(call, TIMEOUT)
    later = rendezvous.look.call_one("g/a", "x")
    store.set("g/a/y", "2")
    store.set("g/a/x", b"1")
    assert later.get(timeout=TIMEOUT) == {"x": b"1", "y": b"2"}
    other = MessageStore(call, TIMEOUT, write_once=True)
    assert other.get("g/a/y") == b"2"
    assert other._seen == {"g/a/x": b"1", "g/a/y": b"2"}
    assert (store.add("n", 2), store.add("n", 3)) == (2, 5)
    rendezvous.leave.call_one("g", 2).get(timeout=TIMEOUT)  # the other one may still be on its way to the group
    assert rendezvous.look.call_one("g/a", "x").get(timeout=TIMEOUT) == {"x": b"1", "y": b"2"}
    rendezvous.leave.call_one("g", 2).get(timeout=TIMEOUT)
    waiting = rendezvous.look.call_one("g/a", "x")
    rendezvous.end.call_one("rank 3 has ended").get(timeout=TIMEOUT)
    with pytest.raises(Exception, match="rank 3 has ended"):
        waiting.get(timeout=TIMEOUT)
    with pytest.raises(Exception, match="rank 3 has ended"):
        other.wait(["b/c"])
    rendezvous.stop().get(timeout=TIMEOUT)


# --- what depends on them -------------------------------------------------------------------------------------


class Place:
    def __init__(self, stream: Any) -> None:
        self.stream = stream


def test_taints_end_when_every_rank_is_done() -> None:
    taints = Taints()
    main, other = Place(monarch.tensor.controller.stream.MAIN), Place(Stream("other"))
    first = taints.issued(3, main, [None])
    second = taints.issued(5, main, [first, first])
    bad = taints.issued(7, main, [second])
    after = taints.issued(9, main, [bad])
    aside = taints.issued(11, other, [first])
    assert second.parents == (first,)
    assert {taint.ident for taint in unconfirmed([after, aside])} == {3, 5, 7, 9, 11}
    taints.bad(7)
    taints.done(8)
    assert (first.good, second.good, bad.good) == (True, True, False)
    assert {taint.ident for taint in unconfirmed([after])} == {7, 9}
    taints.done(100)
    assert {taint.ident for taint in unconfirmed([after, aside])} == {7, 9, 11}


def test_merged_taints_say_all() -> None:
    taints = Taints()
    main = Place(monarch.tensor.controller.stream.MAIN)
    one, two = taints.issued(1, main, ()), taints.issued(2, main, ())
    child = taints.issued(3, main, [one])
    assert merge(None, one) is one and merge(one, None) is one and merge(one, one) is one
    assert merge(one, child) is child and merge(child, one) is child
    both = merge(two, child)
    assert both is not None and {taint.ident for taint in unconfirmed([both])} == {1, 2, 3}
    taints.done(2)
    assert merge(one, two) is two and merge(two, one) is two
    taints.done(10)
    assert merge(one, two) is None
    assert unconfirmed([both]) == []


def test_a_long_chain_of_collectives_is_let_go() -> None:
    taints = Taints()
    main = Place(monarch.tensor.controller.stream.MAIN)
    last = None
    for ident in range(1, 10_000):
        last = taints.issued(ident, main, [last])
        if ident % 100 == 0:
            taints.done(ident)
    assert last is not None and len(unconfirmed([last])) == 100
    assert len(taints._open) == 100
