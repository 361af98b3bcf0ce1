"""Reads of weights say how far they are. Within this process."""

from __future__ import annotations

from typing import Any

import pytest

from monarch.rdma import StateDict, block_gather, copying, state_dict_handle
from tests.support.patience import TIMEOUT
from tests.support.watched import record_watched

CHUNK = 100
WEIGHTS = {"w": bytearray(b"w" * 950), "b": bytearray(b"b" * 50)}


def test_how_far_a_read_is(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = record_watched(monkeypatch, state_dict_handle)
    monkeypatch.setattr(copying, "INLINE", -1)
    monkeypatch.setattr(copying, "CHUNK", CHUNK)
    monkeypatch.setattr(copying, "THREADS", 1)
    seen: list[tuple[int, int]] = []
    copy = block_gather._copy

    def copied(*args: Any) -> None:
        seen.append(reader._plan.far())
        copy(*args)

    weights = StateDict(WEIGHTS)
    here = {name: bytearray(len(data)) for name, data in WEIGHTS.items()}
    reader = weights.handle.reader(here)
    assert reader.read().get(TIMEOUT) == 0 and not watched  # so few bytes are there at once
    monkeypatch.setattr(state_dict_handle, "_SHOWN", 1000)
    monkeypatch.setattr(block_gather, "_copy", copied)
    assert reader.read().get(TIMEOUT) == 0 and here == WEIGHTS
    ((title, far),) = watched
    assert title == f"weights of {weights.handle.owner}" and far() == (1000, 1000)
    weights.drop().get(TIMEOUT)
    assert [total for _, total in seen] == [1000] * len(seen)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen) and len({done for done, _ in seen}) > 5
