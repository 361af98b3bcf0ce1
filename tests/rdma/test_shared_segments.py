"""Tests of which segments there are, and where. In memory."""

from __future__ import annotations

import ctypes
import gc
import os
from types import SimpleNamespace
from typing import Any

import pytest

from monarch.rdma.shared import _Segments

_PAGE = 4096


class Place:
    """Addresses at which segments come and go."""

    def __init__(self) -> None:
        self.memory = bytearray(4 * _PAGE)
        self.start = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))

    def segment(self, first: int, pages: int) -> Any:
        return (ctypes.c_char * (pages * _PAGE)).from_buffer(self.memory, first * _PAGE)

    def find(self, segments: _Segments, page: int) -> tuple[int, int] | None:
        part: Any = SimpleNamespace(address=self.start + page * _PAGE, size=_PAGE)
        return segments.find(part)


def descriptor() -> int:
    return os.open(os.devnull, os.O_RDONLY)


@pytest.mark.parametrize(("first", "second"), [((1, 2), (1, 2)), ((1, 2), (0, 4)), ((0, 2), (1, 2)), ((1, 2), (0, 2))])
def test_another_may_be_at_its_address_before_word_of_its_end_comes(
    first: tuple[int, int], second: tuple[int, int]
) -> None:
    segments, place = _Segments(), Place()
    one, other = descriptor(), descriptor()
    before: Any = place.segment(*first)
    segments.add(before, one)
    after: Any = place.segment(*second)
    segments.add(after, other)
    del before
    assert not os.path.exists(f"/proc/self/fd/{one}") and os.path.exists(f"/proc/self/fd/{other}")
    for page in range(4):
        inside = second[0] <= page < sum(second)
        assert place.find(segments, page) == ((other, (page - second[0]) * _PAGE) if inside else None)
    del after
    assert not os.path.exists(f"/proc/self/fd/{other}") and len(segments) == 0


def test_the_collector_may_end_one_while_another_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    segments, place = _Segments(), Place()
    circle: Any = SimpleNamespace(memory=place.segment(0, 1))
    circle.itself = circle
    segments.add(circle.memory, descriptor())
    kept, file = place.segment(2, 1), descriptor()
    segments.add(kept, file)
    forget = segments._forget

    def collect() -> None:
        forget()
        gc.collect()

    monkeypatch.setattr(segments, "_forget", collect)
    del circle
    assert place.find(segments, 2) == (file, 0)
    monkeypatch.undo()
    assert place.find(segments, 0) is None and len(segments) == 1
