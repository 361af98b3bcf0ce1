"""One connection to the debugger: a prompt, lines, answers. Programs speak to it too (`nc`): its words stay as they are."""

from __future__ import annotations

import asyncio
import re
from typing import Protocol

from monarch._text import visible
from monarch.debugger import prompt_commands
from monarch.debugger.debug_sessions import DebugSession
from monarch.debugger.prompt_commands import (
    AttachCommand,
    CastCommand,
    Command,
    ContinueCommand,
    HelpCommand,
    ListCommand,
    QuitCommand,
)

PROMPT = "monarch_dbg> "
BANNER = (
    "\n\n************************ MONARCH DEBUGGER ************************\n"
    "Enter 'help' for a list of commands.\n"
    "Enter 'list' to show all active breakpoints.\n\n"
)
LINE = 1 << 16  # bytes of a line; a longer one ends the connection
# A web page makes its reader's browser, a program of this user, send what the page likes, but for this line before it.
_BROWSER = re.compile(r"[A-Z]+ \S* HTTP/\d")
_SLOW = 600.0  # seconds that the other side may take to read (Ctrl-S) before the connection ends


class Debugger(Protocol):
    """The part of the controller that commands act on."""

    async def page(self) -> str: ...
    def find(self, name: str, rank: int) -> DebugSession: ...
    def cast(self, name: str, which: prompt_commands.Selection, command: str) -> None: ...
    def continue_all(self) -> None: ...


class ConversationClosed(Exception):
    """The other side of the conversation has gone."""


class Conversation:
    """`replaced`: set when another connection has come, and this one is to end."""

    def __init__(self, debugger: Debugger, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._debugger = debugger
        self._reader = reader
        self._writer = writer
        self._line: asyncio.Task[bytes] | None = None  # the one that is being read
        self.replaced = asyncio.Event()

    async def run(self) -> None:
        """Runs until it is left. A side that goes while attached lets the session go on, for nobody else may come."""
        try:
            await self._say(BANNER)
            while True:
                await self._say(PROMPT)
                line = await self._next_line()
                if line is None:
                    continue
                if _BROWSER.match(line):
                    await self._say("This is a debugger, which does not speak HTTP.\n")
                    return
                if not await self._do(line):
                    return
        except ConversationClosed:
            if self.replaced.is_set():
                self._writer.write(b"\nAnother connection has taken the place of this one.\n")
        finally:
            if self._line is not None:
                self._line.cancel()
            self._writer.close()

    async def _do(self, line: str) -> bool:
        """False when that was the last."""
        try:
            command = prompt_commands.parse(line)
        except ValueError as error:
            await self._say(f"Error parsing input: {error}\n")
            return True
        if isinstance(command, QuitCommand):
            await self._say("Quitting debug session...\n")
            return False
        if command is not None:
            try:
                await self._obey(command)
            except (KeyError, RuntimeError, ValueError) as error:
                await self._say(f"Error processing command: {error.args[0] if error.args else error}\n")
        return True

    async def _obey(self, command: Command) -> None:
        debugger = self._debugger
        match command:
            case HelpCommand():
                await self._say(prompt_commands.HELP)
            case ListCommand():
                await self._say(f"{await debugger.page()}\n")
            case AttachCommand(actor, rank):
                await self._attach(debugger.find(actor, rank))
            case CastCommand(actor, which, pdb_command):
                debugger.cast(actor, which, pdb_command)
            case ContinueCommand():
                debugger.continue_all()

    # --- attached to one session

    async def _attach(self, session: DebugSession) -> None:
        info = session.info
        of = f"debug session for {info.actor_name} {info.rank} ({info.hostname})"
        news = asyncio.Event()
        before, output = session.attach(news.set)
        try:
            await self._say(f"Attached to {of}\n")
            if before and output:
                await self._say(f"<last pdb output for {info.actor_name} {info.rank} follows>\n")
            await self._say(output)
            await self._talk(session, news)
        except ConversationClosed:
            if not self.replaced.is_set():  # else somebody is there who can attach
                session.release()
            raise
        finally:
            session.detach()
        await self._say(f"Detaching from {of}\nDetached from {of}\n")

    async def _talk(self, session: DebugSession, news: asyncio.Event) -> None:
        while True:
            ended = session.ended  # what it wrote before that is taken below
            await self._say(session.fresh())
            if ended:
                return
            news.clear()
            line = await self._next_line(news)
            if line is None:
                continue
            if line.strip() == "detach":
                await self._say(session.fresh())
                return
            if not session.type(line):
                await self._say("Error processing command: too many commands wait for this pdb\n")

    # --- lines

    async def _next_line(self, news: asyncio.Event | None = None) -> str | None:
        """Without its newline. `news`: None is returned when that is set first."""
        if self._line is None:
            self._line = asyncio.ensure_future(self._reader.readline())
        waits = [asyncio.ensure_future(self.replaced.wait())]
        if news is not None:
            waits.append(asyncio.ensure_future(news.wait()))
        try:
            await asyncio.wait([self._line, *waits], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        if self.replaced.is_set():
            raise ConversationClosed
        if not self._line.done():
            return None
        line, self._line = self._line, None
        try:
            data = line.result()
        except (ValueError, OSError) as error:  # too long; reset
            if isinstance(error, ValueError):
                await self._say(f"Error parsing input: a line has at most {LINE} bytes\n")
            raise ConversationClosed from None
        if not data:
            raise ConversationClosed
        return data.decode("utf-8", "replace").rstrip("\r\n")

    async def _say(self, text: str) -> None:
        if not text:
            return
        try:
            self._writer.write(visible(text).encode())
            async with asyncio.timeout(_SLOW):
                await self._writer.drain()
        except (OSError, TimeoutError):
            raise ConversationClosed from None
