"""Moves between ranks on devices: which streams wait for the other rank, and whose memory is used by whom."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch

from monarch.tensor.worker.events import AliasTensor
from monarch.tensor.worker.moves import AdoptTensors, MoveConnections, route
from tests.support.patience import TIMEOUT
from tests.tensor.worker.fake_streams import Device, Group, Network

WHERE = torch.device("cuda", 0)


class Groups:
    """The groups of one rank: every label and set of ranks has a Group on a Network that both ranks share."""

    def __init__(self, device: Device, rank: int, networks: dict[Any, Network]) -> None:
        self.device = device
        self.rank = rank
        self.networks = networks
        self.made: dict[Any, Group] = {}
        self.lost: list[str] = []

    def backend(self, label: str, members: tuple[int, ...], stream: int, device: str) -> Group:
        key = (label, members)
        network = self.networks.setdefault(key, Network())
        return self.made.setdefault(key, Group(self.device, members.index(self.rank), network))

    def lose(self, label: str, why: str, members: Any = None, stream: Any = None) -> None:
        self.lost.append(why)


class Pair:
    """Two ranks, each with a device and Lines."""

    def __init__(self) -> None:
        self.networks: dict[Any, Network] = {}
        self.device = Device()  # one for both: each rank's streams are its own
        self.groups = [Groups(self.device, rank, self.networks) for rank in (0, 1)]
        self.lines: list[Any] = [MoveConnections(groups) for groups in self.groups]  # type: ignore[arg-type]

    def close(self) -> None:
        for lines in self.lines:
            lines.close()

    @property
    def network(self) -> Network:
        (network,) = self.networks.values()
        return network


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Any:
    found = Pair()
    with monkeypatch.context() as patch:
        found.device.install(patch)
        yield found
        found.close()
    assert found.device.faults == []


def receive(pair: Pair, sender: int, receiver: int, number: int, exchange: bool = False) -> Any:
    return pair.lines[receiver].receive(sender, receiver, (0, 0), number, (2,), torch.float32, WHERE, exchange)


def test_the_stream_that_sends_does_not_wait_for_the_receiver(pair: Pair) -> None:
    tensor = pair.device.tensor((2,))
    tensor.fill_(3)
    pair.lines[0].send(0, 1, (0, 0), 1, tensor)
    got = receive(pair, 0, 1, 1)
    assert pair.network.settled(TIMEOUT)
    assert got.tolist() == [3, 3]
    assert not pair.device.default.is_behind(pair.groups[0].made["move 0", (0, 1)].stream)
    assert pair.device.default.is_behind(pair.groups[1].made["move 0", (0, 1)].stream)  # it uses what it got


def test_memory_that_is_sent_is_not_given_out_again_too_early(pair: Pair) -> None:
    for number in range(4):
        tensor = pair.device.tensor((2,))
        pair.lines[0].send(0, 1, (0, 0), number, tensor)
        del tensor
        got = receive(pair, 0, 1, number)
        pair.device.default.work(got.block)
        del got
        gc.collect()
        pair.device.tensor((2,))  # whose memory this is, the fixture asks
    assert pair.network.settled(TIMEOUT)


def test_one_group_carries_both_directions_in_the_order_of_the_program(pair: Pair) -> None:
    for number in (1, 2):
        sender = number - 1
        tensor = pair.device.tensor((2,))
        tensor.fill_(number)
        pair.lines[sender].send(sender, 1 - sender, (0, 0), number, tensor)
        got = receive(pair, sender, 1 - sender, number)
        assert pair.network.settled(TIMEOUT)  # the thread that sends may come after the one that receives
        assert got.tolist() == [number, number]
    assert list(pair.networks) == [("move 0", (0, 1))]


def test_two_ranks_that_send_to_each_other_do_both_at_once(pair: Pair) -> None:
    for rank in (0, 1):
        tensor = pair.device.tensor((2,))
        tensor.fill_(rank)
        pair.lines[rank].send(rank, 1 - rank, (0, 0), 5, tensor, True)
    got = [receive(pair, 1 - rank, rank, 5, True) for rank in (0, 1)]
    assert pair.network.settled(TIMEOUT)
    assert [one.tolist() for one in got] == [[1, 1], [0, 0]]
    assert sorted(pair.network.sizes) == [(0, ["send", "recv"]), (1, ["send", "recv"])]


def test_who_waits_is_told_when_the_engine_ends() -> None:
    class Never:
        def backend(self, *args: Any) -> Any:
            raise RuntimeError("nobody came")

        def lose(self, *args: Any) -> None: ...

    lines: Any = MoveConnections(Never())  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="nobody came"):
        lines.receive(0, 1, (0, 0), 1, (2,), torch.float32, "cpu")
    lines.close()
    with pytest.raises(RuntimeError, match="the tensor engine has ended"):
        lines.receive(0, 1, (0, 0), 2, (2,), torch.float32, "cpu")


def test_which_group_carries_a_move() -> None:
    assert route(3, 1, (0, 0)) == route(1, 3, (0, 0)) == ("move 0", (1, 3))
    assert route(3, 1, (0, 2)) != route(1, 3, (0, 2))
    assert route(3, 1, (0, 2)) == ("move 0 2", (3, 1))


# --- a borrow ---------------------------------------------------------------------------------------------------


def test_memory_that_was_lent_outlives_its_last_use_by_the_borrower(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device()
    device.install(monkeypatch)
    other = device.stream()
    lent = device.tensor((2,))
    monkeypatch.setattr(type(lent), "detach", lambda self: self, raising=False)
    alias = AliasTensor().prepare(None)([lent], ())
    event = torch.Event()
    event.record()
    device.enter(other)
    event.wait()
    AdoptTensors().prepare(None)([alias], ())  # as the controller issues it before the borrower's first use
    other.work(alias.block)
    device.enter(device.default)
    del lent, alias
    gc.collect()
    device.tensor((2,))  # before the lender has waited for the borrower
    assert device.faults == []
