"""Transfers over fabrics that are not all alike: VLANs, rails, ports of different rate, partitions, TLS; and what is
noticed of the other end. Both sides in one process, over an imitation of the devices."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

import pytest

from monarch._errors import OwnerEndedError, RDMATimeoutError
from monarch.actor import SupervisionError
from monarch.config import configured
from monarch.rdma.backends.ibverbs import backend as ibverbs
from monarch.rdma.backends.ibverbs import queue_pair_link, requester, responder
from monarch.rdma.backends.ibverbs.backend import Ibverbs
from monarch.rdma.backends.ibverbs.binding import RELAXED_ORDERING
from monarch.rdma.backends.ibverbs.control_messages import (
    ConnectRequest,
    KeyReply,
    KeyRequest,
    OpenPairsReply,
    OpenPairsRequest,
)
from tests.rdma.ibverbs_fake import FakeDevice, nic_tree
from tests.rdma.ibverbs_sides import HERE, MIB, THERE, Sides

V1, V2 = "IB/RoCE v1", "RoCE v2"
READER = bytes(16)


def v2(*addresses: str) -> dict[str, Any]:
    """A port with these IPv4 addresses, each by both kinds of RoCE, as drivers fill the table."""
    return {"gids": tuple((f"::ffff:{address}", kind) for address in addresses for kind in (V1, V2))}


def device_of(sides: Sides, side: str, name: str) -> FakeDevice:
    device = sides.devices[side].device(name)
    assert isinstance(device, FakeDevice)
    return device


def near(sides: Sides, **names: str) -> None:
    """Sets which device the memory of each side is near to."""
    for side, name in names.items():
        sides.devices[side].near = lambda memory, name=name: [name]  # type: ignore[method-assign,misc]


# --- addresses


def test_several_vlans(make: Callable[..., Sides]) -> None:
    """The lowest entry of each port is in a VLAN that the other has not."""
    gids = {name: v2("10.1.0.5", "10.2.0.5") for name in HERE} | {name: v2("10.3.0.6", "10.2.0.6") for name in THERE}
    sides = make(nics=gids)
    data = bytearray(os.urandom(2 * MIB))
    handle = sides.make(data)
    assert sides.read(handle, 2 * MIB) == data
    sides.write(handle, b"new")
    assert data[:3] == b"new"
    assert {pair.path.gid.slot for name in HERE for pair in sides.device(name).pairs} == {3}
    assert {pair.path.gid.slot for name in THERE for pair in sides.device(name).pairs} == {3}
    assert not ibverbs.unreachable


def test_an_entry_that_a_setting_names(make: Callable[..., Sides]) -> None:
    sides = make(nics={name: v2("10.1.0.5", "10.2.0.5") for name in (*HERE, *THERE)})
    handle = sides.make(bytearray(b"0123456789"))
    with configured(rdma_ib_gid_index=3):
        assert sides.read(handle, 10) == b"0123456789"
    for names in (HERE, THERE):
        (slot,) = {pair.path.gid.slot for name in names for pair in sides.device(name).pairs}
        assert slot == 3


def test_an_entry_that_is_not_there(make: Callable[..., Sides], gone: list[str]) -> None:
    sides = make(nics={name: v2("10.1.0.5", "10.2.0.5") for name in HERE})
    handle = sides.make(bytearray(10))
    with configured(rdma_ib_gid_index=9):
        sides.read(handle, 10)
    with configured(rdma_ib_gid_index=3):  # the owner's ports have two entries
        sides.read(sides.make(bytearray(10)), 10)
    assert "the owner says: MONARCH_RDMA_IB_GID_INDEX (rdma_ib_gid_index) is 9, but the port of there_0" in gone[0]
    assert (
        "the owner says:" in gone[1]
        and "is 3, but the port of there_0 has no such address (it has 0: fe80::1" in gone[1]
    )


def test_ports_without_a_common_kind_of_address(make: Callable[..., Sides], gone: list[str]) -> None:
    old = {"gids": (("::ffff:10.0.0.1", V1),)}
    sides = make(nics={name: old for name in THERE} | {name: {"gids": (("::ffff:10.0.0.2", V2),)} for name in HERE})
    sides.read(sides.make(bytearray(10)), 10)
    assert "no addresses of the same kind and family (here_0 here has 0: 10.0.0.2 RoCE v2" in gone[0]


# --- partitions


def test_a_partition_that_a_setting_names(make: Callable[..., Sides], gone: list[str]) -> None:
    sides = make(nics={name: {"pkeys": (0x7FFF, 0x8002)} for name in (*HERE, *THERE)})
    handle = sides.make(bytearray(b"0123456789"))
    sides.read(handle, 10)
    assert "key 0x7fff" in gone[0] and "rdma_ib_pkey_index" in gone[0]  # two members that are none in full
    ibverbs.unreachable.clear()
    with configured(rdma_ib_pkey_index=1):
        again = sides.make(bytearray(b"0123456789"))
        assert sides.read(again, 10) == b"0123456789"
        assert {pair.path.pkey_index for name in (*HERE, *THERE) for pair in sides.device(name).pairs} == {1}
    with configured(rdma_ib_pkey_index=7):
        sides.read(sides.make(bytearray(10)), 10)
    assert (
        "(rdma_ib_pkey_index) is 7, but the port of there_0 has no such partition key (it has 0: 0x7fff, 1: 0x8002)"
        in gone[1]
    )


# --- rails


RAILS = ("mlx5_0", "mlx5_1")
APART: dict[str, Any] = {"here": RAILS, "there": RAILS, "rails": ({"mlx5_0"}, {"mlx5_1"})}


def test_memory_near_different_rails(make: Callable[..., Sides]) -> None:
    """Chooses for a pair such as GPU 0 on one host and GPU 3 on another: rail 0's device is near here, rail 1's there."""
    sides = make(**APART)
    near(sides, here="mlx5_0", there="mlx5_1")
    data = bytearray(os.urandom(2 * MIB))
    handle = sides.make(data)
    with configured(rdma_peer_device_affinity="match_name"):
        assert sides.read(handle, 2 * MIB) == data
        sides.write(handle, b"new")
    assert data[:3] == b"new"
    assert not device_of(sides, "here", "mlx5_0").posted and device_of(sides, "here", "mlx5_1").posted
    assert [type(one).__name__ for one in sides.asked] == [
        "KeyRequest",
        "ConnectRequest",
        "KeyRequest",
    ]  # none was asked for in vain


def test_a_rail_that_only_the_owner_can_change(make: Callable[..., Sides]) -> None:
    """Here is one device alone: the owner registers with its own of that rail, which is farther from the buffer."""
    sides = make(here=("mlx5_0",), there=RAILS, rails=APART["rails"])
    near(sides, there="mlx5_1")
    handle = sides.make(bytearray(b"0123456789"))
    with configured(rdma_peer_device_affinity="match_name"):
        assert sides.read(handle, 10) == b"0123456789"
        assert sides.read(handle, 10) == b"0123456789"
    lends = [one for one in sides.asked if isinstance(one, KeyRequest)]
    assert [one.nics for one in lends] == [(), ("mlx5_0",)]


@pytest.mark.parametrize("patient", [True, False])
def test_rails_that_nobody_told_of(
    make: Callable[..., Sides], gone: list[str], patient: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Holds nobody up: the caller does not wait until a device has given up."""
    if patient:
        monkeypatch.setattr(requester, "PROBE", 0.02)
    sides = make(**APART)
    near(sides, here="mlx5_0", there="mlx5_1")
    handle = sides.make(bytearray(10))
    device_of(sides, "here", "mlx5_0").patient = patient
    sides.read(handle, 10)
    assert gone[0].startswith(
        "nothing passes between mlx5_0 here (1: 10.0.0.1 RoCE v2) and mlx5_1 of the owner (1: 10."
    )
    assert "rdma_peer_device_affinity" in gone[0]
    assert not device_of(sides, "here", "mlx5_0").pairs


