"""The least that does each job: standard library only, no runtime.

`Pair` is the floor that the aims compare with: what an actor call cannot do without when both sides have an
I/O thread. Client: the calling thread pickles and writes to the socket; the I/O thread reads the reply and
wakes it by a lock; the calling thread unpickles. Server: the I/O thread reads and hands the frame over by a
queue to the actor's thread, which unpickles, runs the method, pickles the result and writes it to the
socket.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import pickle
import queue
import random
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

from _workload import Params, Samples, main, payload, private_bytes, rates, seconds, times

HEAD = struct.Struct("<I")


class Echo:
    """The object on the other side."""

    def __init__(self) -> None:
        self.hits = 0

    def echo(self, value: Any) -> Any:
        return value

    def hit(self) -> None:
        self.hits += 1

    def count(self) -> int:
        return self.hits


class Frames:
    """Bytes read so far, and the whole frames in them."""

    def __init__(self) -> None:
        self.buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The frames that `data` completes."""
        self.buffer += data
        frames, at = [], 0
        while len(self.buffer) - at >= HEAD.size:
            end = at + HEAD.size + HEAD.unpack_from(self.buffer, at)[0]
            if end > len(self.buffer):
                break
            frames.append(bytes(self.buffer[at + HEAD.size : end]))
            at = end
        del self.buffer[:at]
        return frames


def frame(message: object) -> bytes:
    """A pickled message with its length in front."""
    body = pickle.dumps(message, 5)
    return HEAD.pack(len(body)) + body


def serve(sock: socket.socket) -> NoReturn:
    """The server process: this thread does the I/O, another one works. Ends when the client is gone."""
    work: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def actor() -> None:
        target = Echo()
        while True:
            method, args, kwargs, wants_reply = pickle.loads(work.get())
            result = getattr(target, method)(*args, **kwargs)
            if wants_reply:
                sock.sendall(frame(result))

    threading.Thread(target=actor, daemon=True).start()
    frames = Frames()
    while data := sock.recv(65536):
        for body in frames.feed(data):
            work.put(body)
    os._exit(0)


def fork_server(target: Callable[[socket.socket], NoReturn]) -> socket.socket:
    """A forked process running `target` on one end of a socket pair; the other end is returned."""
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        ours.close()
        try:
            target(theirs)
        finally:
            os._exit(1)
    theirs.close()
    return ours


class Pair:
    """A client with one I/O thread and `procs` servers. Fork happens before the thread starts."""

    def __init__(self, procs: int) -> None:
        self.socks = [fork_server(serve) for _ in range(procs)]
        self.done = threading.Lock()
        self.done.acquire()
        self.expected = 0
        self.replies: list[bytes] = []
        reader = self._read_one if procs == 1 else self._read_many
        threading.Thread(target=reader, daemon=True).start()

    def _read_one(self) -> None:
        sock, frames = self.socks[0], Frames()
        while data := sock.recv(65536):
            self._arrived(frames.feed(data))

    def _read_many(self) -> None:
        with selectors.DefaultSelector() as selector:
            for sock in self.socks:
                selector.register(sock, selectors.EVENT_READ, (sock, Frames()))
            while True:
                for key, _ in selector.select():
                    sock, frames = key.data
                    data = sock.recv(65536)
                    if not data:
                        return
                    self._arrived(frames.feed(data))

    def _arrived(self, bodies: list[bytes]) -> None:
        self.replies += bodies
        if len(self.replies) == self.expected:
            self.done.release()

    def expect(self, replies: int) -> None:
        """To be said before sending what asks for the replies."""
        self.replies = []
        self.expected = replies

    def cast(self, method: str, args: tuple[Any, ...] = (), wants_reply: bool = True) -> None:
        """Pickles once, writes to every server."""
        data = frame((method, args, {}, wants_reply))
        for sock in self.socks:
            sock.sendall(data)

    def take(self) -> list[Any]:
        """Waits for the expected replies and unpickles them."""
        self.done.acquire()
        return [pickle.loads(body) for body in self.replies]

    def call(self, method: str, *args: Any) -> list[Any]:
        """One round trip with every server."""
        self.expect(len(self.socks))
        self.cast(method, args)
        return self.take()

    def close(self) -> None:
        """Lets the servers end."""
        for sock in self.socks:
            sock.shutdown(socket.SHUT_RDWR)
            sock.close()


def call(params: Params) -> Samples:
    """Round trips; as contender "socket" with neither pickle nor threads."""
    if params["contender"] == "socket":
        return {"round_trip": times(raw_round_trip(frame(("echo", (1,), {}, True)), params["procs"]), params)}
    pair = Pair(params["procs"])
    return {"round_trip": times(lambda: pair.call("echo", 1), params)}


def mesh(params: Params) -> Samples:
    """The calls of a large mesh, whose processes are forked here and have imported nothing."""
    return {"call": call(params)["round_trip"]}


