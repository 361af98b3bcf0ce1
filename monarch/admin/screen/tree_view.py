"""The tree pane: draws the rows that are in sight, whatever their number."""

from __future__ import annotations

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual.events import Click
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from monarch._text import one_line
from monarch.admin.screen.themes import Palette
from monarch.admin.screen.tree_state import FAILED, STOPPED, SYSTEM, Row, TreeState

_NOTE = 40  # columns of the right column at most, and a third of the pane
_LONG = 10.0  # seconds from which an endpoint counts as long


class TreeView(ScrollView):
    can_focus = False

    class Selected(Message):
        """A row was chosen with the mouse."""

    def __init__(self, state: TreeState, palette: Palette, id: str) -> None:
        super().__init__(id=id)
        self.state = state
        self.palette = palette
        self._rows: dict[int, Row] = {}

    def redraw(self, follow: bool = True) -> None:
        """After the state has changed. `follow`: the selected row comes into sight."""
        self._rows = {}
        self.virtual_size = Size(0, len(self.state))
        if follow:
            self._follow()
        self.refresh()

    def _follow(self) -> None:
        height, top, position = max(1, self.scrollable_content_region.height), round(self.scroll_y), self.state.position
        if position < top:
            self.scroll_to(y=position, animate=False, force=True)
        elif position >= top + height:
            self.scroll_to(y=position - height + 1, animate=False, force=True)

    def to_top(self) -> None:
        """The selected row becomes the first in sight."""
        self.scroll_to(y=self.state.position, animate=False, force=True)

    def render_line(self, y: int) -> Strip:
        index = round(self.scroll_y) + y
        width = self.scrollable_content_region.width
        row = self._rows.get(index)
        if row is None:
            found = self.state.rows(index, 1)
            if not found:
                return Strip.blank(width, Style(bgcolor=self.palette.background))
            row = self._rows[index] = found[0]
        return self._strip(row, width)

    def _strip(self, row: Row, width: int) -> Strip:
        palette = self.palette
        background = palette.selected if row.selected else palette.background
        colour = {FAILED: palette.error, STOPPED: palette.stopped, SYSTEM: palette.system}.get(row.kind, palette.text)
        note = row.note
        room = min(_NOTE, max(0, width // 3)) if note else 0
        shown = fitted(note, room)
        left = max(0, width - 2 - (cell_len(shown) + 1 if shown else 0))
        text = set_cell_size(fitted(row.guides + row.label, left), left)
        tone = palette.error if row.kind == FAILED else palette.warning if row.stuck >= _LONG else palette.dim
        guides = min(len(row.guides), len(text))
        segments = [
            Segment("▸ " if row.selected else "  ", Style(color=palette.accent, bgcolor=background, bold=True)),
            Segment(text[:guides], Style(color=palette.dim, bgcolor=background)),
            Segment(text[guides:], Style(color=colour, bgcolor=background, bold=row.selected)),
        ]
        if shown:
            segments.append(Segment(" " + shown, Style(color=tone, bgcolor=background)))
        return Strip(segments).crop(0, width)

    def on_click(self, event: Click) -> None:
        self.state.select(round(self.scroll_y) + event.y)
        if event.chain > 1:
            self.state.toggle()
        self.redraw()
        self.post_message(self.Selected())


def fitted(text: str, width: int) -> str:
    """Returns what fits of it in one line that shows what it holds, with an ellipsis where something is cut."""
    text = one_line(text)
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, width - 1) + "…" if width > 1 else ""
