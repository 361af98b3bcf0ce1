"""The same workloads in Ray's API."""

from __future__ import annotations

import os
import random
import signal
import time
from typing import Any

import ray
from _workload import Params, Samples, main, payload, private_bytes, rates, seconds, times


def start() -> None:
    """A local Ray without dashboard, on the loopback address."""
    ray.init(
        num_cpus=os.cpu_count(),
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        _node_ip_address="127.0.0.1",
        _temp_dir=os.environ.get("RAY_TMPDIR"),
    )


def actor_class(params: Params) -> Any:
    """The class that the parameters ask for."""
    if params.get("torch"):
        from ray_actors_torch import TorchEcho

        return TorchEcho
    from ray_actors import Echo

    return Echo


def actors(params: Params) -> list[Any]:
    """params["procs"] actors, each of which has answered once."""
    start()
    handles = [actor_class(params).remote() for _ in range(params["procs"])]
    ray.get([handle.echo.remote(1) for handle in handles])
    return handles


def call(params: Params) -> Samples:
    """Round trips one after another."""
    handles = actors(params)
    if len(handles) == 1:
        return {"round_trip": times(lambda: ray.get(handles[0].echo.remote(1)), params)}
    return {"round_trip": times(lambda: ray.get([handle.echo.remote(1) for handle in handles]), params)}


def pipelining(params: Params) -> Samples:
    """Batches of calls to one actor: all sent, then all results taken."""
    (handle,), batch = actors(params), params["batch"]
    return {"calls": rates(lambda: ray.get([handle.echo.remote(1) for _ in range(batch)]), batch, params)}


def broadcast(params: Params) -> Samples:
    """Batches of calls to all actors whose results nobody takes, then one round of calls that comes after
    them.
    """
    handles, batch = actors(params), params["batch"]

    def run() -> None:
        for _ in range(batch):
            for handle in handles:
                handle.hit.remote()
        ray.get([handle.count.remote() for handle in handles])

    return {"broadcasts": rates(run, batch, params)}


def spawn(params: Params) -> Samples:
    """From ray.init (cold) or from the first actor (warm) until each has answered a call."""
    cls = actor_class(params)
    handles: list[Any] = []

    def run() -> None:
        handles[:] = [cls.remote() for _ in range(params["procs"])]
        ray.get([handle.echo.remote(1) for handle in handles])

    init = seconds(start)
    cold = init + seconds(run)
    warm = []
    for _ in range(params["warm"]):
        for handle in handles:
            ray.kill(handle)
        warm.append(seconds(run))
    return {"cold": [cold], "warm": warm}


def memory(params: Params) -> Samples:
    """Private memory of actors' processes that have nothing to do."""
    handles = actors(params)
    for _ in range(10):
        ray.get([handle.echo.remote(1) for handle in handles])
    pids = ray.get([handle.pid.remote() for handle in handles])
    time.sleep(params["settle_s"])
    return {"private": [private_bytes(pid) for pid in pids]}


def echo(params: Params) -> Samples:
    """A payload there and back; as bytes per second of one direction."""
    (handle,), size = actors(params), params["size"]
    value = payload(params["kind"], size)

    def run() -> None:
        if len(ray.get(handle.echo.remote(value))) != size:
            raise RuntimeError("Error: the payload came back with another size")

    return {"one_way": rates(run, 2 * size, params)}


def spread(params: Params) -> Samples:
    """One payload to every actor, each of which tells its length; it is put into the object store once."""
    handles, size = actors(params), params["size"]
    value = payload(params["kind"], size)

    def run() -> None:
        stored = ray.put(value)
        if any(length != size for length in ray.get([handle.length.remote(stored) for handle in handles])):
            raise RuntimeError("Error: an actor got another size")

    return {"arrived": rates(run, size, params)}


def argument(params: Params) -> Samples:
    """One large argument, of which the actor tells the length."""
    (handle,), size = actors(params), params["size"]
    value = payload(params["kind"], size)
    return {"duration": times(lambda: ray.get(handle.length.remote(value)), params)}


def death(params: Params) -> Samples:
    """A call is under way in every actor and `ray.get` waits for all; one actor's process is killed and a new one made.

    `wait` and `waits` run beside each other, so that the actors have a second thread.
    """
    from ray_actors import Waiter

    start()
    waiters = [Waiter.remote() for _ in range(params["procs"])]

    def run() -> float:
        waiting = [waiter.wait.remote() for waiter in waiters]
        pids = ray.get([waiter.waits.remote() for waiter in waiters])
        index = random.randrange(len(pids))
        start = time.perf_counter()
        os.kill(pids[index], signal.SIGKILL)
        try:
            ray.get(waiting)
        except ray.exceptions.RayActorError:
            took = time.perf_counter() - start
        else:
            raise RuntimeError("Error: a call to a killed process returned")
        waiters.pop(index)
        ray.get([waiter.release.remote() for waiter in waiters])
        waiters.append(Waiter.remote())
        return took

    taken = [run() for _ in range(params["warmup"] + params["count"])]
    return {"noticed": taken[params["warmup"] :]}


def restart(params: Params) -> Samples:
    """One actor's process is killed; until a call, which Ray sends again by itself, is answered by the next one."""
    start()
    cls = actor_class(params).options(max_restarts=-1, max_task_retries=-1)
    handles = [cls.remote() for _ in range(params["procs"])]
    ray.get([handle.echo.remote(1) for handle in handles])

    def run() -> float:
        one = random.choice(handles)
        pid = ray.get(one.pid.remote())
        begin = time.perf_counter()
        os.kill(pid, signal.SIGKILL)
        while ray.get(one.pid.remote()) == pid:
            pass
        return time.perf_counter() - begin

    taken = [run() for _ in range(params["warmup"] + params["count"])]
    return {"answered": taken[params["warmup"] :]}


if __name__ == "__main__":
    try:
        main(
            {
                f.__name__: f
                for f in (call, pipelining, broadcast, spawn, memory, echo, spread, argument, death, restart)
            }
        )
    finally:
        ray.shutdown()
