"""The Python of README.md and docs runs: the blocks of a page are one program, which prints what the page says.

tests/support/pages.py says what else a page may hold, and which blocks are left out. A comment behind a print is what that
prints: see tests/support/printed.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.examples.running import ROOT, left_behind, run_commands, run_program
from tests.support.pages import Command, commands, files, program, shown
from tests.support.printed import Printed, broken, broken_commands, broken_texts
from tests.support.recording import FIRST_LINE, recorded
from tests.support.tiers import first_of


@pytest.mark.parametrize(
    ("page", "wanted"),
    [
        ("no code\n", "\n"),
        ("a\n```python\nx = 1\n```\nb\n```python\ny = x\n```\n", "\n\nx = 1\n\n\n\ny = x\n"),
        ("```python no-run\nx = 1\n```\n", "\n"),
        ("```python file=x.py\nx = 1\n```\n", "\n"),
        ("```bash\npython x.py\n```\n```\nplain\n```\n", "\n"),
        ("````md\n```python\nx = 1\n```\n````\n", "\n"),
        ("- item\n  ```python\n  if x:\n      y = 1\n\n  ```\n", "\n\nif x:\n    y = 1\n"),
        ("~~~python\nx = '```'\n~~~\n", "\nx = '```'\n"),
        ("Say `python` in a line.\n", "\n"),
    ],
)
def test_the_program_of_a_page(page: str, wanted: str) -> None:
    assert program(page) == wanted


def test_the_files_of_a_page() -> None:
    page = "```python file=x.py\nx = 1\n```\n\n```toml file=y.toml\n[y]\n\n```\n```python\nz = 1\n```\n"
    assert files(page) == {"x.py": "x = 1\n", "y.toml": "[y]\n\n"}


def test_a_diff_is_a_file_too() -> None:
    page = "```python file=x.py\na\nb\nc\n```\n```diff file=y.py from=x.py\n@@\n-a\n+d\n b\n@@\n c\n+e\n```\n"
    assert files(page)["y.py"] == "d\nb\nc\ne\n"
    with pytest.raises(AssertionError, match="line 11: neither"):
        files(page.replace("-a", "a"))
    with pytest.raises(AssertionError, match="before line 11 fits 0 places"):
        files(page.replace("-a", "-z"))
    with pytest.raises(AssertionError, match="fits 2 places"):
        files(page.replace("\nc\n", "\nc\nc\n"))


def test_the_commands_of_a_page() -> None:
    page = "```console\n$ not this\n```\n```console run\n$ echo a \\\n    b\na b\n$ true\n$ echo c\nc\n```\n"
    wanted = [Command(5, "echo a \\\n    b", "a b\n"), Command(8, "true", ""), Command(9, "echo c", "c\n")]
    assert commands(page) == wanted
    assert broken_commands(wanted, ["a  b\n", "", "c"]) == []
    assert broken_commands(wanted[:1], ["a c\n"]) == [
        "line 5: echo a \\\n    b\nshould write:\na b\n\nand writes:\na c\n"
    ]


def test_a_text_is_what_the_print_before_it_prints() -> None:
    page = "```python\nprint('x')\nprint(y)  # y\n```\n\n```text printed\na ...\nc\n```\n"
    assert shown(page) == [(7, "a ...\nc\n")]
    assert broken_texts(program(page), shown(page), [Printed(2, "x"), Printed(3, "a\n  b\nc\n")]) == []
    assert len(broken_texts(program(page), shown(page), [Printed(3, "a b")])) == 1
    assert len(broken_texts(program(page), shown(page), [Printed(2, "a b c")])) == 1
    assert len(broken_texts("x = 1\n", shown(page), [])) == 1


def test_what_a_program_leaves_is_found_out(tmp_path: Path) -> None:
    before = {tmp_path / "there"}
    for name in ("there", "new", "named", "found.jsonl", "weights.pt"):
        (tmp_path / name).touch()
    (tmp_path / "__pycache__").mkdir()
    wanted = ["new"] if (ROOT / ".git").exists() else []
    assert left_behind(tmp_path, before, ["--file", "named/deep"]) == wanted


def test_the_readme_holds_an_example() -> None:
    assert "from monarch.actor import" in program((ROOT / "README.md").read_text())


def runs(page: Path) -> bool:
    text = page.read_text()
    return bool(program(text).strip() or commands(text))


def files_of_folder(page: Path) -> dict[str, str]:
    """Returns those that the page shows, and the pages before it in its folder."""
    found: dict[str, str] = {}
    for other in sorted(page.parent.glob("*.md")):
        if other <= page:
            found |= files(other.read_text())
    return found


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.procs
@pytest.mark.parametrize("page", first_of(filter(runs, PAGES)), ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_runs(page: Path, tmp_path: Path) -> None:
    text = page.read_text()
    folder, notes = tmp_path / "folder", tmp_path / "printed"
    folder.mkdir()
    for name, content in files_of_folder(page).items():
        (folder / name).write_text(content)
    before = set(folder.iterdir())
    first, rest = program(text).split("\n", 1)
    assert not first, "code in the first line of a page"
    if rest.strip():
        script = folder / f"{page.stem}_md.py"
        before.add(script)
        script.write_text(f"{FIRST_LINE.format(str(notes))}\n{rest}")
        run_program(script, cwd=folder)
    printed = recorded(notes)
    assert broken(f"\n{rest}", printed) + broken_texts(f"\n{rest}", shown(text), printed) == []
    asked = commands(text)
    assert broken_commands(asked, run_commands([one.text for one in asked], cwd=folder)) == []
    if page.parent.name == "tutorial":
        assert left_behind(folder, before) == [], "the next run of the chapter finds it"
