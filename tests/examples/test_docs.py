"""The Python in README.md and docs runs: the blocks of a page, in their order, as one program, and prints what it says.

A block whose fence says ```python no-run is left out. A comment behind a print is what that prints: see
tests/support/printed.py.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.examples.running import ROOT, run_program
from tests.support.printed import broken
from tests.support.recording import FIRST_LINE, recorded
from tests.support.tiers import first_of

FENCE = re.compile(r"(?P<indent> *)(?P<ticks>`{3,}|~{3,})(?P<info>[^`]*)")


def program(page: str) -> str:
    """The blocks of a page to run, each line at the number it has there, so that tracebacks point to it."""
    lines: list[str] = []
    closing, indent, taken = "", 0, False  # of the block we are in
    for line in page.splitlines():
        fence = FENCE.fullmatch(line)
        if closing:
            ends = fence is not None and fence["ticks"].startswith(closing) and not fence["info"].strip()
            own = line[min(indent, len(line) - len(line.lstrip(" "))) :]
            lines.append(own if taken and not ends else "")
            closing = "" if ends else closing
            continue
        lines.append("")
        if fence:
            words = fence["info"].split()
            closing, indent = fence["ticks"], len(fence["indent"])
            taken = words[:1] == ["python"] and "no-run" not in words
    return "\n".join(lines).rstrip() + "\n"


@pytest.mark.parametrize(
    ("page", "wanted"),
    [
        ("no code\n", "\n"),
        ("a\n```python\nx = 1\n```\nb\n```python\ny = x\n```\n", "\n\nx = 1\n\n\n\ny = x\n"),
        ("```python no-run\nx = 1\n```\n", "\n"),
        ("```bash\npython x.py\n```\n```\nplain\n```\n", "\n"),
        ("````md\n```python\nx = 1\n```\n````\n", "\n"),
        ("- item\n  ```python\n  if x:\n      y = 1\n\n  ```\n", "\n\nif x:\n    y = 1\n"),
        ("~~~python\nx = '```'\n~~~\n", "\nx = '```'\n"),
        ("Say `python` in a line.\n", "\n"),
    ],
)
def test_the_blocks_of_a_page(page: str, wanted: str) -> None:
    assert program(page) == wanted


def test_the_readme_holds_an_example() -> None:
    assert "from monarch.actor import" in program((ROOT / "README.md").read_text())


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
WITH_PYTHON = [page for page in PAGES if program(page.read_text()).strip()]


@pytest.mark.procs
@pytest.mark.parametrize("page", first_of(WITH_PYTHON), ids=lambda page: str(page.relative_to(ROOT)))
def test_the_python_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    script, notes = tmp_path / f"{page.stem}_md.py", tmp_path / "printed"
    first, rest = program(page.read_text()).split("\n", 1)
    assert not first, "code in the first line of a page"
    script.write_text(f"{FIRST_LINE.format(str(notes))}\n{rest}")
    run_program(script, cwd=tmp_path)
    assert broken(f"\n{rest}", recorded(notes)) == []
