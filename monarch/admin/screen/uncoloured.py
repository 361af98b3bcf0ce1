"""The screen without colours: bold, reverse and underlined stay."""

from __future__ import annotations

from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter


class Uncoloured(LineFilter):
    """A filter that takes the colours away, before a line goes to the terminal."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [
            Segment(text, None if style is None else style.without_color, control) for text, style, control in segments
        ]