def test_a_device_that_cannot_register_for_the_rail(make: Callable[..., Sides], gone: list[str]) -> None:
    sides = make(here=("mlx5_0",), there=RAILS, rails=APART["rails"])
    near(sides, there="mlx5_1")
    handle = sides.make(bytearray(10))
    device_of(sides, "there", "mlx5_0").refuse = 1
    with configured(rdma_peer_device_affinity="match_name"):
        sides.read(handle, 10)
    assert "mlx5_0 cannot register 10 bytes" in gone[0]


def test_a_near_device_that_cannot_register_is_left_out(sides: Sides, gone: list[str]) -> None:
    sides.device("there_0").refuse = 1
    data = bytearray(os.urandom(4 * MIB))
    handle = sides.make(data)
    for _ in range(2):
        assert sides.read(handle, 4 * MIB) == data
    assert gone == [] and not sides.device("there_0").pairs
    assert [one.nics for one in sides.asked if isinstance(one, KeyRequest)] == [()]
    assert all(sides.device(name).moved >= 2 * MIB for name in HERE)  # both reach the other one


# --- ports of different rate


def test_each_port_carries_what_it_can(make: Callable[..., Sides]) -> None:
    rates = {"here_0": {"rate": "400 Gb/sec (4X NDR)"}, "there_0": {"rate": "400 Gb/sec (4X NDR)"}}
    sides = make(nics=rates)
    data = bytearray(os.urandom(5 * MIB))
    handle = sides.make(data)
    assert sides.read(handle, 5 * MIB) == data
    moved = [sides.device(name).moved for name in HERE]
    assert moved[0] + moved[1] == 5 * MIB + 24  # and the control word: once over each new connection, once at the end
    assert abs(moved[0] - 4 * MIB) <= 16 and abs(moved[1] - MIB) <= 16


