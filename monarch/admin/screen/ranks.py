"""The ranks of a program, as rows: which there are, in which state, at what. Pure: keys and new data in, rows out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from monarch._mesh.inspection.diagnosis import Finding
from monarch._text import first_line
from monarch._wire.address import UNNAMED, name_of, split_proc_name
from monarch.admin import payloads
from monarch.admin.payloads import ActorProperties, DeviceUse, ErrorProperties, NodePayload, ProcProperties
from monarch.admin.rank_states import ABSENT, LETTERS, STATES, worse
from monarch.admin.references import natural
from monarch.admin.screen import labels

_MISSING = re.compile(r"(.*)-(\d+)<([^<>]*)>@", re.DOTALL)  # a process that cannot tell of itself: mesh, rank, uid
_OF_STATE = {"starting": "initializing", "stopping": "stopping", "running": "idle"}  # others: unknown
_NAMED = 2  # actors that name a mesh of processes without a name of its own


class RankRow(NamedTuple):
    """One process. `mesh`: the name that the program gave. `state`: of `rank_states.LETTERS`, the worst of its actors'.
    `does`: the endpoint that has been running longest and whom it waits for; why it cannot, of one that has failed.
    `seconds`: for how long. `place`: FILE:LINE. `processor`: processors that it uses, 1.0 is one. `device`: the GPU that it
    uses. `known_as`: (mesh, rank) by which reports name it and its actors. `blamed`: the doctor names it. What is unknown is
    None or ""."""

    reference: str
    group: str
    mesh: str
    rank: int
    state: str
    does: str
    seconds: float
    place: str
    host: str
    processor: float | None
    memory: int | None
    known_as: tuple[tuple[str, int], ...] = ()
    blamed: bool = False
    device: DeviceUse | None = None

    @property
    def name(self) -> str:
        return f"{self.mesh}[{self.rank}]" if self.group else self.mesh

    @property
    def searched(self) -> str:
        """The text that the filter looks at."""
        state = f"{self.state} !" if self.blamed else self.state
        return f"{self.name} {state} {self.does} {self.place} {self.host}".casefold()


ORDERS: dict[str, tuple[str, Callable[[RankRow], Any]]] = {  # by their keys, as htop has them: column, order
    "N": ("RANK", lambda row: (bool(row.group), natural(row.mesh), row.group, row.rank)),
    "T": ("TIME", lambda row: -row.seconds),
    "P": ("CPU", lambda row: -(row.processor or 0.0)),
    "M": ("MEM", lambda row: -(row.memory or 0)),
    "U": ("GPU", lambda row: (-_load(row.device), -(row.device.memory_used_bytes if row.device is not None else 0))),
    "S": ("STATE", lambda row: (not row.blamed, list(LETTERS).index(row.state), -row.seconds)),
}


def _load(device: DeviceUse | None) -> float:
    return -1.0 if device is None or device.load_percent is None else device.load_percent


class RanksState:
    """The rows, in their order, those that the filter lets through; and which is selected, by reference."""

    def __init__(self) -> None:
        self.all: list[RankRow] = []
        self.rows: list[RankRow] = []
        self.order = "N"
        self.reversed = False
        self.filter = ""
        self.selected = ""
        self._moved = False  # by keys: until then the first rank is selected that the doctor names
        self._findings: Sequence[Finding] = ()
        self._used: dict[str, tuple[float, float]] = {}  # reference -> when it told, its processor time until then

    def update(self, nodes: Iterable[NodePayload]) -> None:
        """Takes the whole tree anew."""
        known = {node.identity: node for node in nodes}
        self.all = list(_rows(known, self._used))
        self._used = {
            reference: (payloads.seconds(node.as_of), node.properties.Proc.processor_seconds)
            for reference, node in known.items()
            if node.properties.Proc is not None
        }
        self.blame(self._findings)

    def blame(self, findings: Sequence[Finding]) -> None:
        """Takes what the doctor has found."""
        self._findings = findings
        named = {(finding.mesh, rank) for finding in findings for rank in finding.ranks}
        self.all = [row._replace(blamed=not named.isdisjoint(row.known_as)) for row in self.all]
        self._changed()

    def _changed(self) -> None:
        position = self.position
        wanted = self.filter.casefold()
        self.rows = [row for row in self.all if wanted in row.searched]
        self.rows.sort(key=ORDERS["N"][1])
        self.rows.sort(key=ORDERS[self.order][1], reverse=self.reversed)
        if not self._moved:
            self.selected = next((row.reference for row in self.rows if row.blamed), self.selected)
        if self.rows and all(row.reference != self.selected for row in self.rows):
            self.selected = self.rows[min(position, len(self.rows) - 1)].reference

    @property
    def position(self) -> int:
        """Returns the place of the selected row."""
        return next((place for place, row in enumerate(self.rows) if row.reference == self.selected), 0)

    @property
    def row(self) -> RankRow | None:
        """Returns the selected row."""
        return self.rows[self.position] if self.rows else None

    def groups(self) -> list[list[RankRow]]:
        """Returns the meshes, each with its ranks in their order; without the client. The filter does not count."""
        found: dict[str, list[RankRow]] = {}
        for row in sorted((row for row in self.all if row.group), key=ORDERS["N"][1]):
            found.setdefault(row.group, []).append(row)
        return list(found.values())

    # --- keys

    def move(self, by: int) -> None:
        self._moved = True
        if self.rows:
            self.selected = self.rows[max(0, min(len(self.rows) - 1, self.position + by))].reference

    def first(self) -> None:
        self.move(-len(self.rows))

    def last(self) -> None:
        self.move(len(self.rows))

    def set_filter(self, text: str) -> None:
        """Shows the rows that have that text; "" shows all."""
        self.filter = text
        self._changed()

    def sort(self, key: str) -> None:
        """Sorts by what that key means; once more, the other way round. The selection goes to the first row."""
        self.reversed = key == self.order and not self.reversed
        self.order = key
        self._changed()
        self.first()

    def select(self, reference: str) -> None:
        self._moved = True
        self.selected = reference
        self._changed()


def _rows(nodes: Mapping[str, NodePayload], used: Mapping[str, tuple[float, float]]) -> Iterator[RankRow]:
    names = _names(nodes)
    for reference, node in nodes.items():
        proc, error = node.properties.Proc, node.properties.Error
        host = _host_name(nodes, node)
        if proc is not None:
            group, rank = split_proc_name(name_of(proc.address)) or ("", 0)
            mesh = names.get(group, "client")
            yield _living(nodes, node, proc, used)._replace(group=group, mesh=mesh, rank=rank, host=host)
        elif error is not None and (found := _MISSING.match(reference)):
            mesh, rank, group = names.get(found[3], found[1]), int(found[2]), found[3]
            state = "failed" if labels.has_failed(node) and error.code != "gateway_timeout" else "unknown"
            state = "initializing" if error.code == "starting" else state
            yield RankRow(
                reference, group, mesh, rank, state, _why(error), 0.0, "", host, None, None, ((found[1], rank),)
            )


def _why(error: ErrorProperties) -> str:
    """Says in short how a process has ended, and the last that it wrote."""
    first, _, tail = error.message.partition("\n")
    how = first.rpartition(" has ended, ")[2].removesuffix("; its last lines:")
    last = tail.rstrip().rpartition("\n")[2].strip()
    return f"{how}: {last}" if last else how


def _names(nodes: Mapping[str, NodePayload]) -> dict[str, str]:
    """Returns the names of the meshes by their uids. One that was given none is called as the actors that live in it; of
    several with one name, the later are numbered."""
    given: dict[str, tuple[str, str]] = {}  # uid -> (started, name)
    actors: dict[str, set[str]] = {}
    for reference, node in nodes.items():
        proc = node.properties.Proc
        if proc is not None:
            uid = (split_proc_name(name_of(proc.address)) or ("", 0))[0]
            if uid:
                given[uid] = min(given.get(uid, (proc.started_at, proc.mesh_name)), (proc.started_at, proc.mesh_name))
                actors.setdefault(uid, set()).update(actor.name for _, actor in _users(nodes, node, proc))
        elif node.properties.Error is not None and (found := _MISSING.match(reference)):
            given.setdefault(found[3], (node.as_of, found[1]))
    names: dict[str, str] = {}
    for uid, (_, own) in sorted(given.items(), key=lambda item: item[1]):
        there = sorted(actors.get(uid, ()), key=natural)
        name = own or UNNAMED
        if name == UNNAMED and there:
            name = "+".join(there[:_NAMED]) + ("+..." if len(there) > _NAMED else "")
        number = sum(known == name or known.startswith(f"{name} #") for known in names.values())
        names[uid] = f"{name} #{number + 1}" if number else name
    return names


def _host_name(nodes: Mapping[str, NodePayload], node: NodePayload) -> str:
    above = nodes.get(node.parent or "")
    host = above.properties.Host if above is not None else None
    return (host.hostname or host.addr) if host is not None else ""


def _users(
    nodes: Mapping[str, NodePayload], node: NodePayload, proc: ProcProperties
) -> Iterator[tuple[NodePayload, ActorProperties]]:
    """Yields the program's own actors in a process."""
    system = set(proc.system_children)
    for child in node.children:
        below = nodes.get(child)
        actor = below.properties.Actor if below is not None else None
        if below is not None and actor is not None and child not in system:
            yield below, actor


