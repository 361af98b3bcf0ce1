"""RDMA devices from a program's side: between processes, over an imitation of the devices; on a machine without any; and the
real binding as far as it goes without a device.

Hardware has never been seen. Some tests take a real device where there is one; two of them have been run over soft RoCE.
"""

from __future__ import annotations

import ctypes
import importlib
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from monarch._devices import DmaBuf
from monarch.actor import ProcMesh
from monarch.config import configured
from monarch.rdma import get_rdma_backend, is_ibverbs_available, is_rdma_available
from monarch.rdma.backends.ibverbs import devices as ibverbs_devices
from monarch.rdma.backends.ibverbs import sysfs
from monarch.rdma.backends.ibverbs.backend import Ibverbs
from monarch.rdma.backends.ibverbs.binding import (
    DeviceLimits,
    NoVerbsError,
    PacketPath,
    VerbsPackage,
    _Device,
    send_requests,
)
from monarch.rdma.backends.ibverbs.control_messages import QueuePairEnd
from monarch.rdma.backends.ibverbs.devices import NoDevicesError, RDMADevices
from monarch.rdma.backends.ibverbs.pairing import Gid, offered
from monarch.rdma.backends.ibverbs.send_queue import WorkRequest
from tests.rdma.between_hosts import copies, drops, moves, read, sides
from tests.rdma.buffers import call
from tests.rdma.ibverbs_fake import FakeBinding, nic_tree
from tests.support.processes import kill
from tests.support.tiers import full

MIB = 1 << 20


needs_device = pytest.mark.skipif(not is_ibverbs_available(), reason="no RDMA device, or no binding to it, is here")


@pytest.fixture
def real_sides(two: ProcMesh, tmp_path: Path) -> tuple[Any, Any]:
    """Two hosts and the devices of this machine."""
    return sides(two, "ibverbs", tmp_path, (), ())


@needs_device
@pytest.mark.procs
def test_over_a_real_device(real_sides: tuple[Any, Any]) -> None:
    moves(*real_sides, "ibverbs")


@needs_device
@pytest.mark.procs
def test_drops_over_a_real_device(real_sides: tuple[Any, Any]) -> None:
    drops(*real_sides)


def port_of_a_device() -> tuple[str, Any]:
    """The name of the first usable one here, and what /sys says of it."""
    nics, _ = sysfs.usable()
    return nics[0].name, nics[0]


@needs_device
@pytest.mark.procs
@pytest.mark.parametrize("relaxed", [True, False])
def test_settings_on_a_real_device(real_sides: tuple[Any, Any], relaxed: bool) -> None:
    name, nic = port_of_a_device()
    slot = offered(name, nic.gids, nic.ethernet, None)[0].slot
    told = {
        "rdma_ibverbs_target": f"nic:{name}", "rdma_ib_gid_index": slot, "rdma_ib_traffic_class": 104,
        "rdma_ib_timeout": 18, "rdma_ib_retry_count": 6, "rdma_ib_relaxed_ordering": relaxed,
    }  # fmt: skip
    for side in real_sides:
        call(side.configure, told)
    moves(*real_sides, "ibverbs")


@needs_device
@pytest.mark.procs
@pytest.mark.parametrize("setting", ["rdma_ib_gid_index", "rdma_ib_pkey_index"])
def test_what_a_real_port_has_not(real_sides: tuple[Any, Any], setting: str) -> None:
    owner, other = real_sides
    unused = max(slot.slot for slot in port_of_a_device()[1].gids) + 1 if "gid" in setting else 65535
    call(other.configure, {setting: unused})
    _, buffer = call(owner.make, b"data")
    assert read(other, buffer) == b"data"  # by the next path
    assert call(other.avoided) == 1


@needs_device
@pytest.mark.procs
def test_the_end_of_an_owner_is_heard_of_before_a_real_device_gives_up(real_sides: tuple[Any, Any]) -> None:
    """The device itself would try again for half a minute or more, and call the owner unreachable."""
    owner, other = real_sides
    _, buffer = call(owner.make, b"data")
    assert read(other, buffer) == b"data"
    call(other.record_faults)
    kill(call(owner.pid))
    assert read(other, buffer) == "OwnerEndedError"
    assert set(call(other.faults)) <= {"FLUSHED"}


@full
@copies
@pytest.mark.procs
def test_it_can_be_switched_off(two: ProcMesh, tmp_path: Path) -> None:
    owner, other = sides(two, "ibverbs", tmp_path)
    (_, buffer), (_, again) = call(owner.make, b"data"), call(owner.make, b"more")
    assert read(other, buffer) == b"data"
    call(other.configure, {"rdma_disable_ibverbs": True})
    assert call(other.path, again) == "tcp" and call(other.backend) == "tcp"
    assert read(other, buffer) == b"data" and read(other, again) == b"more"
    call(other.configure, {"rdma_disable_ibverbs": False})
    call(owner.configure, {"rdma_disable_ibverbs": True})
    _, third = call(owner.make, b"third")
    assert read(other, third) == b"third"
    assert call(other.avoided) == 1


