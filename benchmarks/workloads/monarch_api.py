"""Workloads in the API that ours and torchmonarch share; which of the two runs depends on the interpreter
alone.
"""

from __future__ import annotations

import functools
import logging
import os
import random
import signal
import time
from typing import Any

from _workload import Params, Samples, main, payload, private_bytes, rates, seconds, times

import monarch.actor
from monarch.actor import Channel, shutdown_context, this_host


def actor_class(params: Params) -> type:
    """The class that the parameters ask for: "style" sync (default) or async, "torch" for one that imports
    torch.
    """
    if params.get("torch"):
        from monarch_actors_torch import TorchEcho

        return TorchEcho
    from monarch_actors import AsyncEcho, Echo

    return AsyncEcho if params.get("style") == "async" else Echo


def actors(params: Params) -> Any:
    """A mesh of params["procs"] actors in as many processes, each of which has answered once."""
    mesh = this_host().spawn_procs({"procs": params["procs"]}).spawn("echo", actor_class(params))
    mesh.echo.call(1).get()
    return mesh


def call(params: Params) -> Samples:
    """Round trips one after another: call_one to one actor, call to several."""
    mesh = actors(params)
    if params["procs"] == 1:
        return {"round_trip": times(lambda: mesh.echo.call_one(1).get(), params)}
    return {"round_trip": times(lambda: mesh.echo.call(1).get(), params)}


def pipelining(params: Params) -> Samples:
    """Batches of call_one to one actor: all sent, then all results taken."""
    mesh, batch = actors(params), params["batch"]

    def run() -> None:
        for future in [mesh.echo.call_one(1) for _ in range(batch)]:
            future.get()

    return {"calls": rates(run, batch, params)}


def map_items(params: Params) -> Samples:
    """Squares of so many numbers by the ranks of a mesh, in chunks of each size in turn."""
    mesh, items = actors(params), list(range(params["items"]))
    squares = [item * item for item in items]

    def run(size: int) -> None:
        if list(mesh.square.map(items, chunksize=size)) != squares:
            raise RuntimeError("Error: other results")

    return {str(size): times(functools.partial(run, size), params) for size in params["sizes"]}


def broadcast(params: Params) -> Samples:
    """Batches of broadcasts to all actors, then one call that comes after them everywhere."""
    mesh, batch = actors(params), params["batch"]

    def run() -> None:
        for _ in range(batch):
            mesh.hit.broadcast()
        mesh.count.call().get()

    samples = rates(run, batch, params)
    expected = batch * (params["warmup"] + params["count"])
    counted = set(mesh.count.call().get().values())
    if counted != {expected}:
        raise RuntimeError(f"Error: broadcasts lost or repeated: sent {expected}, actors counted {sorted(counted)}")
    return {"broadcasts": samples}


def spawn(params: Params) -> Samples:
    """From asking for processes until each has answered a call: first in this client (starting the
    runtime), then again in the same client. Imports in the client (and torch's) are done before the clock
    starts.
    """
    cls, extent = actor_class(params), {"procs": params["procs"]}
    meshes: list[Any] = []

    def run() -> None:
        procs = this_host().spawn_procs(extent)
        meshes.append(procs)
        procs.spawn("echo", cls).echo.call(1).get()

    cold = seconds(run)
    warm = []
    for _ in range(params["warm"]):
        meshes.pop().stop().get()
        warm.append(seconds(run))
    return {"cold": [cold], "warm": warm}


def memory(params: Params) -> Samples:
    """Private memory of processes with one actor that has answered a few calls and has nothing to do."""
    mesh = actors(params)
    for _ in range(10):
        mesh.echo.call(1).get()
    pids = mesh.pid.call().get().values()
    time.sleep(params["settle_s"])
    return {"private": [private_bytes(pid) for pid in pids]}


def echo(params: Params) -> Samples:
    """A payload there and back; as bytes per second of one direction. The payload's pages and those of
    earlier replies have been touched before the clock starts (warm-up).
    """
    mesh, size = actors(params), params["size"]
    value = payload(params["kind"], size)

    def run() -> None:
        if len(mesh.echo.call_one(value).get()) != size:
            raise RuntimeError("Error: the payload came back with another size")

    return {"one_way": rates(run, 2 * size, params)}


