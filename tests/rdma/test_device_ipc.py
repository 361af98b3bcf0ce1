"""Memory of a device between processes that come, go and are killed: what stays open, and what is given back."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from monarch.actor import this_host
from tests.rdma.buffers import call
from tests.rdma.cards import (
    TIMEOUT,
    Side,
    both_cards,
    card_owner,
    card_reader,
    card_side,
    counts_of,
    two_processes,
)
from tests.support.patience import until
from tests.support.processes import kill
from tests.support.tiers import full

pytestmark = [
    pytest.mark.procs,
    pytest.mark.usefixtures("torch_preloaded"),
    pytest.mark.filterwarnings("ignore::monarch.rdma.RDMATcpFallbackWarning"),
]
SIZE = 4096


procs = pytest.fixture(two_processes, scope="module", name="procs")
owner = pytest.fixture(card_owner, name="owner")
reader = pytest.fixture(card_reader, name="reader")
side = pytest.fixture(card_side, name="side")


@pytest.fixture
def doomed(side: type[Side]) -> Iterator[Any]:
    """One in a process of its own, which a test may kill."""
    procs = this_host().spawn_procs(name="doomed")
    mesh = procs.spawn("doomed", side)
    pid = call(mesh.pid)
    yield mesh
    procs.stop().get(timeout=TIMEOUT)
    for name in counts_of(pid):  # of a test that failed
        os.unlink(f"/dev/shm/{name}")


@full
@both_cards
def test_a_thousand_and_more_messages_with_a_handle_go_by_the_card(owner: Any, reader: Any, side: type[Side]) -> None:
    """Each message makes an RDMABuffer object of its own."""
    buffer = call(owner.make, "cuda", b"abc")
    for _ in range(11):
        assert call(reader.read_copies, buffer, 100) == ["device_ipc"]
    if side is Side:
        assert call(owner.card_says, "shares") == 1
    call(owner.drop, buffer)


def test_many_storages_are_open_at_a_time_and_those_used_longest_ago_are_closed(owner: Any, reader: Any) -> None:
    call(reader.keep_open, 3)
    buffers = [call(owner.make, "cuda", bytes([number]) * 10) for number in range(5)]
    for buffer in (*buffers, buffers[2], buffers[0]):
        assert call(reader.read, buffer, "cuda", 10, {}) == call(owner.seen, buffer)
        assert call(reader.open_storages) <= 3
    assert call(owner.card_says, "shares") == 6  # the first one again
    call(reader.keep_open, 1024)
    for buffer in buffers:
        call(owner.forget, buffer)
    until(lambda: call(owner.allocated) == 0)


@both_cards
def test_memory_that_a_killed_process_had_open_is_the_owners_again(owner: Any, doomed: Any, reader: Any) -> None:
    before = call(owner.allocated)
    buffer = call(owner.make, "cuda", bytes(SIZE))
    call(doomed.hold, buffer)
    call(reader.hold, buffer)
    assert call(owner.given) == 2
    kill(call(doomed.pid))
    until(lambda: call(owner.given) == 1)
    call(owner.forget, buffer)
    until(lambda: call(owner.allocated) == before)
    until(lambda: call(owner.given) == 0)


@both_cards
def test_memory_is_the_owners_again_though_a_process_is_killed_after_the_drop(
    owner: Any, doomed: Any, held: Any
) -> None:
    """It is stopped when it is told to close what it has open, and killed as it is."""
    before = call(owner.allocated)
    buffer = call(owner.make, "cuda", bytes(SIZE))
    call(doomed.hold, buffer)
    pid = call(doomed.pid)
    with held(pid):
        call(owner.forget, buffer)
        assert call(owner.allocated) == before + SIZE
        kill(pid)
    until(lambda: call(owner.allocated) == before)


def test_memory_of_a_killed_owner_is_closed_by_those_who_had_it_open(doomed: Any, reader: Any) -> None:
    for _ in range(2):
        call(reader.hold, call(doomed.make, "cuda", bytes(SIZE)))
    assert call(reader.open_storages) == 2
    pid = call(doomed.pid)
    assert counts_of(pid)
    kill(pid)
    until(lambda: call(reader.open_storages) == 0)
    until(lambda: not counts_of(pid))


@full
def test_closing_memory_makes_no_context_on_another_card(owner: Any, doomed: Any) -> None:
    """The reader uses the second card of its process: the first is somebody else's."""
    call(doomed.uses_the_second)
    for how in (owner.forget, owner.drop, None):
        buffer = call(owner.make, "cuda", bytes(SIZE))
        call(doomed.hold, buffer)
        if how is None:
            call(doomed.close_all)
        else:
            call(how, buffer)
        until(lambda: call(doomed.open_storages) == 0)
    assert call(doomed.card_says, "contexts") == {"cuda:1"}


def test_a_card_whose_memory_cannot_be_opened_is_left_alone_for_a_while(owner: Any, doomed: Any) -> None:
    full = RuntimeError("CUDA error: out of memory")
    call(doomed.has, fails_to_open=full)
    one, other = call(owner.make, "cuda", b"abc"), call(owner.make, "cuda", b"def")
    assert call(doomed.read, one, "cpu", 3, {}) == b"abc"
    assert [call(doomed.path, buffer) for buffer in (one, other)] == ["tcp", "tcp"]
    assert call(owner.card_says, "shares") == 1
    call(doomed.has, fails_to_open=None)
    call(doomed.wait_no_longer)
    assert call(doomed.path, one) == "device_ipc"
    assert call(doomed.read, one, "cuda", 3, {}) == b"abc"
    for buffer in (one, other):
        call(owner.forget, buffer)
    until(lambda: call(owner.allocated) == 0)  # what could not be opened was given back


@full
def test_a_storage_that_is_not_lent_says_nothing_of_others(owner: Any, doomed: Any) -> None:
    call(owner.has, ipc="not this one")
    one, other = call(owner.make, "cuda", b"abc"), call(owner.make, "cuda", b"def")
    assert call(doomed.read, one, "cuda", 3, {}) == b"abc"
    call(owner.has, ipc="")
    assert [call(doomed.path, buffer) for buffer in (one, other)] == ["tcp", "device_ipc"]
    for buffer in (one, other):
        call(owner.drop, buffer)
