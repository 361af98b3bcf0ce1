"""The tree of a program, put together from what its processes and host agents answered to question "tree". Pure.

root -> hosts -> procs -> actors. Processes that have ended or do not answer are nodes of kind Error. One survey makes the
whole tree; nothing is asked again for a part of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from monarch._mesh.inspection import identities
from monarch._mesh.inspection.description import ActorFacts, FailureFacts, OrderingFacts, ProcessFacts
from monarch._mesh.inspection.host_description import EndedProcess, HostFacts
from monarch._mesh.inspection.survey_answers import SurveyAnswers
from monarch._runtime.flight_recorder import Event
from monarch._wire.address import AGENT, CLIENT, agent_at, host_of, name_of
from monarch.admin.payloads import (
    ActiveHandler,
    ActorProperties,
    Debug,
    DeviceUse,
    ErrorProperties,
    Execution,
    FailureInfo,
    HostProperties,
    InboundOrdering,
    MemoryUse,
    NodePayload,
    OrderingSession,
    ProcProperties,
    Properties,
    RootProperties,
    WaitsFor,
    iso,
)
from monarch.admin.references import ROOT, host_reference, natural, proc_reference

ENDED, SILENT, STARTING = "process_ended", "gateway_timeout", "starting"
_LONGEST_CAUSE = 100  # failures that are followed from one to the one before it

_decode_process = msgspec.msgpack.Decoder(ProcessFacts).decode
_decode_host = msgspec.msgpack.Decoder(HostFacts).decode


class ProgramTree:
    """`nodes` by reference, parents before their children. `addresses`: of processes, by the reference of a proc or actor;
    `keys`: of actors within their process. `silent`: addresses that gave no answer, and why."""

    def __init__(self, now: float) -> None:
        self.now = now
        self.nodes: dict[str, NodePayload] = {}
        self.addresses: dict[str, str] = {}
        self.keys: dict[str, str] = {}
        self.silent: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self.nodes)


def assemble(answers: SurveyAnswers, now: float) -> ProgramTree:
    """`now`: seconds since the epoch, of whatever has no time of its own."""
    of_agents = {address: body for address, body in answers.replies.items() if name_of(address) == AGENT}
    of_processes = {address: body for address, body in answers.replies.items() if address not in of_agents}
    processes = SurveyAnswers(of_processes, answers.silent).decoded(_decode_process)
    agents = SurveyAnswers(of_agents, answers.silent).decoded(_decode_host)
    return _Assembly(processes, agents, answers.silent, now).tree


class _Assembly:
    def __init__(
        self,
        processes: Mapping[str, ProcessFacts],
        agents: Mapping[str, HostFacts],
        silent: Mapping[str, str],
        now: float,
    ) -> None:
        self.tree = ProgramTree(now)
        self.tree.silent = dict(silent)
        self._processes = processes
        self._agents = agents
        self._running = {row.address: row for host in agents.values() for row in host.running}
        self._ended = _failed(agents.values(), self._running.keys() | processes.keys())
        self._names = {row.address: row.mesh for host in agents.values() for row in host.ended}
        self._names.update((row.address, row.mesh) for row in self._running.values())
        self._names.update((address, facts.mesh) for address, facts in processes.items())
        self._actors = {
            (address, actor.key): actor
            for address, facts in processes.items()
            for actor in (*facts.stopped, *facts.actors)
        }
        self._children_of = self._children()
        self._root()

    def _children(self) -> dict[tuple[str, str], list[str]]:
        """(process, unique name) of an actor -> the actors that it supervises."""
        found: dict[tuple[str, str], list[ActorFacts]] = {}
        for facts in self._processes.values():
            for actor in facts.actors:
                if actor.owner:
                    found.setdefault((actor.owner_proc, actor.owner), []).append(actor)
        return {owner: [actor.id for actor in sorted(own, key=_order)] for owner, own in found.items()}

    # --- nodes

    def _add(
        self, identity: str, properties: Properties, children: list[str], parent: str | None, at: float | None = None
    ) -> None:
        self.tree.nodes[identity] = NodePayload(
            identity, properties, children, parent, iso(self.tree.now if at is None else at)
        )

    def _root(self) -> None:
        client = next((facts for facts in self._processes.values() if name_of(facts.address) == CLIENT), None)
        by_host: dict[str, list[str]] = {host_of(address): [] for address in self._agents}
        for address in (*self._processes, *self._running, *self._ended, *self.tree.silent):
            known = by_host.setdefault(host_of(address), [])
            if name_of(address) != AGENT and address not in known:
                known.append(address)
        own = host_of(client.address) if client is not None else ""
        hosts = sorted(by_host, key=lambda host: (host != own, natural(host)))
        root = RootProperties(
            len(hosts),
            iso(client.started if client is not None else self.tree.now),
            client.user if client is not None else "unknown",
            [],
            client.pid if client is not None else 0,
            client.command if client is not None else "",
            len(self._processes),
            sum(len(facts.actors) for facts in self._processes.values()),
            len(self._ended) + sum(_failures(facts) for facts in self._processes.values()),
            dict(self.tree.silent),
        )
        self._add(ROOT, Properties(Root=root), [host_reference(host) for host in hosts], None)
        for host in hosts:
            self._host(host, by_host[host])

    def _host(self, address: str, processes: list[str]) -> None:
        identity = host_reference(address)
        agent = agent_at(address)
        facts = self._agents.get(agent)
        why = self.tree.silent.get(agent)
        if facts is None and why is None:
            why = "its host agent was not asked"
        self.tree.addresses[identity] = agent
        order = sorted(
            processes, key=lambda process: (name_of(process) != CLIENT, natural(self._proc_name(process)), process)
        )
        living = [process for process in order if process in self._processes]
        memory = MemoryUse(facts.rss, facts.vm) if facts is not None else MemoryUse(None, None)
        host = HostProperties(
            address,
            len(living),
            [],
            memory,
            facts.hostname if facts is not None else "",
            facts.pid if facts is not None else 0,
            facts.processors if facts is not None else 0,
            facts.load if facts is not None else 0.0,
            facts.total if facts is not None else 0,
            facts.available if facts is not None else 0,
            why,
        )
        children = [self._proc_reference(process) for process in order]
        self._add(identity, Properties(Host=host), children, ROOT, facts.now if facts is not None else None)
        for process in order:
            known = self._processes.get(process)
            if known is not None:
                self._proc(known, identity)
            else:
                self._missing(process, identity)

    def _proc_name(self, address: str) -> str:
        known = self._processes.get(address)
        return known.id if known is not None else str(identities.proc_uid(address, self._names.get(address, "")))

    def _proc_reference(self, address: str) -> str:
        known = self._processes.get(address)
        return proc_reference(self._proc_name(address), host_of(address) if known is None else known.reached_at)

    def _missing(self, address: str, parent: str) -> None:
        identity = self._proc_reference(address)
        self.tree.addresses[identity] = address
        ended, row = self._ended.get(address), self._running.get(address)
        if ended is not None:
            self._add(identity, Properties(Error=ErrorProperties(ENDED, end_of(ended))), [], parent, ended.at)
        elif row is not None and row.state == "starting":
            self._add(
                identity,
                Properties(Error=ErrorProperties(STARTING, "it starts, and has not said hello yet")),
                [],
                parent,
            )
        else:
            why = self.tree.silent.get(address) or "it did not answer"
            if row is not None and row.why:
                why = f"{row.state}: {row.why} (pid {row.pid})"
            self._add(identity, Properties(Error=ErrorProperties(SILENT, why)), [], parent)

    def _proc(self, facts: ProcessFacts, parent: str) -> None:
        identity = proc_reference(facts.id, facts.reached_at)
        self.tree.addresses[identity] = facts.address
        everyone = [*facts.actors, *_gone(facts)]
        order = sorted(everyone, key=lambda actor: (bool(actor.ended), *_order(actor)))
        depths = [actor.queue for actor in facts.actors]
        age = None if facts.idle is None else round(facts.idle * 1000)
        row = self._running.get(facts.address)
        proc = ProcProperties(
            facts.id,
            len(facts.actors),
            [actor.id for actor in order if actor.system],
            [actor.id for actor in order if actor.ended],
            facts.retention,
            bool(facts.poisoned),
            _failures(facts),
            Debug(
                MemoryUse(facts.rss, facts.vm),
                sum(depths),
                max(depths, default=0),
                max((actor.peak for actor in facts.actors), default=0),
                0 if any(depths) else age,
            ),
            facts.address,
            facts.pid,
            facts.hostname,
            facts.mesh,
            row.rank if row is not None else None,
            facts.poisoned or (row.state if row is not None else "running"),
            iso(facts.started),
            round(facts.processors, 3),
            None if facts.device is None else DeviceUse(*facts.device),
        )
        self._add(identity, Properties(Proc=proc), [actor.id for actor in order], parent, facts.now)
        for actor in order:
            self._actor(actor, facts, identity)

    # --- actors

    def _actor(self, actor: ActorFacts, facts: ProcessFacts, parent: str) -> None:
        self.tree.addresses[actor.id] = facts.address
        self.tree.keys[actor.id] = actor.key
        oldest = min((handler.since for handler in actor.handlers), default=None)
        payload = ActorProperties(
            status_text(actor.status, actor.detail),
            actor.cls or "client",
            actor.id,
            actor.processed,
            iso(actor.created) if actor.created else None,
            actor.endpoint or None,
            round(actor.busy * 1e6),
            actor.queue,
            flight_recorder(actor.events),
            actor.system,
            _ordering(actor.ordering),
            self._failure(actor, facts),
            None if actor.ended else _execution(actor),
            actor.name,
            actor.rank,
            actor.status,
            actor.detail,
            actor.peak,
            [WaitsFor(wait.target, wait.unanswered, iso(wait.since)) for wait in actor.waits],
            None if oldest is None else max(0, round((facts.now - oldest) * 1000)),
        )
        children = [] if actor.ended else list(self._children_of.get((facts.address, actor.unique), ()))
        self._add(actor.id, Properties(Actor=payload), children, parent, facts.now)

    def _failure(self, actor: ActorFacts, facts: ProcessFacts) -> FailureInfo | None:
        failure = actor.failure
        if failure is None:
            return None
        root, name = self._root_cause(failure)
        return FailureInfo(
            failure.report,
            root or actor.id,
            name or f"{actor.name}[{actor.rank}]",
            iso(failure.at),
            bool(root),
        )

    def _root_cause(self, failure: FailureFacts) -> tuple[str, str]:
        """(reference, name) of the actor that failed first; ("", "") when it is the one that failed itself."""
        found = "", ""
        for _ in range(_LONGEST_CAUSE):
            if failure.cause is None:
                break
            key, rank, process, name = failure.cause
            known = self._actors.get((process, key))
            if known is None:  # it ended with its process
                gone = self._processes.get(process)
                if gone is None:
                    return self._proc_reference(process), f"{name}[{rank}]"
                uid = identities.actor_uid(key, name, rank, key == name)
                return f"{uid}.{gone.id}@{gone.reached_at}", f"{name}[{rank}]"
            found = known.id, f"{known.name}[{known.rank}]"
            if known.failure is None:
                break
            failure = known.failure
        return found


def _order(actor: ActorFacts) -> tuple[Any, ...]:
    """Returns what actors are sorted by: names with numbers in their order, then ranks. (Ids have other digits.)"""
    return natural(actor.name), actor.rank, actor.id


def _gone(facts: ProcessFacts) -> list[ActorFacts]:
    """The stopped actors, newest first, of one reference the newest; none whose place another has taken."""
    taken = {actor.id for actor in facts.actors}
    found = []
    for actor in reversed(facts.stopped):
        if actor.id not in taken:
            taken.add(actor.id)
            found.append(actor)
    return found


def _failures(facts: ProcessFacts) -> int:
    return sum(actor.failure is not None for actor in (*facts.actors, *_gone(facts)))


def _failed(agents: Iterable[HostFacts], living: Iterable[str]) -> dict[str, EndedProcess]:
    """Processes that failed, the last at each address; none whose place another has taken, and none that was to end."""
    there = set(living)
    found = {row.address: row for host in agents for row in host.ended if row.address not in there}
    return {address: row for address, row in found.items() if not row.stopped and (row.code or row.detail)}


def end_of(ended: EndedProcess) -> str:
    """Says how a process ended, and the last that it wrote."""
    how = f"killed by signal {-ended.code}" if ended.code < 0 else f"exit status {ended.code}"
    detail = f": {ended.detail}" if ended.detail else ""
    tail = "".join(f"\n  {line}" for line in ended.tail)
    return f"the process (pid {ended.pid}) has ended, {how}{detail}" + (f"; its last lines:{tail}" if tail else "")


def status_text(status: str, detail: str) -> str:
    """The status of an actor in one text: `idle`, `add: processing for 12ms`, `failed: why`."""
    if status == "processing":
        endpoint, _, duration = detail.rpartition(" for ")
        return f"{endpoint}: processing for {duration}"
    return f"{status}: {detail}" if detail else status


def _execution(actor: ActorFacts) -> Execution:
    handlers = [
        ActiveHandler(h.endpoint, h.count, iso(h.since), f"{h.file}:{h.line}" if h.file else "") for h in actor.handlers
    ]
    return Execution(actor.handling, handlers, True, sum(h.count for h in actor.handlers) < actor.handling)


def _ordering(facts: OrderingFacts | None) -> InboundOrdering | None:
    if facts is None:
        return None
    sessions = [
        OrderingSession(sender, sender, awaited - 1, awaited, held, lowest, highest)
        for sender, awaited, held, lowest, highest in facts.sessions
    ]
    return InboundOrdering(True, True, facts.left_out, facts.known, len(sessions), facts.held, facts.most, sessions)


def flight_recorder(events: Iterable[Event]) -> str | None:
    """Events as JSON text, oldest first; None for none."""
    rows = [
        {
            "timestamp": iso(event.at),
            "seq": event.seq,
            "level": event.level,
            "target": "monarch.actor" if event.actor else "monarch.process",
            "name": event.name,
            "fields": {"message": event.text} if event.text else {},
        }
        for event in events
    ]
    return msgspec.json.encode(rows).decode() if rows else None