def raw_round_trip(data: bytes, procs: int) -> Callable[[], object]:
    """An operation of one thread that sends `data` to so many processes, each by a socket of its own, and gets it back."""

    def bounce(sock: socket.socket) -> NoReturn:
        while received := sock.recv(65536):
            sock.sendall(received)
        os._exit(0)

    socks = [fork_server(bounce) for _ in range(procs)]

    def run() -> None:
        for sock in socks:
            sock.sendall(data)
        for sock in socks:
            missing = len(data)
            while missing:
                missing -= len(sock.recv(65536))

    return run


def pipelining(params: Params) -> Samples:
    """Batches of calls to one server: all sent, then all results taken."""
    pair, batch = Pair(1), params["batch"]

    def run() -> None:
        pair.expect(batch)
        for _ in range(batch):
            pair.cast("echo", (1,))
        pair.take()

    return {"calls": rates(run, batch, params)}


def square(value: int) -> int:
    return value * value


def map_items(params: Params) -> Samples:
    """Squares of so many numbers by a Pool of processes, in chunks of each size in turn."""
    items = list(range(params["items"]))
    squares = [item * item for item in items]
    with multiprocessing.get_context("fork").Pool(params["procs"]) as pool:

        def run(size: int) -> None:
            if pool.map(square, items, chunksize=size) != squares:
                raise RuntimeError("Error: other results")

        return {str(size): times(functools.partial(run, size), params) for size in params["sizes"]}


def broadcast(params: Params) -> Samples:
    """Batches of messages to all servers without a reply, then one round trip."""
    pair, batch = Pair(params["procs"]), params["batch"]

    def run() -> None:
        for _ in range(batch):
            pair.cast("hit", (), wants_reply=False)
        pair.call("count")

    return {"broadcasts": rates(run, batch, params)}


def spawn(params: Params) -> Samples:
    """Warm: fork this process so many times, and one call. Cold: the same after a fresh interpreter has
    started and imported what the processes need (what a fork server cannot avoid).
    """
    statement = "pass"
    if params.get("torch"):
        statement = "import _torch"
        import _torch  # noqa: F401

    def run() -> None:
        pair = Pair(params["procs"])
        pair.call("echo", 1)
        pair.close()

    def run_cold() -> None:
        subprocess.run([sys.executable, "-c", statement], check=True)
        run()

    cold = seconds(run_cold)
    return {"cold": [cold], "warm": [seconds(run) for _ in range(params["warm"])]}


def memory(params: Params) -> Samples:
    """A bare interpreter that has imported what the workload needs."""
    statement = "import _torch" if params.get("torch") else "pass"
    code = f"{statement}; print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdout.readline()
        private = private_bytes(child.pid)
        child.stdin.close()
    return {"private": [private]}


def echo(params: Params) -> Samples:
    """memcpy between two buffers that have been touched."""
    size = params["size"]
    source, target = memoryview(payload("bytes", size)), memoryview(bytearray(payload("bytes", size)))

    def run() -> None:
        target[:] = source

    return {"one_way": rates(run, size, params)}


def spread(params: Params) -> Samples:
    """One memcpy, whatever the number of receivers."""
    return {"arrived": echo(params)["one_way"]}


def death(params: Params) -> Samples:
    """A parent waits for any of its children by `waitpid`; one of them is killed, and a new one forked."""
    children: list[int] = []

    def fork() -> None:
        pid = os.fork()
        if pid == 0:
            signal.pause()
            os._exit(1)
        children.append(pid)

    for _ in range(params["procs"]):
        fork()

    def run() -> float:
        pid = random.choice(children)
        start = time.perf_counter()
        os.kill(pid, signal.SIGKILL)
        os.waitpid(-1, 0)
        took = time.perf_counter() - start
        children.remove(pid)
        fork()
        return took

    taken = [run() for _ in range(params["warmup"] + params["count"])]
    for pid in children:
        os.kill(pid, signal.SIGKILL)
    return {"noticed": taken[params["warmup"] :]}


def restart(params: Params) -> Samples:
    """A child is killed and waited for, another is forked and answers through a pipe (with torch, which the parent has
    imported)."""
    if params.get("torch"):
        import torch  # noqa: F401

    def fork() -> int:
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.write(write, b"x")
            signal.pause()
            os._exit(1)
        os.close(write)
        os.read(read, 1)
        os.close(read)
        return pid

    children = [fork() for _ in range(params["procs"])]

    def run() -> float:
        index = random.randrange(len(children))
        start = time.perf_counter()
        os.kill(children[index], signal.SIGKILL)
        os.waitpid(children[index], 0)
        children[index] = fork()
        return time.perf_counter() - start

    taken = [run() for _ in range(params["warmup"] + params["count"])]
    for pid in children:
        os.kill(pid, signal.SIGKILL)
    return {"answered": taken[params["warmup"] :]}


if __name__ == "__main__":
    main(
        {
            f.__name__: f
            for f in (call, mesh, pipelining, map_items, broadcast, spawn, memory, echo, spread, death, restart)
        }
    )
