"""Run on each node of a SlurmJob: finds the address at which the others reach this node, and becomes its worker.

python -m monarch.job.slurm.worker --port 22222 [--bind-to IP] [--scheme tls]
"""

from __future__ import annotations

import argparse
import ipaddress
import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence

from monarch._text import bracketed
from monarch.job.slurm.script import HOSTS

Resolve = Callable[[str], str]


def address(name: str, others: Sequence[str], port: int, scheme: str, bind_to: str | None, resolve: Resolve) -> str:
    """Returns where the worker on node `name` listens and is reached. ValueError when no other node could reach it there."""
    if bind_to is not None:
        return f"{scheme}://{name}:{port}@{scheme}://{bracketed(bind_to)}:{port}"
    here = resolve(name)
    if _is_loopback(here):
        reached = [other for other in others if other != name and not _is_loopback(resolve(other))]
        if reached:
            raise ValueError(
                f"node {name} takes its own name for {here}, which no other node can reach (node {reached[0]} is not this "
                f"machine). Take the name out of the 127.* lines of /etc/hosts there, or give SlurmJob bind_to='0.0.0.0'"
            )
    return f"{scheme}://{name}:{port}"


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def _resolve(name: str) -> str:
    try:
        return str(socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as exc:
        raise ValueError(f"the name {name} of a node cannot be looked up: {exc.strerror or exc}") from None


def main(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m monarch.job.slurm.worker")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--bind-to")
    parser.add_argument("--scheme", default="tcp", choices=("tcp", "tls"))
    options = parser.parse_args(arguments)
    name = environment.get("SLURMD_NODENAME") or socket.gethostname()
    try:
        at = address(name, environment.get(HOSTS, "").split(), options.port, options.scheme, options.bind_to, _resolve)
    except ValueError as exc:
        print(f"monarch worker: {exc}", file=sys.stderr)
        return 1
    os.execv(sys.executable, [sys.executable, "-u", "-P", "-m", "monarch", "worker", "--address", at])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
