"""The graph of what a program issued: commands, and which of them has to come before which.

Edges go from a command to a later one: `data` when it reads what the first wrote, `order` when it writes or frees what
the first read or wrote, `stream` when it is the next of the same ranks on its stream, `event` from what is posted to
who waits for it.
"""

from __future__ import annotations

import csv
import json
import pickle
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from monarch._linux import private_files
from monarch.tensor.simulator.history import tensor
from monarch.tensor.simulator.task import SimulatedCommand, TaskKind

LIMIT = 1 << 20  # nodes; later commands are only counted
_PathLike = str | Path


@dataclass(slots=True)
class IRNode:
    """One command. `start`, `duration`: nanoseconds, as they were simulated; `tensors` in, `made` out, as plain
    data."""

    id: int
    kind: str
    name: str
    stream: str
    ranks: tuple[int, ...]
    tensors: list[dict[str, Any]]
    made: list[dict[str, Any]]
    writes: tuple[int, ...]
    freed: tuple[int, ...]
    start: int
    duration: int
    meta: str | None = None
    facts: dict[str, Any] = field(default_factory=dict)

    def key(self, shapes: bool) -> str:
        """The key that the node's time is known by: `CallFunction:aten.mm:(3x4),(4x5)`, `unknown` in place of shapes
        without them."""
        known = [_shape(one) for one in self.tensors]
        shape = ",".join(known) if shapes and known else "unknown"
        if self.kind == TaskKind.CALL:
            return f"{self.kind}:{self.name}:{shape}"
        if self.kind == TaskKind.REDUCE:
            return f"{self.kind}:{self.name}:{shape}:{self.facts['peers']}"
        return f"{self.kind}:{shape}" if self.kind == TaskKind.SEND else self.kind


