"""Every test that docs/reliability.md names as holding a promise is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "reliability.md").read_text()
NAMED = re.findall(r"`(tests/[\w/.]+\.py)(?:::(\w+))?`", PAGE)


def test_the_page_names_tests() -> None:
    promises = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| promise")]
    assert len(promises) >= 10 and len(NAMED) > len(promises)


@pytest.mark.parametrize(("file", "test"), sorted(set(NAMED)))
def test_a_named_test_exists(file: str, test: str) -> None:
    tree = ast.parse((ROOT / file).read_text())
    names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    assert (test in names) if test else any(name.startswith("test_") for name in names)
