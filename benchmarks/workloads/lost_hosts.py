"""Workload of replace.py: hosts, as workers on this machine, that are killed and replaced by spares."""

from __future__ import annotations

import contextlib
import importlib
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

from _workload import Params, Samples, main

import monarch.actor
from monarch.actor import Actor, SupervisionError, attach_to_workers, endpoint, shutdown_context


class Resident(Actor):
    @endpoint
    def agent(self) -> int:
        """The host agent leads the session of its processes."""
        return os.getsid(0)


@contextlib.contextmanager
def workers(count: int) -> Iterator[tuple[list[str], str]]:
    secret = secrets.token_hex(32)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        addresses = [f"ipc://{folder}/{number}" for number in range(count)]
        for address in addresses:
            command = [sys.executable, "-m", "monarch", "worker", "--address", address]
            worker = subprocess.Popen(command, env={**os.environ, "MONARCH_SECRET": secret}, stderr=subprocess.DEVNULL)
            stack.callback(worker.wait)
            stack.callback(worker.terminate)
        yield addresses, secret


def replace(params: Params) -> Samples:
    """The program replaces the hosts, then their processes, then their actors."""
    if params.get("torch"):
        importlib.import_module("torch")  # so do the processes, when they start
    monarch.actor.unhandled_fault_hook = lambda failure: None  # several die, and one call at a time is told
    times, many = params["warmup"] + params["count"], params["lost"]
    samples: Samples = {"known": [], "replaced": [], "answered": []}
    with workers(1 + many + many * times) as (addresses, secret):
        hosts = attach_to_workers(workers=addresses[: 1 + many], spares=addresses[1 + many :], secret=secret)
        procs = hosts.spawn_procs()
        residents = procs.spawn("residents", Resident)
        lost = [residents.slice(hosts=rank) for rank in range(1, 1 + many)]
        agents = residents.agent.call().get().values()[1:]
        time.sleep(1)  # the spares start as well
        for _ in range(times):
            start = time.perf_counter()
            for agent in agents:
                os.kill(agent, signal.SIGKILL)
            for each in lost:
                with contextlib.suppress(SupervisionError):
                    while True:
                        each.agent.call_one().get()
            samples["known"].append(time.perf_counter() - start)
            hosts.replace(failed=True).get()
            samples["replaced"].append(time.perf_counter() - start)
            procs.restart(failed=True).get()
            residents.restart(failed=True).get()
            agents = [each.agent.call_one().get() for each in lost]
            samples["answered"].append(time.perf_counter() - start)
        hosts.shutdown().get()
    return {name: values[params["warmup"] :] for name, values in samples.items()}


if __name__ == "__main__":
    try:
        main({"replace": replace})
    finally:
        shutdown_context().get()
