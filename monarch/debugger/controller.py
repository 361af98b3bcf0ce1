"""The actor in the root client's process that has all breakpoints of the program: see `debug_controller`."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import socket
from collections.abc import Container
from typing import Any

from monarch._linux import terminal
from monarch._mesh.actors.actor import Actor
from monarch._mesh.actors.endpoint import concurrent_endpoint
from monarch._mesh.inspection.wait_graph import WaitGraph, ask_graph
from monarch._mesh.process.named_actors import get_or_spawn_controller
from monarch._runtime.context import here, root_of
from monarch._runtime.log_thread import log
from monarch._runtime.replies import Entry
from monarch._wire.message import ProcEnded
from monarch.config import settings
from monarch.debugger.conversation import LINE, Conversation
from monarch.debugger.debug_sessions import MOST, DebugSession, DebugSessionInfo, Sessions
from monarch.debugger.listener import DebuggerListener, listen
from monarch.debugger.prompt_commands import Selection

NAME = "debug_controller"
_LOOK = 1.0  # seconds that a list may wait for word of endpoints that are stuck
_logger = logging.getLogger("monarch")

_Infos = list[DebugSessionInfo]  # one of the endpoints is called `list`
_Names = list[tuple[str, int]]
_Stopped = list[dict[str, Any]]

_here: DebugController | None = None  # of this process


class DebugController(Actor):
    """Endpoints for the ranks: `debugger_*`; for programs: `list`, `wait_pending_session`."""

    _is_system_actor = True
    _waits_for_people = True  # its endpoints that wait are not reported as slow

    def __init__(self) -> None:
        global _here
        self._sessions = Sessions()
        self._tokens: dict[int, DebugSession] = {}
        self._last_token = 0
        self._listener: DebuggerListener | None = None
        self._listening: asyncio.Lock | None = None
        self._conversation: Conversation | None = None
        self._proc = here()
        self.loop: asyncio.AbstractEventLoop | None = None
        self.ended = False
        self._watch = _Watch(self)
        self._proc.ports.add(self._watch)
        _here = self

    @concurrent_endpoint
    async def hello(self) -> None:
        """Returns when it can be talked to."""
        self._begin()

    def _begin(self) -> None:
        if self.loop is None:
            self.loop = asyncio.get_running_loop()
            self._listening = asyncio.Lock()

    # --- ranks

    @concurrent_endpoint
    async def debugger_session_start(
        self, info: DebugSessionInfo, address: str, pid: int, reason: str, patience: float | None
    ) -> int:
        """A session of the process at `address`, until `debugger_session_end` or the end of that process. The number by which
        it is named from here on; 0 when there are too many already. Raises when the debugger cannot be reached by anybody."""
        self._begin()
        if len(self._sessions) >= MOST:
            return 0
        await self._listen()
        first = not len(self._sessions)
        session = self._sessions.start(DebugSession(info, address, pid, reason, patience))
        self._last_token += 1
        self._tokens[self._last_token] = session
        if first:
            self._announce(session)
        return self._last_token

    @concurrent_endpoint
    async def debugger_session_end(self, token: int) -> None:
        session = self._tokens.pop(token, None)
        if session is not None:
            self._sessions.end(session)

    @concurrent_endpoint
    async def debugger_write(self, token: int, text: str, function: str, lineno: int) -> None:
        """Takes what the pdb of that session has written, and where its endpoint stands."""
        session = self._tokens.get(token)
        if session is not None:
            session.write(text, function, lineno)

    @concurrent_endpoint
    async def debugger_read(self, token: int) -> str | None:
        """The next line for that pdb; None: it is to clear its breakpoints and to go on."""
        session = self._tokens.get(token)
        return None if session is None else await session.read()

    @concurrent_endpoint
    async def debugger_source(self, filename: str) -> tuple[str, str] | None:
        """A source file that the client can read and the rank cannot: its full name, and its text."""
        from monarch.debugger.sources import find

        return find(filename)

    def process_ended(self, address: str) -> None:
        """Ends the sessions of a process. Any thread."""
        if self.loop is not None:
            self.loop.call_soon_threadsafe(self._end_of_process, address)

    def _end_of_process(self, address: str) -> None:
        for session in self._sessions.of_process(address):
            session.write(f"\n(its process, pid {session.pid}, has ended)\n", "", 0)
            self._sessions.end(session)
        self._tokens = {token: session for token, session in self._tokens.items() if not session.ended}

    # --- programs

    @concurrent_endpoint
    async def list(self, print_output: bool = True) -> _Infos:
        """The endpoints that stand at a breakpoint, by name and rank; also printed, in the client."""
        if print_output:
            terminal.show(self._sessions.page())
        return self.infos()

    @concurrent_endpoint
    async def wait_pending_session(self) -> None:
        """Returns when an endpoint stands at a breakpoint."""
        await self._sessions.pending()

    # --- people, by the prompt

    async def page(self) -> str:
        page = self._sessions.page()
        patience = settings.slow_handler_after() or _STUCK_AFTER
        try:
            graph = await ask_graph(_LOOK)
        except RuntimeError:  # the client ends
            return page
        addresses = {session.address for session in self._sessions.all()}
        lines = stuck_lines(graph, patience, addresses)
        return "\n".join([page, *lines])

    def find(self, name: str, rank: int) -> DebugSession:
        return self._sessions.find(name, rank)

    def cast(self, name: str, which: Selection, command: str) -> None:
        for session in self._sessions.select(name, which):
            session.type(command)

    def continue_all(self) -> None:
        for session in self._sessions.all():
            if not session.continued:  # it would take them at its next breakpoint, which may be much later
                session.type("clear")
                session.type("c")

    def infos(self) -> _Infos:
        """Returns the endpoints that stand at a breakpoint."""
        return [session.info for session in self._sessions.all()]

    def stopped(self) -> _Stopped:
        """Returns the same for other processes, each with the address of its process."""
        return [{**dataclasses.asdict(each.info), "address": each.address} for each in self._sessions.all()]

    def names(self) -> _Names:
        """Returns names and ranks for completion."""
        return [(session.info.actor_name, session.info.rank) for session in self._sessions.all()]

    async def converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A new connection takes the place of the one there is."""
        before = self._conversation
        mine = self._conversation = Conversation(self, reader, writer)
        if before is not None:
            before.replaced.set()
        try:
            await mine.run()
        finally:
            if self._conversation is mine:
                self._conversation = None

    async def converse_by(self, sock: socket.socket) -> None:
        """The same, by a connected Unix socket."""
        reader, writer = await asyncio.open_unix_connection(sock=sock, limit=LINE)
        await self.converse(reader, writer)

    async def _listen(self) -> None:
        assert self._listening is not None
        async with self._listening:
            if self._listener is None:
                self._listener = await listen(self.converse, _warn)
                for note in self._listener.notes:
                    _warn(note)

    def _announce(self, session: DebugSession) -> None:
        """The first of those that stand there; `list` shows the others."""
        info = session.info
        assert self._listener is not None
        log(
            _logger,
            logging.WARNING,
            "rank %d of %s (%s, pid %d) %s at %s:%d. To look: monarch debug --pid %d (or nc %s %d)",
            info.rank, info.actor_name, info.hostname, session.pid, session.reason, info.function, info.lineno,
            os.getpid(), self._listener.host, self._listener.port,
        )  # fmt: skip

    async def __cleanup__(self, cause: Exception | None) -> None:
        self.ended = True
        self._watch.close()
        if self._listener is not None:
            self._listener.close()
        if self._conversation is not None:
            self._conversation.replaced.set()


