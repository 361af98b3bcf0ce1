"""Tests of what is printed of programs: characters that people see."""

from __future__ import annotations

import ast
import logging
import os
import pty
import re
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import monarch
from monarch._linux import terminal
from monarch._linux.terminal import OutputFilter, VisibleFormatter
from monarch._text import aligned, coloured, columns, fitting, one_line, visible
from monarch.job.commands.printer import CommandPrinter
from tests.support.hostile import HOSTILE, fit

ANY_TEXT = st.text(st.characters(codec=None)) | st.lists(st.sampled_from(HOSTILE)).map("".join)
COLOUR = re.compile("\x1b\\[[0-9;:]*m")


@given(ANY_TEXT)
def test_a_terminal_obeys_nothing_of_a_text(text: str) -> None:
    assert fit(visible(text))
    assert visible(visible(text)) == visible(text)
    assert fit(one_line(text))
    assert not {"\n", "\t"} & set(one_line(text))
    left = COLOUR.sub("", coloured(text))
    assert fit(left)
    assert coloured(coloured(text)) == coloured(text)


@given(st.text(st.characters(categories=("L", "N", "P", "S", "M", "Zs"))))
def test_what_is_seen_is_left_alone(text: str) -> None:
    assert visible(text) == one_line(text) == coloured(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("\x9b2J", "\\x9b2J"),
        ("safe\u202eexe.py", "safe\\u202eexe.py"),
        ("a\u200bb", "a\\u200bb"),
        ("admin\u3164", "admin\\u3164"),
        ("caf\udce9", "caf\\udce9"),
        ("50%\r100%", "50%\\r100%"),
        ("a\r\nb\tc\n", "a\nb\tc\n"),
        ("\x1b[31mred", "\\x1b[31mred"),
    ],
)
def test_what_is_not_seen_is_written_out(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_colours_end_with_their_line() -> None:
    assert coloured("\x1b[31mred\nplain\n\x1b[1mbold\x1b[0m") == "\x1b[31mred\x1b[0m\nplain\n\x1b[1mbold\x1b[0m"
    assert coloured("\x1b[31mred\x1b[2J") == "\x1b[31mred\\x1b[2J\x1b[0m"


def test_columns_are_those_of_the_terminal() -> None:
    assert [columns(text) for text in ("abc", "中文", "e\u0301", "🤖", "ﾊﾝ")] == [3, 4, 1, 2, 2]
    assert aligned("中", 4) + "|" == "中  |"
    assert aligned("中", 4, right=True) == "  中"
    assert [fitting("a中文b", width) for width in range(7)] == ["", "a", "a", "a中", "a中", "a中文", "a中文b"]


@given(ANY_TEXT, st.integers(0, 40))
def test_what_fits_is_no_wider(text: str, width: int) -> None:
    assert columns(fitting(one_line(text), width)) <= width


# --- what commands write


@given(st.lists(st.binary() | st.sampled_from([one.encode(errors="replace") for one in HOSTILE])), st.booleans())
def test_output_is_filtered_alike_in_whatever_pieces_it_comes(pieces: list[bytes], by_line: bool) -> None:
    whole, split = OutputFilter(by_line), OutputFilter(by_line)
    found = whole.feed(b"".join(pieces)) + whole.feed(b"", last=True)
    assert b"".join([*map(split.feed, pieces), split.feed(b"", last=True)]) == found
    left = COLOUR.sub("", found.decode())
    assert fit(left.replace("\r", ""))


def test_a_colour_goes_on_to_the_next_line_only_where_nobody_elses_comes() -> None:
    said = b"\x1b[31mone\ntwo\n10%\r20%\r\x1b[m"
    assert OutputFilter(False).feed(said) == said
    assert OutputFilter(True).feed(b"\x1b[31mone\n\x1b[32m1%\r") == b"\x1b[31mone\x1b[0m\n\x1b[32m1%\x1b[0m\r"
    left = OutputFilter(False)
    assert left.feed(b"\x1b[31mred\x1b[") + left.feed(b"", last=True) == b"\x1b[31mred\\x1b[\x1b[0m"


def test_a_command_writes_bytes_into_pipes_and_text_onto_terminals(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    said = b"\x1b[32mok\x1b[0m \x1b[2J\n"
    for prefix in (None, "[0] "):
        before = b"" if prefix is None else prefix.encode()
        CommandPrinter([prefix]).write(0, 1, said)
        assert capfd.readouterr().out.encode() == before + said
        ours, its = pty.openpty()
        with open(its, "w") as stream, monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", stream)
            printer = CommandPrinter([prefix])
            printer.write(0, 1, said[:-3])
            printer.write(0, 1, said[-3:])
            printer.end(0)
            shown = b""
            while not shown.endswith(b"\n"):
                shown += os.read(ours, 1000)
            assert shown == before + b"\x1b[32mok\x1b[0m \\x1b[2J\r\n"
        os.close(ours)


def test_records_of_a_log() -> None:
    record = logging.LogRecord("x", logging.INFO, "", 0, "host %s", ("\x1b[2J",), None)
    assert VisibleFormatter("worker: %(message)s").format(record) == "worker: host \\x1b[2J"


# --- the command line prints by these functions only

ROOT = Path(next(iter(monarch.__path__)))
SAYS = [
    *sorted((ROOT / "tools").rglob("*.py")),
    *sorted((ROOT / "admin").rglob("*.py")),
    *sorted((ROOT / "trace").rglob("*.py")),
    *(ROOT / "debugger" / name for name in ("prompt.py", "controller.py", "conversation.py", "editor_port.py")),
    ROOT / "job" / "progress.py",
]
# Not of a program: a script for the shell, and a line for who has started the worker.
MAY = {"tools/verbs/completion_verb.py": "print", "tools/worker_stdin.py": "sys.stdout.write"}
STREAM = re.compile(r"sys\.(__)?std(out|err)(__)?(\.buffer)?\.write(lines)?")


def ways_out(path: Path) -> set[str]:
    """Calls that write where a terminal may be, other than by `monarch._linux.terminal`."""
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    called = {ast.unparse(call.func) for call in calls}
    direct = {ast.unparse(call) for call in calls if ast.unparse(call).startswith(("os.write(1", "os.write(2"))}
    return {name for name in called if name == "print" or STREAM.fullmatch(name)} | direct


def test_the_command_line_prints_by_one_way() -> None:
    assert len(SAYS) > 60
    found = {str(path.relative_to(ROOT)): ways for path in SAYS if (ways := ways_out(path))}
    assert found == {path: {way} for path, way in MAY.items()}, "use monarch._linux.terminal: show, show_coloured, note"


def test_a_print_would_be_found(tmp_path: Path) -> None:
    path = tmp_path / "verb.py"
    path.write_text("import os, sys\nif 1:\n    sys.stderr.write('x')\n    print(1)\n    os.write(1, b'')\n")
    assert ways_out(path) == {"sys.stderr.write", "print", "os.write(1, b'')"}


def test_what_is_shown_is_visible(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.show("a\x1b[2Jb")
    terminal.show_coloured("\x1b[31mred\x1b[2J", end="")
    terminal.note("a\x07")
    terminal.replace_line("a\nb\x1b[2J" + "c" * 100, 8, sys.stderr)
    out, err = capsys.readouterr()
    terminal.erase_line(sys.stderr)
    assert out == "a\\x1b[2Jb\n\x1b[31mred\\x1b[2J\x1b[0m"
    assert err == "a\\x07\n\r\x1b[Ka\\nb\\x1b"
