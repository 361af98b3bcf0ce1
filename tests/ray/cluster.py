"""A Ray cluster of two nodes on this machine, as a program: prints its address, and ends when its stdin does."""

from __future__ import annotations

import os
import sys

from ray.cluster_utils import Cluster

NODES = 2
CPUS = 2


def main() -> None:
    os.makedirs("/tmp/ray", exist_ok=True)  # older ones write there, whatever temp_dir says
    arguments = {"num_cpus": CPUS, "object_store_memory": 80 << 20}
    head = {**arguments, "include_dashboard": False, "temp_dir": sys.argv[1]}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(NODES - 1):
            cluster.add_node(**arguments)
        print(cluster.address, flush=True)
        sys.stdin.read()
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main()
