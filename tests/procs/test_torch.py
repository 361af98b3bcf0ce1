"""torch.distributed on the processes of a mesh: set up, ended, and set up again when ranks were killed, at any moment."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from typing import Any

import pytest

from monarch.actor import (
    ActorError,
    ProcMesh,
    RestartPolicy,
    SupervisionError,
    endpoint,
    setup_torch_distributed,
)
from monarch.spmd import setup_torch_elastic_env, torch_device_mesh
from tests.support.devices import every_device
from tests.support.patience import TIMEOUT
from tests.support.process_actors import Pid
from tests.support.tiers import full

pytest.importorskip("torch")
pytestmark = [pytest.mark.procs, pytest.mark.usefixtures("torch_preloaded")]


class Rank(Pid):
    def __init__(self) -> None:
        self.compiler = "torch._dynamo" in sys.modules

    @endpoint
    def had_compiler(self) -> bool:
        """Returns whether this process has begun with it."""
        return self.compiler

    @endpoint
    def sum(self, device: str = "cpu") -> float:
        """Returns the sum of the ranks, each counted from 1."""
        import torch
        import torch.distributed as dist

        mine = torch.tensor([dist.get_rank() + 1.0], device=device)
        dist.all_reduce(mine)
        return mine.item()

    @endpoint
    def environment(self, *names: str) -> list[str]:
        return [os.environ.get(name, "") for name in names]

    @endpoint
    def leave_in_init(self) -> None:
        """The next time that this process is to join a group it dies, when the others wait for it."""
        import torch.distributed as dist

        others = int(os.environ["WORLD_SIZE"]) - 1

        def dies(*args: Any, store: Any, **options: Any) -> None:
            while store.num_keys() < others:  # each says there where it is to be reached, and then waits
                pass
            os.kill(os.getpid(), signal.SIGKILL)

        dist.init_process_group = dies

    @endpoint
    def mesh(self, dims: dict[str, int] | None = None) -> tuple[dict[str, int], dict[str, list[int]], bool]:
        """Torch's mesh here: its sizes, with which ranks this one shares each dimension, and whether it is given again."""
        import torch.distributed as dist

        found = torch_device_mesh(dims)
        names = found.mesh_dim_names
        members = {name: dist.get_process_group_ranks(found.get_group(name)) for name in names}
        return dict(zip(names, found.shape, strict=True)), members, torch_device_mesh(dims) is found

    @endpoint
    def init(self) -> int:
        import torch.distributed as dist

        dist.init_process_group("gloo")
        return dist.get_world_size()

    @endpoint
    def threads(self) -> int:
        import torch

        return torch.get_num_threads()

    @endpoint
    def threads_of_openmp(self) -> int:
        """Returns how many threads a library takes in this one that asks OpenMP and not torch."""
        import ctypes

        with open("/proc/self/maps") as file:
            path = next(line.split()[-1] for line in file if "gomp" in line)
        return int(ctypes.CDLL(path).omp_get_max_threads())


def sums(ranks: Any) -> list[float]:
    found: list[float] = ranks.sum.call().get(TIMEOUT).values()
    return found


@full
def test_libraries_take_the_share_of_processors_in_the_threads_of_actors_too(
    monkeypatch: pytest.MonkeyPatch, spawn_procs: Any
) -> None:
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    count = len(os.sched_getaffinity(0))
    ranks = spawn_procs({"gpus": count}).spawn("ranks", Rank)
    assert ranks.threads_of_openmp.call().get(TIMEOUT).values() == [1] * count


@full
def test_every_rank_is_in_the_group_again_and_for_slices(spawn_procs: Any) -> None:
    procs: ProcMesh = spawn_procs({"gpus": 4})
    ranks = procs.spawn("ranks", Rank)
    setup_torch_distributed(procs, threads=1).get(TIMEOUT)
    assert sums(ranks) == [10.0] * 4
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR")
    assert ranks.environment.call(*names).get(TIMEOUT).values() == [
        [str(rank), str(rank), "4", "4", "127.0.0.1"] for rank in range(4)
    ]
    assert ranks.threads.call().get(TIMEOUT).values() == [1] * 4
    setup_torch_distributed(procs).get(TIMEOUT)
    assert sums(ranks) == [10.0] * 4
    halves = [procs.slice(gpus=slice(start, start + 2)) for start in (0, 2)]
    for done in [setup_torch_distributed(half, backend="gloo") for half in halves]:  # both at once
        done.get(TIMEOUT)
    assert sums(ranks) == [3.0] * 4


