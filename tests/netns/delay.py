"""A TCP proxy between two hosts: latency without help from the kernel.

    python -m tests.netns.delay LISTEN TARGET [--delay SECONDS]        addresses as host:port or [ipv6]:port

Says `listening host:port` once it does. Every byte goes on in order, at the earliest `delay` seconds after it came, both
ways, and so do the ends of streams. The end of stdin ends it. A direction of a connection holds at most 16 MiB; then
nothing more is read from its sender.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
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

    def __init__(self, delay: float, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._delay = delay
        self._reader = reader
        self._writer = writer
        self._held: deque[tuple[float, bytes]] = deque()
        self._bytes = 0
        self._changed = asyncio.Condition()

    async def take(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            chunk = await self._reader.read(CHUNK)
            async with self._changed:
                self._held.append((loop.time() + self._delay, chunk))
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


async def pass_on(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: tuple[str, int], delay: float
) -> None:
    """Serves one connection until both ways have ended, or one end went away."""
    writers = [writer]
    moving: list[asyncio.Task[None]] = []
    try:
        there, back = await asyncio.open_connection(*target)
        writers.append(back)
        for one in writers:
            one.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        ways = (Direction(delay, reader, back), Direction(delay, there, writer))
        moving += [asyncio.create_task(part) for way in ways for part in (way.take(), way.give())]
        await asyncio.gather(*moving)
    except (OSError, asyncio.CancelledError):
        pass  # one end went away, or the proxy ends: the other end hears of it now
    finally:
        for part in moving:
            part.cancel()
        await asyncio.gather(*moving, return_exceptions=True)
        for one in writers:
            one.close()


async def serve(listen: tuple[str, int], target: tuple[str, int], delay: float) -> None:
    server = await asyncio.start_server(lambda *ends: pass_on(*ends, target, delay), *listen)
    print("listening", joined(server.sockets[0].getsockname()), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    server.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests.netns.delay", description="a TCP proxy that delays")
    parser.add_argument("listen", help="host:port")
    parser.add_argument("target", help="host:port")
    parser.add_argument("--delay", type=float, default=0.0, metavar="SECONDS")
    options = parser.parse_args()
    asyncio.run(serve(split(options.listen), split(options.target), options.delay))


if __name__ == "__main__":
    main()
