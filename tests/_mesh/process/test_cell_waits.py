"""The calls that a cell of a notebook waits for, as they are shown below it."""

from __future__ import annotations

import threading
from contextvars import copy_context
from time import monotonic
from typing import Any

import pytest

from monarch._mesh.process import cell_waits
from monarch._mesh.process.cell_waits import PATIENCE, CellWaits, CellWatch, waits_of
from monarch._runtime.context import here
from monarch.actor import Actor, endpoint
from monarch.testing import InProcessCluster, Local
from tests.support.drawings import Drawing

TIMEOUT = 30


def text(page: str | None) -> str | None:
    return None if page is None else Drawing(page).text


def test_what_stands_there_while_calls_are_waited_for() -> None:
    cell = CellWaits(10.0)
    assert cell.look([], 12.0) is None
    assert text(cell.look([("a()", "a(): pending <1>")], 13.0)) == "a(): pending <1>\n"
    assert text(cell.look([("a()", "a(): pending <2>"), ("b()", "b()")], 14.0)) == "a(): pending <2>\nb()\n"
    assert text(cell.look([], 16.0)) == "waited 5.0 s for a(), b()\n"
    assert cell.look([], 17.0) is None and cell.over(18.0) is None
    assert text(cell.look([(f"{name}()", name) for name in "abcd"], 20.0)) == "a\nb\nc\nd\n"
    assert text(cell.over(21.0)) == "waited 3.0 s for a(), b(), c() and 1 more\n"


class Waits(Actor):
    @endpoint
    def wait(self, gate: Local[threading.Event]) -> None:
        gate.value.wait(TIMEOUT)

    @endpoint
    def next(self) -> None: ...


@pytest.fixture
def gate(cluster: InProcessCluster) -> Any:
    opened = threading.Event()
    yield opened
    opened.set()


def test_calls_that_somebody_waits_for(cluster: InProcessCluster, gate: threading.Event) -> None:
    waits: Any = cluster.this_host().spawn_procs({"gpus": 2}).spawn("waits", Waits)
    began = monotonic()
    call = waits.slice(gpus=1).wait.call_one(Local(gate))
    after, nobody = waits.next.call(), waits.next.call()
    observer = threading.Thread(target=after.get)
    observer.start()
    entries = here().ports.entries
    found: cell_waits.Waits = []
    while not found or "1 of 2 rank(s) answered" not in found[0][1]:  # until the thread waits, and rank 0 has answered
        now = monotonic()
        found = waits_of(entries(), began, now + 1000)
    assert [called for called, _ in found] == ["waits.next()"]
    assert found[0][1].startswith("waits.next(): pending for ")
    assert "not yet: rank(s) 1. waits.next() waits because" in found[0][1]
    assert (
        "waits.next() waits because waits.wait() is an @endpoint, was called before and has not returned" in found[0][1]
    )
    assert waits_of(entries(), began, began + PATIENCE - 1) == []  # not for long yet
    assert waits_of(entries(), now + 1, now + 1000) == []  # of an earlier cell
    gate.set()
    observer.join(TIMEOUT)
    for future in (call, nobody):
        future.get(TIMEOUT)
    assert waits_of(entries(), began, now + 1000) == []


class Output:
    """Stands for a notebook. `shown` is set when it shows something."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.pages: list[str] = []
        self.shown = threading.Event()

    def show(self, page: str) -> None:
        self.pages.append(page)
        self.shown.set()
        if self.error is not None:
            raise self.error


@pytest.fixture
def watched(cluster: InProcessCluster, gate: threading.Event, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Returns what watches a cell that waits for a call, with no patience."""
    monkeypatch.setattr(cell_waits, "PATIENCE", 0.0)
    monkeypatch.setattr(cell_waits, "AGAIN", 0.001)
    waits: Any = cluster.this_host().spawn_procs().spawn("waits", Waits)

    def watch(output: Output) -> CellWatch:
        monkeypatch.setattr(cell_waits, "notebook_output", lambda: output)
        watching = CellWatch(here().ports.entries)
        watching.begins(copy_context())
        threading.Thread(target=waits.wait.call_one(Local(gate)).get).start()
        assert output.shown.wait(TIMEOUT)
        return watching

    return watch


def test_a_thread_looks_while_the_cell_runs(watched: Any) -> None:
    output = Output()
    watching = watched(output)
    watching.ends()
    assert text(output.pages[0]).startswith("waits.wait(): pending for ")  # type: ignore[union-attr]
    assert text(output.pages[-1]).startswith("waited ")  # type: ignore[union-attr]
    count = len(output.pages)
    watching.ends()
    assert len(output.pages) == count


def test_a_front_end_that_fails_is_left_alone(watched: Any) -> None:
    output = Output(RuntimeError("on purpose"))
    watching = watched(output)
    watching.ends()
    assert len(output.pages) == 1
