"""`monarch run` started once on every node, with torchrun's rendezvous arguments: one world over real networks."""

from __future__ import annotations

import pytest

from tests.netns.lab import Lab
from tests.support.tiers import full

pytestmark = pytest.mark.netns

SECONDS = 90.0
# Ranks meet where torch's store would be: at MASTER_ADDR and MASTER_PORT, on the host of rank 0.
MEET = """
import os, socket
rank, where = int(os.environ["RANK"]), (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
while True:
    try:
        if rank == 0:
            with socket.create_server(where, family=socket.AF_INET6 if ":" in where[0] else socket.AF_INET) as listening:
                print("rank 0 at", where[0], "was met by", listening.accept()[1][0], flush=True)
        else:
            socket.create_connection(where).close()
        break
    except ConnectionRefusedError:
        pass
"""


@full
@pytest.mark.parametrize("ip", ["address", "address6"])
def test_one_world_over_networks(lab: Lab, ip: str) -> None:
    """The command on the endpoint's host leads, whichever comes first, and rank 0 is with it."""
    first, second, _ = lab.hosts
    for host in (first, second):
        (host.folder / "meet.py").write_text(MEET)
    host_of = [getattr(host, ip) for host in (first, second)]
    endpoint = f"[{host_of[0]}]:29500" if ":" in host_of[0] else f"{host_of[0]}:29500"
    words = ["--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint, "--rdzv-id", "7", "meet.py"]
    command = first.python("-m", "monarch", "run", *words)
    env = {"MONARCH_SECRET": "a secret of this job alone"}
    other = second.popen(command, env=env)
    done = first.run(command, env=env, timeout=SECONDS)
    out, _ = other.communicate(timeout=SECONDS)
    assert done.stdout == f"rank 0 at {host_of[0]} was met by {host_of[1]}\n", done.stderr
    assert other.returncode == 0 and out == "" and "2 nodes have met" in second.log.read_text()