class IRGraph:
    """The graph of a program. It can be pickled, and knows nothing of the simulation it came from."""

    def __init__(self) -> None:
        self.nodes: list[IRNode] = []
        self.edges: list[tuple[int, int, str]] = []
        self.left_out = 0
        self._written: dict[int, int] = {}  # who wrote a buffer last
        self._read: dict[int, list[int]] = {}  # who has read it since
        self._last: dict[str, dict[frozenset[int], int]] = {}  # of each stream, by ranks
        self._posted: dict[int, int] = {}

    def add(self, command: SimulatedCommand) -> None:
        """Adds the command that was issued next; beyond the limit it is only counted."""
        if len(self.nodes) >= LIMIT:
            self.left_out += 1
            return
        facts = {name: value for name, value in command.facts.items() if name != "launch"}
        node = IRNode(
            len(self.nodes), command.kind.value, command.name, command.stream, command.ranks,
            [tensor(use) for use in command.inputs], [tensor(use) for use in command.outputs], command.writes,
            command.freed, command.start, command.duration, None if command.meta is None else str(command.meta), facts,
        )  # fmt: skip
        self.nodes.append(node)
        found: dict[int, str] = {}
        self._by_stream(node, found)
        self._by_event(node, found)
        self._by_data(node, found)
        self.edges += [(source, node.id, kind) for source, kind in sorted(found.items())]

    def _by_stream(self, node: IRNode, found: dict[int, str]) -> None:
        if not node.ranks or node.kind == TaskKind.DELETE:
            return
        ranks = frozenset(node.ranks)
        last = self._last.setdefault(node.stream, {})
        for others, source in list(last.items()):
            if others & ranks:
                found[source] = "stream"
            if others <= ranks:
                del last[others]
        last[ranks] = node.id

    def _by_event(self, node: IRNode, found: dict[int, str]) -> None:
        if node.kind == TaskKind.BORROW:
            self._posted[-node.facts["borrow"]] = node.id
        elif node.kind in (TaskKind.RECORD, TaskKind.LAST_USE):
            self._posted[node.facts["event"]] = node.id
        elif node.kind in (TaskKind.WAIT, TaskKind.FIRST_USE, TaskKind.DROP):
            source = self._posted.pop(node.facts["event"], self._posted.get(-node.facts["borrow"]))
            if source is not None:
                found[source] = "event"

    def _by_data(self, node: IRNode, found: dict[int, str]) -> None:
        changed = {*node.writes, *node.freed}
        for one in node.made:
            if one["buffer"] not in self._written:
                changed.add(one["buffer"])
        for buffer in changed:
            for source in (*self._read.pop(buffer, ()), *((self._written[buffer],) if buffer in self._written else ())):
                found[source] = "order"
        if node.kind != TaskKind.DELETE:
            for one in node.tensors:
                buffer = one["buffer"]
                if buffer in self._written:
                    found[self._written[buffer]] = "data"
                if buffer not in changed:
                    self._read.setdefault(buffer, []).append(node.id)
        for buffer in changed:
            self._written[buffer] = node.id
        for buffer in node.freed:
            self._written.pop(buffer, None)
        found.pop(node.id, None)

    # --- times

    def command_types(self, shapes: bool = False) -> dict[str, int]:
        """Counts the nodes of each key (`IRNode.key`)."""
        return dict(Counter(node.key(shapes) for node in self.nodes))

    def import_timing(self, timings: Mapping[str, float] | _PathLike) -> int:
        """Gives nodes the durations (nanoseconds) of their keys, of those with shapes first; a path names a JSON file
        of such.

        How many nodes it gave one. ValueError for a key that no node has, and for a negative duration.
        """
        known: Mapping[str, float] = timings if isinstance(timings, Mapping) else json.loads(Path(timings).read_text())
        if wrong := [f"{key}: {value}" for key, value in known.items() if not value >= 0]:
            raise ValueError(f"durations are 0 or more nanoseconds, and these are not: {', '.join(wrong[:8])}")
        count, used = 0, set()
        for node in self.nodes:
            for key in (node.key(True), node.key(False)):
                if key in known:
                    node.duration = round(known[key])
                    count += 1
                    used.add(key)
                    break
        if unknown := set(known) - used - set(self.command_types()) - set(self.command_types(True)):
            raise ValueError(f"no command of this program has these keys: {', '.join(sorted(unknown)[:8])}")
        return count

    def schedule(self) -> list[tuple[int, int]]:
        """(start, end) of each node, in nanoseconds, when each begins as soon as all that has to come before it has
        ended."""
        before: list[int] = [0] * len(self.nodes)
        times: list[tuple[int, int]] = []
        outgoing: dict[int, list[int]] = {}
        for source, target, _ in self.edges:
            outgoing.setdefault(source, []).append(target)
        for node in self.nodes:
            start = before[node.id]
            end = start + node.duration
            times.append((start, end))
            for target in outgoing.get(node.id, ()):
                before[target] = max(before[target], end)
        return times

    # --- exports

    def dag(self, timed: bool = False) -> dict[str, Any]:
        """Nodes and edges as JSON has them; with `timed` also when each node starts and ends, by its duration."""
        nodes = []
        times = self.schedule() if timed else []
        for node in self.nodes:
            plain = {
                "id": node.id, "type": node.kind, "name": node.name, "stream": node.stream, "ranks": list(node.ranks),
                "inputs": [one["ref"] for one in node.tensors], "outputs": [one["ref"] for one in node.made],
                "meta": node.meta,
            }  # fmt: skip
            if timed:
                start, end = times[node.id]
                plain |= {"start": start, "end": end, "duration": node.duration}
            nodes.append(plain)
        edges = [{"source": source, "target": target, "type": kind} for source, target, kind in self.edges]
        return {"nodes": nodes, "edges": edges}

    def export_command_types(self, path: _PathLike, shapes: bool = False) -> None:
        """`command_types` as a JSON file: fill in nanoseconds in place of the counts, for `import_timing`."""
        private_files.write_output(path, (json.dumps(self.command_types(shapes), indent=2) + "\n").encode())

    def export_dag_json(self, path: _PathLike) -> None:
        """Writes `dag()` as a JSON file."""
        private_files.write_output(path, (json.dumps(self.dag()) + "\n").encode())

    def export_dag_json_timed(self, path: _PathLike) -> None:
        """Writes `dag(timed=True)` as a JSON file."""
        private_files.write_output(path, (json.dumps(self.dag(timed=True)) + "\n").encode())

    def export_borrows_csv(self, path: _PathLike) -> None:
        """A row for each borrow: its buffer, between which streams, and the nodes of its life (empty: not there)."""
        _write(path, _BORROWS, self.borrows())

    def export_sends_csv(self, path: _PathLike) -> None:
        """A row for each tensor that was sent: from and to which ranks and streams, and how large it is."""
        _write(path, _SENDS, self.sends())

    def export_data_csv(self, path: _PathLike) -> None:
        """A row for each buffer: how large, made by which node on which stream, how often read and written, freed by
        which."""
        _write(path, _DATA, self.data())

    def export_memory_viz(self, path: _PathLike) -> None:
        """A snapshot for torch's memory viewer, of one rank that takes part in everything, by `schedule`."""
        from monarch.tensor.simulator.machine import SimulatedDevice
        from monarch.tensor.simulator.trace_file import memory_view

        device = SimulatedDevice((0,))
        times = self.schedule()
        for node in self.nodes:
            for one in node.made:
                if one["buffer"] not in device.ledger.live and one.get("nbytes"):
                    device.ledger.add(times[node.id][0], one["buffer"], one["nbytes"], node.id)
            for buffer in node.freed:
                device.ledger.free(times[node.id][1], buffer, node.id)
        named = [[{"filename": node.kind, "line": node.id, "name": node.name}] for node in self.nodes]
        private_files.write_output(path, pickle.dumps(memory_view([device], named.__getitem__)))

    def borrows(self) -> list[list[Any]]:
        """Returns the rows of `export_borrows_csv`."""
        rows: dict[int, list[Any]] = {}
        columns = {TaskKind.FIRST_USE: 6, TaskKind.LAST_USE: 7, TaskKind.DROP: 8}
        for node in self.nodes:
            number = node.facts.get("borrow")
            if node.kind == TaskKind.BORROW:
                one = node.made[0]
                rows[node.facts["borrow"]] = [
                    number,
                    one["buffer"],
                    node.stream,
                    "",
                    one.get("nbytes", 0),
                    node.id,
                    "",
                    "",
                    "",
                ]
            elif number in rows and node.kind in columns:
                rows[number][columns[TaskKind(node.kind)]] = node.id
                if node.kind == TaskKind.FIRST_USE:
                    rows[number][3] = node.stream
        return list(rows.values())

    def sends(self) -> list[list[Any]]:
        """Returns the rows of `export_sends_csv`."""
        rows = []
        for node in self.nodes:
            if node.kind == TaskKind.SEND:
                pairs = node.facts["pairs"]
                one = node.made[0] if node.made else {}
                rows.append(
                    [
                        node.id, " ".join(str(sender) for sender, _ in pairs), " ".join(str(to) for _, to in pairs),
                        node.stream, node.facts.get("to_stream", node.stream), _shape(one), one.get("dtype", ""),
                        one.get("nbytes", 0),
                    ]
                )  # fmt: skip
        return rows

    def data(self) -> list[list[Any]]:
        """Returns the rows of `export_data_csv`."""
        rows: dict[int, list[Any]] = {}
        for node in self.nodes:
            for one in node.made:
                about = [_shape(one), one.get("dtype", ""), one.get("nbytes", 0), node.id, node.stream, 0, 0, ""]
                rows.setdefault(one["buffer"], [one["buffer"], *about])
            if node.kind != TaskKind.DELETE:
                for buffer in {one["buffer"] for one in node.tensors} & set(rows):
                    rows[buffer][6] += 1
            for column, buffers in ((7, node.writes), (8, node.freed)):
                for buffer in set(buffers) & set(rows):
                    rows[buffer][column] = node.id if column == 8 else rows[buffer][column] + 1
        return list(rows.values())


_BORROWS = ("borrow", "buffer", "from_stream", "to_stream", "nbytes", "create", "first_use", "last_use", "drop")
_SENDS = ("node", "from_ranks", "to_ranks", "from_stream", "to_stream", "shape", "dtype", "nbytes")
_DATA = ("buffer", "shape", "dtype", "nbytes", "made_by", "stream", "reads", "writes", "freed_by")


def _shape(one: Mapping[str, Any]) -> str:
    return f"({'x'.join(map(str, one['shape']))})" if "shape" in one else "unknown"


def _write(path: _PathLike, names: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    with open(private_files.open_output(path), "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        writer.writerows(rows)
