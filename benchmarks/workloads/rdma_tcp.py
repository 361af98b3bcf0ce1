"""read_into and write_from between processes of two hosts, which workers on this machine stand for; and the floor, as many
raw sockets over loopback between two processes, each end with a thread of its own.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from _workload import Params, Samples, main, rates, times
from two_hosts import other_host

from monarch.actor import Actor, endpoint, shutdown_context
from monarch.config import configure
from monarch.rdma import RDMABuffer


class Owner(Actor):
    """Registers memory and sleeps."""

    @endpoint
    def make(self, size: int) -> RDMABuffer:
        self.data = bytearray(b"\x01" * size)
        return RDMABuffer(self.data)


class Reader(Actor):
    """Times transfers in its own process."""

    @endpoint
    def measure(self, buffer: RDMABuffer, params: Params, per_second: bool) -> Samples:
        from monarch.rdma import paths

        warnings.simplefilter("ignore")
        configure(rdma_tcp_fallback_parallelism=params["sockets"])
        paths.allow("tcp", "actor")  # they are on one machine in truth
        if buffer.path != "tcp":
            raise RuntimeError(f"Error: the bytes would go by {buffer.path}")
        local = bytearray(buffer.size())
        return measured(
            lambda: buffer.read_into(local).get(), lambda: buffer.write_from(local).get(), params, per_second
        )


def measured(read: Callable[[], object], write: Callable[[], object], params: Params, per_second: bool) -> Samples:
    if per_second:
        return {"read": rates(read, params["size"], params), "write": rates(write, params["size"], params)}
    return {"read": times(read, params), "write": times(write, params)}


def ours(params: Params, per_second: bool) -> Samples:
    with other_host() as one, other_host() as other:
        owner = one.spawn_procs().spawn("owner", Owner)
        reader = other.spawn_procs().spawn("reader", Reader)
        buffer = owner.make.call_one(params["size"]).get()
        found: Samples = reader.measure.call_one(buffer, params, per_second).get()
    return found


# --- the floor


def serve(sock: socket.socket, part: memoryview) -> None:
    """`r`: sends the part; `w`: takes it and says so."""
    while order := sock.recv(1):
        if order == b"r":
            sock.sendall(part)
        else:
            fill(sock, part)
            sock.sendall(b"x")


def fill(sock: socket.socket, into: memoryview) -> None:
    while into:
        into = into[sock.recv_into(into) :]


def read(sock: socket.socket, part: memoryview) -> None:
    sock.sendall(b"r")
    fill(sock, part)


def write(sock: socket.socket, part: memoryview) -> None:
    sock.sendall(b"w")
    sock.sendall(part)
    sock.recv(1)


def parts(size: int, count: int) -> list[memoryview]:
    view = memoryview(bytearray(b"\x01" * size))
    return [view[index * size // count : (index + 1) * size // count] for index in range(count)]


def in_threads(run: Callable[..., None], arguments: list[tuple[Any, ...]]) -> None:
    """The last in this thread, the others beside it."""
    threads = [threading.Thread(target=run, args=args) for args in arguments[:-1]]
    for thread in threads:
        thread.start()
    run(*arguments[-1])
    for thread in threads:
        thread.join()


@contextlib.contextmanager
def raw(size: int, count: int) -> Iterator[list[tuple[socket.socket, memoryview]]]:
    """Sockets to a child that serves them, and the part of our memory that each is for."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        pid = os.fork()
        if pid == 0:
            in_threads(serve, [(listening.accept()[0], part) for part in parts(size, count)])
            os._exit(0)
        socks = [socket.create_connection(listening.getsockname()) for _ in range(count)]
    for sock in socks:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        yield list(zip(socks, parts(size, count), strict=True))
    finally:
        for sock in socks:
            sock.close()
        os.waitpid(pid, 0)


def floor(params: Params, per_second: bool) -> Samples:
    with raw(params["size"], params["sockets"]) as pairs:
        return measured(lambda: in_threads(read, pairs), lambda: in_threads(write, pairs), params, per_second)


def _run(params: Params, per_second: bool) -> Samples:
    if params["contender"] == "floor":
        return floor(params, per_second)
    try:
        return ours(params, per_second)
    finally:
        shutdown_context().get()


def transfer(params: Params) -> Samples:
    """Durations of single transfers."""
    return _run(params, False)


def throughput(params: Params) -> Samples:
    """Bytes a second of single transfers."""
    return _run(params, True)


if __name__ == "__main__":
    main({f.__name__: f for f in (transfer, throughput)})
