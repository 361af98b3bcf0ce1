"""Output of processes on its way to people: lines, tails, folding. Pure but for `Echo`, which writes to a descriptor."""

from __future__ import annotations

import os
import select
import time
from collections import deque

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
        """What was written without a newline at the end."""
        rest, self._rest = self._rest, b""
        return [self._finish(rest)] if rest else []

    def _finish(self, line: bytes) -> str:
        over, self._cut = self._cut + max(0, len(line) - LINE_LIMIT), 0
        text = line[:LINE_LIMIT].decode("utf-8", "replace")
        return f"{text} [{over} bytes more]" if over else text


def prefixed(host: str, proc: str, rank: int, line: str, with_rank: bool) -> str:
    """A streamed line as it is printed."""
    return f"[{host} {proc}] [{rank}] {line}" if with_rank else f"[{host} {proc}] {line}"


class Aggregator:
    """Folds lines that are equal across ranks over a window; lines that one rank repeats stay as many as they are.

    Equal means equal text: numbers that differ keep lines apart. Bound: `LIMIT` different lines a window; at the bound
    the window ends early.
    """

    LIMIT = 10_000

    def __init__(self, window: float) -> None:
        self.window = window
        self._lines: dict[tuple[str, int], list[int]] = {}  # (line, its n-th time in a rank) -> ranks
        self._times: dict[tuple[str, int], int] = {}
        self._opened: float | None = None

    def add(self, rank: int, line: str, now: float) -> None:
        if self._opened is None:
            self._opened = now
        nth = self._times.get((line, rank), 0)
        self._times[(line, rank)] = nth + 1
        self._lines.setdefault((line, nth), []).append(rank)

    def due(self, now: float) -> float | None:
        """When the window ends; None while it is empty."""
        if self._opened is None:
            return None
        return now if len(self._lines) >= self.LIMIT else self._opened + self.window

    def take(self, clock: str, with_rank: bool = True) -> str:
        """The block for what was gathered ("" when nothing was), and begins anew."""
        if not self._lines:
            return ""
        out = [f"{_CYAN}>>> Aggregated Logs ({clock}) >>>{_RESET}"]
        for (line, _nth), ranks in self._lines.items():
            shown = f"[{_ranks(ranks)}] " if with_rank else ""
            out.append(f"{_YELLOW}[{len(ranks)} similar log lines]{_RESET} {shown}{line}")
        out.append(f"{_CYAN}<<< Aggregated Logs ({clock}) <<<{_RESET}")
        out.append("")
        self._lines, self._times, self._opened = {}, {}, None
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
