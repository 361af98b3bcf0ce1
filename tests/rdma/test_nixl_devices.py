"""NIXL with memory of GPUs: over an imitation of NIXL and of a card, in one process and between two hosts."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from monarch._devices import memory as devices
from monarch._devices.memory import Card
from monarch.actor import ProcMesh, endpoint
from monarch.config import configure
from monarch.rdma.backends.nixl import nixl_agent
from monarch.rdma.backends.nixl.backend import Nixl
from monarch.rdma.backends.nixl.nixl_agent import (
    MemoryRefusedError,
    NixlAgent,
    NixlError,
    NixlRegistration,
    NixlSegment,
    NoAgentError,
    parsed,
    segment_of,
)
from monarch.rdma.local_memory import LocalMemory, memory_of
from tests._devices.fake import FakeCard
from tests.rdma import nixl_fake
from tests.rdma.buffers import call
from tests.rdma.cards import Side
from tests.support.tiers import full

pytestmark = pytest.mark.usefixtures("torch_preloaded")
MIB = 1 << 20
SIZE = 100_000


@pytest.fixture(params=[False, True], ids=["cuda:0", "cuda:1"])
def card(request: pytest.FixtureRequest) -> Iterator[FakeCard]:
    fake = FakeCard(second=request.param)
    before = devices.replace(fake)
    yield fake
    devices.replace(before)
    fake.close()


@pytest.fixture
def agents(monkeypatch: pytest.MonkeyPatch) -> tuple[NixlAgent, NixlAgent]:
    """Here and there."""
    monkeypatch.setattr(nixl_agent, "MODULES", ("tests.rdma.nixl_fake",))
    monkeypatch.setattr(nixl_fake, "gpus", True)
    return NixlAgent(), NixlAgent()


def moved(
    agents: tuple[NixlAgent, NixlAgent], write: bool, here: LocalMemory, there: LocalMemory, size: int, at: int = 0
) -> None:
    mine, its = agents
    lent = NixlRegistration(its, there)
    remote, described = parsed(lent.shown)
    name = mine.meet(1, described)
    mine.move(name, write, here, here.address + at, there.address + at, remote, size, lambda looks: None)
    mine.avoid(name)
    lent.close()


def test_bytes_of_two_gpus(card: FakeCard, agents: tuple[NixlAgent, NixlAgent]) -> None:
    one, other = card.tensor(b"1" * SIZE), card.tensor(b"2" * SIZE)
    moved(agents, False, memory_of(one), memory_of(other), SIZE - 10, 10)
    assert card.bytes_of(one) == b"1" * 10 + b"2" * (SIZE - 10)
    assert card.begun == 0  # nothing went through the host
    regions = [agent._agent.regions for agent in agents]
    assert regions == [[], []]  # what a transfer needs is let go of with it


def test_a_write_to_a_gpu_ends_when_its_bytes_are_there(card: FakeCard, agents: tuple[NixlAgent, NixlAgent]) -> None:
    one, other = card.tensor(b"1" * SIZE), card.tensor(b"2" * SIZE)
    moved(agents, True, memory_of(one), memory_of(other), SIZE)
    assert card.bytes_of(other) == b"1" * SIZE
    host = memory_of(bytearray(b"3" * SIZE))
    moved(agents, True, host, memory_of(other), SIZE)
    assert card.bytes_of(other) == b"3" * SIZE
    assert [kind for kind, *_ in agents[0]._agent.regions] == ["DRAM"]  # the page that is read into, once for all
    assert all(transfer.released for transfer in agents[0]._agent.done)


def test_a_write_to_the_host_is_not_read_behind(card: FakeCard, agents: tuple[NixlAgent, NixlAgent]) -> None:
    into = bytearray(SIZE)
    moved(agents, True, memory_of(card.tensor(b"1" * SIZE)), memory_of(into), SIZE)
    assert into == b"1" * SIZE and len(agents[0]._agent.done) == 1


def test_where_a_buffer_is(card: FakeCard) -> None:
    assert segment_of(memory_of(bytearray(1))) == NixlSegment("DRAM", 0)
    assert segment_of(memory_of(card.tensor(b"1"))) == NixlSegment("VRAM", int(card.second))
    keep: Any = SimpleNamespace(device=SimpleNamespace(index=0))
    with pytest.raises(MemoryRefusedError, match="no devices of type xpu"):
        segment_of(LocalMemory(1, 1, True, keep, "tensor", device=Card("xpu", "")))


@pytest.mark.parametrize("shown", [b"", b"VRAM", b"FILE\0\0\0\0and more"])
def test_what_an_owner_says_is_not_taken_on_trust(shown: bytes) -> None:
    with pytest.raises(NixlError, match=r"owner"):
        parsed(shown)


def test_a_ucx_without_gpus_says_what_it_needs(
    card: FakeCard, agents: tuple[NixlAgent, NixlAgent], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nixl_fake, "gpus", False)
    text = rf"cannot register {SIZE} bytes of {card.name} \(UCX has to be built with CUDA or ROCm\).*NIXL_ERR_BACKEND"
    with pytest.raises(MemoryRefusedError, match=text):
        NixlRegistration(agents[1], memory_of(card.tensor(b"1" * SIZE)))


def test_devices_that_nixl_does_not_know() -> None:
    handle: Any = SimpleNamespace(device=SimpleNamespace(card=Card("xpu", "")))
    assert Nixl().why_unavailable(handle) == "NIXL knows no devices of type xpu"


def test_it_is_off_unless_a_setting_allows_it() -> None:
    with pytest.raises(NoAgentError, match="rdma_nixl is off"):
        nixl_agent.agent()


def test_without_the_package_the_text_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nixl_agent, "MODULES", ("monarch_has_no_such_module._api",))
    with pytest.raises(NoAgentError, match="rdma-nixl"):
        nixl_agent._module()


# --- between hosts


class NixlSide(Side):
    """One that reaches others by NIXL, else by streams and messages."""

    @endpoint
    def by_nixl(self, gpus: bool = True) -> None:
        from monarch.rdma import paths

        configure(rdma_nixl=True)
        nixl_agent.MODULES = ("tests.rdma.nixl_fake",)
        nixl_fake.gpus = gpus
        paths.allow("nixl", "tcp", "actor")

    @endpoint
    def done(self) -> list[tuple[str, str, int]]:
        """Returns what NIXL has moved here: kinds of memory here and there, and bytes."""
        moved = nixl_agent.agent()._agent.done
        return [(one.local.kind, one.remote.kind, one.local.place()[1]) for one in moved]

    @endpoint
    def failed(self) -> int:
        from monarch.rdma.backends.nixl import backend as nixl

        return len(nixl.unreachable)


def sides(two: ProcMesh, here: bool = True, there: bool = True) -> tuple[Any, Any]:
    owner = two.slice(hosts=0).spawn("owner", NixlSide)
    other = two.slice(hosts=1).spawn("other", NixlSide)
    call(owner.by_nixl, there)
    call(other.by_nixl, here)
    return owner, other


@full
@pytest.mark.procs
def test_gpus_of_two_hosts(two: ProcMesh) -> None:
    owner, other = sides(two)
    for where, place in (("cuda", "cuda"), ("cuda", "cpu"), ("cpu", "cuda")):
        data = bytes(range(256)) * 1000
        buffer = call(owner.make, place, data)
        assert call(other.path, buffer) == "nixl"
        assert call(other.read, buffer, where, len(data), {}) == data
        assert call(other.write, buffer, where, data[::-1], {}) == b"ok"
        assert call(owner.seen, buffer) == data[::-1]
    small = call(owner.make, "cuda", b"little")
    assert call(other.read, small, "cuda", 6, {}) == b"little"
    moved = call(other.done)
    assert ("VRAM", "VRAM", 256_000) in moved and ("VRAM", "DRAM", 256_000) in moved and ("DRAM", "VRAM", 1) in moved
    assert ("VRAM", "VRAM", 6) in moved  # streams know the host's memory only
    assert call(other.failed) == 0
    assert call(owner.card_says, "begun") == 0 and call(other.card_says, "begun") == 0  # no copy through the host
    assert call(other.card_says, "reached")  # the program's own work on the tensor came first


@full
@pytest.mark.procs
@pytest.mark.parametrize("where", ["here", "there"])
def test_without_gpus_in_ucx_it_goes_through_pinned_memory(two: ProcMesh, where: str) -> None:
    owner, other = sides(two, where != "here", where != "there")
    data = bytes(range(256)) * 1000
    buffer = call(owner.make, "cpu" if where == "here" else "cuda", data)
    assert call(other.read, buffer, "cuda", len(data), {}) == data
    assert call(other.write, buffer, "cuda", data[::-1], {}) == b"ok"
    assert call(owner.seen, buffer) == data[::-1]
    assert call(other.failed) == 1
    moved = call(other.done)
    if where == "here":  # NIXL from and to the host's memory works
        assert {kinds[:2] for kinds in moved} == {("DRAM", "DRAM")}
    else:
        assert moved == []
        plain = call(owner.make, "cpu", data)
        assert call(other.read, plain, "cpu", len(data), {}) == data
        assert ("DRAM", "DRAM", len(data)) in call(other.done)  # that it cannot do GPUs there says nothing of the rest
