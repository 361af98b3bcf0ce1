"""The program's side of setting up torch.distributed: tells each rank what it is, then has all of them join."""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from typing import Any

from monarch.actor import ActorError, Future, ProcMesh, SupervisionError
from monarch.actor.lowlevel import in_thread
from monarch.spmd import layout
from monarch.spmd.group_guard import Member
from monarch.spmd.layout import RankLocation, VisibleDevices
from monarch.spmd.ranks import TorchGroup, TorchSetup
from monarch.spmd.spmd_actor import family_of

logger = logging.getLogger("monarch")
_MARGIN = 10.0  # seconds that a rank gets to say that it was not done in time
_PREPARE = 60.0  # seconds for what waits for nobody, importing torch among it


def setup(
    procs: ProcMesh,
    places: Sequence[tuple[str, int]],
    backend: str | None,
    init: bool,
    timeout: float | None,
    threads: int | None,
    setup_timeout: float,
    on_death: str,
) -> Future[None]:
    """See `monarch.actor.setup_torch_distributed`. `places`: of each rank, its host and which process there it is."""
    found = [RankLocation(*place) for place in places]
    task = functools.partial(_distributed, procs, found, backend, init, timeout, threads, setup_timeout, on_death)
    of = f"the setup of torch.distributed in {len(found)} rank(s)"
    return in_thread(task, "monarch-torch-setup", of)


def setup_torch_elastic_env(
    proc_mesh: ProcMesh, master_addr: str | None = None, master_port: int | None = None, use_ipaddr: Any = None
) -> None:
    """Sets torchrun's environment variables in each process, so that `init_process_group()` works in all of them.

    The first rank is the master: its host name (with `use_ipaddr`, an AddrType or address family, its address) and a port
    that is free there, unless `master_addr` and `master_port` say otherwise: AssertionError when only one of them is given.
    Ranks that differ in the last dimension only count as one host's. `setup_torch_distributed` does the rest as well.
    """
    _elastic(proc_mesh, master_addr, master_port, use_ipaddr).get()


async def setup_torch_elastic_env_async(
    proc_mesh: ProcMesh, master_addr: str | None = None, master_port: int | None = None, use_ipaddr: Any = None
) -> None:
    """Does what `setup_torch_elastic_env` does, awaited."""
    await _elastic(proc_mesh, master_addr, master_port, use_ipaddr)


def _elastic(procs: ProcMesh, address: str | None, port: int | None, use_ipaddr: Any) -> Future[None]:
    assert (address is None) == (port is None), "give both master_addr and master_port, or neither"
    family = 0 if use_ipaddr is None else family_of(use_ipaddr)

    def task() -> None:
        actors: Any = procs.spawn("_SPMDActor", TorchSetup)
        try:
            to, at = (
                (address, port) if address is not None else _one(actors, 0).host_port.call_one(family).get(_PREPARE)
            )
            environments = layout.environments(layout.by_last_dimension(list(procs.extent.sizes)))
            dims = dict(procs.sizes)
            members = [member for _, member in actors.look.call().get(_PREPARE).values()]
            _tell(actors, environments, dims, str(to), int(at or 0), [None] * len(environments), None, members)
        finally:
            actors.stop().get(_PREPARE)

    return in_thread(task, "monarch-torch-setup", "the setup of torchrun's environment")


def _distributed(
    procs: ProcMesh,
    places: list[RankLocation],
    backend: str | None,
    init: bool,
    timeout: float | None,
    threads: int | None,
    setup_timeout: float,
    on_death: str,
) -> None:
    actors = _spawn(procs, setup_timeout)
    try:
        if init:
            actors = _leave(procs, actors, setup_timeout)
        looked: list[tuple[VisibleDevices, Member]] = actors.look.call().get(_PREPARE).values()
        devices = [visible for visible, _ in looked]
        members = [member for _, member in looked] if on_death == "abort" else None
        backend = backend or layout.backend_for(places, devices)
        loopback = len({place.host for place in places}) == 1
        first = _one(actors, 0)
        if init:
            address, port = first.open.call_one(loopback, setup_timeout).get(_PREPARE)
        else:
            address, port = first.free_port.call_one(loopback).get(_PREPARE)
        chosen = [place.number if devices[rank].present else None for rank, place in enumerate(places)]
        environments = layout.environments(layout.by_host(places))
        _tell(actors, environments, dict(procs.sizes), address, port, chosen, threads, members)
        if init:
            group = TorchGroup(backend, address, port, timeout, setup_timeout)
            actors.join.call(group).get(setup_timeout + _MARGIN)
        actors.keep.call().get(_PREPARE)
    except ActorError as exc:
        told = exc.exception if isinstance(exc.exception, (RuntimeError, ImportError)) else exc
        raise RuntimeError(f"the process group of {len(places)} ranks was not set up: {told}") from exc
    finally:
        actors.stop()


def _spawn(procs: ProcMesh, seconds: float) -> Any:
    try:
        procs.healthy(timeout=seconds).get()
    except NotImplementedError:  # a reference: calls say what is wrong with it
        pass
    return procs.spawn("torch-setup", TorchSetup)


def _leave(procs: ProcMesh, actors: Any, seconds: float) -> Any:
    """Has all ranks out of the group before. A rank that cannot leave it is killed; returns the actors of those that are
    there then."""
    stuck = {rank: where for rank, where in enumerate(actors.leave.call().get(_PREPARE).values()) if where}
    if not stuck:
        return actors
    for rank, where in stuck.items():
        logger.warning(
            "%s. It cannot leave the process group before, and so it is killed, and restarted by the policy of its actors",
            where,
        )
        try:
            _one(actors, rank).end_process.call_one().get(_PREPARE)
        except SupervisionError:  # it is heard of
            pass
    actors.stop()
    return _spawn(procs, seconds)


def _tell(
    actors: Any,
    environments: list[dict[str, str]],
    dims: dict[str, int],
    address: str,
    port: int,
    devices: Sequence[int | None],
    threads: int | None,
    members: Sequence[Member] | None,
) -> None:
    waiting = []
    for rank, environment in enumerate(environments):
        environment |= {"MASTER_ADDR": address, "MASTER_PORT": str(port)}
        waiting.append(_one(actors, rank).prepare.call_one(environment, dims, devices[rank], threads, members))
    for answer in waiting:
        answer.get(_PREPARE)


def _one(actors: Any, rank: int) -> Any:
    return actors.flatten("rank").slice(rank=rank) if len(actors.extent.labels) else actors
