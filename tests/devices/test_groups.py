"""Groups of nccl over our store: quiet while idle, ended without their process, averages that do not overflow."""

from __future__ import annotations

import pytest

import monarch
from monarch import _devices
from monarch.actor import ProcMesh
from tests.support.devices import one_process_a_device
from tests.support.scripts import Scripts

pytestmark = [pytest.mark.device, pytest.mark.procs]

procs = pytest.fixture(one_process_a_device, scope="module", name="procs")


IDLE = """
import os
import sys
import threading

import torch
import torch.distributed as dist

from monarch.actor import this_proc
from monarch.tensor.worker.process_groups import ON_ERROR, Groups, Observed
from monarch.tensor.worker.rendezvous import Rendezvous

if __name__ == "__main__":
    rendezvous = this_proc().spawn("rendezvous", Rendezvous)

    def call(name, seconds, *args):
        asked.append(name)
        return getattr(rendezvous, name).call_one(*args).get(timeout=seconds)

    asked = []
    torch.cuda.set_device(0)
    groups = Groups(0, "engine", call, "127.0.0.1")
    backend = groups.backend("reduce", (0,), 0, "cuda")
    assert isinstance(backend, Observed) and ON_ERROR not in os.environ
    x = torch.ones(4, device="cuda")
    options = dist.AllreduceOptions()
    options.reduceOp = dist.ReduceOp.AVG
    backend.allreduce([x], options).wait()
    torch.cuda.synchronize()
    groups.confirm()
    assert x.tolist() == [1, 1, 1, 1]
    print("idle", file=sys.stderr, flush=True)
    threading.Event().wait(10)  # the threads of nccl that look after a group have ten seconds to complain
    print("over", file=sys.stderr, flush=True)
    groups.close()
    print("asked", " ".join(sorted(set(asked))), flush=True)
    rendezvous.stop().get(timeout=300)
    print("alive", flush=True)
"""


def test_a_group_that_idles_is_quiet_and_ends_in_order(scripts: Scripts) -> None:
    done = scripts.run(IDLE)
    between = done.stderr.partition("idle\n")[2].partition("over\n")[0].splitlines()
    assert between == []
    assert "alive" in done.stdout


LATE = """
import torch
import torch.distributed as dist

import monarch
from monarch.actor import this_host
from monarch.tensor.worker import process_groups

if __name__ == "__main__":

    def bootstrap():
        process_groups.TIMEOUT = 5.0  # in the workers, before any group is made

    procs = this_host().spawn_procs({"gpus": 2}, bootstrap=bootstrap)
    with procs.activate() as mesh:
        x = torch.ones(4, device="cuda")
        monarch.inspect(x.reduce("gpus"))  # connects

        def comes_late(t):
            import threading

            if monarch.tensor.worker.current.worker().executor.rank == 1:
                threading.Event().wait(15)
            return t

        late = monarch.remote(comes_late, propagate=lambda t: torch.empty_like(t))(x)
        try:
            print("value", monarch.inspect(late.reduce("gpus")).tolist())
        except Exception as exc:
            print("failed", type(exc).__name__, str(exc).replace("\\n", " ")[-300:])
        # the processes are alive: values that depend on no collective still come
        ask = monarch.remote(lambda: __import__("os").getpid(), propagate="inspect")
        try:
            print("pids", len(set(ask.call().get().values())))
        except Exception as exc:
            print("pids", type(exc).__name__, str(exc)[-300:])
    procs.stop().get()
"""


def test_a_rank_that_is_late_ends_the_group_and_no_process(scripts: Scripts) -> None:
    if _devices.count() < 2:
        pytest.skip("two devices are needed")
    out = scripts.run(LATE).stdout
    assert "failed" in out and "GroupLost" in out, out
    assert "SIGABRT" not in out


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32"])
def test_averages_do_not_overflow(procs: ProcMesh, name: str) -> None:
    import torch

    dtype = getattr(torch, name)
    largest = torch.finfo(dtype).max
    with procs.activate():
        x = torch.full((8,), largest, dtype=dtype, device="cuda")
        found = monarch.inspect(x.reduce("gpus", "avg"))
        rows = torch.full((len(procs), 8), largest, dtype=dtype, device="cuda")
        part = monarch.inspect(rows.reduce("gpus", "avg", scatter=True))
    assert torch.isfinite(found).all() and torch.isfinite(part).all()
    torch.testing.assert_close(found.double(), torch.full((8,), largest, dtype=torch.float64), rtol=1e-2, atol=0)
