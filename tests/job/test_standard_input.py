"""The pipe by which a command on another machine reads the client's standard input."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

from monarch.job.commands.standard_input import InputPipe


def test_what_is_put_is_read_and_its_end_too() -> None:
    pipe = InputPipe()
    data = os.urandom(300_000)
    with ThreadPoolExecutor() as pool, open(pipe.reading, "rb") as reading:
        putting = pool.submit(lambda: [pipe.put(data), pipe.put(b"")])
        assert reading.read() == data
        assert putting.result() == [True, False]
    pipe.end()


def test_nobody_waits_for_a_command_that_reads_no_more() -> None:
    closed = InputPipe()
    os.close(closed.reading)
    assert not closed.put(b"a")
    closed.end()
    # It has ended, and what it started holds its end of the pipe.
    held = InputPipe()
    with ThreadPoolExecutor() as pool:
        putting = pool.submit(held.put, bytes(300_000))
        assert os.read(held.reading, 1) == b"\0"
        held.end()
        assert not putting.result()
    assert not held.put(b"a")
    os.close(held.reading)
