"""PortForwarder: TCP ports of one machine that are reached at another, through the job's own connections."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import socket
import struct
from collections.abc import Callable
from typing import Any

from monarch._linux.loopback_peer import Doorkeeper
from monarch._text import bracketed, counted
from monarch.actor import Actor, Point, ProcMesh, concurrent_endpoint, current_rank, endpoint

_PIECE = 128 * 1024  # at most, of each direction of a connection, that is on its way; then the sender's TCP waits
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing tells the other end that the connection broke off

logger = logging.getLogger("monarch")

Dst = int | Callable[[Point], int]
Src = str | Callable[[Point], str]


class PortForwarder(Actor):
    """Makes TCP services in one mesh of processes reachable at addresses of another. For a service of the job, at a port of
    this machine:

        forwarder = this_proc().spawn("forwarder", PortForwarder)
        await forwarder.forward.call_one(procs.slice(hosts=0, gpus=0), 6006, this_proc(), "localhost:8080")
        # http://localhost:8080 here is now http://localhost:6006 there

    Nothing else has to be open between the machines: bytes travel as the actors' messages do, with the job's secret or TLS.
    Who may connect: programs of the listening process's user on its machine, and of root, by the kernel's word. Others are
    refused before a byte of theirs is carried, for who is let in stands inside the job.

    A connection behaves as if there were none between: an end that sends no more may still receive, one that does not read
    holds up the other, one that breaks off breaks off the other. Stopping the actor ends everything it forwards.
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
    ) -> list[str]:
        """Lets each process of `src_proc_mesh` listen at `src_address` ("address:port"), and who connects there is connected
        to 127.0.0.1:`dst_port` as seen by the process of `dst_proc_mesh` with the same rank. Both may be functions of the
        rank's Point; listening at port 0 is at any free one. Returns the addresses, by rank. May be called several times.

        Connections of other users of that machine, and of other machines, are refused, and counted in the log, once a minute
        at most. With `any_user` everybody who reaches the address is let in: do that only where the service asks who comes.

        ValueError for meshes of different shapes, and for what is no port or address; OSError for an address where one
        cannot listen, as of a port that is taken. Then no rank listens. A service that cannot be reached is found out by
        who connects: the connection breaks off, and the reason is logged there.
        """
        if dst_proc_mesh.extent != src_proc_mesh.extent:
            raise ValueError(
                f"dst_proc_mesh {dict(dst_proc_mesh.extent)} and src_proc_mesh {dict(src_proc_mesh.extent)} must have the "
                "same shape: each process forwards to the one of its rank"
            )
        points = [Point(rank, dst_proc_mesh.extent) for rank in range(len(dst_proc_mesh))]
        ports = [_port(dst_port(point) if callable(dst_port) else dst_port) for point in points]
        addresses = [_parse(src_address(point) if callable(src_address) else src_address) for point in points]
        made: list[Any] = []
        try:
            connectors: Any = dst_proc_mesh.spawn("forward-to", Connector)
            made.append(connectors)
            listeners: Any = src_proc_mesh.spawn("forward-from", ForwardListener)
            made.append(listeners)
            found = await listeners.listen.call(addresses, connectors, ports, any_user)
        except BaseException:
            await _stop(made, "forwarding was not set up")
            raise
        self._meshes += made
        return list(found.values())

    async def __cleanup__(self, exc: Exception | None) -> None:
        await _stop(self._meshes, "forwarding ends")


