"""SPMDActor: a program on every rank."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import ActorError, this_host
from monarch.spmd import SPMDActor
from monarch.tools.network import AddrType
from tests.support.devices import every_device, skip_with_fewer_gpus
from tests.support.hosts import Hosts
from tests.support.tiers import full

pytestmark = pytest.mark.procs
TIMEOUT = 90

TRAIN = """
import os, sys
import neighbour
import torch
import torch.distributed as dist

device = sys.argv[2]
dist.init_process_group({"cpu": "gloo", "cuda": "nccl"}[device])
total = torch.tensor([float(dist.get_rank() + 1)], device=device)
dist.all_reduce(total)
print(sys.argv[1:], neighbour.NAME, __name__)
with open(f"{sys.argv[1]}/{dist.get_rank()}", "w") as file:
    file.write(f"{total.item()} {os.environ['LOCAL_RANK']} {os.environ['GROUP_RANK']} {os.environ['ROLE_NAME']}")
dist.destroy_process_group()
"""


@full
@every_device
def test_main_on_two_hosts_with_two_processes_each(
    hosts: Hosts, tmp_path: Path, torch_preloaded: None, device: str
) -> None:
    if device != "cpu":
        skip_with_fewer_gpus(4)
    (tmp_path / "neighbour.py").write_text("NAME = 'beside'")
    (tmp_path / "train.py").write_text(TRAIN)
    out = tmp_path / "out"
    out.mkdir()
    mesh = hosts.attach(hosts.start(), hosts.start())
    procs = mesh.spawn_procs({"gpus": 2})
    ranks: Any = procs.spawn("ranks", SPMDActor)
    host, port = ranks.slice(hosts=0, gpus=0).get_host_port.call_one(AddrType.IPv4).get(TIMEOUT)
    assert set(ranks.main.call(host, port, [str(tmp_path / "train.py"), str(out), device]).get(TIMEOUT).values()) == {
        True
    }
    found = {path.name: path.read_text() for path in out.iterdir()}
    assert found == {str(rank): f"10.0 {rank % 2} {rank // 2} rank" for rank in range(4)}
    mesh.shutdown().get(TIMEOUT)


def test_a_rank_by_hand(tmp_path: Path) -> None:
    ranks: Any = this_host().spawn_procs({"nodes": 2, "gpus": 2}).spawn("ranks", SPMDActor)
    one = ranks.slice(nodes=1, gpus=0)
    program = tmp_path / "program.py"
    program.write_text("import os, sys; open(sys.argv[1], 'w').write(repr(dict(os.environ)))")
    one.setup_env.call_one("node7", 4321).get(TIMEOUT)
    assert one.main.call_one("node7", 4321, [str(program), str(tmp_path / "env")]).get(TIMEOUT) is True
    found = eval((tmp_path / "env").read_text())
    wanted = {
        "MASTER_ADDR": "node7", "MASTER_PORT": "4321", "RANK": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "1", "GROUP_WORLD_SIZE": "2", "ROLE_RANK": "2", "ROLE_WORLD_SIZE": "4", "ROLE_NAME": "rank",
        "WORLD_SIZE": "4", "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0", "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    }  # fmt: skip
    assert {name: found[name] for name in wanted} == wanted
    name, port = one.get_host_port.call_one(None).get(TIMEOUT)
    assert name == os.uname().nodename and 0 < port < 65536

    with pytest.raises(ActorError, match="No script or module specified"):
        one.main.call_one("node7", 4321, []).get(TIMEOUT)
    program.write_text("import sys; sys.exit(3)")
    with pytest.raises(ActorError, match=r"program.py has ended with status 3 on rank 2"):
        one.main.call_one("node7", 4321, [str(program)]).get(TIMEOUT)
    program.write_text("import sys; sys.exit(0)")
    assert one.main.call_one("node7", 4321, [str(program)]).get(TIMEOUT) is True
