"""The terminal of `monarch debug`."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from monarch.debugger import prompt
from monarch.debugger.prompt import completions, split_prompt
from tests.support.patience import TIMEOUT
from tests.support.terminal import Terminal
from tests.support.tiers import full

NAMES = [("worker", 0), ("worker", 12), ("other", 1)]


def test_prompts() -> None:
    assert split_prompt("text\nmonarch_dbg> ") == ("text\n", "monarch_dbg> ")
    assert split_prompt("5\n(Pdb) ") == ("5\n", "(Pdb) ")
    assert split_prompt("no newline(Pdb) ") == ("no newline", "(Pdb) ")
    assert split_prompt("(com) ") == ("", "(com) ")
    assert split_prompt("a ... ") == ("a ... ", ""), "the program's own words"
    assert split_prompt("still going\n") == ("still going\n", "")


def test_what_is_no_debugger_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt, "_LONGEST", 1000)
    ours, its = socket.socketpair()
    with ours, its:
        its.sendall(b"x" * 5000)
        with pytest.raises(ConnectionError, match="no prompt of a debugger within 1,000 bytes"):
            prompt.exchange(ours, "list")
    monkeypatch.setattr(prompt, "_ANSWERS_WITHIN", 0.001)
    ours, its = socket.socketpair()
    with ours, its, pytest.raises(TimeoutError, match="no prompt of a debugger came within"):
        prompt.exchange(ours, "list")


def test_completion() -> None:
    assert completions("", False, NAMES) == ["help", "list", "attach", "cast", "continue", "quit"]
    assert completions("c", False, NAMES) == ["cast", "continue"]
    assert completions("attach ", False, NAMES) == ["other", "worker"]
    assert completions("attach  w", False, NAMES) == ["worker"]
    assert completions("attach worker ", False, NAMES) == ["0", "12"]
    assert completions("attach worker 1", False, NAMES) == ["12"]
    assert completions("cast worker ", False, NAMES) == ["ranks("]
    assert completions("list ", False, NAMES) == []
    assert "step" in completions("st", True, NAMES)
    assert completions("p x", True, NAMES) == []


def test_news_while_the_draft_is_put_back_wait_for_the_next_signal(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The editor drops what a hook of it raises: raised there, the news would be shown with the next key only."""
    import readline

    hooks: list[Any] = []
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(readline, "set_pre_input_hook", hooks.append)
    monkeypatch.setattr(readline, "insert_text", lambda text: os.kill(os.getpid(), signal.SIGUSR1))
    ours, its = socket.socketpair()
    made = prompt.Prompt(ours)
    made._on_terminal = made._typing = True
    made._text, made._draft = "news", "p tot"
    with ours, its, made._line_editor():
        hooks[0]()
        assert made._typing
        with pytest.raises(prompt._News):
            os.kill(os.getpid(), signal.SIGUSR1)
        assert not made._typing


@pytest.fixture
def terminal(running: Any) -> Iterator[Terminal]:
    made = Terminal(
        [sys.executable, "-m", "monarch", "debug", "--pid", str(running.process.pid)],
        running.environment | {"TERM": "xterm"},
    )
    yield made
    made.close()


@full
def test_a_terminal(running: Any, terminal: Terminal) -> None:
    running.call("add 1")
    terminal.until("MONARCH DEBUGGER")
    terminal.until("monarch_dbg> ")
    for _ in range(100):  # until both stand there
        terminal.type("list\n")
        shown = terminal.until(r"\+=+[^>]*monarch_dbg> ")
        if shown.count("| worker ") == 2:
            break
    terminal.type("att\tw\t1\n")
    terminal.until(r"Attached to debug session for worker 1")
    terminal.until(r"\(Pdb\) ")
    terminal.resize(50, 132)
    terminal.type("p total\n")
    terminal.until(r"^6$")
    terminal.until(r"\(Pdb\) ")
    terminal.type("rubbish")
    terminal.until("rubbish")
    terminal.type("\x03")  # Ctrl-C: the line is thrown away
    terminal.until(r"\n\(Pdb\) ")
    terminal.type("\x04")  # Ctrl-D: detaches
    terminal.until("Detached from debug session")
    terminal.until("monarch_dbg> ")
    terminal.type("\x1b[A\x1b[A")  # up, to the line before that of pdb
    terminal.until("attach worker 1")
    terminal.type("\n")
    terminal.until("<last pdb output for worker 1 follows>")
    terminal.until(r"\(Pdb\) ")
    # News come while a line is being typed: the endpoint's process is killed. What was typed is still there.
    terminal.type("p tot")
    terminal.until("p tot")
    os.kill(running.pids[1], signal.SIGKILL)
    terminal.until("has ended")
    terminal.until(r"monarch_dbg> p tot")
    terminal.type("\x15continue\n")  # Ctrl-U: readline throws away a Ctrl-C that comes just as a prompt is shown
    terminal.until("continue")
    terminal.until("monarch_dbg> ")
    assert running.line().startswith("error ")
    terminal.type("\x04")
    terminal.until("Quitting debug session...")
    assert terminal.process.wait(TIMEOUT) == 0
    history = Path(running.folder, "monarch", "debug_history")
    assert "attach worker 1" in history.read_text()
    assert stat.S_IMODE(history.stat().st_mode) == 0o600


@full
def test_a_killed_terminal_lets_its_rank_go_on(own: Any) -> None:
    """And the program's end ends it."""

    def start(*words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "monarch", "debug", "--pid", str(own.process.pid), *words],
            env=own.environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    own.call("wait 1")
    other = own.talk()
    limit = time.monotonic() + TIMEOUT
    while other("list").count("| looped ") != 2:
        assert time.monotonic() < limit
    first = start("attach", "looped", "0")
    assert first.stdout is not None
    said = ""
    while "(Pdb) " not in said:
        said += first.stdout.read(1)
    first.kill()
    first.communicate(timeout=TIMEOUT)
    second = start("attach", "looped", "1")
    assert second.stdout is not None
    assert second.stdin is not None
    second.stdin.write("c\n")
    second.stdin.flush()
    assert own.line() == "answer 2 2"
    own.process.kill()
    assert second.wait(TIMEOUT) == 1
    assert second.stderr is not None
    assert "the program has ended" in second.stderr.read()
    for stream in (second.stdin, second.stdout, second.stderr):
        stream.close()
