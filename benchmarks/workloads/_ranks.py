"""One program a rank, as torchrun would start them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

from _workload import Params, Samples


def run(module: str, params: Params) -> Samples:
    """`module.rank_main(params)` in `params["procs"]` processes: the seconds that rank 0 prints, a step a line."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = []
    for rank in range(params["procs"]):
        env = {
            **os.environ, "RANK": str(rank), "WORLD_SIZE": str(params["procs"]), "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port), "OMP_NUM_THREADS": str(params["threads"]),
        }  # fmt: skip
        command = [sys.executable, "-c", f"import {module}; {module}.rank_main({dict(params)!r})"]
        ranks.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True))
    outputs = [rank.communicate()[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        raise RuntimeError("a rank failed")
    return {"step": [float(line) for line in outputs[0].split()]}
