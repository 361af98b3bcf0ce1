"""Drawings of notebooks as tests read them: their text, and whether they could do anything but be looked at."""

from __future__ import annotations

from html.parser import HTMLParser

TAGS = {"div", "span", "b", "code", "table", "tbody", "tr", "th", "td", "details", "summary", "pre"}
ATTRIBUTES = {"style", "title", "scope"}


class Drawing(HTMLParser):
    """A drawing, taken apart. AssertionError for a tag or an attribute that none has, or that is not closed."""

    def __init__(self, drawn: str | None) -> None:
        super().__init__()
        assert drawn is not None
        self.size = len(drawn.encode())
        self.squares: list[tuple[str, str]] = []  # text, and what is shown when one points at it
        self.text = ""
        self._open: list[str] = []
        self._title = ""
        self.feed(drawn)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        assert tag in TAGS and given.keys() <= ATTRIBUTES, (tag, attrs)
        assert "url" not in (given.get("style") or "")
        self._open.append(tag)
        self._title = given.get("title") or ""

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data + ("\n" if self._open[-1] in ("div", "td", "th", "summary") else "")
        if self._open[-1] == "td":
            self.squares.append((data, self._title))
