"""The endpoints that stand at breakpoints, as the debugger's controller knows them. No input or output here; one event loop.

A session begins with the first breakpoint that an endpoint reaches and ends when the endpoint returns. Its pdb asks for lines
of input; what it has written since the last of them is kept for the next that attaches.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from monarch._text import aligned, columns, one_line
from monarch.debugger.prompt_commands import Selection

MOST = 10_000  # sessions; further breakpoints are passed over, and their processes say so
_INPUT = 1_000  # lines that wait for one pdb; more are refused
_OUTPUT = 1 << 16  # characters since the last input that are kept, the last ones
_FRESH = 1 << 20  # characters that wait for an attached conversation which does not take them; then the last ones
_LEFT_OUT = "\n(some of what it said is left out here: it came faster than it was read)\n"
_RUNS = 1.0  # seconds after its last input from which on a pdb that asks for no more counts as running

HEADERS = ("Actor Name", "Rank", "Coords", "Hostname", "Function", "Line No.")


@dataclass(frozen=True)
class DebugSessionInfo:
    """An endpoint at a breakpoint: `function` is module.function; `rank` and `coords` are those in the mesh it was called
    on."""

    actor_name: str
    rank: int
    coords: dict[str, int]
    hostname: str
    function: str
    lineno: int


@dataclass
class DebugSession:
    """`address`: of its process. `patience`: seconds it waits for somebody to attach, None for ever."""

    info: DebugSessionInfo
    address: str
    pid: int
    reason: str
    patience: float | None = None
    ended: bool = False
    let_go: bool = False
    talked: bool = False  # somebody has attached or sent it a command
    listener: Callable[[], None] | None = None  # of the attached conversation: something has come
    _since: float = field(default_factory=time.monotonic)  # nobody is attached
    _answered: float = field(default_factory=time.monotonic)
    _input: deque[str] = field(default_factory=deque)
    _last_line: str = ""
    _output: list[str] = field(default_factory=list)
    _size: int = 0
    _fresh: list[str] = field(default_factory=list)  # not yet taken by the attached conversation
    _fresh_size: int = 0
    _waiter: asyncio.Future[None] | None = None

    # --- its pdb

    @property
    def waits(self) -> bool:
        """True while its pdb asks for input."""
        return self._waiter is not None

    @property
    def runs(self) -> bool:
        """Since its last input, and for a while: for people who look at the table."""
        return not self.waits and self._last_line != "" and time.monotonic() - self._answered > _RUNS

    @property
    def continued(self) -> bool:
        """It has been told to go on, and has not come to another breakpoint."""
        return not self.waits and self._last_line.strip() in ("c", "cont", "continue")

    def write(self, text: str, function: str, lineno: int) -> None:
        if function:
            self.info = replace(self.info, function=function, lineno=lineno)
        self._output.append(text)
        self._size += len(text)
        if self._size > _OUTPUT:
            whole = "".join(self._output)
            self._output = [whole[len(whole) - _OUTPUT // 2 :]]
            self._size = len(self._output[0])
        if self.listener is not None:
            self._fresh.append(text)
            self._fresh_size += len(text)
            if self._fresh_size > _FRESH:
                self._fresh = [_LEFT_OUT, "".join(self._fresh)[-_FRESH // 2 :]]
                self._fresh_size = len(self._fresh[1])
            self.listener()

    async def read(self) -> str | None:
        """The next line of input; None: it is to go on by itself."""
        while not self._input:
            if self.ended or self.let_go:
                return None
            left = self._patience_left()
            if left is not None and left <= 0:
                self.let_go = True
                return None
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await asyncio.wait([self._waiter], timeout=left)
            finally:
                self._waiter = None
        self._answered = time.monotonic()
        self._last_line = self._input.popleft()
        return self._last_line

    def _patience_left(self) -> float | None:
        if self.patience is None or self.listener is not None:
            return None
        return self._since + self.patience - time.monotonic()

    # --- people

    def type(self, line: str) -> bool:
        """A line for its pdb. False when too many wait already."""
        if len(self._input) >= _INPUT:
            return False
        self.talked = True
        self._output, self._size = [], 0
        self._input.append(f"{line}\n")
        self._wake()
        return True

    def release(self) -> None:
        """Clears its breakpoints and lets it go on: nobody is left who would."""
        self.let_go = True
        self._input.clear()
        self._wake()

    def attach(self, listener: Callable[[], None]) -> tuple[bool, str]:
        """Returns what it has written since the last input, and whether somebody has talked to it before."""
        self.listener = listener
        before, self.talked, self._fresh = self.talked, True, []
        self._fresh_size = 0
        self._wake()
        return before, "".join(self._output)

    def detach(self) -> None:
        self.listener = None
        self._since = time.monotonic()
        self._wake()

    def fresh(self) -> str:
        """Returns what has come since this was asked last."""
        text, self._fresh, self._fresh_size = "".join(self._fresh), [], 0
        return text

    def end(self) -> None:
        self.ended = True
        self._wake()
        if self.listener is not None:
            self.listener()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Sessions:
    """All sessions of a program."""

    def __init__(self) -> None:
        self._all: dict[tuple[str, int], DebugSession] = {}
        self._began: asyncio.Event = asyncio.Event()

    def __len__(self) -> int:
        return len(self._all)

    def start(self, session: DebugSession) -> DebugSession:
        """Adds a session. Where its name and rank are taken by another actor, its name becomes NAME-2 and so on."""
        name, number = _plain(session.info.actor_name), 1
        while (shown := name if number == 1 else f"{name}-{number}", session.info.rank) in self._all:
            number += 1
        session.info = replace(session.info, actor_name=shown)
        self._all[shown, session.info.rank] = session
        self._began.set()
        return session

    def find(self, name: str, rank: int) -> DebugSession:
        """KeyError says that there is none."""
        session = self._all.get((name, rank))
        if session is None:
            if not any(key[0] == name for key in self._all):
                raise KeyError(f"No debug sessions for actor {name}")
            raise KeyError(f"No debug session for rank {rank} for actor {name}")
        return session

    def select(self, name: str, which: Selection) -> list[DebugSession]:
        of_name = [session for key, session in self._all.items() if key[0] == name]
        if not of_name:
            raise KeyError(f"No debug sessions for actor {name}")
        return [session for session in of_name if which.has(session.info.rank, session.info.coords)]

    def end(self, session: DebugSession) -> None:
        key = (session.info.actor_name, session.info.rank)
        if self._all.get(key) is session:
            del self._all[key]
        if not self._all:
            self._began.clear()
        session.end()

    def of_process(self, address: str) -> list[DebugSession]:
        return [session for session in self._all.values() if session.address == address]

    def all(self) -> list[DebugSession]:
        """Returns the sessions by name and rank."""
        return [session for _, session in sorted(self._all.items())]

    async def pending(self) -> None:
        """Waits until there is one."""
        await self._began.wait()

    def page(self) -> str:
        return shown(self.all())


def shown(sessions: Sequence[DebugSession]) -> str:
    rows = [
        (
            session.info.actor_name,
            session.info.rank,
            str(session.info.coords),
            session.info.hostname,
            session.info.function + (" (runs on)" if session.runs else ""),
            session.info.lineno,
        )
        for session in sessions
    ]
    return grid(HEADERS, rows)


def _plain(name: str) -> str:
    """Returns the name as it can be typed at the prompt."""
    return "".join(char if char.isascii() and (char.isalnum() or char in "-_") else "_" for char in name) or "_"


_HEAD_PADDING = 2  # a column is at least so much wider than its heading


def grid(headers: Sequence[str], rows: Sequence[Sequence[str | int]]) -> str:
    """Numbers stand at the right of their column, text at the left. No newline at the end."""
    right = [bool(rows) and all(isinstance(row[at], int) for row in rows) for at in range(len(headers))]
    cells = [[one_line(str(cell)) for cell in row] for row in rows]
    widths = [
        max([len(header) + _HEAD_PADDING, *(columns(row[at]) for row in cells)]) for at, header in enumerate(headers)
    ]

    def line(texts: Sequence[str]) -> str:
        placed = [
            aligned(text, width, right=to_right) for text, width, to_right in zip(texts, widths, right, strict=True)
        ]
        return "| " + " | ".join(placed) + " |"

    def rule(stroke: str) -> str:
        return "+" + "+".join(stroke * (width + 2) for width in widths) + "+"

    lines = [rule("-"), line(headers), rule("=")]
    for row in cells:
        lines += [line(row), rule("-")]
    if not rows:
        lines.append(rule("-"))
    return "\n".join(lines)
