"""Servers of older launch scripts: meshes of hosts by name, made by the jobs of monarch.job. New programs use those
themselves.

A server is known by its handle, `SCHEDULER:///NAME`; its job is kept in `.monarch/server_NAME` of the working directory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

from monarch.job.schedulers import SCHEDULERS, job_of
from monarch.tools.config.config import Config
from monarch.tools.mesh_spec import JobState, MeshSpec, ServerSpec

__all__ = ["create", "debug", "get_or_create", "info", "kill", "server_ready"]


def create(config: Config, name: str = "monarch") -> str:
    """Asks for the hosts of `config.appdef`, and returns the handle at once; with `config.dryrun` only that.
    ValueError for a scheduler that is not known, and without roles."""
    meshes = _meshes(config)
    if config.scheduler not in SCHEDULERS:
        *most, last = SCHEDULERS
        raise ValueError(f"{config.scheduler!r} is not a scheduler that is known: {', '.join(most)} and {last} are")
    job = job_of(config.scheduler, meshes, config.scheduler_args)
    handle = f"{config.scheduler}:///{name}"
    if not config.dryrun:
        job.apply()
        job.dump(_file(handle))
    return handle


def info(server_handle: str) -> ServerSpec | None:
    """Returns what is known of the server; None when there is none."""
    from monarch.job import ScheduledJob, Waiting, job_load

    scheduler, _, name = _parts(server_handle)
    try:
        job = job_load(_file(server_handle))
    except FileNotFoundError:
        return None
    if not isinstance(job, ScheduledJob) or not job.active:
        return ServerSpec(name, scheduler, JobState.ENDED)
    found = job._poll()
    workers: Mapping[str, list[str]] = getattr(found, "workers", {})
    state = JobState.PENDING if isinstance(found, Waiting) else JobState.RUNNING if workers else JobState.ENDED
    meshes = [
        MeshSpec(mesh, len(at), hostnames=[_host(one) for one in at], state=state) for mesh, at in workers.items()
    ]
    return ServerSpec(name, scheduler, state, meshes)


async def server_ready(server_handle: str, check_interval: float = 5.0) -> ServerSpec | None:
    """Waits until the server has all its hosts, or has ended; None when there is none."""
    while True:
        found = await asyncio.to_thread(info, server_handle)
        if found is None or found.state is not JobState.PENDING:
            return found
        await asyncio.sleep(check_interval)


async def get_or_create(
    name: str, config: Config, check_interval: float = 5.0, force_restart: bool = False
) -> ServerSpec:
    """The server of this name with all its hosts; one that does not run, or with `force_restart` any, is made anew.
    RuntimeError when its hosts will not come."""
    handle = f"{config.scheduler}:///{name}"
    found = await asyncio.to_thread(info, handle)
    if found is None or force_restart or found.state is JobState.ENDED:
        if found is not None:
            kill(handle)
        create(config, name)
    ready = await server_ready(handle, check_interval)
    if ready is None or not ready.is_running:
        raise RuntimeError(f"the server {handle} has ended before its hosts were there")
    return ready


def kill(server_handle: str) -> None:
    """Gives the server's hosts back. Nothing when there is none."""
    from monarch.job import cache, job_load

    path = _file(server_handle)
    try:
        job = job_load(path)
    except FileNotFoundError:
        return
    job.kill()
    cache.remove(path)


def debug(host: str = "localhost", port: int = 27000) -> int:
    """Talks to the debugger that listens there, as `monarch debug --host HOST --port PORT` does; returns its exit status."""
    return _command("debug", f"--host={host}", f"--port={port}")


def apply_job(module_path: str | None = None) -> int:
    """Does what `monarch apply` does, and returns its exit status."""
    return _command("apply", *([] if module_path is None else [module_path]))


def context_ls() -> int:
    """Does what `monarch context ls` does, and returns its exit status."""
    return _command("context", "ls")


def _command(*words: str) -> int:
    from monarch.tools import cli

    return cli.main(words)


def _meshes(config: Config) -> dict[str, int]:
    roles = getattr(config.appdef, "roles", None) or getattr(config.appdef, "meshes", None) or ()
    found = {role.name: int(getattr(role, "num_replicas", 0) or role.num_hosts) for role in roles}
    if not found:
        raise ValueError("config.appdef has no roles: each is a mesh of hosts, with name and num_replicas")
    return found


def _parts(handle: str) -> tuple[str, str, str]:
    scheduler, mark, name = handle.partition(":///")
    if not mark or not scheduler or not name or "/" in name:
        raise ValueError(f"a server's handle is SCHEDULER:///NAME, got {handle!r}")
    return scheduler, mark, name


def _file(handle: str) -> str:
    return str(Path(".monarch", f"server_{_parts(handle)[2]}", "state.pkl"))


def _host(address: str) -> str:
    return address.partition("://")[2].rpartition(":")[0] or address
