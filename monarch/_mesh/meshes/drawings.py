"""Drawings of meshes in notebooks, of what this process has heard of them: nobody is asked, and no client is started.

Who spawned a mesh, or attached its hosts, is told of each end; others know nothing, and the drawing says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from monarch import _html
from monarch._errors import ClientClosedError
from monarch._mesh.actors.actor import endpoints_of
from monarch._runtime.context import current, home
from monarch._text import first_line
from monarch._wire.address import host_of, is_dialable

if TYPE_CHECKING:
    from monarch._mesh.meshes.actor_mesh import ActorMesh
    from monarch._mesh.meshes.host_mesh import HostMesh
    from monarch._mesh.meshes.owned import OwnedActors, OwnedProcs
    from monarch._mesh.meshes.proc_mesh import ProcMesh
    from monarch._runtime.proc import Proc

_ENDPOINTS = 12  # endpoints and hosts that are named
_ELSEWHERE = "How its ranks are is known to the process that spawned it."


class KnownStates(NamedTuple):
    """The states of the ranks of a mesh, by index, and what is said of some; `note`: of all."""

    states: list[str]
    whys: dict[int, str]
    note: str = ""


def draw_hosts(mesh: HostMesh) -> str:
    """Draws a mesh of hosts."""
    ranks = list(mesh._shape.ndslice)
    hosts = list(mesh._given) if getattr(mesh._given, "complete", True) else []  # else reading them would wait
    here = [hosts[rank] for rank in ranks] if hosts else []
    found = _hosts(mesh, ranks, here)
    facts = [("hosts", _named(list(dict.fromkeys(map(_host_name, here)))) if here else "not all are known yet")]
    if mesh._executable:
        facts.append(("Python", mesh._executable))
    kind = "owned" if mesh._session is not None else "a reference"
    return _drawn("HostMesh", "", mesh, ranks, found, [*facts, ("this object", kind)])


def draw_procs(mesh: ProcMesh) -> str:
    """Draws a mesh of processes."""
    spec, ranks = mesh._spec, list(mesh._shape.ndslice)
    facts = [("hosts", _named(list(dict.fromkeys(map(_host_name, map(host_of, mesh._addresses()))))))]
    facts.append(("this object", "owned" if mesh._owned is not None else "a reference"))
    return _drawn("ProcMesh", spec.name, mesh, ranks, _procs(mesh, ranks), facts)


def draw_actors(mesh: ActorMesh[Any]) -> str:
    """Draws a mesh of actors."""
    spec, ranks = mesh._spec, list(mesh._shape.ndslice)
    found = _actors(mesh, ranks)
    facts = [
        ("class", f"{spec.cls.__module__}.{spec.cls.__qualname__}"),
        ("endpoints", _named(sorted(endpoints_of(spec.cls)))),
        ("on", f"the processes {spec.proc_mesh._spec.name!r}"),
        ("this object", "owned" if mesh._owned else "a reference"),
    ]
    return _drawn("ActorMesh", spec.name, mesh, ranks, found, facts)


def _drawn(
    kind: str,
    name: str,
    mesh: HostMesh | ProcMesh | ActorMesh[Any],
    ranks: Sequence[int],
    found: KnownStates,
    facts: Sequence[tuple[str, str]],
) -> str:
    return _html.mesh(_html.DrawnMesh(kind, name, mesh.sizes, ranks, found.states, found.whys, facts, found.note))


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - _ENDPOINTS} more" if len(names) > _ENDPOINTS else ""
    return ", ".join(name[:100] for name in names[:_ENDPOINTS]) + more if names else "none"


def _host_name(host: str) -> str:
    return host if is_dialable(host) else "this machine"


# --- what is known


def _proc() -> Proc | None:
    """This process, if it is part of anything yet."""
    running = current.get()
    return running.instance.proc if running is not None else home()


def _all(ranks: Sequence[int], state: str, note: str = "") -> KnownStates:
    return KnownStates([state] * len(ranks), {}, note)


def _closed(proc: Proc | None, ranks: Sequence[int]) -> KnownStates | None:
    """Returns what is left to be said where this process cannot hear of anything; None where it can."""
    if proc is None:
        return _all(ranks, "unknown", "No client runs in this process.")
    if proc.closed is None:
        return None
    return _all(ranks, "stopped" if isinstance(proc.closed, ClientClosedError) else "unknown", first_line(proc.closed))


def _hosts(mesh: HostMesh, ranks: Sequence[int], hosts: Sequence[str]) -> KnownStates:
    proc, session = _proc(), mesh._session
    closed = _closed(proc, ranks)
    if closed is not None or proc is None or not hosts:
        return _all(ranks, "unknown", closed.note if closed is not None else "")
    if session is not None:
        if session.ended:
            return _all(ranks, "stopped", f"The mesh was {session.ended}.")
        if not session.attached.ready:
            return _all(ranks, "starting", "The hosts are being attached.")
    attached = proc.mesh.attached
    states, whys = [], {}
    for index, host in enumerate(hosts):
        why = attached.why_lost(host)
        if why:
            whys[index] = why
        states.append("dead" if why else "running" if host == proc.host or attached.knows(host) else "unknown")
    return KnownStates(states, whys, "" if "unknown" not in states else "Who attached a host knows how it is.")


def _procs(mesh: ProcMesh, ranks: Sequence[int]) -> KnownStates:
    spec, proc = mesh._spec, _proc()
    if spec.stopped:
        return _all(ranks, "stopped", "The mesh was stopped.")
    closed = _closed(proc, ranks)
    if closed is not None or proc is None:
        return closed or _all(ranks, "unknown")
    if spec.addresses == [proc.address]:
        return _all(ranks, "running", "This process.")
    owned: OwnedProcs | None = proc.mesh.owned.procs.get(spec.uid)
    if owned is None:
        return _all(ranks, "unknown", _ELSEWHERE)
    places = {rank: index for index, rank in enumerate(ranks)}
    again = owned.replaced(ranks)
    states = ["restarted" if rank in again else "running" for rank in ranks]
    whys: dict[int, str] = {}
    coming, ended = owned.standing(ranks)
    _note(states, whys, places, coming, "starting", again)
    _note(states, whys, places, ended, "dead")
    return KnownStates(states, whys)


def _actors(mesh: ActorMesh[Any], ranks: Sequence[int]) -> KnownStates:
    spec, proc = mesh._spec, _proc()
    if mesh._stopping is not None or spec.proc_mesh._spec.stopped:
        return _all(ranks, "stopped", "The mesh was stopped.")
    closed = _closed(proc, ranks)
    if closed is not None or proc is None:
        return closed or _all(ranks, "unknown")
    layer = proc.mesh
    owned: OwnedActors | None = layer.owned.actors.get(spec.key)
    if owned is None:
        return _all(ranks, "unknown", f"{_ELSEWHERE} A mesh that was stopped is forgotten there.")
    with layer.owned.lock:
        ledger = layer.owned.ledger
        whole = ledger.check(spec.key, [])
        ended = {rank: ledger.check(spec.key, [rank]) for rank in ledger.ended_ranks(spec.key)}
        asked = {rank for those in owned.asked for rank in those}
        coming = ledger.standing(spec.key, ranks, owned.group is not None, asked).coming
    if whole is not None:
        return _all(ranks, "stopped", "The mesh was stopped.")
    places = {rank: index for index, rank in enumerate(ranks)}
    states = ["restarted" if rank in owned.incarnations else "running" for rank in ranks]
    whys: dict[int, str] = {}
    procs = _procs(spec.proc_mesh, list(spec.proc_mesh._shape.ndslice))
    beginning = {rank: procs.whys.get(rank, "") for rank in ranks if procs.states[rank] in ("starting", "restarting")}
    _note(states, whys, places, beginning, "starting")
    found = {rank: _html.brief_cause(_cause(failure.report)) for rank, failure in ended.items() if failure is not None}
    stopped = {rank for rank, failure in ended.items() if failure is not None and failure.stopped}
    _note(states, whys, places, found, "dead")
    for rank in stopped.intersection(places):
        states[places[rank]] = "stopped"
    _note(states, whys, places, {rank: found.get(rank, "") for rank in coming}, "restarting")
    return KnownStates(states, whys)


def _note(
    states: list[str],
    whys: dict[int, str],
    places: Mapping[int, int],
    found: Mapping[int, str],
    state: str,
    again: frozenset[int] = frozenset(),
) -> None:
    """Notes a state of some ranks, with why. `again`: ranks of which it is not the first."""
    for rank, why in found.items():
        if rank in places:
            states[places[rank]] = "restarting" if state == "starting" and rank in again else state
            if why:
                whys[places[rank]] = why


def _cause(report: str) -> str:
    """Returns a report without its first line, which names the actor."""
    first, _, rest = report.strip().partition("\n")
    return rest.strip() or first
