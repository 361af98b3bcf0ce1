"""The comparison of what the documentation says a line prints with what it prints.

A comment behind a `print(...)` is what that prints, all of it, with `...` for whatever may differ:

    print(counters.add.call(1).get().values())  # [10, 11, 12, 13]
    print(os.getpid(), "on", host)              # ... on node1

Whatever else is to be said stands on a line of its own. A print without a comment says nothing. One in a loop prints that
each time. What has several lines, and what commands write, stands in a block of its own: see pages.py.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterable
from typing import NamedTuple

from tests.support.pages import Command


class Promise(NamedTuple):
    """The promise of a print statement of a program: its first and last line, and what it is to print."""

    first: int
    last: int
    text: str


class Printed(NamedTuple):
    """The text that a print at a line has printed, without the newline at the end."""

    line: int
    text: str


def promises(program: str) -> list[Promise]:
    """Returns those of the print statements that have a comment behind them."""
    comments = {
        token.start[0]: token.string.removeprefix("#").strip()
        for token in tokenize.generate_tokens(io.StringIO(program).readline)
        if token.type == tokenize.COMMENT
    }
    return [Promise(first, last, comments[last]) for first, last in _prints(program) if last in comments]


def _prints(program: str) -> list[tuple[int, int]]:
    """The first and the last line of each print statement."""
    found = []
    for node in ast.walk(ast.parse(program)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            function = node.value.func
            if isinstance(function, ast.Name) and function.id == "print":
                found.append((node.lineno, node.end_lineno or node.lineno))
    return sorted(found)


def fits(promise: str, text: str) -> bool:
    """Returns whether `text` is what the promise says. Lines that run on count as one."""
    parts = [re.escape(" ".join(part.split())) for part in promise.split("...")]
    return re.fullmatch(r"\s*.*?\s*".join(parts), " ".join(text.split())) is not None


def broken(program: str, printed: Iterable[Printed]) -> list[str]:
    """The promises of a program that what it printed does not keep, for people."""
    all_printed = list(printed)
    wrong = []
    for first, last, text in promises(program):
        here = [one.text for one in all_printed if first <= one.line <= last]
        if not here:
            wrong.append(f"line {first} never printed anything, and promises {text!r}")
        wrong += [f"line {first} promises {text!r} and prints {one!r}" for one in here if not fits(text, one)]
    return wrong


def broken_texts(program: str, shown: Iterable[tuple[int, str]], printed: Iterable[Printed]) -> list[str]:
    """The texts shown at lines of a page that the last print before them has not printed, each time or in all, for people."""
    all_printed, prints = list(printed), _prints(program)
    wrong = []
    for line, text in shown:
        first, last = max(((first, last) for first, last in prints if last < line), default=(0, 0))
        here = [one.text for one in all_printed if first <= one.line <= last]
        if not any(fits(text, one) for one in [*here, "\n".join(here)]):
            wrong.append(f"line {line} shows\n{text}\nand line {first} prints\n" + "\n".join(here))
    return wrong


def broken_commands(commands: Iterable[Command], outputs: Iterable[str]) -> list[str]:
    """The commands that do not write what the page shows, for people."""
    return [
        f"line {command.line}: {command.text}\nshould write:\n{command.output}\nand writes:\n{output}"
        for command, output in zip(commands, outputs, strict=True)
        if not fits(command.output, output)
    ]