@full
@every_device
def test_a_mesh_of_one_without_dimensions(spawn_procs: Any, device: str) -> None:
    procs = spawn_procs()
    rank = procs.spawn("rank", Rank)
    setup_torch_distributed(procs).get(TIMEOUT)
    assert rank.sum.call_one(device).get(TIMEOUT) == 1.0
    assert rank.mesh.call_one().get(TIMEOUT) == ({"rank": 1}, {"rank": [0]}, True)


@full
def test_the_mesh_is_one_of_torch_with_the_same_dimensions(spawn_procs: Any) -> None:
    procs = spawn_procs({"dp": 2, "tp": 2})
    ranks = procs.spawn("ranks", Rank)
    setup_torch_distributed(procs).get(TIMEOUT)
    sizes = {"dp": 2, "tp": 2}
    of = [
        {"dp": [0, 2], "tp": [0, 1]},
        {"dp": [1, 3], "tp": [0, 1]},
        {"dp": [0, 2], "tp": [2, 3]},
        {"dp": [1, 3], "tp": [2, 3]},
    ]
    assert ranks.mesh.call().get(TIMEOUT).values() == [(sizes, members, True) for members in of]
    every = ({"all": 4}, {"all": [0, 1, 2, 3]}, True)
    assert ranks.mesh.call({"all": -1}).get(TIMEOUT).values() == [every] * 4
    with pytest.raises(ActorError, match="does not fit the 4 ranks"):
        ranks.slice(dp=0, tp=0).mesh.call_one({"dp": 3}).get(TIMEOUT)
    column = procs.slice(tp=1)  # the group of a slice has a mesh of its own
    setup_torch_distributed(column).get(TIMEOUT)
    assert ranks.slice(tp=1).mesh.call().get(TIMEOUT).values() == [({"dp": 2}, {"dp": [0, 1]}, True)] * 2


