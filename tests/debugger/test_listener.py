"""The debugger's port, in one process: who gets in."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

import pytest

from monarch._linux import loopback_peer
from monarch.debugger import listener
from monarch.debugger.conversation import LINE, Conversation
from monarch.debugger.listener import DebuggerListener
from tests.support.patience import TIMEOUT
from tests.support.users import as_stranger, needs_root


class Visits:
    """Connections to the port, as other programs make them."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._made: list[asyncio.StreamWriter] = []

    async def come(self, host: str = "127.0.0.1") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection from that address of this machine."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, local_addr=(host, 0))
        self._made.append(writer)
        return reader, writer

    async def end(self) -> None:
        for writer in self._made:
            writer.close()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        if left:
            await asyncio.wait(left)
        for _ in range(3):  # for asyncio to close what it has to
            await asyncio.sleep(0)


def served(token: str, test: Callable[[Visits], Awaitable[None]]) -> list[str]:
    """Runs the test against a listener that says "in" to who gets in; what was said to the owner."""
    said: list[str] = []

    async def let_in(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"in\n")

    async def main() -> None:
        sock = socket.create_server(("127.0.0.1", 0), backlog=512)
        made = DebuggerListener("localhost", sock.getsockname()[1], 0, token, said.append)
        await made.serve(sock, let_in)
        visits = Visits(made.port)
        async with asyncio.timeout(TIMEOUT):
            await test(visits)
            made.close()
            await visits.end()

    asyncio.run(main())
    return said


def test_who_has_the_token_gets_in_whoever_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loopback_peer, "is_socket_ours", lambda sock: False)  # all are from elsewhere

    async def test(visits: Visits) -> None:
        silent = [await visits.come("127.0.0.66") for _ in range(50)]
        reader, writer = await visits.come("127.0.0.7")
        silent += [await visits.come("127.0.0.66") for _ in range(50)]
        assert [await first.read() for first, _ in silent[:80]] == [b""] * 80, "the oldest had to go"
        writer.write(b"secret\n")
        assert await reader.readline() == b"in\n"
        reader, writer = await visits.come("127.0.0.66")
        writer.write(b"guess\nsecret\n")
        assert (await reader.read()).startswith(b"refused"), "one try a connection"

    served("secret", test)


def test_own_programs_need_not_make_room() -> None:
    async def test(visits: Visits) -> None:
        reader, writer = await visits.come()
        for _ in range(40):
            await visits.come()
        writer.write(b"secret\n")
        assert await reader.readline() == b"in\n"

    served("secret", test)


def test_who_never_says_it_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "_TOKEN_WITHIN", 0.0)

    async def test(visits: Visits) -> None:
        reader, _ = await visits.come()
        assert await reader.read() == b""

    served("secret", test)


def test_a_line_without_an_end_is_no_token() -> None:
    async def test(visits: Visits) -> None:
        reader, writer = await visits.come()
        writer.write(b"s" * 4 * LINE)
        try:
            assert await reader.read() == b""
        except ConnectionError:  # closed before it was all said
            pass

    served("secret", test)


@needs_root
def test_other_users_of_this_machine_are_refused_and_said_once() -> None:
    async def test(visits: Visits) -> None:
        def visit() -> list[bytes]:
            found = []
            for _ in range(5):
                with socket.socket() as sock:
                    sock.connect(("127.0.0.1", visits.port))
                    found.append(sock.recv(100))
            return found

        assert await asyncio.to_thread(as_stranger, visit) == [b"refused: this debugger is another user's\n"] * 5
        reader, _ = await visits.come()
        assert await reader.readline() == b"in\n"

    said = served("", test)
    assert len(said) == 1
    assert said[0].endswith("has refused 1 connection of other users")


class NoDebugger:
    """A debugger that a conversation acts on; it must not be asked for anything."""

    def __getattr__(self, name: str) -> object:
        raise AssertionError(name)


@pytest.mark.parametrize("method", ["POST", "OPTIONS", "GET"])
def test_a_web_page_gives_no_commands(method: str) -> None:
    """Its browser is a program of this user."""

    async def main() -> bytes:
        ours, its = socket.socketpair()
        reader, writer = await asyncio.open_unix_connection(sock=its)
        own_reader, own = await asyncio.open_unix_connection(sock=ours)
        head = f"{method} /?a HTTP/1.1\r\nContent-Type: text/plain\r\n\r\n"
        own.write(f"{head}cast worker ranks(:) !bad()\ncontinue\n".encode())
        async with asyncio.timeout(TIMEOUT):
            await Conversation(NoDebugger(), reader, writer).run()  # type: ignore[arg-type]
            said = await own_reader.read()
            own.close()
            await own.wait_closed()
        return said

    assert asyncio.run(main()).endswith(b"monarch_dbg> This is a debugger, which does not speak HTTP.\n")
