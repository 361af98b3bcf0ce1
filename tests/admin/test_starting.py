"""Tests of what is said when the admin server starts. The server itself: tests/procs/test_admin.py."""

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


def test_a_token_is_on_no_command_line() -> None:
    first, export, *lines = starting.block("https://host:1729/?token=abc", "/ca.pem").splitlines()
    assert first.endswith("?token=abc") and export.endswith("export MONARCH_ADMIN_TOKEN=abc")
    assert not any("abc" in line for line in lines)
    assert lines[0] == (
        '  - Root node: curl --cacert /ca.pem -H @<(echo "Authorization: Bearer $MONARCH_ADMIN_TOKEN") https://host:1729/v1/root'
    )
    assert lines[-1] == "  - TUI: monarch tui --addr https://host:1729 --tls-ca /ca.pem"


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
