"""Functions that are odd to record: refused, or recorded as they are."""

from __future__ import annotations

import functools
import sys
import types
import warnings
from typing import Any

import pytest
import torch

from monarch.tensor import function
from tests.tensor.recording.looked_at import number


def test_generators_and_coroutines_are_refused() -> None:
    def generator(x: Any) -> Any:
        yield x

    async def coroutine(x: Any) -> Any:
        return x

    async def both(x: Any) -> Any:
        yield x

    class Held:
        def generator(self, x: Any) -> Any:
            yield x

    for wrong in (generator, coroutine, both, functools.partial(generator, 1), Held().generator):
        with pytest.raises(TypeError, match=r"(generator|coroutine|both) is a generator or a coroutine"):
            function(wrong)
    with pytest.raises(TypeError, match="a function is recorded, and 5 is none"):
        function(5)  # type: ignore[arg-type]


def test_functions_that_call_themselves(loop: Any) -> None:
    @function
    def power(x: Any, n: int) -> Any:
        return x if n == 0 else power(x, n - 1) * 2

    for _ in range(4):
        assert number(loop, power(torch.ones(1), 5)) == 32.0
    assert power.traces == 1


def test_variables_that_cannot_be_hashed_or_compared(loop: Any) -> None:
    class Odd:
        __hash__ = None  # type: ignore[assignment]

        def __init__(self) -> None:
            self.scale = 1.0

        def __eq__(self, other: object) -> bool:
            raise AssertionError("compared")

    odd = Odd()
    holder = types.SimpleNamespace(odd=odd)
    recorded = function(lambda x: x * odd.scale * holder.odd.scale)
    for scale in (1.0, 1.0, 1.0, 3.0, 3.0, 3.0):
        odd.scale = scale
        assert number(loop, recorded(torch.ones(1))) == scale**2
    holder.odd = Odd()
    assert number(loop, recorded(torch.ones(1))) == 3.0


def test_a_profiler_goes_on(loop: Any) -> None:
    events = []

    def profiler(frame: Any, event: str, arg: Any) -> None:
        if frame.f_code.co_name == "scaled":
            events.append(event)

    def scaled(x: Any) -> Any:
        return x * config.scale

    config = types.SimpleNamespace(scale=1.0)
    recorded = function(scaled)
    sys.setprofile(profiler)
    try:
        for _ in range(3):
            recorded(torch.ones(1))
        assert sys.getprofile() is profiler
    finally:
        sys.setprofile(None)
    assert events.count("call") == 2
    config.scale = 2.0
    assert number(loop, recorded(torch.ones(1))) == 2.0


def test_under_cprofile(loop: Any) -> None:
    import cProfile

    config = types.SimpleNamespace(scale=1.0)
    recorded = function(lambda x: x * config.scale)
    profile = cProfile.Profile()
    profile.enable()
    try:
        for scale in (1.0, 1.0, 1.0, 2.0):
            config.scale = scale
            assert number(loop, recorded(torch.ones(1))) == scale
    finally:
        profile.disable()
    assert recorded.traces == 2


def test_a_large_table_is_not_compared_in_full(loop: Any) -> None:
    table = {count: float(count) for count in range(1 << 17)}
    recorded = function(lambda x: x * table.get(len(table) - 1, 0.0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(4):
            recorded(torch.ones(1))
    assert recorded.traces == 1
