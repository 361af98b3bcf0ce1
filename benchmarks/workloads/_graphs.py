"""The questions that every workload of graphs answers, given how it runs one."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from _workload import Params, Samples, times

DEPTH = 8
LARGE_COUNT = 12


def measured(
    params: Params,
    name: str,
    one: Callable[[Any], Any],
    chain: Callable[[Any], Any],
    begin: Callable[[Any], Callable[[], Any]],
    large: Callable[[Any], Any],
    value: Any,
) -> Samples:
    """`begin` begins an execution with one actor and returns what waits for its result; `value` is the large one."""
    return {
        f"one{name}": times(lambda: one(1), params),
        f"rate{name}": [_rate(begin, params["count"]) for _ in range(3)],
        f"chain{name}": times(lambda: chain(1), params),
        f"large{name}": times(lambda: large(value), {"warmup": 3, "count": LARGE_COUNT}),
    }


def _rate(begin: Callable[[Any], Callable[[], Any]], count: int) -> float:
    """Executions a second with DEPTH of them under way."""
    waiting: deque[Callable[[], Any]] = deque()
    start = time.perf_counter()
    for number in range(count):
        if len(waiting) == DEPTH:
            waiting.popleft()()
        waiting.append(begin(number))
    while waiting:
        waiting.popleft()()
    return count / (time.perf_counter() - start)
