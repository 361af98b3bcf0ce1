"""Output of processes on its way to people: lines, tails, folding. Pure but for `Echo`, which writes to a descriptor."""

from __future__ import annotations

import bisect
import os
import select
import time
from collections import deque

from monarch._wire.address import UNNAMED

LINE_LIMIT = 4096  # bytes; the rest of a longer line is cut and counted

_CYAN, _YELLOW, _RESET = "\033[36m", "\033[33m", "\033[0m"


class Lines:
    """Bytes in, complete lines out; a line over `LINE_LIMIT` is cut."""

    __slots__ = ("_cut", "_rest")

    def __init__(self) -> None:
        self._rest = b""
        self._cut = 0

    def feed(self, data: bytes) -> list[str]:
        *lines, rest = (self._rest + data).split(b"\n")
        finished = [self._finish(line) for line in lines]
        if len(rest) > LINE_LIMIT:
            self._cut += len(rest) - LINE_LIMIT
            rest = rest[:LINE_LIMIT]
        self._rest = rest
        return finished

    def flush(self) -> list[str]:
        """Returns what was written without a newline at the end."""
        rest, self._rest = self._rest, b""
        return [self._finish(rest)] if rest else []

    def _finish(self, line: bytes) -> str:
        over, self._cut = self._cut + max(0, len(line) - LINE_LIMIT), 0
        text = line[:LINE_LIMIT].decode("utf-8", "replace")
        return f"{text} [{over} bytes more]" if over else text


def origin(host: str, mesh: str, rank: int | None = None, with_rank: bool = True) -> str:
    """Returns what a streamed line begins with: the rank (None: of no single one) once, beside the mesh or in brackets."""
    shown = "procs" if mesh == UNNAMED else mesh
    if rank is None:
        return f"[{host} {shown}] "
    return f"[{host} {shown}] [{rank}] " if with_rank else f"[{host} {shown}-{rank}] "


class Aggregator:
    """Folds lines that are equal across ranks over a window, never lines of one rank, whose order is kept: a line joins the
    first group of its text behind the group that its rank joined last, or begins one at the end.

    Equal means equal text: numbers that differ keep lines apart. Bounds: `LIMIT` groups and `SIZE` characters of text a
    window; at a bound the window ends early.
    """

    LIMIT = 10_000
    SIZE = 1 << 20

    def __init__(self, window: float) -> None:
        self.window = window
        self._groups: list[tuple[str, list[int]]] = []  # (line, ranks)
        self._places: dict[str, list[int]] = {}  # line -> where it is in `_groups`
        self._last: dict[int, int] = {}  # rank -> the group that it joined last
        self._size = 0
        self._opened: float | None = None

    def add(self, rank: int, line: str, now: float) -> None:
        if self._opened is None:
            self._opened = now
        places = self._places.setdefault(line, [])
        behind = bisect.bisect_right(places, self._last.get(rank, -1))
        if behind == len(places):
            places.append(len(self._groups))
            self._groups.append((line, []))
            self._size += len(line)
        place = self._last[rank] = places[behind]
        self._groups[place][1].append(rank)

    def due(self, now: float) -> float | None:
        """Returns when the window ends; None while it is empty."""
        if self._opened is None:
            return None
        full = len(self._groups) >= self.LIMIT or self._size >= self.SIZE
        return now if full else self._opened + self.window

    def take(self, clock: str, with_rank: bool = True) -> str:
        """The block for what was gathered ("" when nothing was), and begins anew."""
        if not self._groups:
            return ""
        out = [f"{_CYAN}>>> Aggregated Logs ({clock}) >>>{_RESET}"]
        for line, ranks in self._groups:
            shown = f"[{_ranks(ranks)}] " if with_rank else ""
            out.append(f"{_YELLOW}[{len(ranks)} similar log lines]{_RESET} {shown}{line}")
        out.append(f"{_CYAN}<<< Aggregated Logs ({clock}) <<<{_RESET}")
        out.append("")
        self._groups, self._places, self._last, self._size, self._opened = [], {}, {}, 0, None
        return "\n".join(out) + "\n"


def _ranks(ranks: list[int]) -> str:
    """`0-3,7` for the ranks of a group."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def clock() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S")


class Echo:
    """Writes to a descriptor that belongs to somebody else (the client's terminal) without ever waiting for it.

    Asks before each write whether there is room and writes no more than a pipe surely takes. Bound: `LIMIT` bytes kept;
    at the bound `full` is true and the reader should pause.
    """

    LIMIT = 1 << 20
    _PIECE = select.PIPE_BUF

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._pieces: deque[bytes] = deque()
        self._size = 0
        self._poll = select.poll()
        self._poll.register(fd, select.POLLOUT)

    @property
    def full(self) -> bool:
        return self._size >= self.LIMIT

    @property
    def pending(self) -> bool:
        return bool(self._pieces)

    def write(self, data: bytes) -> None:
        self._pieces.append(data)
        self._size += len(data)
        self.flush()

    def flush(self) -> None:
        """Writes as much as there is room for."""
        while self._pieces:
            try:
                ready = self._poll.poll(0)
                if not ready or not ready[0][1] & select.POLLOUT:
                    if ready:  # closed at the other end: nobody reads
                        self._forget()
                    return
                piece = self._pieces[0]
                written = os.write(self._fd, piece[: self._PIECE])
            except BlockingIOError:
                return
            except OSError:
                self._forget()
                return
            self._size -= written
            if written < len(piece):
                self._pieces[0] = piece[written:]
            else:
                self._pieces.popleft()

    def _forget(self) -> None:
        self._pieces.clear()
        self._size = 0
