"""The screen: textual around `tree_state`, `details` and `pages`, which decide what is shown.

What is asked of the program is asked on threads of its own, so that keys are answered while it is silent. When it does not
answer, the last tree stays, with the reason above it.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from rich.cells import cell_len
from rich.console import Group
from rich.table import Table
from rich.text import Text as RichText
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.events import Resize
from textual.geometry import Size
from textual.message import Message
from textual.theme import Theme
from textual.widgets import Input, Static

from monarch._mesh.inspection import doctor
from monarch._mesh.inspection.diagnosis import Diagnosis, Finding
from monarch._text import one_line, visible
from monarch.admin.payloads import NodePayload
from monarch.admin.references import ROOT
from monarch.admin.screen import details, header
from monarch.admin.screen.header import Options
from monarch.admin.screen.page_keys import PageKeys
from monarch.admin.screen.ranks import ORDERS
from monarch.admin.screen.ranks_view import RanksView
from monarch.admin.screen.sources import NoAnswer, ScreenSource
from monarch.admin.screen.tree_view import TreeView, fitted

_NARROW, _LOW = 40, 8  # columns and rows below which nothing is shown
_BESIDE = 100  # columns from which the details are beside the tree; below it they are under it
_LABEL = 17  # columns of the names of details
_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_PARTS = "#ranks, #head, #error, #splash, #main, #tree, #side, #details, #filter, #keys"  # all that is drawn
_SPINS = 0.1  # seconds


class MeshAdmin(PageKeys):
    TITLE = "mesh-admin"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #ranks { height: 1fr; display: none; }
    #head { height: 2; padding: 0 1; background: $panel; }
    #error { height: auto; max-height: 3; padding: 0 1; color: $error; display: none; }
    #main { height: 1fr; }
    #tree { width: 3fr; height: 1fr; scrollbar-size-vertical: 1; padding: 0; }
    #side { width: 2fr; height: 1fr; border-left: vkey $panel; padding: 0 1; scrollbar-size-vertical: 1; }
    #main.under { layout: vertical; }
    #main.under #tree { width: 1fr; height: 1fr; }
    #main.under #side { width: 1fr; height: 1fr; border-left: none; border-top: hkey $panel; }
    #filter { display: none; height: 1; border: none; padding: 0 1; background: $panel; }
    #keys { height: 1; padding: 0 1; background: $panel; }
    #splash { display: none; height: 1fr; content-align: center middle; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j,down", "move(1)"),
        Binding("k,up", "move(-1)"),
        Binding("g,home", "first"),
        Binding("G,end", "last"),
        Binding("pagedown,ctrl+d,ctrl+v", "page(1)"),
        Binding("pageup,ctrl+u,alt+v", "page(-1)"),
        Binding("tab", "expand", priority=True),
        Binding("enter", "enter"),
        Binding("c", "collapse"),
        Binding("s", "system"),
        Binding("h", "stopped"),
        Binding("slash", "filter"),
        Binding("escape", "escape"),
        Binding("d", "diagnostics"),
        Binding("t", "other"),
        Binding("p", "stacks"),
        Binding("l", "logs"),
        *(Binding(key, f"sort('{key}')") for key in ORDERS),
        Binding("C", "config"),
        Binding("v", "services"),
        Binding("m", "metrics"),
        Binding("b", "debugger"),
        Binding("question_mark", "glossary"),
        Binding("left_square_bracket", "details(-5)"),
        Binding("right_square_bracket", "details(5)"),
        Binding("ctrl+l", "to_top"),
        Binding("q", "quit"),
        Binding("ctrl+c", "quit", priority=True),
    ]

    class Came(Message):
        """The whole tree, or why there is none."""

        def __init__(self, nodes: Sequence[NodePayload] | None, error: str = "") -> None:
            super().__init__()
            self.nodes = nodes
            self.error = error

    class NodeCame(Message):
        """The selected node in full."""

        def __init__(self, node: NodePayload) -> None:
            super().__init__()
            self.node = node

    def __init__(self, source: ScreenSource, options: Options, now: Callable[[], float] = time.time) -> None:
        super().__init__(source, options)
        self.error = ""
        self.found: Diagnosis | None = None  # the doctor's last look; None: there was none yet, or it does not answer
        self._now = now
        self._full: NodePayload | None = None  # the selected node, as it was last asked for by itself
        self._loaded = False
        self._spin = 0
        self._rest = threading.Event()  # the doctor's, between two looks
        self._whole = True  # and that is the tree
        self._use_palette()

    def _use_palette(self) -> None:
        palette = self.palette
        self.register_theme(
            Theme(
                name=self.options.theme,
                primary=palette.accent,
                accent=palette.accent,
                warning=palette.warning,
                error=palette.error,
                success=palette.good,
                foreground=palette.text,
                background=palette.background,
                surface=palette.background,
                panel=palette.panel,
                dark=palette.dark,
            )
        )
        self.theme = self.options.theme

    @property
    def findings(self) -> Sequence[Finding]:
        return () if self.found is None else self.found.findings

    def compose(self) -> ComposeResult:
        yield RanksView(self.palette, id="ranks")
        yield Static("", id="head", markup=False)
        yield Static("", id="error", markup=False)
        yield Static("", id="splash", markup=False)
        with Horizontal(id="main"):
            yield TreeView(self.state, self.palette, id="tree")
            with VerticalScroll(id="side", can_focus=False):
                yield Static("", id="details", markup=False)
        yield Input(placeholder=self.say("filter"), id="filter", disabled=True)
        yield Static("", id="keys", markup=False)

    def on_mount(self) -> None:
        self.set_interval(_SPINS, self._turn)
        self._arrange()
        threading.Thread(target=self._keep_asking, name="monarch-tui", daemon=True).start()
        threading.Thread(target=self._keep_diagnosing, name="monarch-tui-doctor", daemon=True).start()

    def on_unmount(self) -> None:
        self._ended = True
        self._wake.set()
        self._rest.set()

    # --- asking, on a thread

    def _keep_asking(self) -> None:
        due = 0.0
        while not self._ended:
            if not self._covered:
                if self._whole or time.monotonic() >= due:
                    self._whole = False
                    self._ask_tree()
                    due = time.monotonic() + self.options.refresh
                self._ask_node()
            self._wake.wait(max(0.0, due - time.monotonic()))
            self._wake.clear()

    def _keep_diagnosing(self) -> None:
        while not self._ended:
            found: Diagnosis | None = None
            with contextlib.suppress(Exception):  # the tree says what is wrong, or will
                found = self.source.doctor()
            self._send(self.Done(functools.partial(self._diagnosed, found)))
            self._rest.wait(doctor.FRESH)

    def _diagnosed(self, found: Diagnosis | None) -> None:
        if found != self.found:
            self.found = found
            self.ranks.blame(self.findings)
            self._draw()

    def _ask_tree(self) -> None:
        try:
            self._send(self.Came(self.source.nodes()))
        except NoAnswer as exc:
            self._send(self.Came(None, str(exc)))
        except Exception as exc:  # a face shows what it cannot explain
            self._send(self.Came(None, f"{type(exc).__name__}: {exc}"))

    def _ask_node(self) -> None:
        selected = self.state.nodes.get(self.state.selected)
        if not self.in_tree or selected is None or selected.properties.Actor is None:
            return
        try:
            self._send(self.NodeCame(self.source.node(selected.identity)))
        except Exception:  # the tree says what is wrong, or will
            return

    # --- what came

    def on_mesh_admin_came(self, message: Came) -> None:
        self.error = message.error
        if message.nodes is not None:
            first = not self._loaded
            self._loaded = True
            self.state.update(message.nodes)
            self.ranks.update(message.nodes)
            if first:
                self._wake.set()
        if self._stands():
            self._draw()

    def on_mesh_admin_node_came(self, message: NodeCame) -> None:
        self._full = message.node
        if message.node.identity == self.state.selected and self._stands():
            self._draw_details()

    def on_page_keys_done(self, message: PageKeys.Done) -> None:
        if self._stands():
            message.show()

    def _stands(self) -> bool:
        """False while the screen is taken down: its widgets go first, one by one, and what came before is still handled."""
        return len(self.query(_PARTS)) == _PARTS.count("#")

    def on_tree_view_selected(self) -> None:
        if self._stands():
            self._selected()

    # --- drawing

    def _turn(self) -> None:
        if not self._loaded and self._stands():
            self._spin += 1
            self._draw_splash()

    def _draw_splash(self) -> None:
        mark = _SPINNER[self._spin % len(_SPINNER)]
        text = f"{mark} mesh-admin — {self.say('Connecting to {0} ...', self.source.name)}"
        self.query_one("#splash", Static).update(visible(f"{text}\n\n{self.error}" if self.error else text))

    def on_resize(self, event: Resize) -> None:
        if self._stands():
            self._arrange(event.size)  # ours is the one before

    def _arrange(self, size: Size | None = None) -> None:
        size = size or self.size
        small = size.width < _NARROW or size.height < _LOW
        self.query_one("#main").set_class(size.width < _BESIDE, "under")
        for name in ("#head", "#main", "#keys"):
            self.query_one(name).display = self._loaded and not small and self.in_tree
        self.query_one("#ranks").display = self._loaded and not small and not self.in_tree
        splash = self.query_one("#splash", Static)
        splash.display = small or not self._loaded
        if small:
            splash.update(f"⚠ {self.say('content hidden — resize')}")
        self.query_one("#error").display = (
            bool(self.error or self.findings) and self._loaded and not small and self.in_tree
        )
        if self._loaded and not small:
            self.call_after_refresh(self._redrawn)

    def _redrawn(self) -> None:
        """Draws what depends on the size of the parts, once they have it."""
        if self._stands():
            self.query_one(TreeView).redraw()
            self._draw_ranks()

    def _draw(self) -> None:
        self._arrange()
        if not self._loaded:
            self._draw_splash()
            return
        self._draw_ranks()
        self._draw_head()
        self.query_one("#error", Static).update(visible(header.wrong(self.error, self.findings, self.say)))
        self.query_one(TreeView).redraw()
        self._draw_details()

    def _draw_ranks(self) -> None:
        root = self.state.nodes.get(ROOT)
        about = header.about(self.source.name, root, self._now(), self.error, self.found, self.say)
        self.query_one(RanksView).draw(self.ranks, about)

    def _draw_head(self) -> None:
        width = max(1, self.size.width - 2)
        text = RichText(no_wrap=True, overflow="ellipsis")
        first = header.first(self.source.name, self.state, self.options, self._now(), self.say)
        text.append(fitted(first, width), style=self.palette.text)
        text.append("\n" + fitted(header.second(self.state, self.say), width), style=f"bold {self.palette.accent}")
        self.query_one("#head", Static).update(text)
        keys = RichText(no_wrap=True, overflow="ellipsis")
        if self.state.filter:
            keys.append(f"{self.say('filter')}: {one_line(self.state.filter)}   ", style=self.palette.warning)
        for key, what in header.keys(self.say):
            if keys.cell_len + cell_len(f"{key} {what}") > width:
                break
            keys.append(f"{key} ", style=f"bold {self.palette.accent}")
            keys.append(f"{what}  ", style=self.palette.dim)
        self.query_one("#keys", Static).update(keys)

    def _draw_details(self) -> None:
        node = self.state.nodes.get(self.state.selected)
        if node is None:
            self.query_one("#details", Static).update("")
            return
        if self._full is not None and self._full.identity == node.identity:
            node = _with_events(node, self._full)
        self.query_one("#details", Static).update(self._shown(node))

    def _shown(self, node: NodePayload) -> Group:
        palette = self.palette
        colours = {"good": palette.good, "warning": palette.warning, "error": palette.error, "dim": palette.dim}
        found: list[Any] = []
        for section in details.sections(self.state.nodes, node, self._now(), self.say, self.findings):
            if section.title:
                found.append(RichText(f"\n{section.title}", style=f"bold {palette.accent}"))
            for line in section.lines:
                value = RichText(one_line(line.value), style=colours.get(line.tone, palette.text))
                if not line.label:
                    found.append(value)
                    continue
                table = Table.grid(padding=(0, 1, 0, 0))
                table.add_column(width=_LABEL - 1, no_wrap=True)
                table.add_column(overflow="fold")
                table.add_row(RichText(one_line(line.label), style=palette.dim), value)
                found.append(table)
        return Group(*found)

    def _selected(self) -> None:
        if not self.in_tree:
            self._draw_ranks()
            return
        self._draw_head()
        self.query_one(TreeView).redraw()
        self.query_one("#side", VerticalScroll).scroll_home(animate=False)
        self._draw_details()
        self._wake.set()

    # --- keys

    def _typing(self) -> bool:
        return bool(self.query_one("#filter", Input).has_focus)

    def action_other(self) -> None:
        """Shows the tree in place of the ranks, and the other way round, at the same process."""
        if self.in_tree:
            self.ranks.select(self._process(self.state.selected))
        else:
            self.state.jump(self.ranks.selected)
        self.in_tree = not self.in_tree
        self._draw()
        self._selected()

    def action_sort(self, key: str) -> None:
        if not self.in_tree:
            self.ranks.sort(key)
            self._selected()

    def action_move(self, by: int) -> None:
        self.chosen.move(by)
        self._selected()

    def action_first(self) -> None:
        self.chosen.first()
        self._selected()

    def action_last(self) -> None:
        self.chosen.last()
        self._selected()

    def action_page(self, pages: int) -> None:
        rows = self.query_one(TreeView).size.height - 1 if self.in_tree else self.size.height // 2
        self.chosen.move(pages * max(1, rows))
        self._selected()

    def action_expand(self) -> None:
        if self._covered or self._typing() or not self.in_tree:
            return
        self.state.toggle()
        self._selected()

    def action_collapse(self) -> None:
        if self.in_tree:
            self.state.collapse_all()
            self._selected()

    def action_system(self) -> None:
        if self.in_tree:
            self.state.toggle_system()
            self._selected()

    def action_stopped(self) -> None:
        if self.in_tree:
            self.state.toggle_stopped()
            self._selected()

    def action_enter(self) -> None:
        """Shows the stacks of a rank. In the tree: goes to what made the selected node fail; else does the same as Tab."""
        if not self.in_tree:
            self.action_stacks()
            return
        cause = self.state.root_cause()
        if not cause or cause == self.state.selected:
            self.action_expand()
        elif self.state.jump(cause):
            self._selected()
        else:
            self.error = f"the root cause, {cause}, is not in the tree any more"
            self._draw()

    def action_details(self, rows: int) -> None:
        self.query_one("#side", VerticalScroll).scroll_relative(y=rows, animate=False)

    def action_to_top(self) -> None:
        self.query_one(TreeView).to_top()

    async def action_quit(self) -> None:
        self.exit()

    # --- the filter

    def action_filter(self) -> None:
        box = self.query_one("#filter", Input)
        box.display, box.disabled = True, False
        box.value = self.chosen.filter
        box.focus()

    def action_escape(self) -> None:
        self.chosen.set_filter("")
        self._close_filter()

    def _close_filter(self) -> None:
        box = self.query_one("#filter", Input)
        box.display, box.disabled = False, True
        self.set_focus(None)
        self._selected()

    def on_input_changed(self, event: Input.Changed) -> None:
        if self._typing():
            self.chosen.set_filter(event.value)
            self._selected()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self._close_filter()


def _with_events(node: NodePayload, full: NodePayload) -> NodePayload:
    """The newer of what is known of an actor, with the events that only its own node has."""
    actor, known = node.properties.Actor, full.properties.Actor
    if actor is not None and known is not None and actor.flight_recorder is None:
        actor.flight_recorder = known.flight_recorder
    return node