# --- what a queue pair is told


def test_settings_reach_both_ends(sides: Sides) -> None:
    handle = sides.make(bytearray(10))
    with configured(
        rdma_ib_traffic_class=106,
        rdma_ib_service_level=3,
        rdma_ib_timeout=18,
        rdma_ib_retry_count=5,
        rdma_max_nics_per_buffer=1,
    ):
        sides.read(handle, 10)
    paths = [pair.path for name in (*HERE, *THERE) for pair in sides.device(name).pairs]
    assert len(paths) == 2
    assert {path[1:] for path in paths} == {(0, 106, 3, 18, 5)}


def test_the_defaults_survive_half_a_minute(sides: Sides) -> None:
    sides.read(sides.make(bytearray(10)), 10)
    (path,) = {pair.path for name in HERE for pair in sides.device(name).pairs}
    assert (path.retries + 1) * 4.096e-6 * 2**path.timeout > 30


@pytest.mark.parametrize("on", [True, False])
def test_only_bytes_may_come_in_any_order(sides: Sides, on: bool) -> None:
    handle = sides.make(bytearray(b"0123456789"))
    with configured(rdma_ib_relaxed_ordering=on):
        into = bytearray(10)
        sides.begin(handle, into).get()
        sides.write(handle, b"!")
    flags = []
    for name in (*HERE, *THERE):
        flags += [
            (one.size, one.access & 0xF, bool(one.access & RELAXED_ORDERING)) for one in sides.device(name).registered
        ]
    assert (10, 7, on) in flags  # the buffer, lent to a writer
    assert (10, 4, False) in flags  # and to a reader
    assert not any(relaxed for size, _, relaxed in flags if size != 10)  # control words, here and there


# --- ports that go down


def test_a_port_that_has_gone_down(sides: Sides, gone: list[str]) -> None:
    handle = sides.make(bytearray(10))
    for side, names in (("there", THERE), ("here", HERE)):
        for name in names:
            (sides.roots[side] / "class/infiniband" / name / "ports/1/state").write_text("1: DOWN\n")
        sides.read(handle, 10)
        ibverbs.unreachable.clear()
    assert gone[0].startswith("the owner says: port 1 of there_") and "is not active (1: DOWN)" in gone[0]
    assert "makes no queue pair: port 1 of here_" in gone[1]


def test_a_device_that_is_named_and_down(make: Callable[..., Sides], gone: list[str]) -> None:
    sides = make(nics={"here_1": {"state": "1: DOWN"}})
    handle = sides.make(bytearray(10))
    with configured(rdma_ibverbs_target="nic:here_1"):
        sides.devices["there"].near = lambda memory: ["there_0"]  # type: ignore[method-assign]
        sides.read(handle, 10)
    assert (
        "names 'here_1', but no such usable device is here (usable: here_0; port 1 of here_1 is not active" in gone[0]
    )


# --- what is noticed of the other end, while a device would still try


@pytest.fixture
def patient(make: Callable[..., Sides], monkeypatch: pytest.MonkeyPatch) -> Sides:
    """Devices that try again for ever, and a thread that asks soon."""
    monkeypatch.setattr(queue_pair_link, "QUIET", 0.02)
    monkeypatch.setattr(queue_pair_link, "IDLE", 0.02)
    sides = make()
    for name in HERE:
        sides.device(name).patient = True
    return sides


def test_a_side_that_was_closed_is_asked_after(patient: Sides) -> None:
    handle = patient.make(bytearray(b"0123456789"))
    patient.read(handle, 10)
    patient.owner.close()  # as a drop does to those who wrote
    assert patient.read(handle, 10) == b"0123456789"
    assert any(isinstance(one, OpenPairsRequest) for one in patient.asked)


def test_an_owner_that_has_ended_is_heard_of(patient: Sides) -> None:
    handle = patient.make(bytearray(10))
    patient.read(handle, 10)
    patient.owner.close()
    patient.wrong = SupervisionError("its process ended")
    with pytest.raises(OwnerEndedError):
        patient.read(handle, 10)


def test_a_side_that_is_there_is_waited_for(patient: Sides) -> None:
    handle = patient.make(bytearray(b"0123456789"))
    patient.read(handle, 10)
    asked = asyncio.Event()
    devices = [patient.device(name) for name in HERE]
    for device in devices:
        device.hold = True
    into = bytearray(10)
    result = patient.begin(handle, into)
    ask, done = handle.service.verbs.call_one, asyncio.run_coroutine_threadsafe(asked.wait(), patient.loop.loop)

    async def noting(request: Any) -> Any:
        answer = await ask(request)
        asked.set()
        return answer

    handle.service.verbs.call_one = noting
    done.result(60)
    links = list(patient.engine._links.values())
    assert not any(link.closed for link in links)
    for device in devices:
        device.hold = False
        for pair in list(device.pairs):
            pair.go_on()
    result.get()
    assert into == b"0123456789"