class ForwardListener(Actor):
    """Listens, and passes on what comes."""

    def __init__(self) -> None:
        self._server: asyncio.Server | None = None
        self._numbers = itertools.count()
        self._tasks: set[asyncio.Task[None]] = set()

    @endpoint
    async def listen(self, addresses: list[tuple[str, int]], connectors: Any, ports: list[int], any_user: bool) -> str:
        """The address; each rank takes what is its own. `ports`: what the connectors connect to."""
        point = current_rank()
        connector = connectors.slice(**dict(point)) if connectors.extent.labels else connectors
        port = ports[point.rank]
        (host, number), address = addresses[point.rank], ""

        def say(why: str) -> None:
            logger.warning("forwarding %s to port %d of rank %d: %s", address, port, point.rank, why)

        def say_refused(count: int) -> None:
            say(f"refused {counted(count, 'connection')} of other users or machines (any_user=True lets them in)")

        door = Doorkeeper(say_refused)

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if not any_user and not door.lets_in(writer.get_extra_info("socket")):
                writer.transport.abort()
                return
            task = asyncio.current_task()
            assert task is not None
            self._tasks.add(task)
            try:
                await self._carry(_Stream(reader, writer), connector, port)
            except Exception as error:
                say(_reason(error))
            finally:
                self._tasks.discard(task)

        if not number:  # a name may have several addresses, and each would get a port of its own
            found = await asyncio.get_running_loop().getaddrinfo(host, number, type=socket.SOCK_STREAM)
            host = str(found[0][4][0])
        self._server = await asyncio.start_server(serve, host, number, limit=_PIECE, start_serving=False)
        await self._server.start_serving()  # from here on it is there to be closed, also when this is cancelled
        host, number = self._server.sockets[0].getsockname()[:2]
        address = f"{bracketed(host)}:{number}"  # which `say` says from now on
        return address

    async def _carry(self, here: _Stream, connector: Any, port: int) -> None:
        """Both directions, until both have ended in order or one end has broken off."""
        key, whole = next(self._numbers), False

        async def up() -> None:
            data: bytes | None = b"?"
            while data:
                data = await here.read()
                if data is None or not await connector.write.call_one(key, data):
                    raise _BrokeOff

        async def down() -> None:
            data: bytes | None = b"?"
            while data:
                data = await connector.read.call_one(key)
                if data is None or not await here.write(data):
                    raise _BrokeOff

        try:
            await connector.connect.call_one(key, port)
            async with asyncio.TaskGroup() as group:
                group.create_task(up())
                group.create_task(down())
            whole = True
        except* _BrokeOff:
            pass
        finally:
            here.close(whole)
            connector.close.broadcast(key, whole)

    async def __cleanup__(self, exc: Exception | None) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class Connector(Actor):
    """Connects, and passes on what comes: asked for by a ForwardListener, so that nobody sends more than the other end
    takes. That an end has broken off is an answer, and no error."""

    def __init__(self) -> None:
        self._open: dict[int, _Stream] = {}

    @concurrent_endpoint
    async def connect(self, key: int, port: int) -> None:
        """Opens connection `key`. OSError when nobody listens there."""
        self._open[key] = _Stream(*await asyncio.open_connection("127.0.0.1", port, limit=_PIECE))

    @concurrent_endpoint
    async def write(self, key: int, data: bytes) -> bool:
        """Returns when the connection has room again: False when it has broken off. No bytes: no more will follow."""
        stream = self._open.get(key)
        return stream is not None and await stream.write(data)

    @concurrent_endpoint
    async def read(self, key: int) -> bytes | None:
        """Returns what came, at least one byte; none at the end, None when it has broken off."""
        stream = self._open.get(key)
        return await stream.read() if stream is not None else None

    @concurrent_endpoint
    async def close(self, key: int, whole: bool) -> None:
        """Ends connection `key`: in order when `whole`, and what was written still goes out."""
        stream = self._open.pop(key, None)
        if stream is not None:
            stream.close(whole)

    async def __cleanup__(self, exc: Exception | None) -> None:
        for stream in self._open.values():
            stream.close(whole=False)


class _BrokeOff(Exception):
    """The end of a connection without order."""


class _Stream:
    """One end of a connection. That it has broken off is an answer."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def read(self) -> bytes | None:
        """Returns what came, none at the end; None when it has broken off."""
        try:
            return await self._reader.read(_PIECE)
        except OSError:
            return None

    async def write(self, data: bytes) -> bool:
        """Returns when there is room again: False when it has broken off. No bytes: no more will follow."""
        try:
            if data:
                self._writer.write(data)
                await self._writer.drain()
            else:
                self._writer.write_eof()
        except OSError:
            return False
        return True

    def close(self, whole: bool) -> None:
        """Ends it: in order when `whole`, behind what was written; else at once, and the other side is told so."""
        if whole:
            self._writer.close()
            return
        with contextlib.suppress(OSError):  # it was closed from there
            self._writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._writer.transport.abort()


async def _stop(meshes: list[Any], why: str) -> None:
    stopping = [mesh.stop(why) for mesh in meshes]
    for one in stopping:
        with contextlib.suppress(Exception):  # its processes may have ended before
            await one


def _port(port: object) -> int:
    if not isinstance(port, int) or isinstance(port, bool) or not 0 < port < 65536:
        raise ValueError(f"dst_port is the port of the service, from 1 to 65535; got {port!r}")
    return port


def _parse(address: object) -> tuple[str, int]:
    host, _, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
    if not host or not (port.isascii() and port.isdecimal()) or int(port) > 65535:
        raise ValueError(f'src_address is "address:port", as in "localhost:6006"; got {address!r}')
    return host.strip("[]"), int(port)


def _reason(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    inner = getattr(error, "exception", None)
    return str(inner or error).splitlines()[0] if str(inner or error) else type(error).__name__
