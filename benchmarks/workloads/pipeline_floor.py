"""The pipeline by hand: processes forked of this one, a loop of 1F1B in each, arrays through pipes. No errors, no ends."""

from __future__ import annotations

import os
import time
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

import numpy
from _pipeline import StageOfGPT, measured, micro_batches
from _workload import Params, Samples, main


class Stage:
    """One process and its pipes; the first reads words from the program, the last what comes next."""

    def __init__(self, rank: int, params: Params, program: Connection, before: Connection, after: Connection) -> None:
        self._stage = StageOfGPT(rank, params)
        self._params = params
        self._last = rank == params["stages"] - 1
        self._ahead = params["stages"] - 1 - rank  # micro-batches that go forward before the first comes back
        self._program, self._before, self._after = program, before, after
        self._words = (params["batch"], params["length"]), numpy.int64
        self._numbers = (params["batch"], params["length"], params["width"]), numpy.float32
        self._rank = rank

    def run(self) -> None:
        parts = self._params["parts"]
        while self._program.recv():
            if self._last:
                for _ in range(parts):
                    wanted = read(self._program, *self._words)
                    self._before.send_bytes(self._stage.both(read(self._before, *self._numbers), wanted))
            else:
                for number in range(parts + self._ahead):
                    if number < parts:
                        self._forward()
                    if number >= self._ahead:
                        self._backward()
            self._program.send((time.process_time(), self._stage.losses[-1]))

    def _forward(self) -> None:
        given = read(self._before, *self._numbers) if self._rank else read(self._program, *self._words)
        self._after.send_bytes(self._stage.forward(given))

    def _backward(self) -> None:
        grad = self._stage.backward(read(self._after, *self._numbers))
        if self._rank:
            self._before.send_bytes(grad)


def read(pipe: Connection, shape: tuple[int, ...], kind: Any) -> Any:
    made = numpy.empty(shape, kind)
    pipe.recv_bytes_into(memoryview(made).cast("B"))
    return made


def pipeline(params: Params) -> Samples:
    count = params["stages"]
    programs = [Pipe() for _ in range(count)]
    between = [Pipe() for _ in range(count + 1)]
    for rank in range(count):
        if not os.fork():
            Stage(rank, params, programs[rank][1], between[rank][1], between[rank + 1][0]).run()
            os._exit(0)
    pipes = [ours for ours, _ in programs]
    parts = micro_batches(params)
    told = [(0.0, 0.0)] * count

    def step() -> None:
        nonlocal told
        for pipe in pipes:
            pipe.send(True)
        for words, wanted in parts:
            pipes[0].send_bytes(words)
            pipes[-1].send_bytes(wanted)
        told = [pipe.recv() for pipe in pipes]

    found = measured(step, lambda: time.process_time() + sum(used for used, _ in told), params)
    for pipe in pipes:
        pipe.send(False)
    found["loss"] = [told[-1][1]]
    return found


if __name__ == "__main__":
    main({"pipeline": pipeline})
