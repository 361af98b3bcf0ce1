"""Values on their way from a script, which `monarch run` has started as a process of its own, to the process beside it that
records: over a socket that the script inherits. What does not fit into it is dropped, which is said once: nothing waits.
"""

from __future__ import annotations

import logging
import os
import socket
import stat
import threading
from time import monotonic

import msgspec

from monarch._runtime import recorder as recorders
from monarch._runtime.recorder import LOGGED, VALUES
from monarch._text import clip

Pairs = tuple[tuple[str, float], ...]

VARIABLE = "MONARCH_METRICS_SOCKET"  # the number of the script's end, and which socket that is: fd:inode
MESH = "ranks"  # the name under which scripts log
NAMES = 1_000  # of a process
NAME = 200  # characters of a name
STEPS = 2**62  # steps are below
_LARGEST = 1 << 17  # bytes of a call of `log`

logger = logging.getLogger("monarch")
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[int, list[tuple[str, float]]]).decode


class PassingSink:
    """The script's end."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._dropped = False

    def __call__(self, step: int, values: Pairs, mesh: str, rank: int) -> None:
        try:
            self._sock.send(_encode((step, values)), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except BlockingIOError:
            if not self._dropped:
                logger.warning("monarch.metrics: values are logged faster than they are taken, and some are dropped")
            self._dropped = True


def inherited() -> PassingSink | None:
    """Returns what passes values on, in a script that `monarch run --keep-metrics` has started."""
    number, _, inode = os.environ.get(VARIABLE, "").partition(":")
    try:
        found = os.fstat(int(number))
        if not stat.S_ISSOCK(found.st_mode) or found.st_ino != int(inode):
            return None  # a process further down has not inherited it, and that number is something of its own
        sock = socket.socket(fileno=int(number))
    except (OSError, ValueError, OverflowError):
        return None
    sock.set_inheritable(False)
    return PassingSink(sock)


def variables(theirs: socket.socket) -> dict[str, str]:
    """Returns the environment of a script that inherits that end."""
    return {VARIABLE: f"{theirs.fileno()}:{os.fstat(theirs.fileno()).st_ino}"}


def received(rank: int) -> socket.socket | None:
    """Returns the end for a script with that rank, which it has to inherit; what it sends is recorded until it has closed
    it. None where nobody records."""
    if recorders.active is None:
        return None
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    threading.Thread(target=_take, args=(ours, rank), name="monarch-metrics", daemon=True).start()
    return theirs


def _take(sock: socket.socket, rank: int) -> None:
    names: set[str] = set()  # as bounded as those of `log`, which a script may do without
    with sock:
        while data := sock.recv(_LARGEST):
            try:
                step, values = _decode(data)
                if not 0 <= step < STEPS:
                    raise ValueError(f"step {step}")
            except (msgspec.MsgspecError, ValueError) as exc:
                logger.warning("monarch.metrics: what rank %d has sent is not understood: %s", rank, exc)
                return
            pairs = []
            for name, value in values[:VALUES]:
                short = clip(name, NAME)
                if short in names or len(names) < NAMES:
                    names.add(short)
                    pairs.append((short, value))
            recorder = recorders.active
            if recorder is not None and pairs:
                recorder.add((LOGGED, step, tuple(pairs), MESH, rank, monotonic()))
