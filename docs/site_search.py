"""The index of the site's search: the sections of all pages, in one file that a browser loads without a server.

`_static/sections.js` is made of the finished pages. `_static/search.js` ranks them: it finds sections that have some of the
words, and puts pages that teach before those that record. The log and the internals are left out: they are for those who work
on the project.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple

from sphinx.application import Sphinx

# How much a page counts, by how its name begins; the first that fits.
WEIGHTS = {
    "index": 0.0,
    "log": 0.0,
    "internals": 0.0,
    "contributing": 0.0,
    "genindex": 0.0,
    "search": 0.0,
    "source/docs/": 0.0,
    "source/": 0.4,
    "changelog": 0.3,
    "versions": 0.5,
    "architecture": 0.5,
    "scale": 0.6,
    "tutorial/index": 0.6,
    "how-to/index": 0.6,
    "training/index": 0.6,
    "tutorial/": 1.3,
    "how-to/": 1.3,
    "training/": 1.1,
    "reference/older-paths": 0.5,
    "reference/": 1.0,
    "coming-from/": 0.9,
    "": 1.15,
}
WITHOUT_TEXT = {"script", "style", "svg"}
BLOCKS = {"p", "li", "dt", "dd", "td", "th", "div", "pre", "br"}  # words on both sides of such a tag are two
HEADINGS = {"h1", "h2", "h3", "h4", "h5", "h6"}
LARGEST = 20_000  # characters of a section that are searched


class Section(NamedTuple):
    """A section of a page: the place on it, its heading and its own text, without that of sections inside."""

    anchor: str
    heading: str
    text: str


class Article(HTMLParser):
    """The sections of the article of a page; an object of the reference is a section with its name as heading."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.sections: list[tuple[list[str], list[str], list[str]]] = []  # anchor, heading, text
        self._open: list[int] = []
        self._inside = self._silent = 0
        self._in_heading = False
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attributes}
        kinds = values.get("class", "").split()
        if tag == "article":
            self._inside += 1
        elif self._inside and (tag in WITHOUT_TEXT or "headerlink" in kinds):
            self._silent += 1
        elif self._inside and tag == "section":
            self._open.append(len(self.sections))
            self.sections.append(([values.get("id", "")], [], []))
        elif self._open and tag == "dl":
            self._open.append(len(self.sections) if "py" in kinds else self._open[-1])
            if "py" in kinds:
                self.sections.append(([], [], []))
        elif self._open and tag == "dt" and "sig" in kinds and not self.sections[self._open[-1]][0]:
            for part in self.sections[self._open[-1]][:2]:
                part.append(values.get("id", ""))
        elif tag in HEADINGS:
            self._in_heading = True
        if tag in BLOCKS:
            self.handle_data(" ")

    def handle_endtag(self, tag: str) -> None:
        if tag == "article":
            self._inside -= 1
        elif self._silent and (tag in WITHOUT_TEXT or tag == "a"):
            self._silent -= 1
        elif self._open and tag in {"section", "dl"}:
            self._open.pop()
        elif tag in HEADINGS:
            self._in_heading = False

    def handle_data(self, data: str) -> None:
        if self._open and not self._silent:
            self.sections[self._open[-1]][1 if self._in_heading else 2].append(data)


def sections(page: str) -> Iterator[Section]:
    """The sections of a page that have a heading or a text."""
    for parts in Article(page).sections:
        anchor, heading, text = (" ".join("".join(part).split()) for part in parts)
        found = Section(anchor, heading, text[:LARGEST])
        if found.heading or found.text:
            yield found


def weight(name: str) -> float:
    return next(weight for beginning, weight in WEIGHTS.items() if name.startswith(beginning))


def index(site: Path) -> list[tuple[str, float, list[Section]]]:
    """The name, the weight and the sections of each page that is searched."""
    found = []
    for file in sorted(site.rglob("*.html")):
        name = file.relative_to(site).as_posix().removesuffix(".html")
        if weight(name) and (inside := list(sections(file.read_text()))):
            found.append((name, weight(name), inside))
    return found


def write(app: Sphinx, error: Exception | None) -> None:
    if error is None and app.builder.format == "html":
        text = json.dumps(index(Path(app.outdir)), ensure_ascii=False, separators=(",", ":"))
        (Path(app.outdir) / "_static" / "sections.js").write_text(f"window.SECTIONS = {text};\n")


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("build-finished", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
