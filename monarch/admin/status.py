"""The state of a running program or of a job's hosts, on a page: what is wrong, processes, what runs longest, who waits, what
failed."""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from monarch._mesh.failures.activity import RunningHandler, WaitEdge
from monarch._mesh.inspection import doctor, mesh_stacks
from monarch._mesh.inspection.diagnosis import mesh_in
from monarch._mesh.inspection.folding import called
from monarch._mesh.inspection.host_usage import HostUsage, ProcessUsage
from monarch._mesh.inspection.small_answers import FailureNote
from monarch._mesh.inspection.stacks_of_program import AskProgram
from monarch._mesh.inspection.status_tables import StatusTable
from monarch._mesh.inspection.wait_graph import WaitGraph, section
from monarch._text import counted, duration, one_line, size
from monarch._wire.address import agent_at
from monarch.admin.programs import Program
from monarch.admin.stacks import asking

if TYPE_CHECKING:
    from monarch._mesh.meshes.host_mesh import HostMesh

__all__ = [
    "FailureNote",
    "HostUsage",
    "RunningHandler",
    "StatusReport",
    "StatusTable",
    "WaitEdge",
    "duration",
    "page",
    "size",
    "status_of",
    "status_of_hosts",
]

_MOST = 64  # processes of a host, waits and failures that are shown; then how many more there are


class StatusReport(NamedTuple):
    """The state of a program, or of hosts. `unreachable`: agents of hosts that did not answer, and why.

    `program`: None for hosts that several programs may use; then `title` says whose they are, and `places` what the job
    calls each.
    """

    program: Program | None
    hosts: Sequence[HostUsage]
    unreachable: dict[str, str]
    waits: WaitGraph
    failures: Sequence[FailureNote]
    title: str = ""
    places: Mapping[str, str] = {}
    tables: Sequence[StatusTable] = ()


def status_of(program: Program, seconds: float) -> StatusReport:
    """Asks it. ProgramGone when it has ended, TimeoutError when its client gives no sign of life."""
    return _status(asking(program), None, seconds)._replace(program=program)


def status_of_hosts(title: str, meshes: Mapping[str, HostMesh], seconds: float) -> StatusReport:
    """Asks the agents of hosts that are attached here, and every process there, whichever program started it. Starts
    nothing."""
    places = {
        mesh._hosts[at]: f"{name}[{rank}]"
        for name, mesh in meshes.items()
        for rank, at in enumerate(mesh._shape.ndslice)
    }
    agents = [agent_at(host) for host in places]
    found = _status(functools.partial(mesh_stacks.ask_program, attached=agents), agents, seconds)
    return found._replace(title=title, places=places)


def _status(ask: AskProgram, agents: Sequence[str] | None, seconds: float) -> StatusReport:
    """`agents`: None for those of all processes."""
    waits = ask("waits", b"", timeout=seconds, only=None, agents=False)
    addresses = [*waits.replies, *waits.silent] if agents is None else agents
    hosts, unreachable = doctor.usage_of_hosts(ask, addresses, seconds)
    awake = list(waits.replies)
    failures, tables = doctor.failures_of(ask, seconds, awake), doctor.tables_of(ask, seconds, awake)
    graph = doctor.explained(doctor.wait_graph_of(waits), ask, seconds)
    return StatusReport(None, hosts, unreachable, graph, failures, tables=tables)


def page(status: StatusReport, now: float | None = None) -> str:
    """Returns the page for people. Pure, but for the time where none is given."""
    program, title = status.program, status.title
    if program is not None:
        age = max(0.0, (time.time() if now is None else now) - program.started)
        title = f"{program.pid}: {program.command}, for {duration(age)}"
    count = sum(len(host.processes) for host in status.hosts)
    hosts = len(status.hosts) + len(status.unreachable)
    places = {host: f"{place}  " for host, place in status.places.items()}
    lines = [f"{title}, {counted(hosts, 'host')}, {counted(count, 'process')}"]
    lines += section("what is wrong", status.waits.findings)
    running: dict[str, list[RunningHandler]] = {}
    for handler in status.waits.handlers:
        running.setdefault(handler.address, []).append(handler)
    order_of = {host: place for place, host in enumerate(places)}
    for host in sorted(status.hosts, key=lambda host: order_of.get(host.host, 0)):
        used = f"memory {size(host.memory - host.available)} of {size(host.memory)} used, load {host.load:.1f}"
        lines.append(f"{places.get(host.host, '')}{host.name}  {counted(len(host.processes), 'process')}, {used}")
        order = sorted(host.processes, key=lambda process: (process.mesh, process.rank))
        for process in order[:_MOST]:
            lines.append(f"    {_process(process)}")
            lines += [f"        {_handler(handler)}" for handler in running.get(process.address, [])]
        if len(order) > _MOST:
            lines.append(f"    and {len(order) - _MOST} more")
    named = {agent_at(host): place for host, place in status.places.items()}
    lines += [f"{named.get(agent, agent)}  DOES NOT ANSWER: {why}" for agent, why in status.unreachable.items()]
    for table in status.tables:
        title, *rows = table.lines()
        lines += [title, *(f"    {row}" for row in rows)]
    if status.waits.handlers:
        lines.append(f"runs longest: {_handler(status.waits.handlers[0])}")
    if status.waits.edges:
        lines.append(f"who waits: {len(status.waits.edges)}")
        lines += [f"    {edge}" for edge in status.waits.edges[:_MOST]]
    silent = {address: why for address, why in status.waits.silent.items() if address not in status.unreachable}
    if silent:
        lines.append(f"processes that did not answer: {len(silent)}  (`monarch stacks` says where they are)")
        known = {p.address: f"rank {p.rank} of {p.mesh}" for host in status.hosts for p in host.processes}
        lines += [f"    {known.get(address, address)}: {why}" for address, why in list(silent.items())[:_MOST]]
    if status.failures:
        lines.append(f"has failed: {len(status.failures)}")
        for failure in status.failures[:_MOST]:
            first = (failure.report.strip().splitlines() or [""])[0]
            lines.append(f"    {failure.mesh}, {called(failure.ranks)}: {first}")
    return "\n".join(map(one_line, lines))


def _process(process: ProcessUsage) -> str:
    state = process.state.upper() if process.state in ("stopped", "suspected") else process.state
    why = f" ({process.why})" if process.why else ""
    return (
        f"{process.mesh} {process.rank}  pid {process.pid}  {state}{why}  {size(process.resident)}  "
        f"{process.processor:.0f} s of processor time"
    )


def _handler(handler: RunningHandler) -> str:
    at = f", at {handler.file.rpartition('/')[2]}:{handler.line}" if handler.file else ""
    queued = f", {handler.queued} messages wait" if handler.queued else ""
    name = mesh_in(handler.who)
    return f"{name}.{handler.endpoint}() of rank {handler.rank} for {duration(handler.seconds)}{at}{queued}"
