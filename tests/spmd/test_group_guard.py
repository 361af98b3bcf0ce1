"""The torch groups of a process are broken when one of their ranks dies, and their errors say which."""

from __future__ import annotations

import os
import select
import socket
import sys
import threading
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from monarch.spmd import gloo_sockets, group_guard
from monarch.spmd.group_guard import GroupGuard, Member, Membership, abort_nccl

MEMBERS = [Member(f"unix:/p.{rank}", 0) for rank in range(4)]
HOURS = timedelta(hours=2)


# --- who is told what (pure)


def test_who_died_is_named_with_the_size_of_the_group() -> None:
    group = Membership(1, MEMBERS)
    assert group.others == {"unix:/p.0": 0, "unix:/p.2": 0, "unix:/p.3": 0}
    assert group.why() == ""
    group.died("unix:/p.2", "Killed(sig=9), pid 7 on node3")
    assert group.why() == (
        "rank 2 of this process's torch group of 4 ranks has died (Killed(sig=9), pid 7 on node3). When healthy() of its "
        "actors is done, call setup_torch_distributed() again"
    )
    group.died("unix:/p.0", "lost")
    assert group.why().startswith(
        "ranks 0 and 2 of this process's torch group of 4 ranks have died (rank 0: lost; rank 2: Killed"
    )


def test_a_death_is_told_rather_than_the_end_that_followed_it() -> None:
    group = Membership(0, MEMBERS)
    group.ended = "it was set up again"
    assert group.why() == "it was set up again"
    group.died("unix:/p.3", "lost")
    assert group.why().startswith("rank 3 ")


def test_one_survivor_logs_for_all() -> None:
    for rank, speaks in enumerate([False, True, False, False]):
        group = Membership(rank, MEMBERS)
        group.died("unix:/p.0", "lost")
        assert group.speaks is speaks


class Told(GroupGuard):
    """A guard whose rank 2 has died."""

    def __init__(self) -> None:
        super().__init__()
        self._membership = Membership(0, MEMBERS)
        self._membership.died("unix:/p.2", "lost")


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError(
            "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:1"
        ),
        RuntimeError("NCCL communicator was aborted on rank 0."),
        RuntimeError("Timed out waiting 5ms in gloo/transport"),
    ],
)
def test_errors_of_collectives_come_to_name_the_dead_rank(error: Exception) -> None:
    said = str(error)
    Told().explain(error)
    assert str(error).startswith("rank 2 of this process's torch group of 4 ranks has died (lost)")
    assert said in str(error)
    Told().explain(error)  # once
    assert str(error).count("has died") == 1


def test_errors_of_torchs_own_classes_become_one_that_is_read_without_torch() -> None:
    dist: Any = pytest.importorskip("torch.distributed")
    cause = ValueError("why")
    try:
        raise dist.DistNetworkError("recvValue failed") from cause
    except dist.DistNetworkError as error:
        told = Told().explain(error)
        assert told.__traceback__ is error.__traceback__
    assert type(told) is RuntimeError and told.__cause__ is cause
    assert str(told).startswith("rank 2 of this process's torch group of 4 ranks has died (lost)")
    assert str(told).endswith("(torch: DistNetworkError: recvValue failed)")
    assert Told().explain(told) is told


def test_an_error_that_comes_of_one_gets_a_note_and_others_nothing() -> None:
    outer = ValueError("the checkpoint was not saved")
    outer.__cause__ = RuntimeError("gloo: connection closed by peer")
    Told().explain(outer)
    assert str(outer) == "the checkpoint was not saved"
    assert outer.__notes__[0].startswith("rank 2 of this process's torch group")
    for other in (RuntimeError("no such layer"), ValueError("gloo"), KeyError("nccl")):
        Told().explain(other)
        assert "has died" not in str(other) and not hasattr(other, "__notes__")


# --- nccl, of which this machine may have none


class FakeNccl:
    def __init__(self, label: str, done: list[str]) -> None:
        self.label, self.done = label, done

    def name(self) -> str:
        return "nccl"

    def abort(self) -> None:
        self.done.append(f"abort {self.label}")

    def _group_start(self) -> None:
        self.done.append("start")

    def _group_end(self) -> None:
        self.done.append("end")


def test_communicators_are_aborted_together_the_latest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    done: list[str] = []

    class Group:
        def __init__(self, label: str) -> None:
            self.label = label

        def _get_backend(self, device: Any) -> Any:
            if self.label == "cpu":
                raise RuntimeError("No backend type associated with device type cuda")
            return FakeNccl(self.label, done)

    names = {Group("first"): "0", Group("cpu"): "1", Group("second"): "2"}
    world = SimpleNamespace(_world=SimpleNamespace(pg_names=names))
    monkeypatch.setitem(sys.modules, "torch.distributed.distributed_c10d", world)
    abort_nccl()
    assert done == ["start", "abort second", "abort first", "end"]
    names.clear()
    abort_nccl()
    assert len(done) == 4


