"""The least that a graph can do: processes forked of this one, pickled numbers through pipes, large values copied from one
stretch of shared memory to the next. No errors, no ends, no order with anything else.
"""

from __future__ import annotations

import mmap
import os
import pickle
from collections.abc import Callable
from typing import Any

from _graphs import measured
from _workload import Params, Samples, main

_MOST = 65536


class Chain:
    """Processes that each hand on what they read."""

    def __init__(self, count: int, large: int = 0) -> None:
        self._memory = [memoryview(mmap.mmap(-1, large)) for _ in range(count + 1)] if large else []
        pipes = [os.pipe() for _ in range(count + 1)]
        self._first, self._last = pipes[0][1], pipes[-1][0]
        self._children = []
        for number in range(count):
            child = os.fork()
            if not child:
                for pipe in pipes[: number + 1]:
                    os.close(pipe[1])
                self._serve(number, pipes[number][0], pipes[number + 1][1])
            self._children.append(child)
        for pipe in pipes[1:]:
            os.close(pipe[1])

    def _serve(self, number: int, read: int, write: int) -> None:
        while body := os.read(read, _MOST):
            value = pickle.loads(body)
            if self._memory:
                self._memory[number + 1][:] = self._memory[number]
            os.write(write, pickle.dumps(value))
        os._exit(0)

    def run(self, value: Any) -> Any:
        os.write(self._first, pickle.dumps(value))
        return pickle.loads(os.read(self._last, _MOST))

    def run_large(self, value: Any) -> Any:
        self._memory[0][:] = value
        return self.run(1)

    def begin(self, value: Any) -> Callable[[], Any]:
        os.write(self._first, pickle.dumps(value).ljust(64))
        return lambda: pickle.loads(os.read(self._last, 64))

    def close(self) -> None:
        os.close(self._first)
        for child in self._children:
            os.waitpid(child, 0)


class Wide(Chain):
    """The same with numbers of one size, several of which may be in a pipe."""

    def _serve(self, number: int, read: int, write: int) -> None:
        while body := os.read(read, 64):
            os.write(write, pickle.dumps(pickle.loads(body)).ljust(64))
        os._exit(0)


def run(params: Params) -> Samples:
    one, chain, wide, large = Chain(1), Chain(4), Wide(1), Chain(4, params["large"])
    found = measured(params, "", one.run, chain.run, wide.begin, large.run_large, bytes(params["large"]))
    for each in (large, wide, chain, one):
        each.close()
    return found


if __name__ == "__main__":
    main({"graph": run})
