"""Tests import no test files and no conftests: pytest collects those, in an order of its own. What they share is in
tests/support, in helper modules of their folder, and in fixtures.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent


IMPORT = re.compile(r"\bimport\s*(?:\([^)]*\)|[^\n]*)")
FROM = re.compile(r"^\s*from\s.*", re.MULTILINE)


def suspected(source: str) -> list[str]:
    """`violations`, of which there are none where no import has such a name: that is much quicker to see."""
    lines = IMPORT.findall(source) + FROM.findall(source)
    return violations(source) if any("conftest" in line or "test_" in line for line in lines) else []


def violations(source: str) -> list[str]:
    """One line for each import of what pytest collects, those in functions too."""
    return [f"{line}: {name}" for line, name in imports(ast.parse(source)) if is_collected(name)]


def imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)


def is_collected(name: str) -> bool:
    first, *rest = name.split(".")
    return first == "conftest" or (
        first in ("tests", "") and any(part == "conftest" or part.startswith("test_") for part in rest)
    )


def test_tests_import_helpers_only() -> None:
    found = [
        f"{path.relative_to(TESTS)}:{violation}"
        for path in sorted(TESTS.rglob("*.py"))
        for violation in suspected(path.read_text())
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "source",
    [
        "from tests.procs.test_hosts import Hosts",
        "from tests.procs import conftest",
        "from tests.rdma.conftest import Owner",
        "import tests.procs.test_hosts",
        "from .conftest import Owner",
        "from . import test_hosts",
        "from conftest import Owner",
        "def late():\n    from tests.procs.test_hosts import Hosts",
    ],
)
def test_imports_of_what_is_collected_are_found(source: str) -> None:
    assert violations(source) and suspected(source)


@pytest.mark.parametrize(
    "source", ["from tests.support.hosts import Hosts", "import pytest", "from monarch.testing import test_clock"]
)
def test_others_are_not(source: str) -> None:
    assert not violations(source)