def test_a_process_without_a_group_has_none_to_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    """A backward pass of its own, which may take long, is not looked at."""
    monkeypatch.setattr(group_guard, "is_in_group", lambda: False)
    monkeypatch.setattr(group_guard, "threads_inside", lambda: pytest.fail("looked"))
    assert GroupGuard().leave("set up for the first time", patience=0.0) == []


# --- gloo: two ranks in one process


def group_of(store: Any, rank: int, found: list[Any]) -> threading.Thread:
    """Makes rank `rank` of a group of two on a thread; what comes of it is `found`."""
    import torch.distributed as dist

    def make() -> None:
        options = dist.ProcessGroupGloo._Options()
        options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        options._timeout = HOURS
        try:
            found.append(dist.ProcessGroupGloo(store, rank, 2, options))
        except RuntimeError as exc:
            found.append(exc)

    thread = threading.Thread(target=make, daemon=True)
    thread.start()
    return thread


def pair(store: Any) -> list[Any]:
    first, second = [], []  # type: ignore[var-annotated]
    for thread in [group_of(store, 0, first), group_of(store, 1, second)]:
        thread.join()
    return [*first, *second]


def test_a_collective_that_waits_ends_and_no_other_socket_does() -> None:
    torch: Any = pytest.importorskip("torch")
    import torch.distributed as dist

    ours = socket.create_server(("127.0.0.1", 0))
    near = socket.create_connection(ours.getsockname())
    far, _ = ours.accept()
    groups = pair(dist.HashStore())
    work = groups[0].allreduce([torch.ones(3)], dist.AllreduceOptions())
    assert gloo_sockets.shut_down() >= 1
    with pytest.raises(RuntimeError, match="gloo"):
        work.wait()
    with pytest.raises(RuntimeError, match="gloo"):  # and those to come
        groups[1].allreduce([torch.ones(3)], dist.AllreduceOptions()).wait()
    near.sendall(b"lives")
    assert far.recv(5) == b"lives"
    for one in (ours, near, far):
        one.close()


@pytest.mark.parametrize(("inherited", "host"), [(False, "127.0.0.1"), (True, "0.0.0.0")])
def test_loops_of_others_are_let_be(inherited: bool, host: str) -> None:
    """An epoll instance without the flag, as older libraries make it; sockets that have it, or listen everywhere."""
    listener = socket.create_server((host, 0))
    near = socket.create_connection(("127.0.0.1", listener.getsockname()[1]))
    far, _ = listener.accept()
    loop = select.epoll()
    os.set_inheritable(loop.fileno(), True)
    for one in (listener, near, far):
        one.set_inheritable(inherited)
        loop.register(one, select.EPOLLIN)
    gloo_sockets.shut_down()
    near.sendall(b"lives")
    assert far.recv(5) == b"lives"
    for it in (loop, listener, near, far):
        it.close()


@pytest.mark.parametrize("rank", [0, 1])
def test_the_making_of_a_group_whose_other_rank_never_comes_ends_and_it_is_broken(rank: int) -> None:
    """It has said where it is to be reached, and died."""
    torch: Any = pytest.importorskip("torch")
    import torch.distributed as dist

    store = dist.HashStore()
    lost = 1 - rank
    before = pair(dist.PrefixStore("before", store))
    del before
    key = f"0/{lost}"
    dist.PrefixStore("again", store).set(key, dist.PrefixStore("before", store).get(key))
    found: list[Any] = []
    thread = group_of(dist.PrefixStore("again", store), rank, found)
    while thread.is_alive():
        gloo_sockets.end_rendezvous(2)
        gloo_sockets.shut_down()
        thread.join(0.01)
    if not isinstance(found[0], RuntimeError):
        with pytest.raises(RuntimeError, match="gloo"):
            found[0].allreduce([torch.ones(3)], dist.AllreduceOptions()).wait()


def test_what_waits_at_the_store_ends() -> None:
    pytest.importorskip("torch")
    import torch.distributed as dist

    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    client = dist.TCPStore("127.0.0.1", server.port, is_master=False, timeout=HOURS)
    found: list[Any] = []

    def wait() -> None:
        try:
            client.get("never")
        except RuntimeError as exc:
            found.append(exc)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    while thread.is_alive():
        gloo_sockets.shut_down([("127.0.0.1", server.port)])
        thread.join(0.01)
    assert found
