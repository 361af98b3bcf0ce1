"""The ranks, and the tree, as plain text, for `--once`: no terminal is needed. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from monarch._mesh.inspection.diagnosis import Diagnosis
from monarch._text import aligned, columns, one_line
from monarch.admin.payloads import NodePayload
from monarch.admin.references import ROOT
from monarch.admin.screen import header, labels, ranks_page
from monarch.admin.screen.ranks import RanksState
from monarch.admin.screen.tree_state import TreeState
from monarch.admin.screen.words import Words


def page(nodes: Sequence[NodePayload], *, system: bool = False, stopped: bool = False) -> str:
    """Every node a line, with how long its oldest endpoint has been running; then why what failed has failed."""
    state = TreeState(system=system, stopped=stopped, arrows=False)
    state.update(nodes)
    for node in nodes:
        if node.properties.Proc is not None or node.properties.Host is not None:
            state.expand(node.identity)
    rows = [(one_line(row.guides + row.label), one_line(row.note)) for row in state.rows()]
    width = max((columns(text) for text, note in rows if note), default=0)
    lines = [f"{aligned(text, width)}  {note}".rstrip() for text, note in rows]
    return "\n".join([*lines, *map(one_line, _failures(state.nodes))])


def ranks(
    name: str,
    before: Sequence[NodePayload],
    nodes: Sequence[NodePayload],
    found: Diagnosis | None,
    now: float,
    width: int,
) -> str:
    """Returns what the screen shows first, of all ranks. `before`: the tree a moment ago, for the use of processors."""
    state = RanksState()
    state.update(before)
    state.update(nodes)
    state.blame(() if found is None else found.findings)
    known = {node.identity: node for node in nodes}
    about = header.about(name, known.get(ROOT), now, "", found, Words())
    shown = ranks_page.text(ranks_page.page(state, about, width))
    return "\n".join([shown, *map(one_line, _failures(known))])


def _failures(nodes: dict[str, NodePayload]) -> list[str]:
    lines = []
    for reference, node in nodes.items():
        actor = node.properties.Actor
        if reference == ROOT or actor is None or actor.failure_info is None:
            continue
        failure = actor.failure_info
        if failure.is_propagated:
            lines.append(f"{labels.actor_name(node)} failed because of {failure.root_cause_name}")
        else:
            lines += [
                f"{labels.actor_name(node)} failed:",
                *(f"  {line}" for line in failure.error_message.splitlines()),
            ]
    return ["", *lines] if lines else []
