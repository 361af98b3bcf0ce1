"""The command `monarch-tui`: wrong use, and what is missing. The rest: tests/procs/test_admin.py."""

from __future__ import annotations

import builtins
import sys
from typing import Any

import pytest

from monarch.admin.screen import program


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--refresh-ms", "1"], "--refresh-ms is 100 or more, got 1"),
        (["--once", "--diagnose"], "--once and --diagnose are two ways to look"),
        (["--once", "--addr", "ftp://h"], "host:port, http:// or https://"),
        (["--once", "--addr", "h", "--pid", "3"], "--addr and --pid name two programs"),
        (["--once", "--tls-ca", "x"], "say how --addr is spoken to"),
        (["--once", "--addr", "http://127.0.0.1:1"], "cannot be reached: Connection refused"),
        (["--once", "--addr", "h", "--tls-ca", "/no/such/file"], "No such file"),
    ],
)
def test_wrong_use(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(arguments) == 1
    assert said in capsys.readouterr().err


def test_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main([]) == 1
    assert capsys.readouterr().err.startswith("This TUI requires a real terminal.")


def test_without_textual_the_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    importing = builtins.__import__

    def missing(name: str, *rest: Any, **options: Any) -> Any:
        if name == "monarch.admin.screen.app":
            raise ModuleNotFoundError("No module named 'textual'", name="textual.app")
        return importing(name, *rest, **options)

    class Terminal:
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(builtins, "__import__", missing)
    for stream in ("stdin", "stdout"):
        monkeypatch.setattr(sys, stream, Terminal())
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert program.main(["--addr", "http://h:1"]) == 1
    assert "pip install 'pymonarch[tui]'" in capsys.readouterr().err
