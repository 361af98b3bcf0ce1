"""The minutes that a page takes, under its title: an extension of Sphinx.

Prose is read at 200 words a minute, code at 20 lines a minute. The chapters of the tutorial say it themselves, as programs
run in them; pages in which one looks things up say nothing.
"""

from __future__ import annotations

from docutils import nodes
from sphinx.application import Sphinx

WORDS, LINES = 200, 20
READ = ("how-to/", "training/", "explanations/", "coming-from/")
LOOKED_UP = {"index", "log", "internals", "changelog", "contributing", "settings", "cli", "versions", "cookbook", "map"}


def minutes(document: nodes.document) -> int:
    """Returns the minutes of a page, at least one."""
    code = sum(len(block.astext().splitlines()) for block in document.findall(nodes.literal_block))
    prose = sum(
        len(text.astext().split())
        for text in document.findall(nodes.Text)
        if not isinstance(text.parent, (nodes.literal_block, nodes.raw))
    )
    return max(1, round(to_read(prose, code)))


def to_read(words: int, lines: int) -> float:
    """Returns the minutes of so many words of prose and lines of code."""
    return words / WORDS + lines / LINES


def is_read(page: str) -> bool:
    """Returns whether a page is read from its beginning to its end."""
    folder, _, name = page.rpartition("/")
    return name != "index" and (page.startswith(READ) if folder else page not in LOOKED_UP)


def add(app: Sphinx, document: nodes.document, page: str) -> None:
    title = next(document.findall(nodes.title), None)
    if is_read(page) and title is not None:
        words = nodes.paragraph("", f"{minutes(document)} min", classes=["takes"])
        title.parent.insert(title.parent.index(title) + 1, words)


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("doctree-resolved", add)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
