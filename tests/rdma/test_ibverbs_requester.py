"""Both sides of transfers in one process, over an imitation of the devices: keys, links, what fails and what follows."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from monarch._devices import DmaBuf
from monarch._errors import (
    BufferDroppedError,
    OwnerEndedError,
    RDMAError,
    RDMAReadOnlyError,
    RDMATimeoutError,
    RDMAUnavailableError,
)
from monarch.actor import SupervisionError
from monarch.config import configured
from monarch.rdma.backends.ibverbs import backend as ibverbs
from monarch.rdma.backends.ibverbs import devices as ibverbs_devices
from monarch.rdma.backends.ibverbs import queue_pair_link, requester, responder
from monarch.rdma.backends.ibverbs.binding import DeviceLimits
from monarch.rdma.backends.ibverbs.control_messages import (
    ConnectRequest,
    KeyReply,
    KeyRequest,
    QueuePairEnd,
    RemoteKeys,
    checked,
)
from monarch.rdma.backends.ibverbs.devices import NoDevicesError, RDMADevices
from monarch.rdma.backends.ibverbs.pairing import ChoiceError
from monarch.rdma.local_memory import LocalMemory, memory_of
from tests.rdma.ibverbs_fake import FakeBinding, nic_tree
from tests.rdma.ibverbs_sides import HERE, MIB, THERE, TIMEOUT, Sides

# --- what moves


def test_reads_and_writes(sides: Sides) -> None:
    data = bytearray(os.urandom(5 * MIB + 1))
    handle = sides.make(data)
    assert sides.read(handle, len(data)) == data
    assert sides.read(handle, 100, 4 * MIB + 3) == data[4 * MIB + 3 :][:100]
    new = os.urandom(3 * MIB)
    sides.write(handle, new, 7)
    assert data[7 : 7 + len(new)] == new
    sides.write(handle, b"!", len(data) - 1)
    assert data[-1:] == b"!"


def test_a_small_one_is_done_at_once_when_all_is_known(sides: Sides) -> None:
    handle = sides.make(bytearray(b"0123456789"))
    assert sides.read(handle, 10) == b"0123456789"
    asked = len(sides.asked)
    into = bytearray(4)
    done = sides.begin(handle, into, 3)
    done.get()
    assert into == b"3456" and len(sides.asked) == asked


def test_what_is_asked_for_once(sides: Sides) -> None:
    handle, other = sides.make(bytearray(2 * MIB)), sides.make(bytearray(2 * MIB))
    for _ in range(3):
        sides.read(handle, 2 * MIB)
        sides.read(other, 2 * MIB)
        sides.write(handle, bytes(2 * MIB))
    assert [type(one).__name__ for one in sides.asked].count("KeyRequest") == 3  # a reader's key writes nothing
    assert [type(one).__name__ for one in sides.asked].count("ConnectRequest") == 2  # a pair of devices each
    keys = {key.memory for request in sides.asked if isinstance(request, KeyRequest) for key in lent_by(sides, request)}
    assert len(keys) == 6  # three times two devices


def lent_by(sides: Sides, request: KeyRequest) -> tuple[RemoteKeys, ...]:
    answer = responder.answer(request, sides.owner, sides.registry)
    assert isinstance(answer, KeyReply)
    return answer.keys


def test_transfers_are_spread_over_devices(sides: Sides) -> None:
    handle = sides.make(bytearray(4 * MIB))
    assert sides.read(handle, 4 * MIB) == bytes(4 * MIB)
    both = [sides.device(name).posted for name in HERE]
    assert sum(both) == 5 and min(both) == 2  # a probe and a stripe each, and the control word


def test_no_stripe_is_too_short(sides: Sides) -> None:
    handle = sides.make(bytearray(4 * MIB))
    with configured(rdma_min_stripe_size_kb=5000):
        sides.read(handle, 4 * MIB)
    assert sorted(sides.device(name).posted for name in HERE) == [0, 3]


def test_a_buffer_has_as_many_devices_as_settings_say(sides: Sides) -> None:
    handle = sides.make(bytearray(4 * MIB))
    with configured(rdma_max_nics_per_buffer=1):
        sides.read(handle, 4 * MIB)
    assert [type(one).__name__ for one in sides.asked] == ["KeyRequest", "ConnectRequest"]


def test_the_window_and_the_limits_of_a_device_are_kept(make: Callable[..., Sides]) -> None:
    sides = make(DeviceLimits(work=4, message=4096, reads=1))
    data = bytearray(os.urandom(300_000))
    handle = sides.make(data)
    assert sides.read(handle, len(data)) == data  # the imitation counts


def test_many_at_once(sides: Sides) -> None:
    data = bytearray(os.urandom(MIB))
    handle = sides.make(data)
    into = [bytearray(MIB if number % 3 else 1000) for number in range(40)]
    results = [sides.begin(handle, one) for one in into]
    for result, one in zip(results, into, strict=True):
        result.get()
        assert one == data[: len(one)]
    assert len(sides.engine._links) == 2


# --- what was dropped


def test_a_dropped_buffer_is_not_found(sides: Sides) -> None:
    data = bytearray(b"x" * 1000)
    handle = sides.make(data)
    sides.read(handle, 10)
    sides.write(handle, b"y")
    assert sides.registry.drop(handle.number, handle.token)
    with pytest.raises(BufferDroppedError, match="not found"):
        sides.read(handle, 10)
    with pytest.raises(BufferDroppedError, match="not found"):
        sides.write(handle, b"late")
    assert data[:4] == b"yxxx"


def test_its_successor_with_the_same_keys_is_not_read_for_it(sides: Sides) -> None:
    """The imitation gives the same key to the same memory again: the control word tells them apart."""
    data = bytearray(b"x" * 1000)
    handle = sides.make(data)
    assert sides.read(handle, 10) == b"x" * 10
    assert sides.registry.drop(handle.number, handle.token)
    successor = sides.make(data)
    assert sides.read(successor, 10) == b"x" * 10
    with pytest.raises(BufferDroppedError, match="not found"):
        sides.read(handle, 10)
    assert sides.read(successor, 10) == b"x" * 10


def test_nobody_writes_after_a_drop_with_the_same_keys(sides: Sides) -> None:
    data = bytearray(b"x" * 1000)
    handle = sides.make(data)
    sides.write(handle, b"y")
    for name in HERE:
        sides.device(name).hold = True
    result = sides.begin(handle, b"z" * 1000, 0, True)
    assert sides.registry.drop(handle.number, handle.token)
    successor = sides.make(data)
    sides.owner.lend(sides.regions[-1], b"somebody else's.", True)
    for name in HERE:
        sides.device(name).hold = False
        for pair in list(sides.device(name).pairs):
            pair.go_on()
    with pytest.raises(BufferDroppedError, match="not found"):
        result.get()
    assert data == b"y" + b"x" * 999
    sides.write(successor, b"z")
    assert data[:2] == b"zx"


def test_a_key_is_not_used_over_a_queue_pair_made_later(sides: Sides) -> None:
    """Makes another: whatever the drop could close was closed before it; the successor has the same key."""
    data = bytearray(b"x" * 1000)
    handle = sides.make(data)
    sides.write(handle, b"y")
    for link in list(sides.engine._links.values()):
        link.close()
    assert sides.registry.drop(handle.number, handle.token)
    sides.make(data)
    sides.owner.lend(sides.regions[-1], READER, True)
    with pytest.raises(BufferDroppedError, match="not found"):
        sides.write(handle, b"z")
    assert data[:2] == b"yx"


def test_a_first_write_asks_again_once_it_is_connected(sides: Sides) -> None:
    handle = sides.make(bytearray(10))
    sides.write(handle, b"y")
    sides.write(handle, b"y")
    assert [type(one).__name__ for one in sides.asked] == ["KeyRequest", "ConnectRequest", "KeyRequest"]


def test_who_only_read_keeps_his_queue_pairs(sides: Sides) -> None:
    one, other = sides.make(bytearray(10)), sides.make(bytearray(10))
    sides.read(one, 10)
    sides.read(other, 10)
    met = len(sides.owner)
    assert sides.registry.drop(one.number, one.token)
    assert len(sides.owner) == met
    sides.read(other, 10)
    assert [type(request).__name__ for request in sides.asked].count("KeyRequest") == 2


def test_a_closed_side_is_noticed_with_the_next_buffer(sides: Sides) -> None:
    one, other = sides.make(bytearray(10)), sides.make(bytearray(b"other"))
    sides.write(one, b"mine")
    assert sides.registry.drop(one.number, one.token)
    assert len(sides.owner) == 0
    posted = sum(sides.device(name).posted for name in HERE)
    assert sides.read(other, 5) == b"other"
    assert sum(sides.device(name).posted for name in HERE) == posted + 3  # a probe, data and word: nothing was in vain


# --- what fails


def test_a_queue_pair_that_fails_is_made_anew(sides: Sides) -> None:
    handle = sides.make(bytearray(b"0123456789"))
    sides.read(handle, 10)
    sides.owner.close()  # the owner's side is gone: no answer
    assert sides.read(handle, 10) == b"0123456789"
    assert len(sides.owner) >= 1
    for name in HERE:
        assert len(sides.device(name).pairs) <= 1  # the failed one was closed


def test_an_owner_that_has_ended_is_named(sides: Sides) -> None:
    handle = sides.make(bytearray(10))
    sides.read(handle, 10)
    sides.owner.close()
    sides.wrong = SupervisionError("its process ended")
    with pytest.raises(OwnerEndedError, match=rf"owner of buffer {handle.number} has ended"):
        sides.read(handle, 10)


@pytest.mark.parametrize("passes", [0, 8])
def test_an_owner_whose_devices_do_not_answer_is_left_alone_for_a_while(
    sides: Sides, gone: list[str], passes: int
) -> None:
    """Nothing passes, or the little that is tried first and no more."""
    handle = sides.make(bytearray(10))
    sides.read(handle, 10)

    def deaf(request: Any, *args: Any) -> int:
        return 12 if request.size > passes else 0

    for name in HERE:
        device = sides.device(name)
        make = device.pair
        device.pair = lambda work, path, make=make: silent(make(work, path), deaf)  # type: ignore[method-assign,misc]
    sides.owner.close()
    if not passes:
        sides.read(handle, 10)
        assert gone[0].startswith("nothing passes between here_")
        assert gone[0] == ibverbs.unreachable.why(ibverbs.memory_at(handle))
        return
    with pytest.raises(RDMAError, match=rf"buffer {handle.number} of .*retry exceeded") as caught:
        sides.read(handle, 10)
    assert str(handle.owner) in str(caught.value)
    assert "retry exceeded" in ibverbs.unreachable.why(ibverbs.memory_at(handle))
    attempts = [type(one).__name__ for one in sides.asked].count("KeyRequest")
    assert attempts == 1 + ibverbs.ATTEMPTS - 1
    with pytest.raises(RDMAError, match="part of the write may have arrived"):
        sides.write(handle, b"x" * 10)


def silent(pair: Any, do: Callable[..., int]) -> Any:
    pair._do = do
    return pair


def test_time_that_is_over_stops_what_moves(sides: Sides) -> None:
    data = bytearray(10)
    handle = sides.make(data)
    sides.write(handle, b"known")
    for name in HERE:
        sides.device(name).hold = True
    result = sides.begin(handle, b"x" * 10, 0, True, 0.05)
    held = [pair for name in HERE for pair in sides.device(name).pairs]
    with pytest.raises(RDMATimeoutError, match=r"ibverbs submit timed out: write to buffer .* within 0.05 s"):
        result.get()
    for pair in held:
        pair.go_on()
    assert data == b"known" + bytes(5)
    for name in HERE:
        sides.device(name).hold = False
    sides.write(handle, b"again")
    assert data[:5] == b"again"


def test_others_are_done_over_when_one_is_late(sides: Sides) -> None:
    with configured(rdma_max_nics_per_buffer=1):
        handle = sides.make(bytearray(b"0123456789"))
        sides.read(handle, 10)
        (device,) = [sides.device(name) for name in HERE if sides.device(name).pairs]
        device.hold, before = [*device.pairs], device.posted  # not the queue pair that comes next
        into = bytearray(10)
        patient, hasty = sides.begin(handle, into), sides.begin(handle, bytearray(10), timeout=0.05)
        give_up = time.monotonic() + TIMEOUT
        while device.posted < before + 2 and not hasty.over:  # both are with the device, or one was too late for that
            assert time.monotonic() < give_up
            os.sched_yield()
        with pytest.raises(RDMATimeoutError):
            hasty.get()
        patient.get()
    assert into == b"0123456789"


def test_a_deadline_before_anything_is_known(sides: Sides) -> None:
    handle = sides.make(bytearray(10))
    sides.wait = asyncio.Event()
    with pytest.raises(RDMATimeoutError, match="ibverbs submit timed out"):
        sides.begin(handle, bytearray(10), timeout=0.02).get()
    sides.loop.loop.call_soon_threadsafe(sides.wait.set)
    assert sides.read(handle, 10) == bytes(10)


def test_one_of_two_devices_that_fails_takes_nothing_along(sides: Sides) -> None:
    data = bytearray(os.urandom(4 * MIB))
    handle = sides.make(data)
    sides.read(handle, 4 * MIB)
    (pair,) = sides.device("here_1").pairs
    silent(pair, lambda *args: 19)
    assert sides.read(handle, 4 * MIB) == data


def test_read_only_memory_is_not_lent_to_writers(sides: Sides) -> None:
    handle = sides.make(b"0123456789")
    assert sides.read(handle, 10) == b"0123456789"
    with pytest.raises(RDMAReadOnlyError, match="read-only"):
        sides.write(handle, b"x")


# --- what goes another way


def test_an_owner_without_devices(sides: Sides, gone: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    handle = sides.make(bytearray(10))
    sides.answer = "this machine has no RDMA device"
    sides.read(handle, 10)
    assert gone == ["the owner says: this machine has no RDMA device"]
    assert "no RDMA device" in ibverbs.unreachable.why(ibverbs.memory_at(handle))
    monkeypatch.setattr(ibverbs, "AVOID", -1.0)
    ibverbs.avoid(handle, "again")
    assert ibverbs.unreachable.why(ibverbs.memory_at(handle)) == ""


@pytest.mark.parametrize(
    "answer", [7, KeyReply((RemoteKeys("x" * 65, 1, 1),), ()), KeyReply((RemoteKeys("x", -1, 1),), ())]
)
def test_answers_that_make_no_sense(sides: Sides, gone: list[str], answer: Any) -> None:
    handle = sides.make(bytearray(10))
    sides.answer = answer
    sides.read(handle, 10)
    assert len(gone) == 1 and "sent an invalid answer" in gone[0]


def test_memory_that_cannot_be_locked(sides: Sides, gone: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ibverbs_devices, "locking", lambda: (64 << 10, False))
    handle = sides.make(bytearray(10))
    for name in THERE:
        sides.device(name).refuse = 1
    sides.read(handle, 10)
    assert "there_0 cannot register 10 bytes" in gone[0] or "there_1 cannot register 10 bytes" in gone[0]
    assert "ulimit -l" in gone[0]
    ibverbs.unreachable.clear()
    gone.clear()
    for name in HERE:
        sides.device(name).refuse = 2
    sides.read(handle, 10)
    assert "ulimit -l" in gone[0]


def test_settings_that_leave_no_pair(sides: Sides, gone: list[str]) -> None:
    handle = sides.make(bytearray(10))
    for affinity, text in (("match_name", "may pair"), ("nonsense", "RDMA_PEER_DEVICE_AFFINITY")):
        with configured(rdma_peer_device_affinity=affinity):
            sides.read(handle, 10)
        assert text in gone[-1]
    with configured(rdma_ibverbs_target="mlx5_0"):
        sides.read(handle, 10)
    assert "RDMA_IBVERBS_TARGET" in gone[-1]
    with configured(rdma_peer_device_affinity="groups:here_1,there_0|here_0", rdma_ibverbs_target=""):
        assert sides.read(handle, 10) == bytes(10)
    assert len(gone) == 3


def test_an_owner_that_is_slow_to_connect(sides: Sides, gone: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    handle = sides.make(bytearray(10))
    ask = sides.ask

    async def slow(request: Any) -> Any:
        if isinstance(request, ConnectRequest):
            await asyncio.Event().wait()
        return await ask(request)

    handle.service.verbs.call_one = slow
    with configured(rdma_qp_init_timeout="20ms"):
        sides.read(handle, 10)
    assert "rdma_qp_init_timeout" in gone[0]
    assert not any(sides.device(name).pairs for name in HERE)


def test_without_another_way_the_error_names_all(monkeypatch: pytest.MonkeyPatch, sides: Sides) -> None:
    handle = sides.make(bytearray(10))
    sides.answer = "no device"
    with configured(rdma_allow_tcp_fallback=False), pytest.raises(RDMAUnavailableError) as caught:
        sides.read(handle, 10)
    for text in ("ibverbs: the owner says: no device", "tcp: rdma_allow_tcp_fallback is off", "actor: "):
        assert text in str(caught.value)


# --- memory of a GPU


def test_memory_of_a_gpu_is_registered_by_dma_buf(tmp_path: Path) -> None:
    nic_tree(tmp_path / "sys", "far", "near", near={"node": 1, "pci": "pci0000:17/0000:17:01.0/0000:18:00.0"})
    nic_tree(tmp_path / "sys", "gpu", gpu={"node": 1, "pci": "pci0000:17/0000:17:01.0/0000:19:00.0"})
    (tmp_path / "sys/class/infiniband/gpu/node_type").write_text("9: no device of ours\n")
    files: list[int] = []

    def export(address: int, size: int, ordinal: int) -> DmaBuf:
        assert ordinal == 2
        files.append(os.open(tmp_path, os.O_RDONLY))
        return DmaBuf(files[-1], address % 4096, 8192)

    devices = RDMADevices(FakeBinding(tmp_path, ["far", "near"]), tmp_path / "sys", export, {2: "0000:19:00.0"}.get)  # type: ignore[arg-type]
    keep: Any = SimpleNamespace(device=SimpleNamespace(index=2))
    card: Any = ("cuda", "")
    memory = LocalMemory(0x7000_0100, 300, True, keep, "tensor on cuda:2", device=card)
    assert devices.near(memory) == ["near"]
    registration: Any = devices.register("near", memory, memory.address, memory.size, 7)
    assert registration.access == 7  # in order: a read behind a write has to find it
    (file,) = files
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(file)  # the kernel has its own
    registration.close()
    with configured(rdma_ibverbs_target="gpu:2"):
        assert devices.near(memory_of(bytearray(1))) == ["near"]
    with configured(rdma_ibverbs_target="gpu:7"), pytest.raises(ChoiceError, match="RDMA_IBVERBS_TARGET.*GPU 7"):  # noqa: RUF043
        devices.near(memory)
    devices.close()


def test_devices_that_the_library_does_not_know(tmp_path: Path) -> None:
    nic_tree(tmp_path / "sys", "mlx5_0")
    with pytest.raises(NoDevicesError, match="libibverbs cannot use mlx5_0"):
        RDMADevices(FakeBinding(tmp_path, []), tmp_path / "sys")
    devices = RDMADevices(FakeBinding(tmp_path, ["mlx5_0"]), tmp_path / "sys")
    with pytest.raises(ChoiceError, match="no RDMA device eth0"):
        devices.device("eth0")


# --- bounds and messages


def test_links_are_bounded(sides: Sides, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requester, "LINKS", 2)
    handle = sides.make(bytearray(b"0123456789"))
    owners = [handle._replace(owner=handle.owner._replace(pid=pid)) for pid in range(5)]  # the same, by other names
    for other in owners * 2:
        assert sides.read(other, 10) == b"0123456789"
    assert len(sides.engine._links) == 2
    assert sum(len(sides.device(name).pairs) for name in HERE) == 2


def test_what_serves_others_is_bounded(sides: Sides, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(responder, "MET", 3)
    end = QueuePairEnd("nic", 1, 2, 0, bytes(16), 5, 1)
    for number in range(6):
        sides.owner.connect(ConnectRequest(bytes([number]) * 16, "there_0", end, 1))
    assert len(sides.owner) == 3
    assert len(sides.device("there_0").pairs) == 3
    sides.owner.connect(ConnectRequest(bytes([5]) * 16, "there_0", end, 1))
    assert len(sides.device("there_0").pairs) == 3  # in the place of its predecessor


def test_the_thread_ends_when_nothing_is_left_to_do(sides: Sides, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_pair_link, "IDLE", 0.01)
    handle = sides.make(bytearray(10))
    for _ in range(2):
        sides.read(handle, 10)
        thread = sides.engine._watch._thread
        if thread is not None:
            thread.join(TIMEOUT)
        assert sides.engine._watch._thread is None


READER = bytes(16)
END = QueuePairEnd("nic", 1, 2, 3, bytes(16), 5, 16)


@pytest.mark.parametrize(
    "request_",
    [
        KeyRequest(b"short", 1, 1, False), KeyRequest(READER, -1, 1, False), KeyRequest(READER, 1, 2**64, False),
        KeyRequest(READER, True, 1, True),
        ConnectRequest(READER, "", END), ConnectRequest(READER, "x" * 65, END),
        ConnectRequest(READER, "nic", END._replace(number=2**24)),
        ConnectRequest(READER, "nic", END._replace(gid=bytes(15))), ConnectRequest(READER, "nic", END._replace(mtu=6)),
        ConnectRequest(READER, "nic", END._replace(reads=0)), ConnectRequest(READER, "nic", END._replace(lid="1")),
        ConnectRequest(READER, "nic", END._replace(sequence=-1)), ConnectRequest(READER, "nic", tuple(END)), "Lend", None,
    ],
)  # fmt: skip
def test_requests_are_not_taken_on_trust(request_: Any, sides: Sides) -> None:
    with pytest.raises(ValueError, match=r"."):
        responder.answer(request_, sides.owner, sides.registry)


def test_requests_for_what_is_not_there(sides: Sides) -> None:
    with pytest.raises(BufferDroppedError):
        responder.answer(KeyRequest(READER, 0, 5, False), sides.owner, sides.registry)
    handle = sides.make(bytearray(4))
    with pytest.raises(BufferDroppedError):
        responder.answer(KeyRequest(READER, handle.number, handle.token ^ 1, False), sides.owner, sides.registry)
    answer = responder.answer(ConnectRequest(READER, "nic", END), sides.owner, sides.registry)
    assert "no RDMA device nic" in answer


def test_no_text_shows_a_key() -> None:
    key = RemoteKeys("mlx5_0", 0x5EC2E7, 0x5EC2E8)
    said = repr(
        [key, KeyReply((key,), (1,)), END, ConnectRequest(READER, "nic", END), KeyRequest(READER, 1, 0x70CE4, True)]
    )
    assert str(0x5EC2E7) not in said and str(0x5EC2E8) not in said and str(0x70CE4) not in said
    assert checked(KeyReply((key,), (1,))).keys == (key,)
