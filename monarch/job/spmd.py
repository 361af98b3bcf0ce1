"""Programs that run alike on every rank, as jobs: a torchrun command on the hosts of a scheduler, and hosts that the
ranks of a program which runs already bring along.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monarch.actor import attach_to_workers
from monarch.job import cache
from monarch.job.job_state import JobState
from monarch.job.job_trait import JobTrait
from monarch.job.local import LocalJob
from monarch.job.names import DEFAULT_JOB_PATH
from monarch.job.progress import job_logger
from monarch.job.schedulers import SCHEDULERS, job_of
from monarch.job.torchrun import command_words
from monarch.job.worker_launch import OF_RANKS, WorkerLaunch, new_secret, own_tls, start_beside

if TYPE_CHECKING:
    from monarch.actor import HostMesh

__all__ = ["SPMDJob", "StoreJob", "serve"]

_MESH = "workers"


# --- torchrun commands


def serve(
    appdef_or_list: Any,
    scheduler: str = "local",
    scheduler_cfg: Mapping[str, Any] | None = None,
    *,
    name: str | None = None,
) -> SPMDJob:
    """Asks a scheduler for the hosts of a torchrun command, and returns the job; `run_spmd()` runs the command there.

        job = serve(["torchrun", "--nproc-per-node", "8", "train.py"], "slurm", {"partition": "gpu"})
        job.run_spmd()

    The command is a list, for one host, or an AppDef (torchx's, or anything with `name` and `roles`, of which the first has
    `entrypoint`, `args` and `num_replicas`). `scheduler`: "local" is this machine, "process" a process of it, "slurm" and
    "kubernetes" make a SlurmJob and a KubernetesJob; `scheduler_cfg` has the arguments of these classes, and for
    kubernetes those of its `add_mesh` under "mesh". ValueError for an empty list, for `--nnodes` other than 1 in one,
    for another scheduler, and for `name` with an AppDef, which has its own.
    """
    if isinstance(appdef_or_list, str):
        raise TypeError(f'the command is a list of words, as in ["torchrun", "train.py"]; got {appdef_or_list!r}')
    if isinstance(appdef_or_list, Sequence):
        command, hosts = [str(word) for word in appdef_or_list], 1
        if not command:
            raise ValueError("command cannot be empty")
    else:
        if name is not None:
            raise ValueError("name is only supported for command lists; set AppDef.name instead")
        command, hosts = _of_appdef(appdef_or_list)
        name = appdef_or_list.name
    nodes = command_words.parse(command).nodes  # what cannot be run is said now, not when the hosts are there
    if isinstance(appdef_or_list, Sequence) and nodes not in (None, "1", "1:1"):
        raise ValueError(
            f"a command list is for one host, and it says --nnodes {nodes}; give an AppDef, or use monarch run"
        )
    inner = _native(scheduler, dict(scheduler_cfg or {}), hosts, name or "spmd-job")
    stale = Path(DEFAULT_JOB_PATH)
    if stale.exists():
        job_logger().warning("%s is of an earlier job and is removed; `monarch kill` would have ended that job", stale)
        cache.remove(stale)
    job = SPMDJob(inner, command, scheduler, name or "spmd-job")
    job.apply()
    print(f"Launched: {job.name} ({type(inner).__name__}, {hosts} host{'s' if hosts > 1 else ''})", flush=True)
    return job


def _of_appdef(appdef: Any) -> tuple[list[str], int]:
    roles = list(getattr(appdef, "roles", ()))
    if len(roles) != 1:
        raise ValueError(f"an AppDef for serve has one role, the program; got {len(roles)}")
    return [str(roles[0].entrypoint), *map(str, roles[0].args)], int(getattr(roles[0], "num_replicas", 1))


def _native(scheduler: str, settings: dict[str, Any], hosts: int, name: str) -> JobTrait:
    if scheduler.startswith("local"):
        if hosts > 1:
            raise ValueError(f"{scheduler} is this machine alone, and the command is for {hosts} hosts")
        return LocalJob((_MESH,))
    if scheduler not in SCHEDULERS:
        raise ValueError(
            f"{scheduler!r} is not a scheduler that serve knows; it knows {', '.join(['local', *SCHEDULERS])}. For another "
            f"one write a job class (docs/jobs.md) and use `monarch run --job`"
        )
    return job_of(scheduler, {_MESH: hosts}, {"job_name": name, **settings} if scheduler == "slurm" else settings)


class SPMDJob(JobTrait):
    """A torchrun command and the job that gives its hosts, as `serve` returns it. Its one mesh is `workers`."""

    def __init__(self, inner: JobTrait, command: Sequence[str], scheduler: str = "local", name: str = "spmd") -> None:
        super().__init__()
        self._inner = inner
        self._command = list(command)
        self.scheduler = scheduler
        self.name = name

    def run_spmd(self) -> None:
        """Runs the command on the hosts, as many ranks on each as it says, in processes of a mesh; returns when all
        ranks have ended well. Of torchrun's arguments --nproc-per-node and -m count. Raises ActorError with what a
        rank raised."""
        from monarch.spmd import SPMDActor

        count, words, _ = command_words.parse(self._command)
        procs = self.state(cached_path=None).workers.spawn_procs({"gpus": count}, name=self.name)
        try:
            ranks: Any = procs.spawn("_SPMDActor", SPMDActor)
            first = ranks.flatten("rank").slice(rank=0)
            host, port = first.get_host_port.call_one(None).get()
            ranks.main.call("127.0.0.1" if len(procs) == count else host, port, words).get()
        finally:
            procs.stop().get()

    def can_run(self, spec: JobTrait) -> bool:
        return isinstance(spec, SPMDJob) and self._inner.active and self._inner._is_running()

    def _create(self, client_script: str | None) -> None:
        if client_script is not None:
            raise RuntimeError("SPMDJob cannot run batch-mode scripts")
        self._inner.apply()

    def _state(self) -> JobState:
        return JobState({_MESH: self._inner.state(cached_path=None).workers})

    def _kill(self) -> None:
        self._inner.kill()

    def _cleanup_log_context(self) -> dict[str, Any]:
        return self._inner._cleanup_log_context()

    def _log_files(self) -> dict[str, str]:
        return self._inner._log_files()


# --- hosts that ranks bring along

_NOT_PLAIN = re.compile(r"[^A-Za-z0-9_-]")
_KEY = "monarch/spmd/{}"
_started: list[_RankWorker] = []  # of this process: they end with it
_VARIABLES = {name.lower(): name for name in OF_RANKS}


class StoreJob(JobTrait):
    """The hosts of a program that torchrun or a scheduler has started, one rank after another: rank 0 becomes the
    controller of all.

        job = StoreJob.from_store(store)           # on every rank
        if job is not None:                        # rank 0
            hosts = job.state().monarch_worker
    """

    def __init__(self, worker_addrs: Sequence[str], name: str = "monarch_worker", *, secret: str | None = None) -> None:
        super().__init__()
        self._addresses = list(worker_addrs)
        self._mesh = name
        self._secret = secret
        self._hosts: HostMesh | None = None
        self.apply()

    @classmethod
    def from_store(
        cls,
        store: Any,
        *,
        monarch_port: int = 0,
        name: str = "monarch_worker",
        transport: str = "ipc",
        rank: int | None = None,
        local_rank: int | None = None,
        world_size: int | None = None,
        local_world_size: int | None = None,
    ) -> StoreJob | None:
        """Makes the job; every rank calls this, with a torch.distributed store that all of them see. The first rank of each
        host starts a worker, which ends with that rank's process, and puts its address into the store. The job on
        rank 0, None on the others.

        The ranks are told by RANK, LOCAL_RANK, WORLD_SIZE and LOCAL_WORLD_SIZE where they are not given: RuntimeError for
        one that is missing. `transport`: "ipc" for ranks of one machine; "tcp" or "tls" (also "metatls") with a
        `monarch_port` that is free on every host, and for TLS with MONARCH_TLS_CA, _CERT and _KEY. ValueError for
        another one, without a port, and for ranks that do not divide into hosts. The workers' secret is that of
        MONARCH_SECRET, else a new one, which goes through the store: anyone who can read that may run code on the hosts,
        as with the store itself.
        """
        given = {"rank": rank, "local_rank": local_rank, "world_size": world_size, "local_world_size": local_world_size}
        place = {key: _rank(key, value) for key, value in given.items()}
        if place["local_world_size"] < 1 or place["world_size"] % place["local_world_size"]:
            raise ValueError(
                f"world_size {place['world_size']} does not divide into hosts of local_world_size "
                f"{place['local_world_size']} ranks"
            )
        if transport not in ("ipc", "tcp", "tls", "metatls", "metatls-hostname"):
            raise ValueError(f"unsupported transport {transport!r}: it is ipc, tcp or tls")
        if transport != "ipc" and not monarch_port:
            raise ValueError(f"transport {transport!r} needs an explicit monarch_port, which is free on every host")
        groups = place["world_size"] // place["local_world_size"]
        if place["rank"] == 0:
            store.set(_KEY.format("secret"), os.environ.get("MONARCH_SECRET") or new_secret())
        secret = _text(store.get(_KEY.format("secret")))
        if place["local_rank"] == 0:
            group = place["rank"] // place["local_world_size"]
            worker = _RankWorker(f"{name}_{group}", transport, monarch_port, secret)
            _started.append(worker)
            store.set(_KEY.format(f"workers/{group}"), worker.address)
        if place["rank"] != 0:
            return None
        return cls([_text(store.get(_KEY.format(f"workers/{group}"))) for group in range(groups)], name, secret=secret)

    def state(self, cached_path: str | None = None) -> JobState:
        """The hosts, attached to; see JobTrait. Nothing is kept: they end with the program that brought them."""
        return super().state(cached_path=None)

    def can_run(self, spec: JobTrait) -> bool:
        return False

    def _create(self, client_script: str | None) -> None:
        if client_script is not None:
            raise RuntimeError("StoreJob cannot run batch-mode scripts")

    def _state(self) -> JobState:
        if self._hosts is None:
            self._hosts = attach_to_workers(workers=self._addresses, name=self._mesh, secret=self._secret)
        return JobState({self._mesh: self._hosts})

    def _kill(self) -> None:
        hosts, self._hosts = self._hosts, None
        if hosts is not None:
            hosts.shutdown().get()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_hosts": None}


class _RankWorker:
    """A worker program that ends with this process: it reads its orders from a pipe, and ends when that does."""

    def __init__(self, name: str, transport: str, port: int, secret: str) -> None:
        if transport == "ipc":  # a socket without a file: nothing is left when a rank is killed
            self.address = served = f"ipc://@monarch-{_NOT_PLAIN.sub('_', name)[:32]}-{secrets.token_hex(8)}"
        else:
            scheme = "tcp" if transport == "tcp" else "tls"
            self.address, served = f"{scheme}://{socket.gethostname()}:{port}", f"{scheme}://*:{port}"
        self.process = start_beside(WorkerLaunch(secret, None, own_tls()), served, stdout=subprocess.DEVNULL)


def _rank(key: str, given: int | None) -> int:
    if given is not None:
        return given
    variable = _VARIABLES[key]
    text = os.environ.get(variable)
    if text is None:
        raise RuntimeError(f"StoreJob.from_store needs {variable} in the environment, or {key}=...")
    try:
        return int(text)
    except ValueError:
        raise RuntimeError(f"{variable} is a number, got {text!r}") from None


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
