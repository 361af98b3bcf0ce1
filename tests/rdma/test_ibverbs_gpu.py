"""RDMA devices and memory of GPUs: an imitation of the devices and a faked card, in real processes on two hosts."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import ProcMesh
from tests.rdma.between_hosts import copies
from tests.rdma.buffers import call
from tests.rdma.cards import Side, pattern
from tests.support.tiers import full

MIB = 1 << 20
NICS = ("mlx5_0", "mlx5_1")


pytestmark = [
    pytest.mark.procs,
    pytest.mark.usefixtures("torch_preloaded"),
    pytest.mark.filterwarnings("ignore::monarch.rdma.RDMATcpFallbackWarning"),
    copies,
]


@pytest.fixture
def sides(two: ProcMesh, tmp_path: Path) -> tuple[Any, Any]:
    """An owner and a reader, each on a host of its own."""
    fabric = tmp_path / "fabric"
    fabric.mkdir()
    owner = two.slice(hosts=0).spawn("owner", Side)
    reader = two.slice(hosts=1).spawn("reader", Side)
    for side in (owner, reader):
        call(side.use_verbs, str(fabric), list(NICS))
    return owner, reader


@full
def test_memory_of_gpus_is_read_and_written_at_both_ends(sides: tuple[Any, Any]) -> None:
    """Ours through pinned memory, the owner's where it is."""
    owner, reader = sides
    kinds = [("cuda", "cuda"), ("cpu", "cuda"), ("cuda", "cpu")]
    for (there, here), size in itertools.product(kinds, (5, 9 * MIB + 3)):
        data = pattern(size)
        buffer = call(owner.make, there, b"???" + data, 3)
        assert call(reader.path, buffer) == "ibverbs"
        assert call(reader.read, buffer, here, size + 2, {}) == data + b".."
        assert call(reader.write, buffer, here, data[::-1], {}) == b"ok"
        assert call(owner.seen, buffer) == b"???" + data[::-1]
        assert call(reader.write, buffer, here, b"xy", {"offset": 2}) == b"ok"
        assert call(owner.seen, buffer)[5:7] == b"xy"
        assert call(reader.path, buffer) == "ibverbs"  # nothing went another way
        call(reader.drop, buffer)
        assert call(reader.write, buffer, here, data, {})[0] == "BufferDroppedError"


@full
def test_that_a_gpus_memory_cannot_be_registered_says_nothing_of_the_hosts(sides: tuple[Any, Any]) -> None:
    owner, reader = sides
    call(owner.exports_fail, True)
    on_gpu, on_host = call(owner.make, "cuda", b"abc"), call(owner.make, "cpu", b"def")
    assert call(reader.read, on_gpu, "cpu", 3, {}) == b"abc"
    assert [call(reader.path, buffer) for buffer in (on_gpu, on_host)] == ["tcp", "ibverbs"]
    assert call(reader.read, on_host, "cpu", 3, {}) == b"def"
    for buffer in (on_gpu, on_host):
        call(owner.drop, buffer)