def _warn(note: str) -> None:
    log(_logger, logging.WARNING, "%s", note)


class _Watch(Entry):
    """Hears of every process that ends, as everybody does who waits for an answer."""

    __slots__ = ("_controller",)

    def __init__(self, controller: DebugController) -> None:
        super().__init__(None)
        self._controller = controller

    def process_ended(self, ended: ProcEnded) -> None:
        self._controller.process_ended(ended.address)

    def give_up(self, error: BaseException) -> None:
        self.close()


_STUCK_AFTER = 60.0  # seconds from which on an endpoint is shown
_MOST_SHOWN = 20
_OWN = "monarch.debugger.controller.DebugController"  # which waits for people


def stuck_lines(graph: WaitGraph, patience: float, at_breakpoints: Container[str]) -> list[str]:
    """Returns what the list says below its table: endpoints that have run for longer than `patience` without a
    breakpoint. `at_breakpoints`: processes that are in the table."""
    slow = [
        one
        for one in graph.handlers
        if one.seconds >= patience and one.address not in at_breakpoints and _OWN not in one.who
    ]
    silent = [f"  {address}: {why}" for address, why in graph.silent.items()]
    found = []
    if slow:
        found += ["", f"without a breakpoint, and busy for {patience:g} s or longer:"]
        found += [f"  {one}" for one in slow[:_MOST_SHOWN]]
        if len(slow) > _MOST_SHOWN:
            found.append(f"  and {len(slow) - _MOST_SHOWN} more (monarch status shows all)")
    if silent:
        found += ["", "processes that did not answer:", *silent[:_MOST_SHOWN]]
        if len(silent) > _MOST_SHOWN:
            found.append(f"  and {len(silent) - _MOST_SHOWN} more")
    return found


def debug_controller() -> Any:
    """Returns the controller: see `monarch.actor.debug_controller`."""
    return get_or_spawn_controller(NAME, DebugController).get()


def here_in_client() -> DebugController:
    """The actor itself, in the client's process, on any thread of it. It is made if need be."""
    debug_controller().hello.call_one().get(30.0)
    assert _here is not None and root_of(_here._proc) is not None
    return _here
