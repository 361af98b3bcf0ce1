"""Listening sockets of a process that is out of descriptors. The loop is the test's."""

from __future__ import annotations

import errno
import logging
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from monarch._runtime import log_thread
from monarch._wire.transport import unix
from monarch._wire.transport.accepting import Accepting


class Timer:
    def __init__(self, when: float, fn: Callable[[], Any]) -> None:
        self.when, self.fn, self.cancelled = when, fn, False

    def cancel(self) -> None:
        self.cancelled = True


class Loop:
    def __init__(self) -> None:
        self.time = 0.0
        self.handlers: dict[int, Callable[[int], Any]] = {}
        self.timers: list[Timer] = []

    def now(self) -> float:
        return self.time

    def in_loop(self) -> bool:
        return True

    def call_soon(self, fn: Callable[[], Any]) -> None:
        fn()

    def call_later(self, delay: float, fn: Callable[[], Any]) -> Timer:
        self.timers.append(timer := Timer(self.time + delay, fn))
        return timer

    def add(self, fd: int, on_event: Callable[[int], Any]) -> None:
        assert fd not in self.handlers
        self.handlers[fd] = on_event

    def want_write(self, fd: int, on: bool, read: bool = True) -> None: ...

    def remove(self, fd: int) -> None:
        self.handlers.pop(fd, None)

    def run(self) -> None:
        """Tells what the kernel would tell of now."""
        for handler in list(self.handlers.values()):
            handler(1)

    def advance(self, seconds: float) -> None:
        self.time += seconds
        due, self.timers = (
            [t for t in self.timers if t.when <= self.time],
            [t for t in self.timers if t.when > self.time],
        )
        for timer in due:
            if not timer.cancelled:
                timer.fn()


class Listening:
    """Gives what it is told to."""

    def __init__(self, *found: int | socket.socket) -> None:
        self.found = list(found)
        self.asked = 0
        self.open = True

    def fileno(self) -> int:
        return 7 if self.open else -1

    def getsockname(self) -> str:
        return "/run/agent"

    def accept(self) -> tuple[Any, Any]:
        self.asked += 1
        found = self.found.pop(0) if self.found else errno.EAGAIN
        if isinstance(found, int):
            raise OSError(found, "as the test wants it")
        return found, ""

    def close(self) -> None:
        self.open = False


def make(listening: Listening, accepted: Callable[[Any, Any], None]) -> tuple[Loop, Accepting, list[float]]:
    loop, paused = Loop(), list[float]()
    return loop, Accepting(listening, loop, accepted, lambda: paused.append(loop.time)), paused  # type: ignore[arg-type]


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EINVAL])
def test_out_of_descriptors_it_pauses_and_says_so_once(error: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    left, right = socket.socketpair()
    listening, come = Listening(*[error] * 5, left), list[Any]()
    loop, accepting, paused = make(listening, lambda sock, _where: come.append(sock))
    for _ in range(5):
        loop.run()
        for _ in range(100):
            loop.run()  # the kernel would tell of it again and again
        accepting.look()
        assert "paused" in repr(accepting) and loop.handlers == {}
        loop.advance(0.5)
    assert (listening.asked, len(paused), come) == (5, 5, [])
    loop.run()
    assert come == [left]
    assert log_thread.flush(5)
    assert len(caplog.messages) == 1 and "connections have to wait at '/run/agent'" in caplog.messages[0]
    accepting.close()
    assert not listening.open and loop.handlers == {}
    left.close()
    right.close()


def test_a_connection_that_is_gone_does_not_keep_the_next_waiting() -> None:
    left, right = socket.socketpair()
    come: list[Any] = []
    loop, accepting, paused = make(Listening(errno.ECONNABORTED, errno.EPROTO, left), lambda s, _: come.append(s))
    loop.run()
    assert come == [left] and paused == []
    accepting.close()
    left.close()
    right.close()


def test_what_the_owner_cannot_take_is_closed() -> None:
    left, right = socket.socketpair()

    def take(sock: Any, where: Any) -> None:
        raise OSError(errno.EIO, "something else")

    loop, accepting, paused = make(Listening(left), take)
    loop.run()
    assert left.fileno() == -1 and paused == [0.0]
    accepting.close()
    loop.advance(1.0)
    assert loop.handlers == {}
    right.close()


def test_processes_of_one_host_pause_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop()
    come: list[socket.socket] = []
    listener = unix.Listener(unix.listen(f"{tmp_path}/agent"), loop, come.append)
    real = listener._accepting._sock
    full = Listening(errno.EMFILE)
    monkeypatch.setattr(full, "fileno", real.fileno)
    listener._accepting._sock = full  # type: ignore[assignment]
    with unix.dial(f"{tmp_path}/agent"):
        loop.run()
        loop.run()
        assert (full.asked, loop.handlers, come) == (1, {}, [])
        listener._accepting._sock = real
        loop.advance(0.5)
        loop.run()
        assert len(come) == 1
    come[0].close()
    listener.close()


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.ENOMEM])
def test_a_connection_for_which_there_is_no_room_is_kept_until_there_is(error: int) -> None:
    left, right = socket.socketpair()
    room = [False, False, True]
    come: list[Any] = []

    def accepted(sock: Any, _where: Any) -> None:
        if not room.pop(0):
            raise OSError(error, "no room for another descriptor")
        come.append(sock)

    loop, accepting, _ = make(Listening(left), accepted)
    loop.run()
    for _ in range(3):
        loop.advance(0.5)
    assert come == [left] and left.fileno() >= 0
    accepting.close()
    left.close()
    right.close()


def test_a_connection_that_is_kept_is_closed_with_the_listener() -> None:
    left, right = socket.socketpair()

    def accepted(_sock: Any, _where: Any) -> None:
        raise OSError(errno.ENOSPC, "no room for another descriptor")

    loop, accepting, _ = make(Listening(left), accepted)
    loop.run()
    accepting.close()
    assert left.fileno() == -1 and right.recv(1) == b""
    right.close()


def test_no_room_to_listen_again_is_another_pause() -> None:
    listening = Listening(errno.EMFILE)
    loop, accepting, _ = make(listening, lambda sock, where: None)
    loop.run()
    add, loop.add = loop.add, lambda fd, fn: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full"))  # type: ignore[method-assign]
    loop.advance(0.5)
    loop.add = add  # type: ignore[method-assign]
    loop.advance(0.5)
    assert loop.handlers
    accepting.close()
