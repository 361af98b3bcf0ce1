"""The floors of latency: raw sockets ("socket"), and the least with an I/O thread on each side ("floor", as in `floor.py`,
but for several callers and actors). Neither knows what an endpoint's style is.
"""

from __future__ import annotations

import asyncio
import functools
import os
import pickle
import queue
import selectors
import socket
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NoReturn

from _callers import AsyncCalls, Calls
from _latency import actors_in_a_process, latency
from _workload import Computing, Params, Samples, Usage, main, usage
from floor import HEAD, Echo, Frames, fork_server, frame

ASKS_FOR_USAGE = b"?"
MOST_CALLERS = 32


COMPUTING = Computing()


class Timed(Echo):
    """What `monarch_latency_actors` has."""

    def usage(self) -> Usage:
        return usage()

    def compute(self) -> None:
        COMPUTING.run()

    def finish(self) -> None:
        COMPUTING.stop()


class Message:
    """A frame whose body says in a byte each to which actor it goes and whose call it belongs to; then a pickle."""

    @staticmethod
    def encode(actor: int, caller: int, content: object) -> bytes:
        body = pickle.dumps(content, 5)
        return HEAD.pack(len(body) + 2) + bytes((actor, caller)) + body

    @staticmethod
    def decode(body: bytes) -> Any:
        return pickle.loads(memoryview(body)[2:])


def serve(sock: socket.socket, count: int) -> NoReturn:
    """The process with the actors: this thread does the I/O, each actor has one of its own."""
    sending = threading.Lock()

    def actor(number: int, work: queue.SimpleQueue[bytes]) -> None:
        target = Timed()
        while True:
            body = work.get()
            method, args, kwargs = Message.decode(body)
            answer = Message.encode(number, body[1], getattr(target, method)(*args, **kwargs))
            with sending:
                sock.sendall(answer)

    mailboxes: list[queue.SimpleQueue[bytes]] = [queue.SimpleQueue() for _ in range(count)]
    for number, mailbox in enumerate(mailboxes):
        threading.Thread(target=actor, args=(number, mailbox), daemon=True).start()
    frames = Frames()
    while data := sock.recv(65536):
        for body in frames.feed(data):
            mailboxes[body[0]].put(body)
    os._exit(0)


class ThreadCaller:
    """A thread that waits for one answer at a time."""

    def __init__(self, client: Threaded, actor: int, number: int) -> None:
        self.client, self.actor, self.number = client, actor, number
        self.done = threading.Lock()
        self.done.acquire()
        self.answer = b""

    def arrived(self, body: bytes) -> None:
        self.answer = body
        self.done.release()

    def send(self, method: str, *args: Any) -> None:
        self.client.send(Message.encode(self.actor, self.number, (method, args, {})))

    def take(self) -> Any:
        self.done.acquire()
        return Message.decode(self.answer)

    def call(self, method: str, *args: Any) -> Any:
        self.send(method, *args)
        return self.take()


class TaskCaller:
    """A task that waits for one answer at a time, which the I/O thread hands to its loop."""

    def __init__(self, client: Threaded, actor: int, number: int) -> None:
        self.client, self.actor, self.number = client, actor, number
        self.loop = asyncio.get_running_loop()
        self.answer: asyncio.Future[bytes] = self.loop.create_future()

    def arrived(self, body: bytes) -> None:
        self.loop.call_soon_threadsafe(self.answer.set_result, body)

    async def call(self, method: str, *args: Any) -> Any:
        self.answer = self.loop.create_future()
        self.client.send(Message.encode(self.actor, self.number, (method, args, {})))
        return Message.decode(await self.answer)


