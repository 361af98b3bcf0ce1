"""Answers every question, one after another; options are passed on (see --help)."""

from __future__ import annotations

import subprocess
import sys

from _contender import BENCHMARKS
from _harness import parse

QUESTIONS = (
    "install_size",
    "import_time",
    "memory",
    "call",
    "latency",
    "compiled_graph",
    "actors_in_a_process",
    "pipelining",
    "map",
    "broadcast",
    "spawn",
    "death",
    "restart",
    "echo",
    "rdma",
    "rdma_tcp",
    "rdma_gpu",
    "tensor_ops",
    "tensor_function",
    "collective_overlap",
    "gpt_step",
    "weights",
    "weight_sync",
)


def run_all(arguments: list[str]) -> int:
    """Runs each script in a process of its own. Returns 1 when any of them did."""
    failed = []
    for name in QUESTIONS:
        print(flush=True)
        if subprocess.run([sys.executable, str(BENCHMARKS / f"{name}.py"), *arguments], check=False).returncode:
            failed.append(name)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    parse(__doc__ or "")  # --help and mistakes once, here
    sys.exit(run_all(sys.argv[1:]))
