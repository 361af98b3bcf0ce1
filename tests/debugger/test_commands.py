"""Tests of what is typed at the debugger's prompt."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._text import columns
from monarch.debugger import prompt_commands
from monarch.debugger.debug_sessions import grid
from monarch.debugger.prompt_commands import (
    AttachCommand,
    CastCommand,
    ContinueCommand,
    HelpCommand,
    ListCommand,
    QuitCommand,
    parse,
    selection,
)
from tests.support.hostile import HOSTILE, fit


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("help", HelpCommand()),
        ("h", HelpCommand()),
        ("list", ListCommand()),
        (" l ", ListCommand()),
        ("continue", ContinueCommand()),
        ("c", ContinueCommand()),
        ("quit", QuitCommand()),
        ("q", QuitCommand()),
        ("", None),
        ("   ", None),
        ("attach worker 3", AttachCommand("worker", 3)),
        ("a  my-worker_2   0", AttachCommand("my-worker_2", 0)),
    ],
)
def test_commands(line: str, command: object) -> None:
    assert parse(line) == command


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        ("3", [3]),
        ("0,1,4", [0, 1, 4]),
        ("2:5", [2, 3, 4]),
        (":3", [0, 1, 2]),
        ("6:", [6, 7]),
        ("::3", [0, 3, 6]),
        ("1:8:2", [1, 3, 5, 7]),
        (":", list(range(8))),
        ("hosts=1", [4, 5, 6, 7]),
        ("hosts=0,gpus=(1,3)", [1, 3]),
        ("gpus=1:3,hosts=(0,1)", [1, 2, 5, 6]),
        ("gpus = 2: , hosts = 1", [6, 7]),
        ("gpus=(2,)", [2, 6]),
        ("other=1", []),
    ],
)
def test_ranks(text: str, ranks: list[int]) -> None:
    """In a mesh of two hosts with four processes each."""
    chosen = selection(text)
    assert [rank for rank in range(8) if chosen.has(rank, {"hosts": rank // 4, "gpus": rank % 4})] == ranks
    assert parse(f"cast worker ranks({text}) p x, (1)") == CastCommand("worker", chosen, "p x, (1)")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("attach worker", "expected attach ACTOR RANK"),
        ("attach worker -1", "expected attach ACTOR RANK"),
        ("attach wor.ker 1", "expected attach ACTOR RANK"),
        ("cast worker 3 n", "expected cast ACTOR ranks(WHICH) COMMAND"),
        ("cast worker ranks(3)", "expected cast ACTOR ranks(WHICH) COMMAND"),
        ("cast worker ranks() n", "expected ranks such as"),
        ("cast worker ranks(a) n", "expected ranks such as"),
        ("cast worker ranks(1:2:3:4) n", "expected ranks such as"),
        ("cast worker ranks(::0) n", "the step of a range is at least 1"),
        ("cast worker ranks(gpus=) n", "expected ranks such as"),
        ("cast worker ranks(gpus=1,) n", "expected ranks such as"),
        ("cast worker ranks(gpus=1,gpus=2) n", "gpus is there twice"),
        ("next", "is no command; help shows them"),
        ("quit now", "quit takes nothing behind it"),
        ("x" * 1000, "..."),
    ],
)
def test_mistakes(line: str, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)) as raised:
        parse(line)
    assert len(str(raised.value)) < 250


@given(st.text(max_size=60))
def test_any_line_is_a_command_or_a_mistake(line: str) -> None:
    try:
        command = parse(line)
    except ValueError:
        return
    assert command is None or isinstance(command, prompt_commands.Command)


@given(st.text("0123456789:,=()abc ", max_size=30))
def test_any_selection_is_one_or_a_mistake(text: str) -> None:
    try:
        chosen = selection(text)
    except ValueError:
        return
    chosen.has(3, {"a": 1, "b": 2})


def test_the_table() -> None:
    """Draws it as the library tabulate does."""
    assert grid(("item", "qty"), [("spam", 42), ("eggs", 451)]) == (
        "+--------+-------+\n"
        "| item   |   qty |\n"
        "+========+=======+\n"
        "| spam   |    42 |\n"
        "+--------+-------+\n"
        "| eggs   |   451 |\n"
        "+--------+-------+"
    )
    assert grid(("item", "qty"), []) == (
        "+--------+-------+\n| item   | qty   |\n+========+=======+\n+--------+-------+"
    )


def test_a_table_stays_aligned_whatever_is_in_it() -> None:
    names = [*HOSTILE, "中文", "e\u0301", "plain"]
    shown = grid(("name", "n"), [(name, 1) for name in names])
    assert fit(shown)
    lines = shown.splitlines()
    assert len(lines) == 3 + 2 * len(names)
    assert {columns(line) for line in lines} == {len(lines[0])}
