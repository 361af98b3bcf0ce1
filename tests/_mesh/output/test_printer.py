"""Tests of what processes of other hosts may do to the client's terminal: show text, with colours."""

from __future__ import annotations

import contextlib
import io
from types import SimpleNamespace
from typing import Any

import pytest

from monarch._linux import terminal
from monarch._mesh.output.printer import Printer

HOSTILE = [
    "\x1b[2J\x1b[H",  # erases all, goes home
    "\x1b[1A\x1b[2K",  # goes up, erases what another has said
    "\x1b]0;root@bank\x07",  # a title
    "\x1b]52;c;cm0gLXJmIH4K\x07",  # the clipboard
    "\x1b]8;;http://x\x1b\\\\here\x1b]8;;\x1b\\\\",  # a link
    "\x1b[6n\x1b[c\x1b[>q\x1bP$qm\x1b\\\\",  # questions, which it answers as if they were typed
    "\x1b[?1049h\x1b[?1000h\x1bc\x0e",  # another screen, the mouse, a reset, another character set
    "\x9b31m\x9d0;x\x9c",  # the same, of one character each
    "\x08\x08\x7f\x05",
    "\u202e",
]


class Screen(io.StringIO):
    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


@pytest.fixture(params=[True, False], ids=["terminal", "file"])
def screen(request: pytest.FixtureRequest) -> Screen:
    return Screen(request.param)


def shown(screen: Screen, *pieces: str) -> str:
    proc: Any = SimpleNamespace(receivers={}, address="unix:/x/client")
    show = Printer(proc).show
    with contextlib.redirect_stdout(screen):
        for piece in pieces:
            show(1, piece)
    return screen.getvalue()


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_a_terminal_gets_nothing_that_it_would_obey(screen: Screen, text: str) -> None:
    whole = f"[b trainers] [3] {text}loss 0.1\n"
    said = shown(screen, whole)
    if screen.terminal:
        assert all(char.isprintable() or char == "\n" for char in said)
        assert said.startswith("[b trainers] [3] ") and said.endswith("loss 0.1\n")
    else:
        assert said == whole


def test_colours_stay_and_end_with_their_line(screen: Screen) -> None:
    said = shown(screen, "\x1b[1;31mred\n", "50%\r100%\n", "\x1b[38;5;", "208mhalf\x1b[0m\n")
    ends = "\x1b[0m" if screen.terminal else ""
    assert said == f"\x1b[1;31mred{ends}\n50%\r100%\n\x1b[38;5;208mhalf\x1b[0m\n"


def test_a_sequence_in_pieces_is_none(screen: Screen) -> None:
    said = shown(screen, "a\x1b", "[2", "J", "b\n")
    assert said == ("a\\x1b[2Jb\n" if screen.terminal else "a\x1b[2Jb\n")


def test_a_line_of_progress_is_taken_away_for_it_and_shown_again_behind_it() -> None:
    """Or what is printed would stand behind it, in the same line."""
    screen = Screen(True)
    terminal.replace_line("3 of 10", 80, screen)
    shown(screen, "one\n", "half")
    shown(screen, " a line\n")
    terminal.erase_line(screen)
    shown(screen, "two\n")
    erase = "\r\x1b[K"
    whole = f"{erase}3 of 10{erase}one\n3 of 10{erase}half a line\n3 of 10{erase}two\n"
    assert screen.getvalue() == whole


def test_a_line_that_stood_where_nobody_can_write_any_more_stops_nothing() -> None:
    closed = Screen(True)
    terminal.replace_line("3 of 10", 80, closed)
    closed.close()
    assert shown(Screen(True), "a\n", "b\n") == "a\nb\n"
