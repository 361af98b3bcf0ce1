"""The comparison of what a page says with what it prints, and of each line with its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.examples.running import run_program
from tests.support.printed import Printed, Promise, broken, fits, promises
from tests.support.recording import FIRST_LINE, recorded


@pytest.mark.parametrize(
    ("program", "wanted"),
    [
        ("print(1)  # 1\n", [Promise(1, 1, "1")]),
        ("print(1)\nx = 1  # 1\n", []),
        ("for x in y:\n    print(\n        x\n    )  # 1\n", [Promise(2, 4, "1")]),
        ("print(\n    1,  # not this\n)\n", []),
        ("print('# no')\n", []),
        ("show(1)  # 1\n", []),
    ],
)
def test_the_promises_of_a_program(program: str, wanted: list[Promise]) -> None:
    assert promises(program) == wanted


@pytest.mark.parametrize(
    ("promise", "text", "keeps"),
    [
        ("12", "12", True),
        ("12", "22", False),
        ("12", "12 ", True),
        ("12: a remark", "12", False),
        ("[1, ...]", "[1, 2, 3]", True),
        ("[1, ...]", "1, 2", False),
        ("a ... c", "a\nb\n c", True),
        ("0.1...", "0.1234", True),
        ("0.1...", "0.2", False),
        ("...", "", True),
        ("1.5", "1x5", False),
    ],
)
def test_what_fits(promise: str, text: str, keeps: bool) -> None:
    assert fits(promise, text) is keeps


def test_what_is_not_kept_is_named() -> None:
    program = "print(a)  # 1\nprint(b)  # 2\nprint(c)\nprint(d)  # 4\n"
    assert broken(program, [Printed(1, "1"), Printed(3, "x"), Printed(4, "4"), Printed(4, "5")]) == [
        "line 2 never printed anything, and promises '2'",
        "line 4 promises '4' and prints '5'",
    ]


def test_a_program_notes_what_its_own_lines_print(tmp_path: Path) -> None:
    script, notes = tmp_path / "program.py", tmp_path / "printed"
    (tmp_path / "helper.py").write_text("def say():\n    print('from elsewhere')\n")
    script.write_text(
        f"{FIRST_LINE.format(str(notes))}\nimport sys, helper\nprint('a', 'b', sep='-')\nhelper.say()\n"
        "print('no', file=sys.stderr)\nfor x in range(2):\n    print(\n        x,\n    )\n"
    )
    done = run_program(script, cwd=tmp_path)
    assert done.stdout == "a-b\nfrom elsewhere\n0\n1\n" and done.stderr == "no\n"
    assert recorded(notes) == [Printed(3, "a-b"), Printed(7, "0"), Printed(7, "1")]