class Threaded:
    """A client with an I/O thread, and a process with actors. The fork comes before any thread."""

    def __init__(self, actors: int) -> None:
        self.sock = fork_server(lambda sock: serve(sock, actors))
        self.sending = threading.Lock()
        self.waiting: dict[int, ThreadCaller | TaskCaller] = {}
        self.own = self._add(ThreadCaller(self, 0, MOST_CALLERS))
        threading.Thread(target=self._read, daemon=True).start()

    def _add(self, caller: Any) -> Any:
        self.waiting[caller.number] = caller
        return caller

    def _read(self) -> None:
        frames = Frames()
        while data := self.sock.recv(65536):
            for body in frames.feed(data):
                self.waiting[body[1]].arrived(body)

    def send(self, data: bytes) -> None:
        with self.sending:
            self.sock.sendall(data)

    def callers(self, actors: Sequence[int]) -> Calls:
        made = [self._add(ThreadCaller(self, actor, number)) for number, actor in enumerate(actors)]
        return [lambda caller=caller: caller.call("echo", 1) for caller in made]

    def tasks(self, actors: Sequence[int]) -> AsyncCalls:
        made = [self._add(TaskCaller(self, actor, number)) for number, actor in enumerate(actors)]
        return [lambda caller=caller: caller.call("echo", 1) for caller in made]

    def compute(self, actor: int) -> Callable[[], object]:
        caller = self._add(ThreadCaller(self, actor, MOST_CALLERS + 1))
        caller.call("echo", 1)
        caller.send("compute")

        def stop() -> None:
            self.own.call("finish")
            caller.take()

        return stop

    def usage(self) -> Usage:
        return self.own.call("usage")


class Raw:
    """A process that sends back what it gets, one thread for all its sockets, and one socket for each caller."""

    def __init__(self, callers: Sequence[int]) -> None:
        self.socks = {count: self._fork(count) for count in callers}
        self.asked = self.socks[callers[0]][0]
        self.data = frame(("echo", (1,), {}, True))

    @staticmethod
    def _fork(count: int) -> list[socket.socket]:
        pairs = [socket.socketpair() for _ in range(count)]
        if os.fork() == 0:
            try:
                bounce([theirs for _, theirs in pairs], [ours for ours, _ in pairs])
            finally:
                os._exit(1)
        for _, theirs in pairs:
            theirs.close()
        return [ours for ours, _ in pairs]

    def callers(self, actors: Sequence[int]) -> Calls:
        socks = self.socks[len(actors)]
        self.asked = socks[0]
        return [lambda sock=sock: self._bounced(sock) for sock in socks]

    def _bounced(self, sock: socket.socket) -> None:
        sock.sendall(self.data)
        sock.recv(65536)

    def tasks(self, actors: Sequence[int]) -> AsyncCalls:
        socks = self.socks[len(actors)]
        self.asked = socks[0]
        return [self._task(sock) for sock in socks]

    def _task(self, sock: socket.socket) -> Callable[[], Awaitable[object]]:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[bytes] = loop.create_future()

        def readable() -> None:
            answer.set_result(sock.recv(65536))

        async def call() -> bytes:
            nonlocal answer
            answer = loop.create_future()
            sock.sendall(self.data)
            return await answer

        loop.add_reader(sock, readable)
        return call

    def usage(self) -> Usage:
        self.asked.sendall(ASKS_FOR_USAGE)
        return pickle.loads(self.asked.recv(65536))


def bounce(socks: list[socket.socket], others: list[socket.socket]) -> NoReturn:
    """Ends when the client is gone."""
    for other in others:
        other.close()

    def once(sock: socket.socket) -> None:
        received = sock.recv(65536)
        if not received:
            os._exit(0)
        sock.sendall(received if received != ASKS_FOR_USAGE else pickle.dumps(usage()))

    if len(socks) == 1:
        while True:
            once(socks[0])
    with selectors.DefaultSelector() as selector:
        for sock in socks:
            selector.register(sock, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                once(key.fileobj)


def once_made(make: Callable[[int], Any]) -> Callable[[str, int], Any]:
    """Both styles get the same one: neither floor knows of them."""
    made = functools.cache(make)
    return lambda _style, count: made(count)


def run(params: Params) -> Samples:
    raw = params["contender"] == "socket"
    return latency(once_made(lambda count: Raw(params["callers"]) if raw else Threaded(count)))(params)


if __name__ == "__main__":
    main({"latency": run, "actors_in_a_process": actors_in_a_process(once_made(Threaded))})