def test_the_environment_alone(spawn_procs: Any) -> None:
    procs = spawn_procs({"hosts": 2, "gpus": 1})
    ranks = procs.spawn("ranks", Rank)
    setup_torch_distributed(procs, init=False).get(TIMEOUT)
    assert ranks.init.call().get(TIMEOUT).values() == [2, 2]
    names = ("RANK", "LOCAL_RANK", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")
    setup_torch_elastic_env(procs, "node1", 1234)
    assert ranks.environment.call(*names).get(TIMEOUT).values() == [
        ["0", "0", "0", "node1", "1234"],
        ["1", "0", "1", "node1", "1234"],
    ]
    setup_torch_elastic_env(procs)
    ((_, _, _, address, port), _) = ranks.environment.call(*names).get(TIMEOUT).values()
    assert address == socket.gethostname() and int(port) > 0
    with pytest.raises(AssertionError):
        setup_torch_elastic_env(procs, master_addr="node1")


def under_policy(procs: ProcMesh) -> Any:
    with RestartPolicy(max_restarts=10_000):
        ranks: Any = procs.spawn("ranks", Rank)
    ranks.healthy().get(TIMEOUT)
    return ranks


@full
def test_a_rank_that_was_killed_is_in_the_group_again(spawn_procs: Any) -> None:
    procs = spawn_procs({"gpus": 3})
    ranks = under_policy(procs)
    setup_torch_distributed(procs, timeout=TIMEOUT).get(TIMEOUT)
    for number in (0, 2):
        os.kill(ranks.slice(gpus=number).pid.call_one().get(TIMEOUT), signal.SIGKILL)
        ranks.healthy().get(TIMEOUT)
        setup_torch_distributed(procs, timeout=TIMEOUT).get(TIMEOUT)
        assert sums(ranks) == [6.0] * 3


@full
@pytest.mark.parametrize("victim", [2, pytest.param(0, marks=full)])
def test_a_rank_that_dies_while_the_others_wait_for_it_in_init(spawn_procs: Any, victim: int) -> None:
    """Starts anew: what survives has begun one group more than what takes the dead one's place: they must meet all the
    same."""
    procs = spawn_procs({"gpus": 3})
    ranks = under_policy(procs)
    setup_torch_distributed(procs).get(TIMEOUT)
    for _ in range(2):
        ranks.slice(gpus=victim).leave_in_init.call_one().get(TIMEOUT)
        with pytest.raises(SupervisionError, match="Killed"):
            setup_torch_distributed(procs).get(TIMEOUT)
        ranks.healthy().get(TIMEOUT)
        setup_torch_distributed(procs).get(TIMEOUT)
        assert sums(ranks) == [6.0] * 3


@full
def test_replacements_come_to_have_what_training_needs(spawn_procs: Any) -> None:
    """In the background a fork server imports what takes seconds: that serves when it is done."""
    procs = spawn_procs({"gpus": 2})
    ranks = under_policy(procs)
    setup_torch_distributed(procs).get(TIMEOUT)
    deadline = time.monotonic() + 3 * TIMEOUT  # it gives way to everything else
    while not ranks.slice(gpus=0).had_compiler.call_one().get(TIMEOUT):
        assert time.monotonic() < deadline
        os.kill(ranks.slice(gpus=0).pid.call_one().get(TIMEOUT), signal.SIGKILL)
        ranks.healthy().get(TIMEOUT)
    setup_torch_distributed(procs).get(TIMEOUT)
    assert sums(ranks) == [3.0] * 2


@full
def test_ranks_that_die_at_any_moment_of_it(spawn_procs: Any) -> None:
    procs = spawn_procs({"gpus": 3})
    ranks = under_policy(procs)
    for number in range(12):
        pid = ranks.slice(gpus=number % 3).pid.call_one().get(TIMEOUT)
        done = setup_torch_distributed(procs)
        killer = threading.Timer(0.006 * number, os.kill, (pid, signal.SIGKILL))
        killer.start()
        with contextlib.suppress(SupervisionError, RuntimeError):
            done.get(TIMEOUT)
        killer.join()
        ranks.healthy().get(TIMEOUT)
        while True:  # the death may not have been seen yet
            try:
                setup_torch_distributed(procs).get(TIMEOUT)
                break
            except SupervisionError:
                ranks.healthy().get(TIMEOUT)
        assert sums(ranks) == [6.0] * 3


def test_a_rank_that_cannot_reach_the_first_says_so(spawn_procs: Any) -> None:
    """Hosts that know the first one by an address at which it is not."""
    from monarch.spmd.ranks import _reach

    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    with pytest.raises(
        RuntimeError, match=rf"rank 3 on .* cannot reach rank 0 of the group at 127.0.0.1:{port}.*refused"
    ):
        _reach("127.0.0.1", port, 3)


@full
def test_a_rank_that_is_not_done_in_time_is_named(spawn_procs: Any) -> None:
    procs = spawn_procs({"gpus": 2})
    ranks = procs.spawn("ranks", Rank)
    setup_torch_distributed(procs).get(TIMEOUT)
    with pytest.raises(RuntimeError, match=r"process group of 2 ranks was not set up: .*rank \d .*backend") as caught:
        setup_torch_distributed(procs, backend="no such").get(TIMEOUT)
    assert "init_process_group('no such')" in str(caught.value)
    setup_torch_distributed(procs).get(TIMEOUT)
    assert sums(ranks) == [3.0] * 2


def test_what_cannot_be_is_refused_here(proc: ProcMesh) -> None:
    ranks: Any = proc.spawn("ranks", Rank)
    with pytest.raises(TypeError, match="takes processes, a ProcMesh"):
        setup_torch_distributed(ranks)
    for wrong in ({"timeout": 0}, {"setup_timeout": -1}, {"threads": 0}):
        with pytest.raises(ValueError, match="must be"):
            setup_torch_distributed(proc, **wrong)
