"""A page over the screen, which is scrolled by keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from rich.text import Text as RichText
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from monarch._text import one_line
from monarch.admin.screen.pages import PageText
from monarch.admin.screen.themes import Palette
from monarch.admin.screen.words import Words

_PAGE = 10  # rows


class Overlay(ModalScreen[None]):
    """`again`: the keys that do it again, with `run`, which gets this overlay and shows what comes with `show`. `every`:
    seconds after which that is done by itself; 0.0: never."""

    DEFAULT_CSS = """
    Overlay { align: center middle; }
    Overlay > Vertical { width: 94%; height: 92%; border: round $accent; background: $surface; padding: 0 1; }
    Overlay #title { height: 1; color: $accent; text-style: bold; }
    Overlay #keys { height: 1; color: $text-muted; }
    Overlay VerticalScroll { height: 1fr; scrollbar-size-vertical: 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "close"),
        Binding("j,down", "by(1)"),
        Binding("k,up", "by(-1)"),
        Binding("pagedown,ctrl+d,space", f"by({_PAGE})"),
        Binding("pageup,ctrl+u", f"by(-{_PAGE})"),
        Binding("g,home", "by(-1000000)"),
        Binding("G,end", "by(1000000)"),
        Binding("r,d,p,C,l,v,b", "again"),
    ]

    def __init__(
        self,
        kind: str,
        title: str,
        palette: Palette,
        say: Words,
        run: Callable[[Overlay], Any],
        again: str = "",
        every: float = 0.0,
    ) -> None:
        super().__init__()
        self.kind = kind
        self._heading = title
        self._palette = palette
        self._say = say
        self._run = run
        self._again = again
        self._every = every
        self._lines: Sequence[PageText] = [PageText(f"{say('waiting for an answer')} ...", "dim")]

    def compose(self) -> ComposeResult:
        hint = f"Esc {self._say('close')}" + (f"  {self._again} {self._say('again')}" if self._again else "")
        with Vertical():
            yield Static(one_line(self._heading), id="title", markup=False)
            with VerticalScroll(can_focus=False):
                yield Static(self._text(), id="page", markup=False)
            yield Static(hint, id="keys", markup=False)

    def on_mount(self) -> None:
        self._run(self)
        if self._every:
            self.set_interval(self._every, lambda: self._run(self))

    def show(self, title: str, lines: Sequence[PageText], end: bool = False) -> None:
        """Shows these lines. On the app's thread. `end`: the last of them come into sight."""
        if not self.is_attached:
            return
        self._heading, self._lines = title, lines
        self.query_one("#title", Static).update(one_line(title))
        self.query_one("#page", Static).update(self._text())
        if end:
            self.call_after_refresh(self.query_one(VerticalScroll).scroll_end, animate=False)

    @property
    def shown(self) -> str:
        """All of it, as plain text."""
        return "\n".join([self._heading, *(line.text for line in self._lines)])

    def _text(self) -> RichText:
        colours = {tone: getattr(self._palette, tone) for tone in ("dim", "good", "warning", "error", "accent")}
        text = RichText(no_wrap=False)
        for index, line in enumerate(self._lines):
            text.append(("\n" if index else "") + one_line(line.text), style=colours.get(line.tone, self._palette.text))
        return text

    def action_close(self) -> None:
        self.dismiss()

    def action_by(self, rows: int) -> None:
        self.query_one(VerticalScroll).scroll_relative(y=rows, animate=False)

    def action_again(self) -> None:
        if self._again:
            self._run(self)
