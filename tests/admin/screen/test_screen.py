"""The screen itself, driven by keys (textual's Pilot) over a program that is made up."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from textual.color import Color
from textual.pilot import Pilot
from textual.widgets import Static

from monarch._mesh.inspection.diagnosis import Diagnosis, Finding
from monarch._mesh.inspection.status_tables import StatusTable
from monarch._mesh.output.kept import Line, OutputPage
from monarch.admin.payloads import ConfigEntry, CurvesFound, NodePayload
from monarch.admin.screen import once
from monarch.admin.screen.app import MeshAdmin
from monarch.admin.screen.attaching import StoppedEndpoint
from monarch.admin.screen.header import Options
from monarch.admin.screen.overlay import Overlay
from monarch.admin.screen.pages import PageText
from monarch.admin.screen.sources import NoAnswer, SocketSource
from monarch.admin.screen.tree_view import TreeView
from monarch.telemetry.curves import MetricCurves
from tests.support import trees
from tests.support.hostile import NAME, fit
from tests.support.tiers import first_of, full
from tests.support.trees import HOST, NOW, FakeProgram

FINDING = Finding(
    "collective",
    "ranks 0, 2-3 wait in all_reduce #4 of group dp; rank 1 has not entered it (at data.py:31 in load(), for 41.0 s)",
    ["rank 1 has begun 3 collectives of that group"],
    "see why rank 1 is there: `monarch stacks 1 --locals`",
    "mesh",
    [0],
)
PROC = f"mesh-0<uid>@{HOST}"
LIMIT = 60.0


def program() -> FakeProgram:
    first = trees.failed("first", "ValueError: on purpose", proc="mesh-0<uid>")
    owner = trees.failed("owner", "because", ("first", 0, f"{HOST}/uid.0", "first"))
    asked = FakeProgram(
        trees.agent(["uid.0"], [trees.ended("uid.1")]),
        trees.process("client", [trees.actor("root", status="client", cls="")], [owner]),
        trees.process("uid.0", [trees.busy("w", 75.0, waits="db.get", proc="mesh-0<uid>")], [first]),
    )
    asked.bodies = {"config": trees.settings(), "stacks": trees.stacks(), "tables": trees.tables()}
    return asked


class Slow:
    """A source that gives nothing until it is let."""

    name = "http://slow"
    pid: int | None = None

    def __init__(self, source: SocketSource) -> None:
        self._source = source
        self.goes_on = threading.Event()

    def nodes(self) -> list[NodePayload]:
        assert self.goes_on.wait(LIMIT)
        return self._source.nodes()

    def node(self, reference: str) -> NodePayload:
        return self._source.node(reference)

    def config(self, reference: str) -> list[ConfigEntry]:
        raise NoAnswer("no settings")

    def stacks(self, reference: str) -> dict[str, Any]:
        raise ValueError("broken")

    def output(self, reference: str) -> list[OutputPage]:
        raise NoAnswer("no output")

    def doctor(self) -> Diagnosis:
        raise NoAnswer("it does not answer")

    def tables(self) -> list[StatusTable]:
        raise NoAnswer("no tables")

    def metrics(self) -> CurvesFound:
        raise NoAnswer("no curves")

    def stopped(self) -> list[StoppedEndpoint]:
        raise NoAnswer("no debugger")


class Training(SocketSource):
    """A program that logs its loss, of which one rank stands at a breakpoint."""

    def metrics(self) -> CurvesFound:
        curves = MetricCurves()
        for step in range(5):
            curves.add("trainers", "loss", step, 1 / (step + 1), 0, NOW)
        return CurvesFound(curves.told(), 7)

    def stopped(self) -> list[StoppedEndpoint]:
        return [StoppedEndpoint("w", 0, "__main__.step", 3, f"{HOST}/uid.0")]


class Hung(SocketSource):
    """A program whose nodes all answer, and which does not go on."""

    def doctor(self) -> Diagnosis:
        return Diagnosis([FINDING, msgspec.structs.replace(FINDING, title="host one has 1 GiB left")], [], 2)


Test = Callable[["Driven"], Awaitable[None]]


class Driven:
    """The screen while it runs."""

    def __init__(self, app: MeshAdmin, pilot: Pilot[None]) -> None:
        self.app = app
        self.pilot = pilot

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        await self.pilot.pause()

    async def until(self, true: Callable[[], bool]) -> None:
        """Waits for what comes from a thread."""
        async with asyncio.timeout(LIMIT):
            while not true():
                await self.pilot.pause(0.01)

    async def loaded(self) -> None:
        await self.until(
            lambda: len(self.app.state) > 0 and self.app.query_one("#main" if self.app.in_tree else "#ranks").display
        )

    @property
    def selected(self) -> str:
        return self.app.state.selected

    def row(self, index: int) -> str:
        view = self.app.query_one(TreeView)
        return view.render_line(index).text

    def text(self, id: str) -> str:
        """Returns the text of a line or pane."""
        shown = self.app.query_one(f"#{id}", Static)
        return "\n".join(strip.text.rstrip() for strip in shown.render_lines(shown.size.region)).strip()

    @property
    def overlay(self) -> Overlay:
        found = self.app.screen
        assert isinstance(found, Overlay)
        return found


def run(
    test: Test,
    *,
    asked: FakeProgram | None = None,
    source: Any = None,
    size: tuple[int, int] = (120, 30),
    **options: Any,
) -> None:
    async def inside() -> None:
        shown = source or SocketSource(asked or program(), apart=0)
        app = MeshAdmin(shown, Options(**({"refresh": 3600.0, "tree": True} | options)), now=lambda: NOW)
        async with app.run_test(size=size) as pilot:
            await test(Driven(app, pilot))

    asyncio.run(inside())


def test_the_tree_its_header_and_the_details_of_what_is_selected() -> None:
    async def test(screen: Driven) -> None:
        await screen.loaded()
        head = screen.text("head")
        assert head.startswith("mesh-admin • pid 100 • up: 1m30s • @somebody • sys:off • stopped:off")
        assert "▸ host one  (2 procs) [user]" in head
        assert "▸ ▼ one  (2 procs)" in screen.row(0)
        assert "Address" in screen.text("details") and HOST in screen.text("details").replace("\n", "")

    run(test)


def test_what_a_program_calls_itself_is_written_out() -> None:
    """Names and errors reach the terminal, which would obey what is in them."""
    asked = FakeProgram(
        trees.agent(["uid.0"]),
        trees.process("client", [trees.actor("root", status="client", cls="")], command=NAME, user=NAME),
        trees.process(
            "uid.0",
            [trees.busy(NAME, 5.0, waits=NAME)],
            [trees.failed(f"x{NAME}", f"ValueError: {NAME}")],
            hostname=NAME,
        ),
    )
    stacks = trees.stacks()
    asked.bodies = {"config": trees.settings(), "stacks": stacks}

    async def test(screen: Driven) -> None:
        await screen.loaded()
        await screen.press("h", "j", "tab", "j", "j", "tab")
        shown = [screen.row(number) for number in range(len(screen.app.state))]
        assert len(shown) == 6
        assert any("\\x1b[2J" in row for row in shown), shown
        for _ in list(shown):
            await screen.press("k")
            shown += [screen.text("head"), screen.text("details")]
        assert fit("".join(shown).replace("\u200b", ""))
        screen.app._open("x", NAME, lambda overlay: overlay.show(NAME, [PageText(NAME), PageText("plain")]))
        await screen.pilot.pause()
        overlay = screen.overlay
        for id in ("title", "page"):
            pane = overlay.query_one(f"#{id}", Static)
            assert fit("".join(strip.text for strip in pane.render_lines(pane.size.region)))

    run(test, asked=asked)
    assert fit(once.page(SocketSource(asked).nodes()))


def test_keys_move_expand_and_collapse() -> None:
    async def test(screen: Driven) -> None:
        await screen.loaded()
        await screen.press("j", "down", "tab")
        assert screen.selected == PROC
        assert "w[0]" in screen.row(3) and "step 1m15s → db.get" in screen.row(3)
        await screen.press("k", "up", "G")
        assert screen.selected == f"mesh-1<uid>@{HOST}"
        await screen.press("g")
        assert screen.app.state.position == 0
        await screen.press("c")
        assert len(screen.app.state) == 1

    run(test)


def test_enter_on_a_failed_actor_goes_to_its_root_cause() -> None:
    async def test(screen: Driven) -> None:
        await screen.loaded()
        await screen.press("j", "tab", "j", "j")
        assert "owner[0]" in screen.row(3)
        await screen.press("enter")
        assert screen.selected.startswith("first<")
        assert "ValueError: on purpose" in screen.text("details")

    run(test)


def test_the_filter() -> None:
    async def test(screen: Driven) -> None:
        await screen.loaded()
        await screen.press("slash", "o", "w", "n")
        assert len(screen.app.state) == 3 and screen.selected.startswith("owner<")
        await screen.press("enter")
        assert "filter: own" in screen.text("keys")
        await screen.press("escape")
        assert len(screen.app.state) == 4

    run(test)


def test_a_tab_in_the_filter_expands_nothing() -> None:
    async def test(screen: Driven) -> None:
        await screen.loaded()
        await screen.press("slash", "tab", "escape")
        assert len(screen.app.state) == 4

    run(test)


@pytest.mark.parametrize(
    ("key", "title", "line"),
    [
        ("p", "Stacks: mesh[0]", "load  /p/data.py:31"),
        ("C", "Settings: mesh[0]", "cleanup_timeout"),
        ("v", "Services", "service 'x'"),
        ("question_mark", "Glossary", "expand, collapse"),
    ],
)
def test_overlays(key: str, title: str, line: str) -> None:
    async def test(screen: Driven) -> None:
        await screen.loaded()
        await screen.press("j", "j", key)
        await screen.until(lambda: line in screen.overlay.shown)
        assert screen.overlay.shown.startswith(title)
        await screen.press("j", "pagedown", "k", "escape")
        assert not isinstance(screen.app.screen, Overlay)

    run(test)


def test_diagnostics_and_again() -> None:
    asked = program()

    async def test(screen: Driven) -> None:
        await screen.loaded()
        await screen.press("d")
        await screen.until(lambda: "Mesh failing (3 / " in screen.overlay.shown)
        before = len(asked.asked)
        await screen.press("r")
        await screen.until(lambda: len(asked.asked) > before and "Mesh failing" in screen.overlay.shown)
        await screen.press("q")
        assert screen.app.is_running

    run(test, asked=asked)


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
def test_a_hang_is_said_above_the_tree_at_the_rank_and_in_the_diagnostics(size: tuple[int, int]) -> None:
    said = " ".join(FINDING.title.split())

    async def test(screen: Driven) -> None:
        await screen.loaded()
        await screen.until(lambda: bool(screen.app.findings))
        await screen.pilot.pause()
        assert screen.text("error").startswith("ranks 0, 2-3 wait in all_reduce #4 of group dp; rank 1 has not")
        screen.app.state.jump(PROC)
        screen.app._selected()
        await screen.pilot.pause()
        assert screen.text("details").startswith("ranks 0, 2-3 wait in all_reduce")
        await screen.press("d")
        await screen.until(lambda: "Diagnostics: 2 wrong" in screen.overlay.shown)
        shown = " ".join(screen.overlay.shown.split())
        assert said in shown and "-> see why rank 1 is there" in shown

    run(test, source=Hung(program(), apart=0), size=size)


def test_a_program_that_ends_leaves_its_last_tree_and_the_reason() -> None:
    asked = program()

    async def test(screen: Driven) -> None:
        await screen.loaded()
        asked.gone = True
        await screen.until(lambda: bool(screen.app.error))
        await screen.until(lambda: "ERROR: the program (pid 100) has ended" in screen.text("error"))
        assert "one  (2 procs)" in screen.row(0)
        asked.gone = False
        await screen.until(lambda: not screen.app.error)

    run(test, asked=asked, refresh=0.1)


@pytest.mark.parametrize("gone", ["#main", "#tree", "#details"])
def test_what_comes_while_the_screen_is_taken_down_is_dropped(gone: str) -> None:
    async def test(screen: Driven) -> None:
        await screen.loaded()
        app = screen.app
        await app.query(gone).remove()
        app.post_message(app.Came(None, "too late"))
        app.post_message(app.Done(lambda: pytest.fail("it was shown")))
        await screen.until(lambda: app.error == "too late")

    run(test)


def test_while_nothing_has_come_it_says_whom_it_asks() -> None:
    source = Slow(SocketSource(program()))

    async def test(screen: Driven) -> None:
        await screen.until(lambda: "Connecting to http://slow ..." in screen.text("splash"))
        await screen.press("j", "tab", "p", "escape", "question_mark", "escape")
        source.goes_on.set()
        await screen.loaded()

    run(test, source=source)


def test_what_goes_wrong_behind_an_overlay_is_shown_in_it() -> None:
    source = Slow(SocketSource(program()))
    source.goes_on.set()

    async def test(screen: Driven) -> None:
        await screen.loaded()
        await screen.press("C")
        await screen.until(lambda: "no settings" in screen.overlay.shown)
        await screen.press("escape", "p")
        await screen.until(lambda: "ValueError: broken" in screen.overlay.shown)

    run(test, source=source)


@pytest.mark.parametrize("size", first_of([pytest.param(size) for size in ((39, 20), (100, 7), (1, 1))]))
def test_too_small(size: tuple[int, int]) -> None:
    async def test(screen: Driven) -> None:
        await screen.until(lambda: len(screen.app.state) > 0)
        await screen.pilot.pause()
        assert not screen.app.query_one("#main").display
        if size[0] > 30:
            assert "content hidden" in screen.text("splash")
        await screen.pilot.resize_terminal(120, 30)
        await screen.loaded()

    run(test, size=size)


@pytest.mark.parametrize(("theme", "language"), first_of([("nord", "zh"), ("doom-nord-light", "en")]))
def test_themes_and_languages(theme: str, language: str) -> None:
    async def test(screen: Driven) -> None:
        await screen.loaded()
        head = screen.text("head").splitlines()[0]
        assert (theme in head) == (theme != "nord")
        assert ("系统:关" in head) == (language == "zh")
        await screen.press("s", "h")
        assert len(screen.app.state) == 4

    run(test, theme=theme, language=language)


@full
def test_a_thousand_actors() -> None:
    asked = FakeProgram(*trees.program_with(1000, 4))

    async def test(screen: Driven) -> None:
        await screen.loaded()
        for _ in range(4):
            await screen.press("G", "tab")
        assert len(screen.app.state) > 250
        await screen.press("G")
        last = screen.app.state.rows()[-1]
        assert last.selected
        await screen.until(lambda: round(screen.app.query_one(TreeView).scroll_y) > 200)
        await screen.press("pageup", "ctrl+u", "g")
        await screen.until(lambda: screen.app.query_one(TreeView).scroll_y == 0)

    run(test, asked=asked)


@full
def test_quitting() -> None:
    for key in ("q", "ctrl+c"):

        async def test(screen: Driven, key: str = key) -> None:
            await screen.loaded()
            await screen.press(key)
            await screen.until(lambda: not screen.app.is_running)

        run(test)


def test_the_ranks_come_first_and_keys_lead_from_them_to_everything_else() -> None:
    asked = program()
    page = OutputPage("k", f"{HOST}/uid.0", "mesh", 0, False, True, "", 0, 1, [Line(1, NOW, 1, "it prints")])
    asked.bodies["output"] = msgspec.msgpack.encode([page])
    asked.told[0] = msgspec.structs.replace(asked.told[0], address=f"{HOST}/agent")

    async def test(screen: Driven) -> None:
        await screen.loaded()
        await screen.until(lambda: "mesh" in screen.text("ranks"))
        await screen.until(lambda: FINDING.title in " ".join(screen.text("ranks").split()))
        lines = screen.text("ranks").splitlines()
        assert any(line.startswith("> mesh[0]") for line in lines), "the rank that the doctor names"
        await screen.press("enter")
        await screen.until(lambda: "load  /p/data.py:31" in screen.overlay.shown)
        await screen.press("escape", "l")
        await screen.until(lambda: "it prints" in screen.overlay.shown)
        assert screen.overlay.shown.startswith("Output: mesh[0]")
        await screen.press("escape", "slash", "c", "l", "i", "enter")
        assert [row.name for row in screen.app.ranks.rows] == ["client"]
        await screen.press("escape", "T", "T", "g", "j", "k")
        assert screen.app.ranks.order == "T" and screen.app.ranks.reversed
        assert "TIME↑" in screen.text("ranks")
        screen.app.ranks.select(PROC)
        await screen.press("t")
        assert screen.app.query_one("#main").display and screen.selected == PROC
        await screen.press("t")
        assert not screen.app.query_one("#main").display and screen.app.ranks.selected == PROC
        await screen.pilot.resize_terminal(60, 12)
        await screen.until(lambda: len(screen.text("ranks").splitlines()) == 12)

    run(test, source=Hung(asked, apart=0), tree=False)


def test_the_programs_own_curves() -> None:
    async def test(screen: Driven) -> None:
        await screen.loaded()
        await screen.press("m")
        await screen.until(lambda: "7 values are of further curves" in screen.overlay.shown)
        assert screen.overlay.shown.startswith("Metrics\ntrainers · loss  0.2 at step 4\n        1 ┤")

    run(test, source=Training(program(), apart=0))

    async def without(screen: Driven) -> None:
        await screen.loaded()
        await screen.press("m")
        await screen.until(lambda: "it calls monarch.metrics.keep()" in screen.overlay.shown)

    run(without)


def test_the_debugger_has_the_terminal_where_a_rank_stands_at_a_breakpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    run_there: list[list[str]] = []
    monkeypatch.setattr(subprocess, "run", lambda command, **options: run_there.append(command))
    monkeypatch.setattr(MeshAdmin, "suspend", contextlib.nullcontext)

    async def test(screen: Driven) -> None:
        await screen.loaded()
        screen.app.ranks.select(f"mesh-1<uid>@{HOST}")
        await screen.press("b")
        await screen.until(lambda: "mesh[1] stands at no breakpoint" in screen.overlay.shown)
        await screen.press("escape")
        screen.app.ranks.select(PROC)
        await screen.press("b")
        await screen.until(lambda: bool(run_there) and not isinstance(screen.app.screen, Overlay))
        assert run_there[0][-4:] == ["w", "0", "--pid", "100"]

    run(test, source=Training(program(), apart=0), tree=False)


@pytest.mark.parametrize(("value", "coloured"), [("1", False), ("", True)])
def test_no_color_leaves_none_and_an_empty_one_does_not_count(
    value: str, coloured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", value)

    async def test(screen: Driven) -> None:
        await screen.loaded()
        for key in ("t", "m"):
            await screen.press(key)
            strips = screen.app.screen._compositor.render_strips()
            for each in screen.app.get_line_filters():
                strips = [strip.apply_filter(each, Color(0, 0, 0)) for strip in strips]
            styles = []
            for strip in strips:
                styles += [segment.style for segment in strip if segment.style is not None]
            assert any(style.color or style.bgcolor for style in styles) == coloured
            assert key == "m" or any(style.bold or style.reverse for style in styles)  # curves come later

    run(test)
