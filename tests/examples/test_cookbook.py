"""docs/cookbook.md holds twenty recipes, each of which can be copied with nothing but the first lines of the page."""

from __future__ import annotations

import ast
import builtins
import re

import pytest

from tests.examples.running import ROOT
from tests.support.pages import program

HEAD, *RECIPES = re.split(r"^(?=## )", (ROOT / "docs" / "cookbook.md").read_text(), flags=re.MULTILINE)


def title(recipe: str) -> str:
    return recipe.splitlines()[0].removeprefix("## ")


def missing(source: str) -> set[str]:
    """The names that a program reads and makes nowhere."""
    made, read = set(dir(builtins)), set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name):
            (read if isinstance(node.ctx, ast.Load) else made).add(node.id)
        elif isinstance(node, ast.alias):
            made.add((node.asname or node.name).split(".")[0])
        elif isinstance(node, ast.arg):
            made.add(node.arg)
        elif isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.ExceptHandler):
            made.add(node.name or "")
    return read - made


def test_there_are_twenty() -> None:
    assert len(RECIPES) == 20
    assert len(set(map(title, RECIPES))) == 20


@pytest.mark.parametrize("recipe", RECIPES, ids=title)
def test_a_recipe_needs_the_first_lines_only(recipe: str) -> None:
    assert missing(program(HEAD) + program(recipe)) == set()
