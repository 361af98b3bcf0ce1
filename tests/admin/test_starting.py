"""What is said when the admin server starts. The server itself: tests/procs/test_admin.py."""

from __future__ import annotations

import builtins
from typing import Any

import pytest

from monarch.admin import starting


def test_the_block_that_is_printed() -> None:
    assert starting.block("http://localhost:1729").splitlines() == [
        "Mesh admin server listening on http://localhost:1729",
        "  - Root node: curl http://localhost:1729/v1/root",
        "  - Mesh tree: curl http://localhost:1729/v1/tree",
        "  - API docs: curl http://localhost:1729/SKILL.md",
        "  - TUI: monarch tui --addr http://localhost:1729",
    ]


def test_with_a_token_each_line_has_it() -> None:
    lines = starting.block("https://host:1729/?token=abc").splitlines()
    assert all("token=abc" in line for line in lines)
    assert "'https://host:1729/v1/root?token=abc'" in lines[1]


def test_a_package_that_is_missing_is_named_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    importing = builtins.__import__

    def missing(name: str, *rest: Any, **options: Any) -> Any:
        if name == "uvicorn":
            raise ModuleNotFoundError("No module named 'uvicorn'", name="uvicorn")
        return importing(name, *rest, **options)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ImportError, match=r"the admin server needs uvicorn: pip install 'pymonarch\[admin\]'"):
        starting.check_installed()


def test_no_hosts_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one host mesh"):
        starting.spawn_admin([])
