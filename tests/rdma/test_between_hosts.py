"""Tests of what every path between hosts promises, over streams, RDMA devices (imitated) and NIXL (so where it is not
installed)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from monarch.actor import HostMesh, ProcMesh, attach_to_workers
from monarch.rdma import RDMABuffer
from monarch.tools.certs import make_certificates
from tests.rdma.between_hosts import MIB, copies, drops, moves, read, sides, write
from tests.rdma.buffers import call
from tests.support.hosts import hosts_in
from tests.support.patience import TIMEOUT
from tests.support.processes import kill, stopped
from tests.support.tiers import first_of, full

pytestmark = [pytest.mark.procs, pytest.mark.filterwarnings("ignore::monarch.rdma.RDMATcpFallbackWarning")]
PATHS = ["tcp", pytest.param("ibverbs", marks=copies), pytest.param("nixl", marks=copies)]
IMITATED = PATHS[1:]


@pytest.mark.parametrize("path", first_of(PATHS))
def test_what_is_there_is_read_and_what_is_written_is_there(two: ProcMesh, tmp_path: Path, path: str) -> None:
    owner, other = sides(two, path, tmp_path)
    moves(owner, other, path)
    assert call(other.backend) == ("ibverbs" if path == "ibverbs" else "tcp")
    assert path != "tcp" or call(other.lanes) >= 1


@pytest.mark.parametrize("path", first_of(PATHS))
def test_a_dropped_buffer_is_not_read_and_its_successor_is(two: ProcMesh, tmp_path: Path, path: str) -> None:
    drops(*sides(two, path, tmp_path))


@full
@pytest.mark.parametrize("path", PATHS)
def test_an_owner_that_ends_is_told_of(two: ProcMesh, tmp_path: Path, path: str) -> None:
    owner, other = sides(two, path, tmp_path)
    _, buffer = call(owner.make, b"data")
    assert read(other, buffer) == b"data"
    kill(call(owner.pid))
    assert read(other, buffer) == "OwnerEndedError"
    assert write(other, buffer, b"more") == "OwnerEndedError"


@full
@pytest.mark.parametrize("path", ["tcp", "nixl"])  # RDMA devices need nobody there
def test_a_stopped_owner_is_waited_for_until_the_timeout(two: ProcMesh, tmp_path: Path, path: str) -> None:
    owner, other = sides(two, path, tmp_path)
    _, buffer = call(owner.make, bytes(8 * MIB))
    assert read(other, buffer) == bytes(8 * MIB)
    with stopped(call(owner.pid)):
        assert read(other, buffer, timeout=0.2) == "RDMATimeoutError"
    assert read(other, buffer) == bytes(8 * MIB)


@full
@pytest.mark.parametrize("path", IMITATED)
def test_an_owner_without_it_is_reached_another_way(two: ProcMesh, tmp_path: Path, path: str) -> None:
    owner, other = sides(two, path, tmp_path, there=())
    data = os.urandom(MIB)
    number, buffer = call(owner.make, data)
    assert call(other.path, buffer) == path  # who asks cannot know yet
    assert read(other, buffer) == data
    assert call(other.avoided) == 1
    assert write(other, buffer, b"new") == b"new"
    assert call(owner.bytes_of, number)[:3] == b"new"
    _, again = call(owner.make, b"more")
    assert read(other, again) == b"more"
    assert path == "nixl" or call(other.path, again) == "tcp"


# --- streams


@full
def test_without_a_way_for_streams_actors_do_it(two: ProcMesh, tmp_path: Path) -> None:
    """The client has no address."""
    _, other = sides(two, "tcp", tmp_path)
    buffer = RDMABuffer(bytearray(b"mine"))
    assert call(other.path, buffer) == "actor"
    assert read(other, buffer) == b"mine"
    buffer.drop().get(TIMEOUT)


@full
def test_streams_go_over_unix_sockets_too(tmp_path: Path) -> None:
    with hosts_in(tmp_path) as hosts:
        moves(*sides(hosts.attach(hosts.start(), hosts.start()).spawn_procs(), "tcp", tmp_path), "tcp")


# --- TLS

WORKER = """
import sys
from monarch.actor import run_worker_loop_forever
run_worker_loop_forever(address=sys.argv[1].replace("tcp://", "tls://"))
"""


@pytest.fixture(scope="module")
def hosts_by_tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostMesh]:
    """Two hosts that speak TLS."""
    pytest.importorskip("cryptography")
    folder = tmp_path_factory.mktemp("tls")
    made = make_certificates(folder / "certs")
    env = {"MONARCH_TLS_CA": made.ca, "MONARCH_TLS_CERT": made.certificate, "MONARCH_TLS_KEY": made.private_key}
    with pytest.MonkeyPatch.context() as patched, hosts_in(folder) as hosts:
        patched.delenv("MONARCH_SECRET", raising=False)
        patched.delenv("MONARCH_SECRET_FILE", raising=False)
        workers = [hosts.start_tcp(WORKER, {name: str(file) for name, file in env.items()}) for _ in range(2)]
        mesh = attach_to_workers(
            workers=[worker.address.replace("tcp://", "tls://") for worker in workers], ca=made.ca,
            certificate=made.certificate, private_key=made.private_key,
        )  # fmt: skip
        assert mesh.initialized.get(TIMEOUT) is True
        yield mesh
        mesh.shutdown().get(TIMEOUT)


@pytest.fixture
def two_by_tls(hosts_by_tls: HostMesh) -> Iterator[ProcMesh]:
    procs = hosts_by_tls.spawn_procs()
    yield procs
    procs.stop().get(TIMEOUT)


@full
@pytest.mark.parametrize("path", PATHS)
def test_a_job_with_tls_sends_nothing_in_plain(two_by_tls: ProcMesh, tmp_path: Path, path: str) -> None:
    owner, other = sides(two_by_tls, path, tmp_path)
    data = os.urandom(3 * MIB)
    _, buffer = call(owner.make, data)
    assert call(other.path, buffer) == "actor"
    assert read(other, buffer) == data
    assert call(other.lanes) == 0
    if path == "ibverbs":
        call(other.configure, {"rdma_allow_plain_bytes": True})
        _, second = call(owner.make, b"secret, too")
        assert call(other.path, second) == "ibverbs"
        assert read(other, second) == b"secret, too"  # but not by devices: the owner does not allow it
        assert call(other.avoided) == 1


@full
@copies
def test_rdma_devices_move_plain_bytes_if_both_sides_allow_it(two_by_tls: ProcMesh, tmp_path: Path) -> None:
    owner, other = sides(two_by_tls, "ibverbs", tmp_path)
    for side in (owner, other):
        call(side.configure, {"rdma_allow_plain_bytes": True})
    moves(owner, other, "ibverbs")
