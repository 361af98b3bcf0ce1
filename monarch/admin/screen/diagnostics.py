"""Asks every node of the tree, one after the other, and says how long each took, and what the doctor finds: `--diagnose` and
the overlay of `d`.

Two phases: what the others hang on (root, hosts, the client), then the program's processes and actors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from monarch._mesh.inspection.diagnosis import Finding
from monarch.admin.payloads import NodePayload
from monarch.admin.references import ROOT
from monarch.admin.screen import labels
from monarch.admin.screen.sources import NoAnswer, ScreenSource

ADMIN, MESH = "AdminInfra", "Mesh"
SLOW = 0.5  # seconds from which an answer is slow
LONGEST = 120.0  # seconds for all of it


class Check(NamedTuple):
    """`error` None: it answered. `note`: what the node is for."""

    label: str
    reference: str
    note: str | None
    phase: str
    seconds: float
    error: str | None

    @property
    def word(self) -> str:
        return "Fail" if self.error is not None else "Slow" if self.seconds >= SLOW else "Pass"

    def json(self) -> dict[str, Any]:
        outcome: dict[str, Any] = {"elapsed_ms": round(self.seconds * 1000)}
        if self.error is not None:
            outcome["error"] = self.error
        return {
            "label": self.label,
            "reference": self.reference,
            "note": self.note,
            "phase": self.phase,
            "outcome": {self.word: outcome},
        }


class CheckReport(NamedTuple):
    """`findings`: the doctor's, of what keeps a program from going on whose nodes may all answer."""

    checks: list[Check]
    timed_out: bool = False
    findings: Sequence[Finding] = ()

    def passed(self, phase: str | None = None) -> int:
        return sum(check.error is None for check in self.checks if phase in (None, check.phase))

    def total(self, phase: str | None = None) -> int:
        return sum(phase in (None, check.phase) for check in self.checks)

    @property
    def healthy(self) -> bool:
        return not self.timed_out and bool(self.checks) and self.passed() == self.total() and not self.findings

    def json(self) -> dict[str, Any]:
        return {
            "checks": [check.json() for check in self.checks],
            "findings": [msgspec.to_builtins(finding) for finding in self.findings],
            "timed_out": self.timed_out,
            "summary": {
                "total": self.total(),
                "passed": self.passed(),
                "failed": self.total() - self.passed(),
                "admin_infra_passed": self.passed(ADMIN),
                "admin_infra_total": self.total(ADMIN),
                "mesh_passed": self.passed(MESH),
                "mesh_total": self.total(MESH),
                "healthy": self.healthy,
            },
        }


def run(
    source: ScreenSource, clock: Callable[[], float], told: Callable[[Check], Any] = lambda check: None
) -> CheckReport:
    """`told` hears of each check as it is done."""
    begun = clock()
    checks: list[Check] = []

    def add(check: Check) -> None:
        checks.append(check)
        told(check)

    try:
        nodes = {node.identity: node for node in source.nodes()}
    except NoAnswer as exc:
        add(Check("root", ROOT, "the whole tree in one answer", ADMIN, clock() - begun, str(exc)))
        return CheckReport(checks)
    add(Check("root", ROOT, "the whole tree in one answer", ADMIN, clock() - begun, None))
    for node, note, phase in plan(nodes):
        if clock() - begun > LONGEST:
            return CheckReport(checks, True)
        add(_check(source, node, note, phase, clock))
    try:
        return CheckReport(checks, findings=source.doctor().findings)
    except NoAnswer:  # it has ended meanwhile, or is of a version that does not know the question
        return CheckReport(checks)


def plan(nodes: dict[str, NodePayload]) -> Iterator[tuple[NodePayload, str | None, str]]:
    """(node, note, phase) in the order in which they are asked."""
    hosts = [nodes[child] for child in nodes[ROOT].children if child in nodes]
    procs = [nodes[child] for host in hosts for child in host.children if child in nodes]
    clients = [proc for proc in procs if labels.short(proc.identity) == "client"]
    for host in hosts:
        yield host, "host agent: starts, reaps and tells", ADMIN
    for client in clients:
        yield client, "the client: the program itself", ADMIN
    for proc in procs:
        if proc not in clients:
            yield proc, None, MESH
        for child in proc.children:
            if child in nodes and nodes[child].properties.Actor is not None:
                yield nodes[child], None, MESH


def _check(source: ScreenSource, node: NodePayload, note: str | None, phase: str, clock: Callable[[], float]) -> Check:
    begun = clock()
    wrong = wrong_with(node)
    if wrong is None and not _has_ended(node):
        try:
            node = source.node(node.identity)
            wrong = wrong_with(node)
        except NoAnswer as exc:
            wrong = str(exc)
    name = labels.short(node.identity) if node.properties.Error is not None else labels.label(node)
    return Check(name, node.identity, note, phase, clock() - begun, wrong)


def wrong_with(node: NodePayload) -> str | None:
    """Says why a node does not pass by what it says of itself."""
    properties = node.properties
    if properties.Error is not None:
        return f"{properties.Error.code}: {properties.Error.message}"
    if properties.Host is not None:
        return properties.Host.problem
    if properties.Proc is not None and properties.Proc.is_poisoned:
        return f"poisoned: {properties.Proc.state}"
    actor = properties.Actor
    if actor is not None and actor.failure_info is not None:
        return actor.actor_status
    return None


def _has_ended(node: NodePayload) -> bool:
    actor = node.properties.Actor
    return actor is not None and actor.status in ("stopped", "zombie", "failed")
