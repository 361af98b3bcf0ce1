"""`with monarch.coalescing():`: nothing is sent before the end, all of it or none."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import monarch
from monarch.tensor import inspect


def values(engine: Any, tensor: Any) -> Any:
    """Returns what rank 0 has, as numbers."""
    return engine.local(tensor).tolist()


def test_a_block_is_sent_when_it_ends(loop: Any) -> None:
    engine = loop.client
    a = torch.ones(3)
    before = len(engine.runs())
    with monarch.coalescing():
        for _ in range(200):
            a.add_(1)
        b = a + 1
        assert len(engine.runs()) == before
    assert len(engine.runs()) == before + 201
    assert values(engine, b) == [202.0] * 3


def test_the_outermost_block_counts(loop: Any) -> None:
    engine = loop.client
    a = torch.ones(3)
    before = len(engine.runs())
    with monarch.coalescing():
        with monarch.coalescing():
            a.add_(1)
        assert len(engine.runs()) == before
    assert len(engine.runs()) == before + 1


def test_constants_are_kept_back_too(loop: Any) -> None:
    with monarch.coalescing():
        a = torch.tensor([1.0, 2.0]) * 2
    assert values(loop.client, a) == [2.0, 4.0]


def test_what_dies_in_the_block_is_deleted_after_it(loop: Any) -> None:
    engine = loop.client
    kept = torch.ones(3)
    engine.living()
    start = engine.living()
    with monarch.coalescing():
        other = torch.ones(3)
        del other
        kept.add_(kept + kept)
        gone = kept * 2
        engine.flush()  # as a clock would: nothing that waits may be deleted by it
        del gone
    assert engine.living() == start
    assert values(engine, kept) == [3.0] * 3


def test_an_input_that_dies_in_the_block_is_still_used(loop: Any) -> None:
    a = torch.ones(3)
    with monarch.coalescing():
        b = a + 1
        del a
        loop.client.flush()
    assert values(loop.client, b) == [2.0] * 3


def test_an_exception_undoes_the_block(loop: Any) -> None:
    a = torch.ones(3)
    made = []
    with pytest.raises(ZeroDivisionError), monarch.coalescing():
        a.add_(1)
        made.append(a * 3)
        raise ZeroDivisionError
    assert values(loop.client, a) == [1.0] * 3
    assert made[0].dropped
    with pytest.raises(TypeError, match=r"(?s)DROPPED.*coalescing block"):
        made[0].add(1)


def test_fetching_inside_is_refused(loop: Any) -> None:
    a = torch.ones(3)
    with (
        pytest.raises(NotImplementedError, match="NYI: fetching results during a coalescing block"),
        monarch.coalescing(),
    ):
        inspect(a)
    assert inspect(a).tolist() == [1.0] * 3


def test_a_block_is_bounded(loop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("monarch.tensor.recording.recorder.HELD", 10)
    a = torch.ones(3)
    with pytest.raises(RuntimeError, match="more than 10 operations in one coalescing block"), monarch.coalescing():
        for _ in range(11):
            a.add_(1)
    assert values(loop.client, a) == [1.0] * 3


@pytest.mark.procs
def test_between_processes(mesh: Any) -> None:
    a = torch.ones(3)
    with monarch.coalescing():
        for _ in range(500):
            a.add_(1)
    assert inspect(a).tolist() == [501.0] * 3
