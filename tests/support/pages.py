"""The blocks of a page of the documentation, and what its tests do with each.

The convention is in the words behind a block's language:

    ```python              part of the page's program: these blocks, in their order, are one program
    ```python no-run       is only shown
    ```diff file=NAME from=OTHER  a file of the page, as the changes to another one: hunks after `@@`, without line numbers
    ```toml file=NAME      a file, of any language, that is there when the program runs, and for later pages of the folder
    ```text printed        what the last print before it prints, with `...` for whatever may differ
    ```console run         commands after `$ `, each with its output below; run in the program's folder, after it
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

FENCE = re.compile(r"(?P<indent> *)(?P<ticks>`{3,}|~{3,})(?P<info>[^`]*)")


class Block(NamedTuple):
    """The line of its first line in the page, the words of its fence, its lines."""

    line: int
    words: list[str]
    lines: list[str]

    @property
    def text(self) -> str:
        return "\n".join(self.lines) + "\n"


class Command(NamedTuple):
    """A command of a console, and what it writes to stdout and stderr."""

    line: int
    text: str
    output: str


def blocks(page: str) -> list[Block]:
    found: list[Block] = []
    closing, indent = "", 0  # of the block we are in
    for number, line in enumerate(page.splitlines(), 1):
        fence = FENCE.fullmatch(line)
        if closing:
            if fence is not None and fence["ticks"].startswith(closing) and not fence["info"].strip():
                closing = ""
            else:
                found[-1].lines.append(line[min(indent, len(line) - len(line.lstrip(" "))) :])
        elif fence:
            closing, indent = fence["ticks"], len(fence["indent"])
            found.append(Block(number + 1, fence["info"].split(), []))
    return found


def program(page: str) -> str:
    """The Python of a page that runs, each line at the number it has there, so that tracebacks point to it."""
    lines = [""] * len(page.splitlines())
    for block in blocks(page):
        if block.words[:1] == ["python"] and "no-run" not in block.words and _said(block, "file") is None:
            lines[block.line - 1 : block.line - 1 + len(block.lines)] = block.lines
    return "\n".join(lines).rstrip() + "\n"


def files(page: str) -> dict[str, str]:
    """The files that a page shows, by name. A diff is of a file before it on the page."""
    found: dict[str, str] = {}
    for block in blocks(page):
        if (name := _said(block, "file")) is not None:
            other = _said(block, "from")
            found[name] = block.text if other is None else _changed(found[other], block)
    return found


def _changed(text: str, diff: Block) -> str:
    """The text after the hunks of a diff, which come in the order of the text."""
    lines, at, number = text.splitlines(), 0, diff.line
    for hunk in "\n".join(diff.lines).removeprefix("@@\n").split("\n@@\n"):
        marked = hunk.split("\n")
        number += 1 + len(marked)
        assert all(line[:1] in (" ", "+", "-") for line in marked), f"before line {number}: neither ' ', '+' nor '-'"
        old = [line[1:] for line in marked if line[0] != "+"]
        new = [line[1:] for line in marked if line[0] != "-"]
        places = [place for place in range(at, len(lines)) if lines[place : place + len(old)] == old]
        assert len(places) == 1, (
            f"the hunk that ends before line {number} fits {len(places)} places after the one before it"
        )
        lines[places[0] : places[0] + len(old)] = new
        at = places[0] + len(new)
    return "\n".join(lines) + "\n"


def shown(page: str) -> list[tuple[int, str]]:
    """Each block that says what was printed: the line where it begins, and its text."""
    return [(block.line, block.text) for block in blocks(page) if block.words == ["text", "printed"]]


def commands(page: str) -> list[Command]:
    found: list[Command] = []
    for block in blocks(page):
        if block.words == ["console", "run"]:
            assert block.lines[0].startswith("$ "), f"line {block.line}: a console begins with a command"
            found += _commands(block.line, block.lines)
    return found


def _commands(first: int, lines: Iterable[str]) -> list[Command]:
    found: list[Command] = []
    for number, line in enumerate(lines, first):
        if line.startswith("$ "):
            found.append(Command(number, line.removeprefix("$ "), ""))
        elif not found[-1].output and found[-1].text.endswith("\\"):
            found[-1] = found[-1]._replace(text=f"{found[-1].text}\n{line}")
        else:
            found[-1] = found[-1]._replace(output=f"{found[-1].output}{line}\n")
    return found


def _said(block: Block, word: str) -> str | None:
    return next((said.removeprefix(f"{word}=") for said in block.words if said.startswith(f"{word}=")), None)
