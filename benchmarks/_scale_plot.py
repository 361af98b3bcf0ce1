"""Draws how a mesh grows, from the tables of docs/scale.md: so the picture says what the page says."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

Table = list[dict[str, str]]


def tables(text: str) -> list[Table]:
    """Reads the tables of a page, each row by column. Of columns with one title the first counts."""
    found: list[Table] = []
    head: list[str] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if not cells:
            head = []
        elif not head:
            head = cells
            found.append([])
        elif set(line) - set("|- "):
            found[-1].append(dict(reversed(list(zip(head, cells, strict=True)))))
    return found


def with_columns(text: str, *columns: str) -> Table:
    """The rows of the first table that has all these columns. ValueError when none has."""
    for table in tables(text):
        if table and set(columns) <= table[0].keys():
            return table
    raise ValueError(f"no table of the page has the columns {columns}")


def points(table: Table, across: str, up: str, scale: float = 1.0, **only: str) -> list[tuple[float, float]]:
    """Numbers of two columns, of the rows whose `step` is that; the largest of those with one x."""
    found: dict[float, float] = {}
    for row in table:
        if all(row[""] == value for value in only.values()) and row[up]:
            x = number(row[across])
            found[x] = max(found.get(x, 0.0), number(row[up]) * scale)
    return sorted(found.items())


def number(text: str) -> float:
    (first,) = re.findall(r"^[\d,.]+", text)
    return float(first.replace(",", ""))


class Curve(NamedTuple):
    label: str
    style: str
    points: Sequence[tuple[float, float]]


class Panel(NamedTuple):
    title: str
    across: str
    up: str
    curves: tuple[Curve, ...]


def panels(page: str) -> tuple[Panel, ...]:
    """A call, start and death, messages, memory: against the number of processes or hosts. Pure."""
    real = with_columns(page, "hosts", "procs", "spawn, s", "call, ms")
    model = with_columns(page, "hosts", "procs", "call: model, ms")
    cluster = with_columns(page, "levels", "call, ms")
    here = with_columns(page, "processes", "up, s", "client, MB")
    simulated = with_columns(page, "hosts", "virtual time, ms")
    agent, spawn = "at the client's agent", "spawn, first call"

    def of_all(column: str, step: str) -> list[tuple[float, float]]:
        """Seconds, or MB, of all hosts together."""
        return [(hosts, hosts * each) for hosts, each in points(simulated, "hosts", column, 1e-3, step=step)]

    return (
        Panel(
            "a call",
            "processes",
            "ms",
            (
                Curve("real processes, two cores", "o-", points(real, "procs", "call, ms")),
                Curve("... all on one host", "s-", points(here, "processes", "call, ms")),
                Curve("the model, on two cores", "x--", points(model, "procs", "call: model, ms", 0.5)),
                Curve("the model, a machine for each 8", "x:", points(cluster, "procs", "call, ms")),
                Curve("simulated, latency alone", "^-", points(simulated, "hosts", "virtual time, ms", step="call")),
            ),
        ),
        Panel(
            "start and death",
            "processes",
            "s",
            (
                Curve("real processes, two cores", "o-", points(real, "procs", "spawn, s")),
                Curve("... all on one host", "s-", points(here, "processes", "up, s")),
                Curve("simulated, processor time of all", "^-", of_all("processor, ms a host", spawn)),
                Curve("simulated: a process dies", "v-", of_all("processor, ms a host", "a process dies")),
            ),
        ),
        Panel(
            "messages at the client's agent, simulated",
            "hosts",
            "",
            tuple(
                Curve(step, "o-", points(simulated, "hosts", agent, step=step))
                for step in ("attach", spawn, "call", "a process dies")
            ),
        ),
        Panel(
            "memory",
            "hosts, or processes",
            "MB",
            (
                Curve("simulated: all hosts", "^-", of_all("memory, KB a host", "attach")),
                Curve("... and a process on each", "^-", of_all("memory, KB a host", spawn)),
                Curve("real: the client", "s-", points(here, "processes", "client, MB")),
                Curve("real: its agent", "s-", points(here, "processes", "agent, MB")),
            ),
        ),
    )


def plot(page: str, path: Path) -> None:
    """Draws it all; all axes are logarithmic."""
    from _pictures import pyplot_for

    pyplot = pyplot_for("scale")

    figure, places = pyplot.subplots(2, 2, figsize=(7.2, 5.8), layout="constrained")
    for panel, axes in zip(panels(page), places.flat, strict=True):
        for curve in panel.curves:
            axes.loglog(*zip(*curve.points, strict=True), curve.style, ms=3, lw=1.1, label=curve.label)
        axes.set(title=panel.title, xlabel=panel.across, ylabel=panel.up)
        axes.set_ylim(top=axes.get_ylim()[1] * 20)  # room for the legend
        axes.minorticks_off()  # they would be most of the file
        axes.grid(True, which="major", lw=0.3, alpha=0.6)
        axes.legend(frameon=False, fontsize=7, loc="upper left")
    figure.savefig(path, metadata={"Date": None})
