"""The state of the tree pane: which rows, which is selected, what is expanded. Pure: keys and new data in, rows out.

Selection and expansion are by reference, so they survive every refresh; a selected node that is gone leaves the selection
where it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from monarch.admin.payloads import NodePayload
from monarch.admin.references import ROOT, natural
from monarch.admin.screen import labels

FAILED, STOPPED, SYSTEM, USER = "failed", "stopped", "system", "user"


class Row(NamedTuple):
    """One line. `guides`: what stands before the label. `kind`: failed, stopped, system or user. `note`: of the right column.
    `stuck`: seconds that its oldest endpoint has been running, 0 none."""

    reference: str
    guides: str
    label: str
    kind: str
    note: str
    stuck: float
    selected: bool


class TreeState:
    """`arrows`: rows say whether they can be expanded."""

    def __init__(self, *, system: bool = False, stopped: bool = False, arrows: bool = True) -> None:
        self.nodes: dict[str, NodePayload] = {}
        self.system = system
        self.stopped = stopped
        self.filter = ""
        self.selected = ""
        self._arrows = arrows
        self._expanded: set[str] = set()
        self._seen: set[str] = set()  # hosts, which are expanded when they first come
        self._order: list[str] = []  # the references of all rows
        self._guides: list[str] = []
        self._flags: dict[str, tuple[bool, bool]] = {}  # reference of a proc's child -> (system, stopped)
        self._matching: set[str] = set()

    # --- data

    def update(self, nodes: Iterable[NodePayload]) -> None:
        """Takes the whole tree anew."""
        self.nodes = {node.identity: node for node in nodes}
        self._flags = {}
        for node in self.nodes.values():
            proc = node.properties.Proc
            if proc is not None:
                system, stopped = set(proc.system_children), set(proc.stopped_children)
                self._flags.update({child: (child in system, child in stopped) for child in node.children})
        root = self.nodes.get(ROOT)
        for host in root.children if root is not None else ():
            if host not in self._seen:
                self._seen.add(host)
                self._expanded.add(host)
        self._changed()

    def _changed(self) -> None:
        """Keeps the selection on a row."""
        before, position = self._order, self._position()
        self._matching = self._matches() if self.filter else set()
        walked = list(self._walk())
        self._order = [reference for reference, _ in walked]
        self._guides = [guides for _, guides in walked]
        if self.selected in self._order or not self._order:
            return
        parent = self.nodes[self.selected].parent if self.selected in self.nodes else None
        if parent is not None and parent in self._order:
            self.selected = parent
        else:
            self.selected = self._order[min(position, len(self._order) - 1)] if before else self._order[0]

    def _position(self) -> int:
        return self._order.index(self.selected) if self.selected in self._order else 0

    @property
    def position(self) -> int:
        """Returns the place of the selected row."""
        return self._position()

    def __len__(self) -> int:
        return len(self._order)

    # --- rows

    def rows(self, start: int = 0, count: int | None = None) -> list[Row]:
        """All of them, or `count` from `start` on: labels are made of those only."""
        end = len(self._order) if count is None else start + count
        return [self._row(index) for index in range(len(self._order))[start:end]]

    def _row(self, index: int) -> Row:
        reference = self._order[index]
        node = self.nodes[reference]
        return Row(
            reference,
            self._guides[index],
            labels.label(node),
            self.kind(reference),
            labels.note(self.nodes, node),
            labels.stuck(self.nodes, node),
            reference == self.selected,
        )

    def _walk(self) -> Iterator[tuple[str, str]]:
        """Yields (reference, guides) of each row."""
        root = self.nodes.get(ROOT)
        if root is not None:
            yield from self._below(root, "", 0)

    def _below(self, node: NodePayload, indent: str, depth: int) -> Iterator[tuple[str, str]]:
        children = [child for child in node.children if self._is_shown(child)]
        for position, child in enumerate(children):
            last = position == len(children) - 1
            below = self.nodes[child]
            opens = self.has_children(child)
            expanded = opens and self._is_open(child)
            arrow = "" if not self._arrows else ("▼ " if expanded else "▶ ") if opens else "  "
            joint = "" if depth == 0 else ("└─ " if last else "├─ ")
            yield child, indent + joint + arrow
            if expanded:
                yield from self._below(below, indent + ("" if depth == 0 else "   " if last else "│  "), depth + 1)

    def has_children(self, reference: str) -> bool:
        """True if it can be expanded. Actors cannot: those whom they supervise stand under their own process."""
        node = self.nodes[reference]
        if node.properties.Actor is not None:
            return False
        return any(self._is_shown(child) for child in node.children)

    def _is_open(self, reference: str) -> bool:
        return reference in self._expanded or bool(self.filter)

    def _is_shown(self, reference: str) -> bool:
        if reference not in self.nodes:
            return False
        if self.filter and reference not in self._matching:
            return False
        kind = self.kind(reference)
        return not (kind == SYSTEM and not self.system) and not (kind == STOPPED and not self.stopped)

    def kind(self, reference: str) -> str:
        """Failed counts before stopped, that before system: failures are always shown."""
        node = self.nodes[reference]
        system, stopped = self._flags.get(reference, (False, False))
        if labels.has_failed(node):
            return FAILED
        return STOPPED if stopped else SYSTEM if system else USER

    def _matches(self) -> set[str]:
        """Returns what the filter lets through: nodes whose label or status has the text, those above and those below."""
        found: set[str] = set()
        for reference in self.nodes:
            if reference != ROOT and self._has(reference):
                found |= self._above(reference)
                found |= self._all_below(reference)
        return found

    def _above(self, reference: str) -> set[str]:
        found: set[str] = set()
        at: str | None = reference
        while at is not None and at not in found:
            found.add(at)
            at = self.nodes[at].parent if at in self.nodes else None
        return found

    def _all_below(self, reference: str) -> set[str]:
        node = self.nodes[reference]
        if node.properties.Actor is not None:
            return set()
        found: set[str] = set()
        for child in node.children:
            if child in self.nodes:
                found |= {child} | self._all_below(child)
        return found

    # --- keys

    def move(self, by: int) -> None:
        if self._order:
            self.selected = self._order[max(0, min(len(self._order) - 1, self._position() + by))]

    def first(self) -> None:
        self.move(-len(self._order))

    def last(self) -> None:
        self.move(len(self._order))

    def select(self, index: int) -> None:
        if 0 <= index < len(self._order):
            self.selected = self._order[index]

    def toggle(self) -> None:
        """Expands the selected node, or collapses it."""
        if self.selected in self.nodes and self.has_children(self.selected):
            self._expanded ^= {self.selected}
            self._changed()

    def expand(self, reference: str) -> None:
        self._expanded.add(reference)
        self._changed()

    def collapse_all(self) -> None:
        self._expanded.clear()
        selected = self.selected
        while selected in self.nodes and self.nodes[selected].parent not in (ROOT, None):
            selected = self.nodes[selected].parent or ""
        self.selected = selected
        self._changed()

    def toggle_system(self) -> None:
        self.system = not self.system
        self._changed()

    def toggle_stopped(self) -> None:
        self.stopped = not self.stopped
        self._changed()

    def set_filter(self, text: str) -> None:
        """Shows what has that text, and selects the first of it; "" shows all."""
        self.filter = text
        self._changed()
        if text:
            self.selected = next((row for row in self._order if self._has(row)), self.selected)

    def _has(self, reference: str) -> bool:
        return self.filter.casefold() in labels.searched(self.nodes[reference]).casefold()

    def jump(self, reference: str) -> bool:
        """Selects that node, whatever hides it. False when it is not in the tree."""
        if reference not in self.nodes or reference == ROOT:
            return False
        self.filter = ""
        kind = self.kind(reference)
        self.system = self.system or kind == SYSTEM
        self.stopped = self.stopped or kind == STOPPED
        self._expanded |= self._above(reference) - {reference}
        self.selected = reference
        self._changed()
        return self.selected == reference

    def root_cause(self) -> str:
        """The reference of what made the selected node fail; of one that has not, "". A process leads to its first failed
        actor."""
        node = self.nodes.get(self.selected)
        if node is None:
            return ""
        actor = node.properties.Actor
        if actor is not None and actor.failure_info is not None:
            return actor.failure_info.root_cause_actor
        failed = [child for child in node.children if child in self.nodes and self.kind(child) == FAILED]
        return sorted(failed, key=natural)[0] if failed and actor is None else ""
