"""Workers write traces and snapshots of memory through no link that somebody else has put into the folder."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from monarch._linux.private_files import UntrustedFileError
from monarch.tensor.remote import memory_history, profiling
from monarch.tensor.worker import current
from tests.support.users import STRANGER, as_stranger, needs_root


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker with rank 3."""
    monkeypatch.setattr(current, "worker", lambda: SimpleNamespace(executor=SimpleNamespace(rank=3)))


def trace_ready(monkeypatch: pytest.MonkeyPatch, folder: str) -> Callable[[], None]:
    """Returns what torch's profiler calls when it has recorded."""
    written: list[Any] = []

    def made(on_trace_ready: Any, **_: object) -> Any:
        written.append(on_trace_ready)
        return SimpleNamespace(start=lambda: None)

    monkeypatch.setattr(torch.profiler, "profile", made)
    monkeypatch.setattr(profiling, "OpaqueRef", lambda value: value)  # a worker's, and none here
    profiling.begin(folder, None, {})
    recorded = SimpleNamespace(export_chrome_trace=lambda path: Path(path).write_text("{}"))
    return lambda: written[0](recorded)


def snapshot(monkeypatch: pytest.MonkeyPatch, folder: str) -> Callable[[], None]:
    monkeypatch.setattr(memory_history, "_memory", lambda: SimpleNamespace(_snapshot=lambda: {}))
    return lambda: memory_history.dump(folder)


@needs_root
@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize(("name", "prepare"), [("trace_3.json", trace_ready), ("snapshot_3.pickle", snapshot)])
def test_a_stranger_puts_a_link_there(
    open_folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, prepare: Callable[..., Callable[[], None]]
) -> None:
    mine = open_folder / "mine"
    mine.write_bytes(b"mine")
    his = open_folder / "his"
    his.mkdir()
    os.chown(his, STRANGER, STRANGER)
    as_stranger(lambda: os.symlink(mine, his / name))
    write = prepare(monkeypatch, str(his))
    with pytest.raises(UntrustedFileError, match=f"{name} is a link of user {STRANGER}"):
        write()
    assert mine.read_bytes() == b"mine"
    as_stranger(lambda: os.unlink(his / name))
    write()
    assert (his / name).stat().st_size > 0
