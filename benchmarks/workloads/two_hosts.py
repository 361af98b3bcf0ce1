"""Workloads of direct.py: one actor, called from a client. It lives on the client's own host, or on another that a worker on
this machine stands for, over TCP; then the setting direct_after in the environment decides which way messages go.
"""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from _workload import Params, Samples, main, payload, rates, times
from monarch_actors import Echo

from monarch.actor import attach_to_workers, shutdown_context, this_host

TRUST = {"ca": "trust_all_connections"}
WORKER = """
import json, sys
from monarch.actor import run_worker_loop_forever
run_worker_loop_forever(address=sys.argv[1], **json.loads(sys.argv[2]))
"""


@contextlib.contextmanager
def actor(params: Params) -> Iterator[Any]:
    """The actor, after so many calls that every connection there will be is there."""
    with contextlib.ExitStack() as stack:
        host = this_host() if params["contender"] == "same host" else stack.enter_context(other_host())
        mesh = host.spawn_procs().spawn("echo", Echo)
        for _ in range(1000):
            mesh.echo.call_one(1).get()
        yield mesh


@contextlib.contextmanager
def other_host(scheme: str = "tcp", trust: Mapping[str, str] = TRUST) -> Iterator[Any]:
    """A host that a worker on this machine stands for. `trust` is what both sides know each other by."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        address = f"{scheme}://127.0.0.1:fd{listening.fileno()}"
        worker = subprocess.Popen(
            [sys.executable, "-c", WORKER, address, json.dumps(dict(trust))], pass_fds=[listening.fileno()]
        )
    try:
        mesh = attach_to_workers(workers=[f"{scheme}://127.0.0.1:{port}"], **trust)
        yield mesh
        mesh.shutdown().get()
        worker.wait(30)
    finally:
        worker.kill()
        worker.wait()


def call(params: Params) -> Samples:
    """Round trips one after another."""
    with actor(params) as mesh:
        return {"round_trip": times(lambda: mesh.echo.call_one(1).get(), params)}


def pipelining(params: Params) -> Samples:
    """Batches of calls: all sent, then all results taken."""
    batch = params["batch"]
    with actor(params) as mesh:

        def run() -> None:
            for future in [mesh.echo.call_one(1) for _ in range(batch)]:
                future.get()

        return {"calls": rates(run, batch, params)}


def echo(params: Params) -> Samples:
    """A payload there and back; as bytes per second of one direction."""
    size = params["size"]
    value = payload("array", size)
    with actor(params) as mesh:

        def run() -> None:
            if len(mesh.echo.call_one(value).get()) != size:
                raise RuntimeError("Error: the payload came back with another size")

        return {"one_way": rates(run, 2 * size, params)}


if __name__ == "__main__":
    try:
        main({f.__name__: f for f in (call, pipelining, echo)})
    finally:
        shutdown_context().get()
