"""The pane of ranks: draws the lines of `ranks_page`."""

from __future__ import annotations

from rich.text import Text as RichText
from textual.widgets import Static

from monarch.admin.screen import ranks_page
from monarch.admin.screen.ranks import RanksState
from monarch.admin.screen.ranks_page import ScreenAbout
from monarch.admin.screen.themes import Palette


class RanksView(Static):
    def __init__(self, palette: Palette, id: str) -> None:
        super().__init__("", id=id, markup=False)
        self._palette = palette

    def draw(self, state: RanksState, about: ScreenAbout) -> None:
        """Draws as much as has room, while it is shown."""
        if not self.display or not self.size:
            return
        palette = self._palette
        text = RichText(no_wrap=True, overflow="crop")
        for number, line in enumerate(ranks_page.page(state, about, *self.size)):
            text.append("\n" if number else "")
            for span in line:
                style = (
                    f"reverse {palette.accent}" if span.tone == "selected" else getattr(palette, span.tone or "text")
                )
                text.append(span.text, style=style)
        self.update(text)
