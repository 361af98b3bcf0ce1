"""torchrun commands as jobs, and hosts that ranks bring along."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from monarch.actor import ActorError
from monarch.job import LocalJob, ProcessJob
from monarch.job.spmd import SPMDJob, StoreJob, serve
from monarch.job.torchrun import command_words
from tests.support.scripts import Scripts
from tests.support.tiers import full

TIMEOUT = 90


@pytest.mark.parametrize(
    ("command", "found"),
    [
        ("torchrun train.py --nproc-per-node 3", (1, ["train.py", "--nproc-per-node", "3"])),
        ("torchrun --nproc-per-node=4 --rdzv-backend c10d --standalone train.py a", (4, ["train.py", "a"])),
        ("/env/bin/torchrun --nproc_per_node 4 -m pkg.train -x", (4, ["-m", "pkg.train", "-x"])),
        ("torch.distributed.run train.py", (1, ["train.py"])),
        ("python -m torch.distributed.run --nproc-per-node 2 train.py", (2, ["train.py"])),
        ("/usr/bin/python3 -u -m torchrun train.py", (1, ["train.py"])),
        ("python train.py a", (1, ["train.py", "a"])),
        ("python -m pkg a", (1, ["-m", "pkg", "a"])),
        ("./setup.sh torchrun --nproc-per-node 2 train.py", (2, ["train.py"])),
    ],
)
def test_commands(command: str, found: tuple[int, list[str]]) -> None:
    assert command_words.parse(command.split())[:2] == found


@pytest.mark.parametrize(
    "command", ["", "bash train.sh", "python", "python -c x", "torchrun", "torchrun --nonsense a.py"]
)
def test_what_is_no_command(command: str) -> None:
    with pytest.raises(ValueError, match="not a torchrun command, nor python SCRIPT"):
        command_words.parse(command.split())


def test_ranks_that_are_not_a_number() -> None:
    with pytest.warns(UserWarning, match="--nproc-per-node gpu is not a number"):
        assert command_words.parse(["torchrun", "--nproc-per-node", "gpu", "a.py"])[:2] == (1, ["a.py"])


def test_wrong_orders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    app = SimpleNamespace(name="a", roles=[SimpleNamespace(entrypoint="torchrun", args=["a.py"], num_replicas=2)])
    with pytest.raises(ValueError, match="command cannot be empty"):
        serve([])
    for nnodes in (["--nnodes", "2"], ["--nnodes=1:2"]):
        with pytest.raises(ValueError, match=f"it says --nnodes {nnodes[-1][-3:].split('=')[-1]}"):
            serve(["torchrun", *nnodes, "a.py"])
    with pytest.raises(ValueError, match=r"set AppDef\.name instead"):
        serve(app, name="b")
    with pytest.raises(ValueError, match="is this machine alone, and the command is for 2 hosts"):
        serve(app, "local")
    with pytest.raises(ValueError, match="one role"):
        serve(SimpleNamespace(name="a", roles=[]))
    with pytest.raises(ValueError, match="'aws_batch' is not a scheduler that serve knows"):
        serve(["torchrun", "a.py"], "aws_batch")
    with pytest.raises(TypeError, match="list of words"):
        serve("torchrun a.py")


PROGRAM = """
import os, sys
found = [os.environ[name] for name in ("WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK")]
open(f"{sys.argv[1]}/{os.environ['RANK']}", "w").write(" ".join(found))
if sys.argv[2:]:
    raise ValueError("bad luck")
"""


@pytest.mark.procs
def test_a_command_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(PROGRAM)
    job = serve(["torchrun", "--nnodes", "1", "--nproc-per-node", "2", "train.py", str(tmp_path)], name="mine")
    assert isinstance(job, SPMDJob) and isinstance(job._inner, LocalJob) and job.active
    assert capsys.readouterr().out == "Launched: mine (LocalJob, 1 host)\n"
    job.run_spmd()
    assert [(tmp_path / str(rank)).read_text() for rank in range(2)] == ["2 0 0", "2 1 0"]
    job._command.append("fail")
    with pytest.raises(ActorError, match="bad luck"):
        job.run_spmd()
    job.kill()
    assert not job.active


@full
@pytest.mark.procs
def test_an_appdef_on_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(PROGRAM)
    role = SimpleNamespace(
        entrypoint="torchrun", args=["--nproc-per-node", "1", "train.py", str(tmp_path)], num_replicas=2
    )
    job = serve(SimpleNamespace(name="two", roles=[role]), "process")
    try:
        assert isinstance(job._inner, ProcessJob) and job.name == "two"
        job.run_spmd()
        assert [(tmp_path / str(rank)).read_text() for rank in range(2)] == ["2 0 0", "2 0 1"]
        assert job.can_run(job)
    finally:
        job.kill()


# --- StoreJob


class Store(dict[str, Any]):
    def set(self, key: str, value: str) -> None:
        self[key] = value


@pytest.mark.parametrize(
    ("more", "error", "said"),
    [
        ({"transport": "carrier"}, ValueError, "unsupported transport 'carrier'"),
        ({"transport": "tcp"}, ValueError, "needs an explicit monarch_port"),
        ({"world_size": 3}, ValueError, "world_size 3 does not divide into hosts of local_world_size 2 ranks"),
        ({"world_size": None}, RuntimeError, "needs WORLD_SIZE in the environment"),
    ],
)
def test_stores_that_do_not_fit(
    monkeypatch: pytest.MonkeyPatch, more: dict[str, Any], error: type[Exception], said: str
) -> None:
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    place = {"rank": 1, "local_rank": 1, "world_size": 2, "local_world_size": 2}
    with pytest.raises(error, match=said):
        StoreJob.from_store(Store(), **{**place, **more})


RANK = """
import os, sys
from pathlib import Path
import torch.distributed as dist
from monarch.actor import Actor, endpoint
from monarch._src.spmd.host_mesh import host_mesh_from_store

class Where(Actor):
    @endpoint
    def pid(self) -> tuple[int, str | None]:
        return os.getppid(), os.environ.get("RANK")

store = dist.FileStore(sys.argv[1], 4)
hosts = host_mesh_from_store(store, name="mine")
if hosts is not None:
    found = list(hosts.spawn_procs().spawn("where", Where).pid.call().get().values())
    print(hosts.sizes, len(set(found)), {rank for _, rank in found}, *[pid for pid, _ in found], flush=True)
sys.stdin.read()
"""


@full
@pytest.mark.procs
def test_ranks_bring_their_hosts(scripts: Scripts, tmp_path: Path, watch: Any) -> None:
    pytest.importorskip("torch", reason="ranks meet at a store of torch.distributed")
    ranks = []
    for rank in reversed(range(4)):
        env = {"RANK": str(rank), "LOCAL_RANK": str(rank % 2), "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}
        ranks.append(scripts.start(RANK, str(tmp_path / "store"), env=env))
    first = ranks[-1]
    assert first.stdout is not None and first.stderr is not None
    line = first.stdout.readline()
    assert line.startswith("{'hosts': 2} 2 {None} "), line + first.stderr.read()
    left = watch([int(pid) for pid in line.split()[-2:]])
    for process in ranks:
        process.kill()
    assert left.survivors(TIMEOUT) == {}  # the hosts end with the ranks that started them
    assert sys.platform == "linux" and os.getpid()
