"""A folder whose lock is somebody else's at once is theirs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from monarch._linux import locked_folder


def test_what_the_next_one_makes_in_the_folder_stays_when_it_is_removed(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("lock", "log", "socket", "inner/file"):
        path = Path(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    order: list[str] = []
    unlink = os.unlink

    def watched(path: str, *args: object, **more: object) -> None:
        unlink(path, *args, **more)  # type: ignore[arg-type]
        order.append(os.path.basename(path))
        if order[-1] == "lock":  # the next one has waited for it
            for name in ("lock", "log", "socket"):
                Path(folder, name).touch()

    monkeypatch.setattr(os, "unlink", watched)
    locked_folder.remove(folder)
    assert order[0] == "socket" and order[-1] == "lock"
    assert sorted(os.listdir(folder)) == ["lock", "log", "socket"]
