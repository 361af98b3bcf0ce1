"""The keys that open a page over the screen: what is asked for each, on a thread of its own, and what comes of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from textual.app import App
from textual.filter import LineFilter
from textual.message import Message

from monarch._linux import terminal
from monarch.admin.screen import attaching, diagnostics, labels, pages, themes
from monarch.admin.screen.diagnostics import Check, CheckReport
from monarch.admin.screen.header import Options
from monarch.admin.screen.overlay import Overlay
from monarch.admin.screen.ranks import RankRow, RanksState
from monarch.admin.screen.sources import NoAnswer, ScreenSource
from monarch.admin.screen.tree_state import TreeState
from monarch.admin.screen.uncoloured import Uncoloured
from monarch.admin.screen.words import Words


class PageKeys(App[None]):
    """The part of the screen that opens pages."""

    class Done(Message):
        """A message that a thread has found something, which `show` puts on the screen."""

        def __init__(self, show: Callable[[], Any]) -> None:
            super().__init__()
            self.show = show

    def __init__(self, source: ScreenSource, options: Options) -> None:
        self.uncoloured = bool(os.environ.get("NO_COLOR"))
        if not self.uncoloured:
            os.environ.pop("NO_COLOR", None)  # to textual an empty one counts
        super().__init__()
        self.source = source
        self.options = options
        self.say = Words(options.language)
        self.palette = themes.THEMES[options.theme]
        self.state = TreeState()
        self.ranks = RanksState()
        self.in_tree = options.tree
        self._wake = threading.Event()  # something is to be asked before it is time
        self._ended = False
        self._covered = False  # by an overlay: nothing is asked meanwhile

    def get_line_filters(self) -> Sequence[LineFilter]:
        """NO_COLOR means no colour: textual alone would turn colours into greys, which are colours to a terminal."""
        return [Uncoloured()] if self.uncoloured else super().get_line_filters()

    @property
    def chosen(self) -> TreeState | RanksState:
        """Returns the state of what is shown, whose rows the keys move among."""
        return self.state if self.in_tree else self.ranks

    def _send(self, message: Message) -> None:
        """Any thread. What comes when the screen has ended is dropped."""
        try:
            if not self._ended:
                self.post_message(message)
        except RuntimeError:  # the event loop has closed just now
            if not self._ended:
                raise

    def action_glossary(self) -> None:
        title = self.say("Glossary")
        lines = pages.help_page(self.options.language)
        self._open("help", title, lambda overlay: overlay.show(title, lines))

    def action_stacks(self) -> None:
        reference = self.chosen.selected
        title = f"{self.say('Stacks')}: {self._process_name(reference)}"

        def find() -> list[pages.PageText]:
            return pages.stacks(self.source.stacks(reference), time.strftime("%H:%M:%S"))

        self._open("stacks", title, lambda overlay: self._find(overlay, title, find), "p")

    def action_logs(self) -> None:
        reference = self._process(self.chosen.selected)
        title = f"{self.say('Output')}: {self._process_name(reference)}"

        def find() -> list[pages.PageText]:
            return pages.output(self.source.output(reference))

        self._open("logs", title, lambda overlay: self._find(overlay, title, find, True), "l")

    def action_config(self) -> None:
        reference = self.chosen.selected
        title = f"{self.say('Settings')}: {self._process_name(reference)}"

        def find() -> list[pages.PageText]:
            return pages.config(self.source.config(reference), self.size.width * 94 // 100 - 6)

        self._open("config", title, lambda overlay: self._find(overlay, title, find), "C")

    def action_services(self) -> None:
        title = self.say("Services")
        self._open("services", title, lambda overlay: self._find(overlay, title, self._tables), "v")

    def action_metrics(self) -> None:
        title = self.say("Metrics")

        def find() -> list[pages.PageText]:
            return pages.metrics(self.source.metrics(), self.size.width * 94 // 100 - 6)

        self._open("metrics", title, lambda overlay: self._find(overlay, title, find), every=self.options.refresh)

    def action_debugger(self) -> None:
        process = self._process(self.chosen.selected)
        row = next((row for row in self.ranks.all if row.reference == process), None)
        if row is None:
            return
        title = f"{self.say('Debugger')}: {row.name}"
        self._open(
            "debugger", title, lambda overlay: self._find(overlay, title, lambda: self._reached(overlay, row)), "b r"
        )

    def _reached(self, overlay: Overlay, row: RankRow) -> list[pages.PageText]:
        """On a thread. Attaches to that rank; returns how it can be done where it cannot now."""
        node = self.state.nodes.get(row.reference)
        address = node.properties.Proc.address if node is not None and node.properties.Proc is not None else ""
        at = attaching.stopped_in(address, self.source.stopped())
        pid = self.source.pid
        if pid is None:
            raise NoAnswer(f"{self.source.name} tells of no program on this machine")
        if at is None:
            return [pages.PageText(attaching.how(row, pid))]
        self._send(self.Done(lambda: self._attach(overlay, attaching.command(pid, at))))
        return [pages.PageText(f"{row.name} stands at {at.function}, line {at.lineno}", "dim")]

    def _attach(self, overlay: Overlay, command: list[str]) -> None:
        """Gives the terminal to that command until it ends. Ctrl-C is its own meanwhile."""
        if not overlay.is_attached:
            return
        overlay.dismiss()
        with self.suspend():
            before = signal.signal(signal.SIGINT, signal.SIG_IGN)
            terminal.note("Ctrl-D detaches, and once more goes back to the screen")
            try:
                environment = os.environ | ({"NO_COLOR": "1"} if self.uncoloured else {})
                subprocess.run([sys.executable, *command], check=False, env=environment, preexec_fn=_interruptible)
            finally:
                signal.signal(signal.SIGINT, before)
        self.refresh(layout=True)

    def _tables(self) -> list[pages.PageText]:
        return pages.tables(self.source.tables())

    def action_diagnostics(self) -> None:
        self._open("diagnostics", self.say("Diagnostics"), self._diagnose, "r d")

    def _process(self, reference: str) -> str:
        """Returns, of an actor, the process that it lives in."""
        node = self.state.nodes.get(reference)
        return node.parent if node is not None and node.properties.Actor is not None and node.parent else reference

    def _process_name(self, reference: str) -> str:
        process = self._process(reference)
        row = next((row for row in self.ranks.all if row.reference == process), None)
        return row.name if row is not None else labels.short(process)

    def _open(self, kind: str, title: str, run: Callable[[Overlay], Any], again: str = "", every: float = 0.0) -> None:
        self._covered = True
        overlay = Overlay(kind, title, self.palette, self.say, run, again, every)
        self.push_screen(overlay, lambda _: self._uncovered())

    def _uncovered(self) -> None:
        self._covered = False
        self._wake.set()

    def _find(self, overlay: Overlay, title: str, find: Callable[[], list[pages.PageText]], end: bool = False) -> None:
        """`end`: its last lines come into sight."""

        def look() -> None:
            try:
                lines = find()
            except NoAnswer as exc:
                lines = [pages.PageText(line, "error") for line in str(exc).splitlines()]
            except Exception as exc:
                lines = [pages.PageText(f"{type(exc).__name__}: {exc}", "error")]
            self._send(self.Done(lambda: overlay.show(title, lines, end)))

        threading.Thread(target=look, name="monarch-tui-look", daemon=True).start()

    def _diagnose(self, overlay: Overlay) -> None:
        checks: list[Check] = []

        def show(report: CheckReport, done: bool) -> None:
            self._send(self.Done(lambda: overlay.show(*pages.diagnostics(report, done, self.say))))

        def told(check: Check) -> None:
            checks.append(check)
            if len(checks) % 10 == 1:
                show(CheckReport(list(checks)), False)

        def look() -> None:
            show(diagnostics.run(self.source, time.monotonic, told), True)

        threading.Thread(target=look, name="monarch-tui-look", daemon=True).start()


def _interruptible() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