def _living(
    nodes: Mapping[str, NodePayload],
    node: NodePayload,
    proc: ProcProperties,
    used: Mapping[str, tuple[float, float]],
) -> RankRow:
    """Returns the row of a process that answers, as far as it knows it."""
    letter = ABSENT
    oldest: ActorProperties | None = None
    why = f"poisoned: {proc.state}" if proc.is_poisoned else ""
    known_as = [(proc.mesh_name, proc.rank or 0)]
    for below, actor in _users(nodes, node, proc):
        known_as.append((actor.name, actor.rank))
        failed = labels.has_failed(below)
        if failed and not why:
            why = _failure(actor)
        if failed or actor.status != "stopped":
            letter = worse(letter, LETTERS["failed"] if failed else LETTERS.get(actor.status, LETTERS["unknown"]))
        if oldest is None or (actor.stuck_ms or 0) > (oldest.stuck_ms or 0):
            oldest = actor
    own = "failed" if proc.is_poisoned else _OF_STATE.get(proc.state, "unknown")
    does, seconds, place = _doing(oldest, node) if oldest is not None and not why else (why, 0.0, "")
    if own == "unknown":
        does = f"{proc.state}: {does}" if does else proc.state
    if own != "idle" or letter == ABSENT:
        letter = worse(letter, LETTERS[own])
    now, processor = payloads.seconds(node.as_of), None
    before = used.get(node.identity)
    if before is not None and now > before[0]:
        processor = max(0.0, (proc.processor_seconds - before[1]) / (now - before[0]))
    return RankRow(
        node.identity,
        "",
        "",
        0,
        STATES[letter],
        does,
        seconds,
        place,
        "",
        processor,
        proc.debug.memory.process_rss_bytes or None,
        tuple(dict.fromkeys(known_as)),
        device=proc.device,
    )


def _failure(actor: ActorProperties) -> str:
    failure = actor.failure_info
    if failure is not None and failure.is_propagated:
        return f"failed because of {failure.root_cause_name}"
    return first_line(actor.status_detail or (failure.error_message if failure is not None else ""))


def _doing(actor: ActorProperties, node: NodePayload) -> tuple[str, float, str]:
    """(what it does, for how many seconds, at which line)."""
    running = actor.execution.active_handlers[:1] if actor.execution is not None else []
    endpoint = running[0].name if running else ""
    place = running[0].at.rpartition("/")[2] if running else ""
    waits = f"→ {actor.waits_for[0].target}" if actor.waits_for else ""
    seconds = (actor.stuck_ms or 0) / 1000
    if actor.stuck_ms is None and actor.waits_for:
        seconds = max(0.0, payloads.seconds(node.as_of) - payloads.seconds(actor.waits_for[0].since))
    return " ".join(part for part in (endpoint, waits) if part), seconds, place
