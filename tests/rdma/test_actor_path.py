"""Through the owner's process: bounded, and ended by the clock when the owner says nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import monarch
from monarch.rdma import RDMABuffer, RDMATimeoutError, paths
from monarch.rdma.backends import through_actors
from tests.rdma.buffers import call
from tests.support.patience import TIMEOUT

MIB = 1 << 20

pytestmark = [pytest.mark.procs, pytest.mark.filterwarnings("ignore::monarch.rdma.RDMATcpFallbackWarning")]


@pytest.fixture(autouse=True)
def only_this_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "BACKENDS", paths.BACKENDS)
    paths.allow("actor")


@pytest.mark.parametrize(
    ("megabytes", "frame", "expected"),
    [(64, 0, 64 * MIB), (64, 10 << 30, 64 * MIB), (0, 0, MIB), (64, 10 * MIB, 5 * MIB), (1, 1, 1)],
)
def test_a_chunk_is_no_larger_than_a_message_may_be(megabytes: int, frame: int, expected: int) -> None:
    with monarch.configured(rdma_max_chunk_size_mb=megabytes, codec_max_frame_length=frame):
        assert through_actors.chunk_bytes() == expected


def test_so_many_chunks_are_under_way_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    active, most, ranges = 0, 0, []

    async def chunk(transfer: Any, at: int, count: int) -> None:
        nonlocal active, most
        active += 1
        most = max(most, active)
        ranges.append((at, count))
        for _ in range(5):
            await asyncio.sleep(0)
        active -= 1

    monkeypatch.setattr(through_actors, "_chunk", chunk)
    buffer = RDMABuffer(bytearray(20 * MIB + 1))
    into = bytearray(20 * MIB + 1)
    with monarch.configured(rdma_max_chunk_size_mb=1):
        futures = [buffer.read_into(into) for _ in range(3)]
        for future in futures:
            future.get(TIMEOUT)
    assert most == through_actors.IN_FLIGHT
    assert sorted(ranges) == sorted(3 * [(at, min(MIB, 20 * MIB + 1 - at)) for at in range(0, 20 * MIB + 1, MIB)])


def test_an_owner_that_says_nothing_is_given_up(fresh: Any, owners: type, held: Any) -> None:
    owner = fresh(owners)
    number, buffer = call(owner.make, b"0123456789")
    with held(call(owner.pid)):
        into = bytearray(10)
        with pytest.raises(RDMATimeoutError, match=r"\(Tcp\) tcp submit timed out: read from buffer"):
            buffer.read_into(into, timeout=0.2).get(TIMEOUT)
        assert into == bytes(10)
        with pytest.raises(RDMATimeoutError, match="write to buffer"):
            buffer.write_from(b"abc", timeout=0.2).get(TIMEOUT)
    buffer.read_into(into).get(TIMEOUT)
    assert into[3:] == b"3456789"
    assert call(owner.bytes_of, number) == bytes(into)


def test_a_request_out_of_range_is_refused(owner: Any) -> None:
    """A handle comes from another process: what it says of sizes is checked by the owner."""
    from monarch.rdma import RDMAError
    from monarch.rdma.buffer import _restore

    _, buffer = call(owner.make, b"0123456789")
    forged = _restore(*buffer._handle._replace(size=20))
    with pytest.raises(RDMAError, match="do not lie in a buffer of 10"):
        forged.read_into(bytearray(20)).get(TIMEOUT)
    with pytest.raises(RDMAError, match="do not lie in a buffer of 10"):
        forged.write_from(bytes(20)).get(TIMEOUT)
    constant = call(owner.make_read_only, b"0123456789")
    with pytest.raises(RDMAError, match="is read-only"):
        _restore(*constant._handle._replace(writable=True)).write_from(b"x").get(TIMEOUT)
