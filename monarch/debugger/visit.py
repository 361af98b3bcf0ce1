"""What comes through the door of a program for its debugger: the stream `debug` of `monarch debug`. In the client, on a
thread of its own.

The argument says what is wanted; the first line of the answer is JSON, {"error": why} if it cannot be had. What follows is
the conversation itself (TALK, EDITOR), or nothing.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import socket
from typing import Any

import msgspec

from monarch.debugger.controller import DebugController, here_in_client

STREAM = "debug"
TALK, LIST, NAMES, CONTINUE, EXCEPTIONS = "talk", "list", "names", "continue", "exceptions"
CHECK, EDITOR = "check", "editor"
_ANSWER = 30.0  # seconds that a short question may take


class Visit(msgspec.Struct, frozen=True):
    """`mesh`, `rank`: of CHECK and EDITOR; `on`: of EXCEPTIONS."""

    what: str = TALK
    mesh: str | None = None
    rank: int = 0
    on: bool = True


def serve(sock: socket.socket, argument: bytes) -> None:
    try:
        visit = msgspec.msgpack.decode(argument, type=Visit)
        if visit.what == EDITOR:
            _edit(sock, visit)
        elif visit.what == CHECK:
            from monarch.debugger.editor_client import check

            _say(sock, _facts(check(visit.mesh, visit.rank)))
        elif visit.what == TALK:
            controller = here_in_client()
            _say(sock, {})
            _talk(sock, controller)
        else:
            _say(sock, _answer(visit))
    except OSError:
        raise
    except Exception as error:
        _say(sock, {"error": f"{error}" if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"})


def _say(sock: socket.socket, answer: dict[str, Any]) -> None:
    sock.sendall(json.dumps(answer).encode() + b"\n")


def _edit(sock: socket.socket, visit: Visit) -> None:
    from monarch.debugger.editor_client import Editor

    editor = Editor(visit.mesh, visit.rank)
    _say(sock, _facts(editor.opened))
    editor.carry(sock)


def _facts(opened: Any) -> dict[str, Any]:
    return {"host": opened.host, "pid": opened.pid, "folder": opened.folder}


def _talk(sock: socket.socket, controller: DebugController) -> None:
    """The controller's loop has the socket until the conversation ends; its owner closes the other descriptor."""
    assert controller.loop is not None
    talking = asyncio.run_coroutine_threadsafe(controller.converse_by(sock.dup()), controller.loop)
    while not controller.ended:
        try:
            talking.result(1.0)
            return
        except concurrent.futures.TimeoutError:
            continue


def _answer(visit: Visit) -> dict[str, Any]:
    if visit.what == EXCEPTIONS:
        return _on_exceptions(visit.on)
    controller = here_in_client()
    assert controller.loop is not None

    async def ask() -> dict[str, Any]:
        if visit.what == LIST:
            return {"text": f"{await controller.page()}\n"}
        if visit.what == NAMES:
            return {"names": controller.names()}
        if visit.what == CONTINUE:
            count = len(controller.names())
            controller.continue_all()
            return {"text": f"{count} go on\n"}
        return {"error": f"the debugger knows no {visit.what!r}: is the program of another version?"}

    answer: dict[str, Any] = asyncio.run_coroutine_threadsafe(ask(), controller.loop).result(_ANSWER)
    return answer


def _on_exceptions(on: bool) -> dict[str, Any]:
    """In all processes of now, and, by the client's setting, in those that it spawns from now on."""
    from monarch._mesh.inspection import survey
    from monarch.config import configure

    configure(debug_on_exception=on)
    answers = survey.ask(QUESTION, msgspec.msgpack.encode(on), timeout=_ANSWER).get()
    return {"processes": len(answers.replies), "silent": answers.silent}


QUESTION = "debugger.on_exception"


def set_on_exception(proc: Any, argument: bytes) -> bytes:
    """Answers QUESTION, in every process."""
    from monarch._mesh.actors import breakpoints

    breakpoints.stop_on_exceptions(msgspec.msgpack.decode(argument, type=bool))
    return b""
