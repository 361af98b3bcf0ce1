"""A TCP proxy between two hosts: latency, stalls and broken connections without help from the kernel.

    python -m tests.netns.delay LISTEN TARGET [--delay SECONDS]        addresses as host:port or [ipv6]:port

Says `listening host:port` once it does. Every byte goes on in order, at the earliest `delay` seconds after it came, both
ways, and so do the ends of streams. Commands come as lines on stdin; each is answered with `done <the line>` when it is in
force, or with `unknown <the line>`:

    delay SECONDS    for bytes that come from now on
    stall, resume    nothing more is passed on meanwhile (what the sockets took before may still arrive)
    cut              all connections are reset (RST), both ends
    refuse, accept   whether new connections are taken

The end of stdin ends it. A direction of a connection holds at most 16 MiB; then nothing more is read from its sender.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import struct
import sys
from collections import deque

MOST_BYTES = 16 * 2**20
CHUNK = 256 * 1024


def split(address: str) -> tuple[str, int]:
    """(host, port) of `host:port` or `[ipv6]:port`."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def joined(name: tuple[str, int]) -> str:
    host, port = name[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Direction:
    """One way of one connection: what came, with the time from which on it may go."""

    def __init__(self, proxy: Proxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._proxy = proxy
        self._reader = reader
        self._writer = writer
        self._held: deque[tuple[float, bytes]] = deque()
        self._bytes = 0
        self._changed = asyncio.Condition()

    async def take(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._proxy.flowing.wait()
            chunk = await self._reader.read(CHUNK)
            async with self._changed:
                self._held.append((loop.time() + self._proxy.delay, chunk))
                self._bytes += len(chunk)
                self._changed.notify_all()
                await self._changed.wait_for(lambda: self._bytes < MOST_BYTES)
            if not chunk:
                return

    async def give(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            async with self._changed:
                await self._changed.wait_for(lambda: self._held)
                due, chunk = self._held[0]
            await asyncio.sleep(due - loop.time())
            await self._proxy.flowing.wait()
            if chunk:
                self._writer.write(chunk)
                await self._writer.drain()
            elif self._writer.can_write_eof():
                self._writer.write_eof()
            async with self._changed:
                self._held.popleft()
                self._bytes -= len(chunk)
                self._changed.notify_all()
            if not chunk:
                return


class Proxy:
    def __init__(self, listen: tuple[str, int], target: tuple[str, int], delay: float) -> None:
        self.delay = delay
        self.flowing = asyncio.Event()
        self.flowing.set()
        self._listen = listen
        self._target = target
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[None], list[asyncio.StreamWriter]] = {}

    async def accept(self) -> tuple[str, int]:
        if self._server is None:
            self._server = await asyncio.start_server(self._serve, *self._listen, reuse_address=True)
        name: tuple[str, int] = self._server.sockets[0].getsockname()[:2]
        self._listen = name  # the same port again after `refuse`
        return name

    def refuse(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    def cut(self) -> None:
        for task, writers in self._connections.items():
            for writer in writers:
                # Closing a socket that lingers for no time resets the connection (socket(7), tcp(7)).
                linger = struct.pack("ii", 1, 0)
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                writer.transport.abort()
            task.cancel()

    async def ended(self) -> None:
        """All connections are gone, descriptors included."""
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        writers = self._connections[task] = [writer]
        moving: list[asyncio.Task[None]] = []
        try:
            there, back = await asyncio.open_connection(*self._target)
            writers.append(back)
            for one in writers:
                one.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            ways = (Direction(self, reader, back), Direction(self, there, writer))
            moving += [asyncio.create_task(part) for way in ways for part in (way.take(), way.give())]
            await asyncio.gather(*moving)
        except (OSError, asyncio.CancelledError):
            pass  # one end went away or we were told to cut: the other end hears of it now
        finally:
            for part in moving:
                part.cancel()
            await asyncio.gather(*moving, return_exceptions=True)
            for one in writers:
                one.close()
            del self._connections[task]


async def obey(proxy: Proxy, line: str) -> bool:
    match line.split():
        case ["delay", seconds]:
            try:
                proxy.delay = max(0.0, float(seconds))
            except ValueError:
                return False
        case ["stall"]:
            proxy.flowing.clear()
        case ["resume"]:
            proxy.flowing.set()
        case ["cut"]:
            proxy.cut()
            await proxy.ended()
        case ["refuse"]:
            proxy.refuse()
        case ["accept"]:
            await proxy.accept()
        case _:
            return False
    return True


async def serve(listen: str, target: str, delay: float) -> None:
    proxy = Proxy(split(listen), split(target), delay)
    print("listening", joined(await proxy.accept()), flush=True)
    commands = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    while line := (await commands.readline()).decode():
        line = line.rstrip("\n")
        print("done" if await obey(proxy, line) else "unknown", line, flush=True)
    proxy.refuse()
    proxy.cut()
    await proxy.ended()


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests.netns.delay", description="a TCP proxy that delays")
    parser.add_argument("listen", help="host:port")
    parser.add_argument("target", help="host:port")
    parser.add_argument("--delay", type=float, default=0.0, metavar="SECONDS")
    options = parser.parse_args()
    asyncio.run(serve(options.listen, options.target, options.delay))


if __name__ == "__main__":
    main()