def test_an_owner_that_does_not_answer_costs_no_more_than_the_timeout(patient: Sides) -> None:
    handle = patient.make(bytearray(10))
    patient.read(handle, 10)
    patient.owner.close()
    patient.wait = asyncio.Event()
    with pytest.raises(RDMATimeoutError):
        patient.begin(handle, bytearray(10), timeout=0.2).get()
    patient.loop.loop.call_soon_threadsafe(patient.wait.set)


def test_what_an_owner_says_to_check(sides: Sides) -> None:
    assert responder.answer(OpenPairsRequest(READER), sides.owner, sides.registry) == OpenPairsReply(())
    handle = sides.make(bytearray(10))
    sides.read(handle, 10)
    me = next(one.reader for one in sides.asked if isinstance(one, KeyRequest))
    assert len(responder.answer(OpenPairsRequest(me), sides.owner, sides.registry).open) == 1
    with pytest.raises(ValueError, match="16 bytes"):
        responder.answer(OpenPairsRequest(b""), sides.owner, sides.registry)


# --- TLS


def test_a_job_with_tls_sends_nothing_in_plain(sides: Sides, gone: list[str], tls: list[bool]) -> None:
    tls[0] = True
    handle = sides.make(bytearray(b"secret"))
    sides.read(handle, 6)
    assert "the job uses TLS" in gone[0] and "rdma_allow_plain_bytes=True" in gone[0]
    assert sides.asked == [] and not any(sides.device(name).pairs for name in HERE)
    refused = responder.answer(
        KeyRequest(READER, handle.number, handle.token, False, encrypted=True), sides.owner, sides.registry
    )
    assert "the job uses TLS" in refused
    assert not any(sides.device(name).registered for name in THERE)


def test_unless_a_setting_allows_it(sides: Sides, tls: list[bool]) -> None:
    tls[0] = True
    handle = sides.make(bytearray(b"secret"))
    with configured(rdma_allow_plain_bytes=True):
        assert sides.read(handle, 6) == b"secret"
        request = KeyRequest(READER, handle.number, handle.token, False, encrypted=True)
        assert isinstance(responder.answer(request, sides.owner, sides.registry), KeyReply)


def test_the_path_says_so_before_anything_is_begun(
    sides: Sides, tls: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ibverbs, "devices", lambda: sides.devices["here"])
    tls[0] = True
    handle = sides.make(bytearray(b"secret"))
    assert Ibverbs().why_unavailable(handle).startswith("the job uses TLS")
    with configured(rdma_allow_plain_bytes=True):
        assert Ibverbs().why_unavailable(handle) == ""


# --- what comes from another process


def test_ports_are_not_taken_on_trust(sides: Sides, gone: list[str]) -> None:
    handle = sides.make(bytearray(10))
    lent = responder.answer(KeyRequest(READER, handle.number, handle.token, False), sides.owner, sides.registry)
    (port, *_) = lent.ports
    wrong = [
        port._replace(gids=()), port._replace(gids=(port.gids[0]._replace(raw=b"short"),)), port._replace(rate=-1),
        port._replace(pkey=1 << 16), port._replace(nic=""), port._replace(gids=(port.gids[0]._replace(slot=256),)),
        tuple(port),
    ]  # fmt: skip
    for number, one in enumerate(wrong):
        sides.answer = lent._replace(ports=(one,))
        ibverbs.unreachable.clear()
        sides.read(handle, 10)
        assert len(gone) == number + 1 and "sent an invalid answer" in gone[-1]
    with pytest.raises(ValueError, match="GID"):
        responder.answer(ConnectRequest(READER, "there_0", _end(sides), 256), sides.owner, sides.registry)
    assert "is 9, but the port of there_0 has no such address" in responder.answer(
        ConnectRequest(READER, "there_0", _end(sides), 9), sides.owner, sides.registry
    )


def _end(sides: Sides) -> Any:
    from monarch.rdma.backends.ibverbs.control_messages import QueuePairEnd

    return QueuePairEnd("here_0", 1, 2, 0, bytes(16), 5, 1)


def test_a_tree_of_alike_devices(tmp_path: Any) -> None:
    """The imitation's own: what it writes is what the kernel would."""
    nic_tree(tmp_path, "mlx5_0")
    port = tmp_path / "class/infiniband/mlx5_0/ports/1"
    assert (port / "rate").read_text() == "100 Gb/sec (4X EDR)\n" and (port / "pkeys/0").read_text() == "0xffff\n"
