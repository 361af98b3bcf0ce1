"""Another user of this machine, for tests that run as root."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest

STRANGER = 65534  # nobody

T = TypeVar("T")

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user, which only root can")


def as_stranger(do: Callable[[], T], uid: int = STRANGER) -> T:
    """Returns what `do` returns in a forked child that is another user; AssertionError with the traceback of what it
    raised there."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            said = pickle.dumps((do(), None))
        except BaseException:
            said = pickle.dumps((None, traceback.format_exc()))
        finally:
            with os.fdopen(writing, "wb") as file:
                file.write(said)
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        returned, raised = pickle.loads(file.read())
    os.waitpid(child, 0)
    assert raised is None, raised
    return returned  # type: ignore[no-any-return]


_TALK = """
import os, socket, sys
os.setgroups([])
os.setresgid(*[int(sys.argv[2])] * 3)
os.setresuid(*[int(sys.argv[2])] * 3)
with socket.socket() as connection:
    connection.settimeout(60)
    connection.connect(("127.0.0.1", int(sys.argv[1])))
    try:
        connection.sendall(sys.stdin.buffer.read())
        connection.shutdown(socket.SHUT_WR)
    except OSError:  # it was refused already; what it was told is there to read
        pass
    try:
        while data := connection.recv(65536):
            sys.stdout.buffer.write(data)
    except OSError:
        pass
"""


_RELAY = """
import os, socket, sys, threading
os.setgroups([])
os.setresgid(*[int(sys.argv[2])] * 3)
os.setresuid(*[int(sys.argv[2])] * 3)
listening = socket.create_server(("127.0.0.1", 0))
print(listening.getsockname()[1], flush=True)

def pass_on(one, other):
    try:
        while data := one.recv(65536):
            other.sendall(data)
        other.shutdown(socket.SHUT_WR)
    except OSError:
        pass

while True:
    one, _ = listening.accept()
    other = socket.socket()
    other.connect(("127.0.0.1", int(sys.argv[1])))
    threading.Thread(target=pass_on, args=(one, other), daemon=True).start()
    threading.Thread(target=pass_on, args=(other, one), daemon=True).start()
"""


@contextmanager
def relay(port: int, uid: int = STRANGER) -> Iterator[int]:
    """A port of this machine at which another user passes everything on to and from `port`, whose host he can reach."""
    command = [sys.executable, "-I", "-S", "-c", _RELAY, str(port), str(uid)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        try:
            assert program.stdout is not None
            yield int(program.stdout.readline())
        finally:
            program.kill()


def stranger_says(port: int, data: bytes, uid: int = STRANGER) -> bytes:
    """Returns what a process of another user is answered that connects to a port of this machine and says `data`."""
    command = [sys.executable, "-I", "-S", "-c", _TALK, str(port), str(uid)]
    return subprocess.run(command, input=data, stdout=subprocess.PIPE, check=True, timeout=120).stdout
