"""docs/reference/errors.md quotes what the package says: every stem of a message there stands in the sources."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from tests.support.tiers import full

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/reference/errors.md").read_text()
ROW = re.compile(r"^\| (`.+?`) \| .+ \|$", re.MULTILINE)
PLACE = "\0"  # where a text of the sources has a value
SHORTEST = 12  # characters of a stem that says anything


class Texts(ast.NodeVisitor):
    """All texts of a module: literals as they are, with a mark for each value inside."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        values = (str(part.value) if isinstance(part, ast.Constant) else PLACE for part in node.values)
        self.found.append("".join(values))
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str):
            self.found.append(node.value)


@cache
def sources() -> str:
    texts = Texts()
    for path in sorted((ROOT / "monarch").rglob("*.py")):
        texts.visit(ast.parse(path.read_text()))
    return "\n".join(texts.found)


def quoted() -> list[str]:
    return [row.replace("` … `", "…").strip("`") for row in ROW.findall(PAGE)]


def test_the_page_quotes_messages() -> None:
    assert len(quoted()) == len(set(quoted())) > 100


def missing(message: str) -> list[str]:
    stems = [stem.strip(" .:(") for stem in message.split("…")]
    telling = [stem for stem in stems if len(stem) >= SHORTEST] or [max(stems, key=len)]
    return [stem for stem in telling if stem not in sources()]


@full
def test_every_message_of_the_page_stands_in_the_sources() -> None:
    assert {message: gone for message in quoted() if (gone := missing(message))} == {}
