"""Checks of what a verb prints with --json against the documents that are promised."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from monarch.tools import documents


def read(text: str, status: int) -> list[Any]:
    """The documents of one command that ended with this status. Each is as it is promised, and the last one alone ends it."""
    lines = text.splitlines()
    found = [msgspec.json.decode(line, type=documents.any_document()) for line in lines]
    for line, document in zip(lines, found, strict=True):
        assert msgspec.to_builtins(document) == json.loads(line), "a field more, or another type"
    assert [isinstance(one, documents.Document) for one in found] == [False] * (len(found) - 1) + [True], text
    assert found[-1].exit_status == status, text
    return found
