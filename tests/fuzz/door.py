"""The socket of a program where `monarch status` and others of its user ask: messages with their length in front."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import struct
import threading

import msgspec

from monarch._mesh.inspection import admin_messages
from monarch._mesh.inspection.admin_messages import AskAll, Refused, Response, StreamRequest
from monarch.admin.programs import program_at
from tests.fuzz.http import spoilt
from tests.fuzz.targets import FuzzedProgram, Target

PATIENCE = 60.0
QUESTIONS = ("status", "tree", "stacks", "config", "", "nobody", "telemetry.flush", "\u202e", "a" * 3000)
STREAMS = ("debug", "dashboard", "", "nobody", "../debug")
ARGUMENTS = (
    b"",
    b"\x80",
    b"\xc1",
    b"\xdf\xff\xff\xff\xff",
    b"\x91" * 5000,
    b"\xff" * 100,
    b"\xa4root",
    b"\x00" * 100_000,
)


def target(program: FuzzedProgram) -> Target:
    """Returns the client of the program, at its door."""
    path = os.path.join(program.folder, admin_messages.NAME)
    found = program_at(program.folder)
    assert found is not None

    def serves() -> None:
        answers = found.ask("tree", timeout=PATIENCE)
        assert answers.replies and not answers.silent, answers

    return Target(program.pid, program.log, lambda rng: attack(rng, path), serves)


def attack(rng: random.Random, path: str) -> None:
    """Says something there in one of several ways, and checks what is answered."""
    said = b"".join(message(rng) for _ in range(rng.choice((1, 1, 2, 5))))
    way = rng.randrange(6)
    if way == 0:
        said = spoilt(rng, said)
    elif way == 1:
        said = struct.pack("!I", rng.choice((0, 1, 1 << 20, (1 << 20) + 1, (1 << 32) - 1))) + rng.randbytes(
            rng.randrange(200)
        )
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(connected(path)) for _ in range(rng.choice((1, 1, 1, 40)))]
        for connection in connections:
            with contextlib.suppress(ConnectionError):
                connection.sendall(said[: rng.randrange(len(said) + 1)] if way == 2 else said)
                if way == 3:
                    connection.shutdown(socket.SHUT_WR)
        check(connections[-1])


def connected(path: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(PATIENCE)
    try:
        connection.connect(path)
    except BlockingIOError:  # its queue is full
        threading.Event().wait(0.05)
        connection.close()
        return connected(path)
    return connection


def message(rng: random.Random) -> bytes:
    argument = rng.choice(ARGUMENTS)
    if rng.random() < 0.3:
        return admin_messages.packed(StreamRequest(rng.choice(STREAMS), argument))
    only = rng.choice((None, None, [], ["nobody"], ["x/y"] * 50))
    timeout = rng.choice((0.0, 0.01, 0.1, -1.0, float("nan")))
    asked = AskAll(rng.choice(QUESTIONS), argument, timeout, only, rng.random() < 0.3)
    body = admin_messages.packed(asked)
    return body if rng.random() < 0.8 else struct.pack("!I", rng.randrange(64)) + rng.randbytes(rng.randrange(64))


def check(connection: socket.socket) -> None:
    """Checks that what comes within a moment is an answer as the door gives them."""
    connection.settimeout(0.05)
    came = b""
    with contextlib.suppress(TimeoutError, ConnectionError):
        while data := connection.recv(1 << 16):
            came += data
    if len(came) < 4:
        return
    (length,) = struct.unpack_from("!I", came)
    assert length <= admin_messages.LARGEST_ANSWER, came[:200]
    if len(came) >= 4 + length:
        answer = msgspec.msgpack.decode(came[4 : 4 + length], type=Response)
        assert not isinstance(answer, Refused) or "Traceback" not in answer.why, answer
