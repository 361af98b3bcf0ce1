"""RayJob: hosts are Ray actors, so that a cluster that runs Ray runs this as well. What runs in them is in host.py."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Mapping
from typing import Any

from monarch.job.progress import job_logger
from monarch.job.ray.ray_host import RayHost
from monarch.job.scheduled import Ended, Poll, Ready, ScheduledJob, SchedulerError, Waiting
from monarch.job.worker_launch import WorkerLaunch

STRATEGIES = ("STRICT_SPREAD", "SPREAD", "PACK", "STRICT_PACK")
_ANSWER = 1.0  # seconds that actors get to answer in one look
_KNOCK = 10.0  # seconds in which the head of a cluster answers
_GOODBYE = 10.0  # seconds that workers get to end
_ENDING = 30.0  # seconds that actors get to end
_STEP = 0.1
_NEEDS_RAY = "RayJob needs Ray: pip install 'pymonarch[ray]'"


class RayJob(ScheduledJob):
    """Hosts that are Ray actors, of each mesh in `meshes` so many.

        hosts = RayJob({"trainers": 4}, resources={"CPU": 8, "GPU": 8}).state().trainers

    `resources`: what each host reserves on its node. `strategy`: how the hosts are placed, all of them or none:
    STRICT_SPREAD, the default, puts each on a node of its own; SPREAD, PACK and STRICT_PACK are Ray's. `address`,
    `runtime_env`: as for `ray.init`, which is called unless the program has done so: without an address it finds the
    cluster that RAY_ADDRESS or this machine names, or starts one here that ends with the program. `namespace`: of the
    actors. `max_restarts`: how often Ray starts a host again that has failed. `start_timeout`: seconds that hosts may take.

    Nodes need this package and Python of the same minor version (`runtime_env={"pip": [...]}` can bring it). Job and hosts
    outlive the program. There is no batch mode: `ray job submit` runs programs in the cluster.
    """

    poll_interval = 1.0
    hosts_come_back = True

    def __init__(
        self,
        meshes: Mapping[str, int],
        resources: Mapping[str, float] | None = None,
        *,
        strategy: str = "STRICT_SPREAD",
        address: str | None = None,
        namespace: str = "monarch",
        max_restarts: int = 4,
        runtime_env: Mapping[str, Any] | None = None,
        start_timeout: float | None = None,
    ) -> None:
        super().__init__()
        for name, count in meshes.items():
            if not isinstance(name, str) or not name.isidentifier():
                raise ValueError(f"{name!r} is not a name of a mesh")
            if not isinstance(count, int) or isinstance(count, bool) or count < 1:
                raise ValueError(f"mesh {name!r} has one host or more, got {count!r}")
        if not meshes:
            raise ValueError("meshes is empty: a job has one mesh or more")
        if strategy not in STRATEGIES:
            raise ValueError(f"strategy is one of {', '.join(STRATEGIES)}, got {strategy!r}")
        self.start_timeout = start_timeout
        self._meshes = dict(meshes)
        self._resources = dict(resources) if resources is not None else {"CPU": 1.0}
        if not any(self._resources.values()):
            raise ValueError("resources is empty: a host reserves something, such as {'CPU': 1}")
        self._strategy = strategy
        self._address = address
        self._namespace = namespace
        self._max_restarts = max_restarts
        self._runtime_env = dict(runtime_env or {})
        self._job = ""  # what the names of its actors begin with, and its placement group's name
        self._asked: dict[str, Any] = {}  # by actor, the answer that is awaited

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_asked": {}}

    # --- what the scheduler says

    def _submit(self, launch: WorkerLaunch, client_script: str | None) -> None:
        if client_script is not None:
            raise RuntimeError("RayJob cannot run batch-mode scripts")
        ray = self._ray()
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        assert self._apply_id is not None
        self._job = f"monarch-{self._apply_id[:13]}"
        actors = self._actors()
        warned = logging.getLogger("ray.actor")
        level = warned.level
        try:
            # It advises against hosts that end with their placement group, which is what they are to do.
            warned.setLevel(logging.ERROR)
            group = ray.util.placement_group(
                [self._resources] * len(actors), strategy=self._strategy, name=self._job, lifetime="detached"
            )
            for index, actor in enumerate(actors):
                placed = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index)
                options = _options(self._resources) | {"runtime_env": self._runtime_env or None}
                ray.remote(RayHost).options(
                    name=actor, namespace=self._namespace, lifetime="detached", max_restarts=self._max_restarts,
                    scheduling_strategy=placed, **options,
                ).remote(launch, self._job, index == 0)  # fmt: skip
        except BaseException as error:
            self._cancel()
            if isinstance(error, Exception):
                raise SchedulerError(f"Ray takes no order for {len(actors)} hosts: {error}") from error
            raise
        finally:
            warned.setLevel(level)
        job_logger().info("asked Ray for %d hosts (placement group %s)", len(actors), self._job)

    def _actors(self) -> list[str]:
        return [f"{self._job}-{mesh}-{rank}" for mesh, count in self._meshes.items() for rank in range(count)]

    def _poll(self) -> Poll:
        ray = self._ray()
        state = self._group_state()
        if state is None or state["state"] == "REMOVED":
            return Ended(
                f"placement group {self._job} is gone: somebody removed it, or the Ray cluster that had it ended"
            )
        if state["state"] != "CREATED":
            return Waiting(self._pending(state))
        found: dict[str, str] = {}
        for actor in self._actors():
            if actor not in self._asked:
                handle = self._handle(actor)
                if handle is None:
                    return Ended(f"Ray actor {actor} is gone: it was killed, or has failed too often")
                self._asked[actor] = handle.address.remote()
        waited = list(self._asked.values())
        ray.wait(waited, num_returns=len(waited), timeout=_ANSWER)
        for actor, answer in list(self._asked.items()):
            if not ray.wait([answer], timeout=0)[0]:
                continue
            del self._asked[actor]
            try:
                found[actor] = ray.get(answer)
            except ray.exceptions.ActorUnavailableError:  # Ray starts it again
                continue
            except ray.exceptions.RayError as error:
                return Ended(f"Ray actor {actor} has ended: {_last_line(error)}")
        missing = [actor for actor in self._actors() if actor not in found]
        if missing:
            return Waiting(f"{len(found)}/{len(self._actors())} hosts have started; Ray starts {missing[0]}")
        return Ready(
            {
                mesh: [found[f"{self._job}-{mesh}-{rank}"] for rank in range(count)]
                for mesh, count in self._meshes.items()
            }
        )

    def _handle(self, actor: str) -> Any:
        """None when there is no such actor, or not any more."""
        try:
            return self._ray().get_actor(actor, namespace=self._namespace)
        except ValueError:
            return None

    def _group_state(self) -> dict[str, Any] | None:
        """Returns what Ray knows of the placement group; None when it knows none."""
        ray = self._ray()
        try:
            found: dict[str, Any] = ray.util.placement_group_table(ray.util.get_placement_group(self._job))
        except ValueError:
            return None
        return found

    def _pending(self, state: Mapping[str, Any]) -> str:
        ray = self._ray()
        nodes = [node for node in ray.nodes() if node["Alive"]]
        why = state.get("stats", {}).get("scheduling_state", state["state"])
        spread = " on different nodes" if self._strategy == "STRICT_SPREAD" else ""
        return (
            f"Ray says {why}: {len(self._actors())} hosts with {_amounts(self._resources)} each are needed{spread}; "
            f"the cluster has {len(nodes)} node(s), free: {_amounts(ray.available_resources())}"
        )

    def _cancel(self) -> None:
        if not self._job:
            return
        ray = self._ray()
        handles = [handle for handle in map(self._handle, self._actors()) if handle is not None]
        # Those that run end their workers; others have none, or it ends with them.
        stopping = [handle.stop.remote() for handle in handles if self._met]
        if stopping:
            ray.wait(stopping, num_returns=len(stopping), timeout=_GOODBYE)
        for handle in handles:
            ray.kill(handle, no_restart=True)
        try:
            ray.util.remove_placement_group(ray.util.get_placement_group(self._job))
        except ValueError:
            pass
        deadline, pause = time.monotonic() + _ENDING, threading.Event()
        while self._left():
            if time.monotonic() > deadline:
                raise SchedulerError(f"Ray has not removed placement group {self._job} within {_ENDING:g} s")
            pause.wait(_STEP)
        self._job, self._asked = "", {}

    def _left(self) -> bool:
        """True if Ray still has the placement group or an actor in it."""
        state = self._group_state()
        return (state is not None and state["state"] != "REMOVED") or any(map(self._handle, self._actors()))

    def _same(self, spec: RayJob) -> bool:
        compared = ("_meshes", "_resources", "_strategy", "_address", "_namespace", "_max_restarts", "_runtime_env")
        return list(self._meshes) == list(spec._meshes) and all(
            getattr(self, name) == getattr(spec, name) for name in compared
        )

    def _cleanup_log_context(self) -> dict[str, Any]:
        return {"placement_group": self._job, "namespace": self._namespace}

    def _ray(self) -> Any:
        """Ray, connected. SchedulerError when there is no cluster where it was said to be."""
        try:
            import ray
        except ModuleNotFoundError:
            raise RuntimeError(_NEEDS_RAY) from None
        if not ray.is_initialized():
            self._check_reachable(self._address or os.environ.get("RAY_ADDRESS") or "")
            try:
                ray.init(address=self._address, namespace=self._namespace, log_to_driver=False, logging_level="warning")
            except (ConnectionError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
                where = self._address or "that RAY_ADDRESS names"
                raise SchedulerError(
                    f"the Ray cluster {where} cannot be reached: {_last_line(error)} (one with RAY_AUTH_MODE=token wants "
                    f"its token of this program too)"
                ) from error
        return ray

    def _check_reachable(self, address: str) -> None:
        """Ray itself would try for minutes to reach a cluster that is not there."""
        host, _, port = address.rpartition(":")
        if not host or "/" in host or not port.isdigit():
            return  # one that Ray finds by itself, or a Ray Client's
        try:
            socket.create_connection((host.strip("[]"), int(port)), _KNOCK).close()
        except OSError as error:
            raise SchedulerError(f"the Ray cluster {address} cannot be reached: {error}") from error


def _options(resources: Mapping[str, float]) -> dict[str, Any]:
    """Returns resources as actors take them: CPUs, GPUs and memory have names of their own."""
    rest = dict(resources)
    options = {"num_cpus": rest.pop("CPU", 0), "num_gpus": rest.pop("GPU", 0), "memory": rest.pop("memory", None)}
    return options | {"resources": rest or None}


def _amounts(resources: Mapping[str, float]) -> str:
    shown = {name: amount for name, amount in sorted(resources.items()) if ":" not in name and "_group_" not in name}
    return ", ".join(f"{name} {amount:g}" for name, amount in shown.items()) or "nothing"


def _last_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