# --- what is said of a machine


@pytest.fixture
def unknown() -> Iterator[None]:
    """This process has not looked for devices."""
    before = ibverbs_devices._made.value
    ibverbs_devices.use(None)
    yield
    ibverbs_devices._made.replace(before)


@pytest.mark.skipif(bool(sysfs.present()), reason="this machine has RDMA devices")
def test_a_machine_without_devices(unknown: None) -> None:
    assert not is_ibverbs_available()
    with pytest.warns(DeprecationWarning):
        assert not is_rdma_available()
    assert get_rdma_backend() == "tcp"
    with configured(rdma_disable_ibverbs=True):
        assert get_rdma_backend() == "tcp" and not is_ibverbs_available()
    with configured(rdma_allow_tcp_fallback=False):
        assert get_rdma_backend() == "none"
    handle: Any = None
    assert Ibverbs().why_unavailable(handle) == "this machine has no RDMA device"


def test_devices_that_are_there(unknown: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nic_tree(tmp_path, "mlx5_0")
    monkeypatch.setattr(ibverbs_devices, "_find", lambda: RDMADevices(FakeBinding(tmp_path, ["mlx5_0"]), tmp_path))
    assert is_ibverbs_available() and get_rdma_backend() == "ibverbs"
    with configured(rdma_disable_ibverbs=True):
        assert is_ibverbs_available() and get_rdma_backend() == "tcp"
        handle: Any = None
        assert Ibverbs().why_unavailable(handle) == "the setting rdma_disable_ibverbs is on"


def test_devices_without_the_package_are_told_of_once(
    unknown: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    nics = sysfs.usable(nic_tree(tmp_path, "mlx5_0"))
    monkeypatch.setattr(sysfs, "usable", lambda: nics)
    monkeypatch.setitem(sys.modules, "ibverbs", None)
    with caplog.at_level(logging.WARNING, "monarch"):
        assert not is_ibverbs_available() and not is_ibverbs_available()
        assert get_rdma_backend() == "tcp"
    assert len(caplog.records) == 1
    with pytest.raises(NoDevicesError):
        ibverbs_devices.devices()


def test_a_driver_that_fails_keeps_nobody_from_the_next_path(
    unknown: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    class Odd:
        def names(self) -> list[str]:
            raise RuntimeError("no such luck")

    nics = sysfs.usable(nic_tree(tmp_path, "mlx5_0"))
    monkeypatch.setattr(sysfs, "usable", lambda *args: nics)
    monkeypatch.setattr(ibverbs_devices, "VerbsPackage", Odd)
    with caplog.at_level(logging.WARNING, "monarch"):
        assert not is_ibverbs_available()
    assert "no such luck" in caplog.text


def test_without_the_package_the_text_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ibverbs", None)
    with pytest.raises(NoVerbsError, match=r"pip install 'pymonarch\[rdma-verbs\]'"):
        VerbsPackage()


def test_without_the_library_the_text_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(name: str) -> Any:
        raise ImportError("libibverbs.so.1: cannot open shared object file")

    monkeypatch.setattr(importlib, "import_module", fails)
    with pytest.raises(NoVerbsError, match=r"cannot open.*needs libibverbs.so.1"):
        VerbsPackage()


# --- the real binding, without a device


def real() -> Any:
    try:
        ctypes.CDLL("libibverbs.so.1")
    except OSError:
        pytest.skip("libibverbs.so.1 is not on this machine")
    return pytest.importorskip("ibverbs", reason="the package ibverbs is not installed")


@pytest.mark.skipif(bool(sysfs.present()), reason="this machine has RDMA devices")
def test_the_package_without_a_device() -> None:
    real()
    package = VerbsPackage()
    assert package.names() == []
    with pytest.raises(OSError, match=r"."):
        package.open("mlx5_0")


def test_the_package_takes_our_requests() -> None:
    ib = real()
    request = WorkRequest(2**63, 2**63 + 5, 1 << 30)
    (sent,) = send_requests(ib, [(2**40, request)], True, 7, 2**32 - 1)
    assert (sent.wr_id, sent.remote_addr, sent.rkey) == (2**40, 2**63 + 5, 2**32 - 1)
    assert sent.opcode == ib.WROpcode.RDMA_WRITE and sent.send_flags == ib.SendFlags.SIGNALED
    assert [(one.addr, one.length, one.lkey) for one in sent.sg_list] == [(2**63, 1 << 30, 7)]
    (read,) = send_requests(ib, [(1, request)], False, 7, 1)
    assert read.opcode == ib.WROpcode.RDMA_READ


def test_the_numbers_are_those_of_verbs() -> None:
    from monarch.rdma.backends.ibverbs import binding, send_queue
    from monarch.rdma.backends.ibverbs.send_queue import TransferFault

    ib = real()
    access = ib.AccessFlags
    assert binding.LOCAL_WRITE == access.LOCAL_WRITE
    assert binding.REMOTE_WRITE == access.REMOTE_WRITE
    assert binding.REMOTE_READ == access.REMOTE_READ
    assert binding.RELAXED_ORDERING == access.RELAXED_ORDERING
    assert binding.MTU_4096 == ib.MTU.MTU_4096
    status = ib.WCStatus
    assert send_queue.SUCCESS == status.SUCCESS
    faults = {
        TransferFault.LOCAL: (status.LOC_LEN_ERR, status.LOC_QP_OP_ERR, status.LOC_PROT_ERR, status.LOC_ACCESS_ERR),
        TransferFault.FLUSHED: (status.WR_FLUSH_ERR,),
        TransferFault.REFUSED: (
            status.REM_INV_REQ_ERR,
            status.REM_ACCESS_ERR,
            status.REM_OP_ERR,
            status.REM_INV_RD_REQ_ERR,
        ),
        TransferFault.UNREACHABLE: (
            status.RETRY_EXC_ERR,
            status.RNR_RETRY_EXC_ERR,
            status.REM_ABORT_ERR,
            status.RESP_TIMEOUT_ERR,
        ),
        TransferFault.DEVICE: (status.FATAL_ERR, status.GENERAL_ERR),
    }
    for fault, statuses in faults.items():
        assert {send_queue.fault_of(one) for one in statuses} == {fault}


def test_the_package_has_what_is_called() -> None:
    """Names of methods that only a device would call."""
    ib = real()
    called = {
        ib.Device: ("name", "open"),
        ib.Context: ("query_device", "query_port", "alloc_pd", "create_cq", "create_comp_channel", "close"),
        ib.PD: ("reg_mr", "reg_dmabuf_mr", "create_qp", "close"),
        ib.MR: ("lkey", "rkey", "close"),
        ib.QP: ("qp_num", "to_init", "to_rtr", "to_rts", "post_send", "close"),
        ib.CQ: ("poll", "req_notify", "ack_events", "close"),
        ib.CompChannel: ("fd", "get_cq_event", "close"),
        ib.WC: ("wr_id", "status"),
        ib.PortAttr: ("lid", "active_mtu", "max_msg_sz"),
        ib.DeviceAttr: ("max_qp_wr", "max_cqe", "max_qp_rd_atom"),
    }
    assert [
        f"{kind.__name__}.{name}" for kind, names in called.items() for name in names if not hasattr(kind, name)
    ] == []
    names = {
        ib.QP.to_init: "port, int access=0, int pkey_index",
        ib.QP.to_rtr: "sgid_index mtu hop_limit max_dest_rd_atomic sl traffic_class",
        ib.QP.to_rts: "psn timeout retry_cnt max_rd_atomic",
        ib.PD.reg_mr: "addr, length, int access",
        ib.PD.reg_dmabuf_mr: "offset, length, iova, int fd, int access",
        ib.Context.create_cq: "int cqe, channel",
    }
    for method, words in names.items():
        wanted = [words] if "," in words else words.split()
        signature = method.__doc__.splitlines()[0]
        assert [word for word in wanted if word not in signature] == []
    info = ib.QPInfo(2**24 - 1, 5, 2, bytes(16), 1, 5)
    assert (info.qp_num, info.psn, info.lid, info.port, info.mtu) == (2**24 - 1, 5, 2, 1, 5)
    assert issubclass(ib.VerbsError, OSError)


def test_a_library_without_dma_buf_is_a_device_that_cannot_register() -> None:
    def unavailable(*args: Any) -> Any:
        raise RuntimeError("ibv_reg_dmabuf_mr is unavailable: this libibverbs predates rdma-core 34")

    device = _Device.__new__(_Device)
    device.domain = SimpleNamespace(reg_dmabuf_mr=unavailable)
    with pytest.raises(OSError, match="predates rdma-core 34"):
        device.register_dmabuf(DmaBuf(8, 100, 8192), 0x7000, 300, 4)


class Said:
    """Takes the place of the package's objects: notes what was called, and gives more of the same."""

    def __init__(self, log: list[tuple[Any, ...]], name: str, **has: Any) -> None:
        self.__dict__ |= {"log": log, "of": name} | has

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **named: Any) -> Any:
            self.log.append((f"{self.of}.{name}", *args, *sorted(named.items())))
            return self.makes.get(name) if "makes" in self.__dict__ else None

        return call


def test_what_the_package_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole life of a queue pair, as calls of the package."""
    log: list[tuple[Any, ...]] = []
    done = [SimpleNamespace(wr_id=5, status=0), SimpleNamespace(wr_id=6, status=10)]
    queue = Said(log, "cq", makes={"poll": done})
    channel = Said(log, "channel", fd=77, makes={"get_cq_event": queue})
    pair = Said(log, "qp", qp_num=4711)
    region = Said(log, "mr", lkey=1, rkey=2)
    domain = Said(log, "pd", makes={"create_qp": pair, "reg_mr": region, "reg_dmabuf_mr": region})
    has = SimpleNamespace(max_qp_wr=100, max_cqe=90, max_qp_rd_atom=128)
    port = SimpleNamespace(max_msg_sz=1 << 31, lid=9, active_mtu=3)
    opened = {
        "query_device": has,
        "query_port": port,
        "alloc_pd": domain,
        "create_cq": queue,
        "create_comp_channel": channel,
    }
    context = Said(log, "ctx", makes=opened)
    ib: Any = ModuleType("ibverbs")
    ib.get_device_list = lambda: [SimpleNamespace(name="other"), SimpleNamespace(name="mlx5_0", open=lambda: context)]
    for name in ("QPInitAttr", "QPInfo", "SendWR", "SGE"):
        setattr(ib, name, lambda *args, name=name, **named: (name, *args, *sorted(named.items())))
    ib.WROpcode = SimpleNamespace(RDMA_WRITE=0, RDMA_READ=4)
    ib.SendFlags = SimpleNamespace(SIGNALED=2)
    monkeypatch.setitem(sys.modules, "ibverbs", ib)

    package = VerbsPackage()
    assert package.names() == ["other", "mlx5_0"]
    device = package.open("mlx5_0")
    assert device.limits == DeviceLimits(work=90, message=1 << 30, reads=16)
    registration = device.register(4096, 10, 7)
    assert (registration.key, registration.remote_key) == (1, 2)
    device.register_dmabuf(DmaBuf(8, 100, 8192), 0x7000, 300, 4)
    made = device.pair(90, PacketPath(Gid(3, bytes(range(16)), "RoCE v2"), 2, 106, 5, 19, 6))
    end = made.end()
    assert end == QueuePairEnd("mlx5_0", 4711, end.sequence, 9, bytes(range(16)), 3, 16) and end.check()
    peer = QueuePairEnd("mlx5_9", 12, 34, 5, bytes(16), 5, 8)
    made.to_init(6)
    made.to_rtr(peer)
    made.to_rts(peer)
    made.post([(5, WorkRequest(2000, 1000, 10))], False, 1, 99)
    assert made.fileno() == 77
    made.acknowledge()
    assert made.poll() == [(5, 0), (6, 10)]
    registration.close()
    made.close()
    device.close()
    pieces = ("sg_list", [("SGE", 2000, 10, 1)])
    sent = ("SendWR", ("opcode", 4), ("remote_addr", 1000), ("rkey", 99), ("send_flags", 2), pieces, ("wr_id", 5))
    assert log == [
        ("ctx.query_device",),
        ("ctx.query_port", 1),
        ("ctx.alloc_pd",),
        ("pd.reg_mr", 4096, 10, 7),
        ("pd.reg_dmabuf_mr", 100, 300, 0x7000, 8, 4),
        ("ctx.create_comp_channel",),
        ("ctx.create_cq", 90, channel),
        ("cq.req_notify",),
        ("pd.create_qp", ("QPInitAttr", ("max_recv_wr", 1), ("max_send_sge", 1), ("max_send_wr", 90), ("recv_cq", queue),
                          ("send_cq", queue))),
        ("qp.to_init", 1, 6, 2),
        ("qp.to_rtr", ("QPInfo", 12, 34, 5, bytes(16), 1, 3), ("hop_limit", 64), ("max_dest_rd_atomic", 8), ("mtu", 3),
         ("sgid_index", 3), ("sl", 5), ("traffic_class", 106)),
        ("qp.to_rts", end.sequence, ("max_rd_atomic", 8), ("retry_cnt", 6), ("timeout", 19)),
        ("qp.post_send", [sent]),
        ("channel.get_cq_event",),
        ("cq.ack_events", 1),
        ("cq.req_notify",),
        ("cq.poll", 64),
        ("mr.close",),
        ("qp.close",),
        ("cq.close",),
        ("channel.close",),
        ("pd.close",),
        ("ctx.close",),
    ]  # fmt: skip
