"""Anything that may be said to the debugger, in any order, by clients that come, go and vanish, while processes end: nothing
is left of it, and nothing stands at a breakpoint for somebody who is gone. In one process: the ranks are tasks that ask for
lines as their pdb does."""

from __future__ import annotations

import asyncio
import socket

from hypothesis import given, settings
from hypothesis import strategies as st

from monarch.debugger.conversation import LINE, Conversation
from monarch.debugger.debug_sessions import DebugSession, DebugSessionInfo, Sessions
from monarch.debugger.prompt_commands import Selection
from tests.support.hostile import NAME
from tests.support.patience import TIMEOUT

RANKS = 3


class Rank:
    """A pdb: says something, asks for a line, until it is told to go on."""

    def __init__(self, sessions: Sessions, rank: int) -> None:
        info = DebugSessionInfo("worker", rank, {"gpus": rank}, NAME, "module.function", 7)
        self.session = sessions.start(DebugSession(info, f"unix:/x/p.{rank}", 100 + rank, "stands"))
        self._sessions = sessions
        self.runs = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        while True:
            self.session.write(f"{NAME}\n(Pdb) ", "module.function", 8)
            line = await self.session.read()
            if line is None or line in ("c\n", "q\n"):
                break
            self.session.write(line * 50, "", 0)
        self._sessions.end(self.session)


class Program:
    """The controller, as conversations see it, and its clients."""

    def __init__(self) -> None:
        self.sessions = Sessions()
        self.ranks = [Rank(self.sessions, rank) for rank in range(RANKS)]
        self._talks: list[asyncio.Task[None]] = []
        self._now: Conversation | None = None
        self._clients: list[socket.socket] = []
        self.sockets: list[socket.socket] = []  # of the debugger

    async def page(self) -> str:
        return self.sessions.page()

    def find(self, name: str, rank: int) -> DebugSession:
        return self.sessions.find(name, rank)

    def cast(self, name: str, which: Selection, command: str) -> None:
        for session in self.sessions.select(name, which):
            session.type(command)

    def continue_all(self) -> None:
        for session in self.sessions.all():
            session.type("clear")
            session.type("c")

    async def come(self) -> None:
        ours, its = socket.socketpair()
        ours.setblocking(False)
        self.sockets.append(its)
        reader, writer = await asyncio.open_unix_connection(sock=its, limit=LINE)
        before, self._now = self._now, Conversation(self, reader, writer)
        if before is not None:
            before.replaced.set()
        self._clients.append(ours)
        self._talks.append(asyncio.ensure_future(self._now.run()))

    def say(self, data: bytes) -> None:
        if self._clients:
            try:
                self._clients[-1].send(data)
            except OSError:  # it was sent away, or says more than is taken
                pass

    def read(self) -> None:
        for client in self._clients:
            try:
                client.recv(1 << 20)
            except OSError:
                pass

    def vanish(self) -> None:
        if self._clients:
            self._clients.pop().close()

    def rank_ends(self, rank: int) -> None:
        for session in self.sessions.of_process(f"unix:/x/p.{rank}"):
            self.sessions.end(session)

    async def end(self) -> None:
        """All clients have gone; each conversation ends by itself, without an error."""
        while self._clients:
            self.vanish()
        await asyncio.gather(*self._talks)


COMMANDS = [
    "list",
    "help",
    "continue",
    "quit",
    "cast worker ranks(0:2) n",
    "attach nobody 0",
    "detach",
    "c",
    "p x",
    "q",
    "",
]
LINES = st.sampled_from([*COMMANDS, *(f"attach worker {rank}" for rank in range(RANKS)), "POST / HTTP/1.1", NAME])
STEPS = st.one_of(
    st.just(("come", b"")),
    st.just(("vanish", b"")),
    st.just(("read", b"")),
    st.tuples(st.just("say"), st.binary(max_size=100)),
    st.tuples(st.just("say"), LINES.map(lambda line: f"{line}\n".encode())),
    st.just(("say", b"x" * 3 * LINE)),
    st.tuples(st.just("end"), st.sampled_from([b"0", b"1", b"2"])),
    st.just(("wait", b"")),
)


async def storm(steps: list[tuple[str, bytes]]) -> list[DebugSession]:
    """Returns the sessions that are left, once everybody has gone."""
    program = Program()
    await program.come()
    async with asyncio.timeout(TIMEOUT):
        for what, data in steps:
            if what == "come":
                await program.come()
            elif what == "vanish":
                program.vanish()
            elif what == "read":
                program.read()
            elif what == "say":
                program.say(data)
            elif what == "end":
                program.rank_ends(int(data))
            for _ in range(3):
                await asyncio.sleep(0)
        await program.end()
        for rank in program.ranks:
            if rank.session.let_go or rank.session.ended:
                await rank.runs
        left = program.sessions.all()
        assert all(session.listener is None for session in left), "somebody is attached who has gone"
        assert not any(session.let_go or session.ended for session in left)
        for session in left:
            program.sessions.end(session)
        await asyncio.gather(*(rank.runs for rank in program.ranks))
    for _ in range(3):
        await asyncio.sleep(0)
    assert all(sock.fileno() < 0 for sock in program.sockets), "descriptors are left"
    assert asyncio.all_tasks() == {asyncio.current_task()}, "tasks are left"
    return left


@given(st.lists(STEPS, max_size=40))
@settings(deadline=None)
def test_whatever_is_said_and_whoever_goes_nothing_is_left(steps: list[tuple[str, bytes]]) -> None:
    asyncio.run(storm(steps))


def test_who_vanishes_while_attached_lets_the_rank_go_on() -> None:
    attach = ("say", b"attach worker 1\n")
    left = asyncio.run(storm([attach, *[("wait", b"")] * 10, ("vanish", b""), *[("wait", b"")] * 10]))
    assert [session.info.rank for session in left] == [0, 2]


def test_a_storm_of_attaching_and_detaching_leaves_all_as_they_stood() -> None:
    storms = [("come", b""), ("say", b"attach worker 1\n"), ("say", b"detach\n"), ("read", b"")] * 300
    left = asyncio.run(storm([*storms, *[("wait", b"")] * 10]))
    assert len(left) >= RANKS - 1
