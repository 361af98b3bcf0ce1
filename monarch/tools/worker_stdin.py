"""`monarch worker --stdin`: a worker that is told everything on its standard input, and that ends with it.

This is how a worker is started over ssh and the like. One line of JSON comes first (monarch.job.worker_launch writes it):

    {"secret": "...", "lease": 14400.0, "tls": {"ca": "...", ...}, "outlive": false}

Once the worker listens it prints one line, `{"listening": "tcp://node1:22222", "pid": 4711}`, and nothing more on stdout.
When stdin ends, the starter has gone, and the host ends with everything on it. A worker that is to outlive it goes
on once it has read a second line: the starter knows then that it is there, and can end it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any, Protocol

import msgspec

from monarch._linux import terminal

_LONGEST = 1 << 20  # bytes of the line


class LineReader(Protocol):
    """A stream that can be read by lines."""

    def readline(self, size: int, /) -> bytes: ...


class Orders(msgspec.Struct, frozen=True):
    """The orders of the line. Fields that later versions may add are left alone."""

    secret: str
    lease: float | None = None
    tls: dict[str, str] = {}
    outlive: bool = False


class Listening(msgspec.Struct, frozen=True):
    """A line that the worker prints when it listens."""

    listening: str
    pid: int


def read_orders(stdin: LineReader) -> Orders:
    """The line. ValueError when there is none; its text has nothing of what was read, which may be a secret."""
    line = stdin.readline(_LONGEST)
    if not line.strip():
        raise ValueError("--stdin reads one line of JSON with the job's secret, and stdin ended before it")
    try:
        return msgspec.json.decode(line, type=Orders)
    except msgspec.DecodeError:
        raise ValueError(
            '--stdin reads one line of JSON such as {"secret": "..."}, and the first line is not that'
        ) from None


def serve(address: str, orders: Orders) -> None:
    """Serves until a client shuts the host down, or until stdin ends if that is to be its end."""
    from monarch.actor import start_worker_loop_forever

    # Some shells start programs with it ignored, and what runs in Ray's processes has it blocked.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    lease = orders.lease or 0.0  # 0: for ever, whatever this host's own environment says
    ended = start_worker_loop_forever(address=address, secret=orders.secret, lease=lease, **orders.tls)
    sys.stdout.write(msgspec.json.encode(Listening(address, os.getpid())).decode() + "\n")
    sys.stdout.flush()
    # From here on there is one output: what processes of this host print would be noise to the reader of that line.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    changed = threading.Event()
    gone = threading.Event()
    for name, wait, arguments in (
        ("monarch-host", _await_end, (ended, changed)),
        ("monarch-stdin", _await_end_of_stdin, (orders.outlive, gone, changed)),
    ):
        threading.Thread(target=wait, args=arguments, name=name, daemon=True).start()
    changed.wait()
    if not gone.is_set():
        ended.get()
        return
    terminal.note("monarch worker: whoever started it has gone: this host ends")


def _await_end(ended: Any, changed: threading.Event) -> None:
    try:
        ended.get()
    except Exception:  # the main thread asks again, and raises it
        pass
    changed.set()


def _await_end_of_stdin(outlive: bool, gone: threading.Event, changed: threading.Event) -> None:
    try:
        while os.read(0, 4096):
            if outlive:
                return
    except OSError:
        pass
    gone.set()
    changed.set()
