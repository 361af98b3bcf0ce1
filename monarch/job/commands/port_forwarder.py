"""PortForwarder: TCP ports of one machine that are reached at another, through the job's own connections."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable
from typing import Any

from monarch._linux.loopback_peer import Doorkeeper
from monarch._text import counted
from monarch.actor import Actor, Point, ProcMesh, concurrent_endpoint, endpoint

_PIECE = 128 * 1024  # at most, of each direction of a connection, that is on its way; then the sender's TCP waits

logger = logging.getLogger("monarch")

Dst = int | Callable[[Point], int]
Src = str | Callable[[Point], str]


class PortForwarder(Actor):
    """Makes services that are reached from one mesh of processes reachable at ports of another. Spawn it where you are:

        forwarder = this_proc().spawn("forwarder", PortForwarder)
        await forwarder.forward.call_one(this_proc(), 8080, procs.slice(hosts=0, gpus=0), "localhost:6006")
        # http://localhost:8080 here is now http://localhost:6006 there

    Nothing else has to be open between the machines: bytes travel as the actors' messages do, with the job's secret or TLS.
    Who may connect: programs of the listening process's user, and of root, by the kernel's word. Others are refused before a
    byte of theirs is carried, for who is let in stands inside the job. Stopping the actor ends everything it forwards.
    """

    def __init__(self) -> None:
        self._meshes: list[Any] = []

    @endpoint
    async def forward(
        self,
        dst_proc_mesh: ProcMesh,
        dst_port: Dst,
        src_proc_mesh: ProcMesh,
        src_address: Src,
        *,
        any_user: bool = False,
    ) -> list[int]:
        """Lets each process of `dst_proc_mesh` listen at `dst_port` of its own machine (127.0.0.1), and who connects
        there is connected to `src_address` ("host:port") as seen by the process of `src_proc_mesh` with the same rank.
        Both may be functions of the rank's Point; port 0 is any free one. Returns the ports, by rank. May be called
        several times.

        Connections of other users of that machine are refused, and counted in the log, once a minute at most. With
        `any_user` everybody who reaches the port is let in: do that only where the service asks who comes.

        ValueError for meshes of different shapes and what is not an address; OSError for a port that is taken. A service that
        cannot be reached is found out by who connects: the connection is closed, and the reason logged there.
        """
        if dst_proc_mesh.extent != src_proc_mesh.extent:
            raise ValueError(
                f"dst_proc_mesh {dict(dst_proc_mesh.extent)} and src_proc_mesh {dict(src_proc_mesh.extent)} must have the "
                "same shape: each process forwards to the one of its rank"
            )
        points = [Point(rank, dst_proc_mesh.extent) for rank in range(len(dst_proc_mesh))]
        ports = [dst_port(point) if callable(dst_port) else dst_port for point in points]
        addresses = [_parse(src_address(point) if callable(src_address) else src_address) for point in points]
        made: list[Any] = []
        try:
            connectors: Any = src_proc_mesh.spawn("forward-from", Connector)
            made.append(connectors)
            listeners: Any = dst_proc_mesh.spawn("forward-to", ForwardListener)
            made.append(listeners)
            waiting = [
                _one(listeners, point).listen.call_one(port, _one(connectors, point), host, number, any_user)
                for point, port, (host, number) in zip(points, ports, addresses, strict=True)
            ]
            found = [await answer for answer in waiting]
        except BaseException:
            for mesh in made:
                mesh.stop("forwarding was not set up")
            raise
        self._meshes += made
        return found

    async def __cleanup__(self, exc: Exception | None) -> None:
        stopping = [mesh.stop("forwarding ends") for mesh in self._meshes]
        for one in stopping:
            with contextlib.suppress(Exception):  # its processes may have ended before
                await one


class ForwardListener(Actor):
    """Listens, and passes on what comes."""

    def __init__(self) -> None:
        self._server: asyncio.Server | None = None
        self._numbers = itertools.count()
        self._tasks: set[asyncio.Task[None]] = set()

    @endpoint
    async def listen(self, port: int, connector: Any, host: str, number: int, any_user: bool) -> int:
        """The port. `host` and `number`: what the connector connects to."""

        def say(count: int) -> None:
            refused = f"refused {counted(count, 'connection')} of other users' programs (any_user=True lets them in)"
            logger.warning("forwarding port %d to %s:%d: %s", port, host, number, refused)

        door = Doorkeeper(say)

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if not any_user and not door.lets_in(writer.get_extra_info("socket")):
                writer.transport.abort()
                return
            task = asyncio.current_task()
            assert task is not None
            self._tasks.add(task)
            try:
                await self._serve(reader, writer, connector, host, number)
            except Exception as error:
                logger.warning("forwarding port %d to %s:%d: %s", port, host, number, _reason(error))
            finally:
                self._tasks.discard(task)
                writer.transport.abort()  # nothing where it was closed in order

        self._server = await asyncio.start_server(serve, "127.0.0.1", port, limit=_PIECE)
        port = self._server.sockets[0].getsockname()[1]
        return int(port)

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connector: Any, host: str, number: int
    ) -> None:
        key = next(self._numbers)
        await connector.connect.call_one(key, host, number)

        async def up() -> None:
            while data := await reader.read(_PIECE):
                await connector.write.call_one(key, data)
            await connector.write.call_one(key, b"")

        async def down() -> None:
            while data := await connector.read.call_one(key):
                writer.write(data)
                await writer.drain()
            writer.write_eof()

        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(up())
                group.create_task(down())
            writer.close()
            await writer.wait_closed()
        except* (ConnectionError, BrokenPipeError):  # one end broke off: so does the other
            pass
        finally:
            connector.close.broadcast(key)

    async def __cleanup__(self, exc: Exception | None) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class Connector(Actor):
    """Connects, and passes on what comes: asked for by a Listener, so that nobody sends more than the other end takes."""

    def __init__(self) -> None:
        self._open: dict[int, tuple[asyncio.StreamReader, asyncio.StreamWriter]] = {}

    @concurrent_endpoint
    async def connect(self, key: int, host: str, port: int) -> None:
        """Opens connection `key`. OSError when nobody listens there."""
        self._open[key] = await asyncio.open_connection(host, port, limit=_PIECE)

    @concurrent_endpoint
    async def write(self, key: int, data: bytes) -> None:
        """Returns when the connection has room again. No bytes: no more will follow."""
        _, writer = self._open[key]
        if not data:
            if writer.can_write_eof():
                writer.write_eof()
            return
        writer.write(data)
        await writer.drain()

    @concurrent_endpoint
    async def read(self, key: int) -> bytes:
        """Returns what came, at least one byte; none at the end."""
        reader, _ = self._open[key]
        return await reader.read(_PIECE)

    @concurrent_endpoint
    async def close(self, key: int) -> None:
        """Ends connection `key`; what was written still goes out."""
        found = self._open.pop(key, None)
        if found is not None:
            found[1].close()

    async def __cleanup__(self, exc: Exception | None) -> None:
        for _, writer in self._open.values():
            writer.transport.abort()


def _one(actors: Any, point: Point) -> Any:
    return actors.slice(**dict(point)) if actors.extent.labels else actors


def _parse(address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal():
        raise ValueError(f'src_address is "host:port", as in "localhost:6006"; got {address!r}')
    return host.strip("[]"), int(port)


def _reason(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    inner = getattr(error, "exception", None)
    return str(inner or error).splitlines()[0] if str(inner or error) else type(error).__name__
