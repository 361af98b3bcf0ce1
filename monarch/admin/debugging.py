"""The debugger of a program that runs, as other programs of this user reach it: through the program's admin socket."""

from __future__ import annotations

import json
import socket
from typing import Any, Protocol

import msgspec

STREAM = "debug"
TALK, LIST, NAMES, CONTINUE, EXCEPTIONS = "talk", "list", "names", "continue", "exceptions"
CHECK, EDITOR = "check", "editor"
_ANSWERS_WITHIN = 120.0  # seconds; an editor's rank has to import debugpy


class Debuggable(Protocol):
    """A program whose debugger can be asked: `programs.Program`, or one that stands for it."""

    pid: int

    def stream(self, name: str, argument: bytes = b"") -> socket.socket: ...


class Visit(msgspec.Struct, frozen=True):
    """`mesh`, `rank`: of CHECK and EDITOR; `on`: of EXCEPTIONS."""

    what: str = TALK
    mesh: str | None = None
    rank: int = 0
    on: bool = True


def stream(program: Debuggable, visit: Visit) -> tuple[socket.socket, dict[str, Any]]:
    """Returns a stream to the program's debugger, and its first line. ValueError when it cannot be had."""
    sock = program.stream(STREAM, msgspec.msgpack.encode(visit))
    try:
        sock.settimeout(_ANSWERS_WITHIN)
        line = b""
        while not line.endswith(b"\n"):
            data = sock.recv(1)  # no more than the line: what follows is the conversation's
            if not data:
                raise ConnectionError(f"the program (pid {program.pid}) has closed the connection")
            line += data
        sock.settimeout(None)
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise ValueError(answer["error"])
    except TimeoutError:
        sock.close()
        raise TimeoutError(
            f"the debugger of the program (pid {program.pid}) did not answer within {_ANSWERS_WITHIN:g} s"
        ) from None
    except BaseException:
        sock.close()
        raise
    return sock, answer


def ask(program: Debuggable, visit: Visit) -> dict[str, Any]:
    """Returns what a program's debugger answers to a question that is no conversation."""
    sock, answer = stream(program, visit)
    sock.close()
    return answer