def spread(params: Params) -> Samples:
    """One payload to every actor, each of which tells its length; its bytes count once."""
    mesh, size = actors(params), params["size"]
    value = payload(params["kind"], size)

    def run() -> None:
        if any(length != size for length in mesh.length.call(value).get().values()):
            raise RuntimeError("Error: an actor got another size")

    return {"arrived": rates(run, size, params)}


def handles(params: Params) -> Samples:
    """call_one with a number, and with what stands for something elsewhere, in turn."""
    mesh, procs = actors(params), this_host().spawn_procs({"gpus": 2})
    others = procs.spawn("others", actor_class(params))
    others.echo.call(1).get()
    port, receiver = Channel.open()
    arguments = {
        "number": 1, "mesh": others, "slice": others.slice(gpus=0), "list": [others, mesh], "procs": procs, "port": port,
    }  # fmt: skip
    samples: Samples = {name: [] for name in arguments}
    for number in range(params["warmup"] + params["count"]):
        for name, value in arguments.items():
            began = time.perf_counter()
            mesh.take.call_one(value).get()
            if number >= params["warmup"]:
                samples[name].append(time.perf_counter() - began)
    del receiver
    return samples


def argument(params: Params) -> Samples:
    """One large argument, of which the actor tells the length."""
    mesh, size = actors(params), params["size"]
    value = payload(params["kind"], size)

    def run() -> None:
        if (length := mesh.length.call_one(value).get()) != size:
            raise RuntimeError(f"Error: {size} bytes were sent, the actor counts {length}")

    samples = times(run, params)
    mesh.echo.call_one(1).get()  # it survived
    return {"duration": samples}


def death(params: Params) -> Samples:
    """A call to all processes of a mesh is under way in each; one of them is killed; until the caller has the exception.

    The mesh is a new one each time. The first few kills are not kept, but where each takes seconds ("slow" of them).
    """
    from monarch_actors import Waiter

    monarch.actor.unhandled_fault_hook = lambda failure: None
    slow = params["contender"] != "ours"

    def run() -> float:
        procs = this_host().spawn_procs({"procs": params["procs"]})
        port, receiver = Channel[int].open()
        mesh = procs.spawn("waiter", Waiter)  # torchmonarch forgets a mesh, and its calls, that nobody holds
        future = mesh.wait.call(port)
        pids = [receiver.recv().get() for _ in range(params["procs"])]
        pid = random.choice(pids)
        start = time.perf_counter()
        os.kill(pid, signal.SIGKILL)
        try:
            future.get()
        except RuntimeError as exc:
            took = time.perf_counter() - start
            if type(exc).__name__ != "SupervisionError":  # torchmonarch keeps it in a module of its own
                raise
            if not slow and f"pid {pid}" not in str(exc):
                raise RuntimeError("Error: the exception does not say which process was killed") from exc
        else:
            raise RuntimeError("Error: a call to a killed process returned")
        procs.stop().get()
        return took

    for _ in range(0 if slow else params["warmup"]):
        run()
    return {"noticed": [run() for _ in range(params["slow"] if slow else params["count"])]}


def restart(params: Params) -> Samples:
    """One process of a mesh under a policy is killed; until a call to its rank is answered by the next one."""
    from monarch.actor import RestartPolicy  # ours alone has it

    logging.disable()  # each restart is a warning
    procs = this_host().spawn_procs({"procs": params["procs"]})
    with RestartPolicy(max_restarts=10**6):
        mesh: Any = procs.spawn("echo", actor_class(params))
    mesh.echo.call(1).get()

    def run() -> float:
        one = mesh.slice(procs=random.randrange(params["procs"]))
        pid = one.pid.call_one().get()
        start = time.perf_counter()
        os.kill(pid, signal.SIGKILL)
        while True:
            try:
                if one.pid.call_one().get() != pid:
                    return time.perf_counter() - start
            except RuntimeError:  # it is down
                time.sleep(0.001)

    taken = [run() for _ in range(params["warmup"] + params["count"])]
    return {"answered": taken[params["warmup"] :]}


if __name__ == "__main__":
    try:
        main(
            {
                f.__name__: f
                for f in (
                    call,
                    handles,
                    pipelining,
                    map_items,
                    broadcast,
                    spawn,
                    memory,
                    echo,
                    spread,
                    argument,
                    death,
                    restart,
                )
            }
        )
    finally:
        shutdown_context().get()
