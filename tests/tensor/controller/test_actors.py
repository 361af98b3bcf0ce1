"""Distributed tensors as arguments of actors in the same processes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import monarch
from monarch.actor import Accumulator, Actor, SupervisionError, concurrent_endpoint, endpoint, this_host
from monarch.tensor import RemoteException
from monarch.tensor.worker import actor_transfers
from monarch.tensor.worker.actor_transfers import HandoverTable, WorkerGone

# --- the table of a process


def test_a_value_is_taken_once_and_by_name() -> None:
    table = HandoverTable()
    table.open("w")
    table.put(("w", 2), "two", "actors", 0.0)
    table.put(("w", 1), "one", "actors", 0.0)
    assert table.take(("w", 1), "w") == "one" and table.take(("w", 2), "w") == "two"
    assert len(table) == 0


def test_who_waits_gets_what_comes_or_learns_that_nothing_will() -> None:
    table = HandoverTable()
    table.open("w")
    got: list[Any] = []

    def take(number: int) -> None:
        try:
            got.append(table.take(("w", number), "w"))
        except WorkerGone as exc:
            got.append(str(exc))

    threads = [threading.Thread(target=take, args=(number,)) for number in range(2)]
    threads[0].start()
    table.put(("w", 0), "there", "actors", 0.0)
    threads[0].join(30)
    threads[1].start()
    table.close("w")
    threads[1].join(30)
    assert got[0] == "there" and "tensor worker of this process has ended" in got[1]
    table.put(("w", 3), "late", "actors", 0.0)
    assert len(table) == 0
    with pytest.raises(WorkerGone):
        table.take(("w", 3), "w")


def test_a_worker_that_never_comes_up_is_waited_for_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actor_transfers, "STARTING", 0.01)
    with pytest.raises(WorkerGone, match="none came up within"):
        HandoverTable().take(("w", 1), "w")


def test_results_go_with_the_last_worker_and_claims_with_their_own() -> None:
    table = HandoverTable()
    table.open("v")
    table.open("w")
    table.put(("v", 1), "claim", "actors", 0.0)
    table.put(("client", "root", 1), "result", "", 0.0)
    table.close("v")
    assert len(table) == 1
    table.put_if_absent(("client", "root", 1), "another", 0.0)
    assert table.take(("client", "root", 1), "w") == "result"
    table.put_if_absent(("client", "root", 2), "left", 0.0)
    table.close("w")
    assert len(table) == 0


def test_what_actors_have_left_behind_is_thrown_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actor_transfers, "lives_here", lambda key: key == "alive")
    monkeypatch.setattr(actor_transfers, "LEFT_OVER", 8)
    monkeypatch.setattr(actor_transfers, "KEPT", 2)
    table = HandoverTable()
    table.open("w")
    for number in range(4):
        table.put(("w", number), number, "alive" if number % 2 else "ended", 0.0)
    for number in range(12):
        table.put(("client", "root", number), number, "", actor_transfers.LATE + 1.0)
    assert len(table) == 14  # those of the actors that have ended are gone
    assert table.take(("w", 1), "w") == 1
    assert isinstance(table.take(("client", "root", 0), "w"), RuntimeError)
    assert table.take(("client", "root", 11), "w") == 11


# --- with processes


class Holder(Actor):
    def __init__(self, start: Any = None) -> None:
        self.value = start
        self.seen: list[Any] = []

    @endpoint
    def held(self) -> Any:
        return self.value

    @endpoint
    def kind(self, tensor: Any) -> str:
        return type(tensor).__name__

    @endpoint
    def total(self, first: Any, factor: float = 1.0, more: Any = ()) -> float:
        return float(first.sum() * factor + sum(item.sum() for item in more))

    @endpoint
    def note(self, what: Any) -> None:
        self.seen.append(float(what.sum()) if isinstance(what, torch.Tensor) else what)

    @endpoint
    def noted(self) -> list[Any]:
        return self.seen

    @endpoint
    def same(self, pair: tuple[Any, Any]) -> bool:
        return pair[0] is pair[1]

    @endpoint
    def double(self, tensor: Any) -> None:
        tensor.mul_(2)

    @endpoint
    def keep(self, tensor: Any) -> None:
        self.value = tensor

    @endpoint
    def fails(self) -> None:
        raise ValueError("as asked")


class Mixed(Actor):
    @endpoint
    async def total(self, tensor: Any) -> float:
        return float(tensor.sum())

    @concurrent_endpoint
    async def beside(self, tensor: Any) -> float:
        return float(tensor.sum())


@pytest.fixture
def holders(procs: Any) -> Iterator[Any]:
    holders = procs.spawn("holders", Holder)
    yield holders
    holders.stop().get(timeout=300)


def test_each_actor_gets_its_own_local_tensor(procs: Any, holders: Any) -> None:
    with procs.activate():
        t = torch.rand(5)
    got = [value for _, value in holders.total.call(t).get(timeout=300).items()]
    wanted = [float(monarch.inspect(t.sum(), gpus=rank)) for rank in range(2)]
    assert got == pytest.approx(wanted) and wanted[0] != wanted[1]
    assert [value for _, value in holders.kind.call(t).get(timeout=300).items()] == ["Tensor", "Tensor"]


def test_tensors_nested_and_by_name_beside_other_arguments(procs: Any, holders: Any) -> None:
    with procs.activate():
        t, u = torch.ones(3), torch.full((2, 2), 5.0)
        assert [v for _, v in holders.total.call(t, 3, more=[u, u]).get(timeout=300).items()] == [49.0, 49.0]
        assert [v for _, v in holders.same.call((t, t)).get(timeout=300).items()] == [True, True]


def test_a_message_that_needs_cloudpickle_has_its_tensors_once(procs: Any, holders: Any) -> None:
    from monarch.tensor.worker.actor_transfers import waiting

    with procs.activate():
        t = torch.ones(3)
    before = len(waiting)
    got = holders.total.call(t, 2, more=(t, *[t for _ in range(1)])).get(timeout=300)
    holders.note.call((lambda: 1, t)).get(timeout=300)
    assert [v for _, v in got.items()] == [12.0, 12.0]
    assert len(waiting) == before


def test_every_adverb(procs: Any, holders: Any) -> None:
    with procs.activate():
        t = torch.full((2,), 4.0)
    assert [future.get(timeout=300) for future in holders.total.stream(t)] == [8.0, 8.0]
    assert holders.total.choose(t).get(timeout=300) == 8.0
    assert holders.slice(gpus=1).total.call_one(t).get(timeout=300) == 8.0
    assert holders.total.with_timeout(30).call(t).get().item(gpus=0) == 8.0
    assert Accumulator(holders.total, 0.0, "sum").accumulate(t).get(timeout=300) == 16.0
    holders.note.broadcast(t)
    assert [v for _, v in holders.noted.call().get(timeout=300).items()] == [[8.0], [8.0]]


def test_async_and_concurrent_endpoints(procs: Any) -> None:
    mixed = procs.spawn("mixed", Mixed)
    with procs.activate():
        t = torch.ones(6)
    assert [v for _, v in mixed.total.call(t).get(timeout=300).items()] == [6.0, 6.0]
    assert [v for _, v in mixed.beside.call(t).get(timeout=300).items()] == [6.0, 6.0]
    mixed.stop().get(timeout=300)


def test_messages_with_and_without_tensors_keep_their_order(procs: Any, holders: Any) -> None:
    with procs.activate():
        t = torch.zeros(())
        for number in range(20):
            if number % 2:
                holders.note.broadcast(number)
            else:
                holders.note.broadcast(t + number)
    wanted = [number if number % 2 else float(number) for number in range(20)]
    assert [v for _, v in holders.noted.call().get(timeout=300).items()] == [wanted, wanted]


def test_the_actor_gets_the_memory_as_it_is_at_that_point_of_the_stream(procs: Any, holders: Any) -> None:
    with procs.activate():
        t = torch.ones(4)
        t.add_(1)
        holders.keep.call(t).get(timeout=300)
        t.add_(1)  # live: shows in the actor
        monarch.inspect(t)
    assert [v.tolist() for _, v in holders.held.call().get(timeout=300).items()] == [[3.0] * 4] * 2
    holders.double.call(t).get(timeout=300)
    assert monarch.inspect(t, gpus=1).tolist() == [6.0] * 4


def test_a_tensor_dropped_after_the_call_still_arrives(procs: Any, holders: Any) -> None:
    with procs.activate():
        t = torch.full((3,), 2.0)
    holders.keep.broadcast(t)
    t.drop()
    assert [v.tolist() for _, v in holders.held.call().get(timeout=300).items()] == [[2.0] * 3] * 2


def test_constructor_arguments(procs: Any) -> None:
    with procs.activate():
        adders = procs.spawn("adders", Holder, torch.ones(()) * 7)
    assert [float(v) for _, v in adders.held.call().get(timeout=300).items()] == [7.0, 7.0]
    with pytest.raises(RuntimeError, match="hold distributed tensors, which cannot be kept for restarts"):
        adders.restart()
    adders.restart(args=(3,)).get(timeout=300)
    assert [v for _, v in adders.held.call().get(timeout=300).items()] == [3, 3]
    adders.stop().get(timeout=300)


def test_parameters_of_modules_and_tensors_that_require_grad(procs: Any, holders: Any) -> None:
    with procs.activate():
        module = torch.nn.Linear(2, 3)
        torch.nn.init.ones_(module.weight)
    assert [v for _, v in holders.total.call(module.weight).get(timeout=300).items()] == [6.0, 6.0]


def test_part_of_the_mesh(procs: Any, holders: Any) -> None:
    with procs.activate():
        whole = torch.ones(2)
    second = procs.slice(gpus=1)
    with second.activate():
        part = torch.full((2,), 3.0)
    assert holders.slice(gpus=1).total.call_one(whole).get(timeout=300) == 2.0
    assert holders.slice(gpus=1).total.call_one(part).get(timeout=300) == 6.0
    assert holders.slice(gpus=1).total.call_one(whole, more=[part]).get(timeout=300) == 8.0
    with pytest.raises(ValueError, match="must share the same processes"):
        holders.total.call(part)
    with pytest.raises(ValueError, match="must share the same processes"):
        holders.slice(gpus=0).total.call_one(part)
    assert [v for _, v in holders.total.call(whole).get(timeout=300).items()] == [2.0, 2.0]


def test_actors_elsewhere(procs: Any) -> None:
    other = this_host().spawn_procs(per_host={"gpus": 2})
    strangers = other.spawn("strangers", Holder)
    with procs.activate():
        t = torch.ones(2)
    with pytest.raises(ValueError, match="must share the same processes"):
        strangers.total.call(t)
    assert strangers.kind.choose(1).get(timeout=300) == "int"  # nothing has happened to them
    other.stop().get(timeout=300)


def test_tensors_that_cannot_be_used(procs: Any, holders: Any) -> None:
    with procs.activate():
        t = torch.ones(2)
    t.drop()
    with pytest.raises(TypeError, match="DROPPED"):
        holders.total.call(t)


def test_nothing_else_takes_them(procs: Any) -> None:
    import pickle

    from monarch.actor import Channel

    with procs.activate():
        t = torch.ones(2)
    port, _receiver = Channel.open()
    with pytest.raises(TypeError, match=r"monarch\.inspect\(tensor\)"):
        port.send(t)
    with pytest.raises(TypeError, match=r"monarch\.inspect\(tensor\)"):
        pickle.dumps(t)


def test_what_failed_raises_in_the_caller_and_the_actor_lives(procs: Any, holders: Any) -> None:
    with procs.activate():
        bad = torch.ones(2)[torch.tensor([7])]  # fails in the workers only
    with pytest.raises(RemoteException, match="out of bounds") as info:
        holders.total.call(bad).get(timeout=300)
    assert any("bad = torch.ones(2)" in (frame.line or "") for frame in info.value.controller_frames)
    with procs.activate():
        assert [v for _, v in holders.total.call(torch.ones(2)).get(timeout=300).items()] == [2.0, 2.0]
    procs._device_mesh.client.sync()


def test_actors_that_have_ended(procs: Any) -> None:
    gone = procs.spawn("gone", Holder)
    gone.stop().get(timeout=300)
    with procs.activate(), pytest.raises(SupervisionError):
        gone.total.call(torch.ones(2)).get(timeout=300)


def test_an_engine_that_ends_fails_what_waits_for_it() -> None:
    procs = this_host().spawn_procs(per_host={"gpus": 1})
    holders = procs.spawn("holders", Holder)
    waiter = procs.spawn("waiter", Waiter)
    mesh = procs._device_mesh
    key = mesh.client._workers._spec.key
    answer = waiter.wait_for.call_one(key)  # a claim whose tensor nobody hands over
    mesh.exit()
    with pytest.raises(Exception, match="tensor worker of this process has ended"):
        answer.get(timeout=300)
    assert holders.kind.call_one(3).get(timeout=300) == "int"
    procs.stop().get(timeout=300)


class Waiter(Actor):
    @endpoint
    def wait_for(self, key: str) -> None:
        from monarch.tensor.worker.actor_transfers import claim

        claim(key, -1)
