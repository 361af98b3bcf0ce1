"""Visits to the debugger through the admin socket of a program: the stream `debug` of `monarch debug`. In the client,
on a thread of its own.

The argument says what is wanted; the first line of the answer is JSON, {"error": why} if it cannot be had. What follows is
the conversation itself (TALK, EDITOR), or nothing.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import select
import socket
from typing import Any

import msgspec

from monarch._mesh.inspection import survey
from monarch._runtime.context import home
from monarch.admin.debugging import CHECK, CONTINUE, EDITOR, EXCEPTIONS, LIST, NAMES, TALK, Visit
from monarch.debugger.controller import DebugController, here_in_client
from monarch.debugger.editor_rank import EditorAttached, EditorInput, EditorOutput

_ANSWER = 30.0  # seconds that a short question may take
_CHECK_QUESTION, _BEGIN_QUESTION = "debugger.editor.check", "debugger.editor.begin"
_EXCHANGE_QUESTION, _END_QUESTION = "debugger.editor.exchange", "debugger.editor.end"
_START = 60.0  # seconds for debugpy to be imported and started there
_RANK_ANSWER = 20.0  # seconds for a rank that is alive
# Seconds between two looks for news of the rank: just after some, and after none for a while.
_SOON, _IDLE = 0.001, 0.05
_SLOW = 600.0  # seconds that an editor may take none of what is there for it, before it is left
_READ = 1 << 16
_NAMED = 20


def serve(sock: socket.socket, argument: bytes) -> None:
    try:
        visit = msgspec.msgpack.decode(argument, type=Visit)
        if visit.what == EDITOR:
            _edit(sock, visit)
        elif visit.what == CHECK:
            _say(sock, _facts(_check(visit.mesh, visit.rank)))
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
    """Carries an editor's bytes between the client's socket and a rank, which may be on any host."""
    address = address_of(visit.mesh, visit.rank)
    opened = msgspec.msgpack.decode(_ask(address, _BEGIN_QUESTION, b"", _START), type=EditorAttached)
    try:
        _say(sock, _facts(opened))
        _carry(sock, address, opened.number)
    except (OSError, ValueError):  # the editor has gone, or the rank
        pass
    finally:
        try:
            _ask(address, _END_QUESTION, msgspec.msgpack.encode(EditorInput(opened.number, last=True)), _RANK_ANSWER)
        except (RuntimeError, ValueError):  # the rank has gone, or the client goes
            pass


def _facts(opened: EditorAttached) -> dict[str, Any]:
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
            return {"text": f"{await controller.page()}\n", "stopped": controller.stopped()}
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
    """Sets it in all present processes and, by the client's setting, in those that it spawns from now on."""
    from monarch.config import configure

    configure(debug_on_exception=on)
    answers = survey.ask(QUESTION, msgspec.msgpack.encode(on), timeout=_ANSWER).get()
    return {"processes": len(answers.replies), "silent": answers.silent}


QUESTION = "debugger.on_exception"


def set_on_exception(proc: Any, argument: bytes) -> bytes:
    """Answers QUESTION in each process: whether exceptions stop there."""
    from monarch._mesh.actors import breakpoints

    breakpoints.stop_on_exceptions(msgspec.msgpack.decode(argument, type=bool))
    return b""


def address_of(mesh: str | None, rank: int) -> str:
    """The process of a rank: of the mesh of that name, of processes or actors, or of the only one. ValueError."""
    proc: Any = home()
    owned = proc.mesh.owned
    with owned.lock:
        specs = [one.spec for one in [*owned.procs.values(), *owned.actors.values()]]
    specs = [spec for spec in specs if proc.address not in spec.addresses]  # the client's own actors
    if mesh is not None:
        specs = [spec for spec in specs if spec.name == mesh] or _no_mesh(mesh, specs)
    places = {tuple(spec.addresses) for spec in specs}
    if not places:
        raise ValueError("the program has no processes")
    if len(places) > 1:
        raise ValueError(f"the program has several meshes: say which with --mesh, {_names(specs)}")
    addresses = places.pop()
    if not 0 <= rank < len(addresses):
        raise ValueError(f"there is no rank {rank}: the mesh has {len(addresses)}")
    return str(addresses[rank])


def _no_mesh(mesh: str, specs: list[Any]) -> list[Any]:
    raise ValueError(f"the program has no mesh {mesh!r}" + (f", but {_names(specs)}" if specs else ""))


def _names(specs: list[Any]) -> str:
    names = sorted({spec.name for spec in specs})
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")


def _check(mesh: str | None, rank: int) -> EditorAttached:
    """Returns where an editor could attach. ValueError says why it cannot."""
    return msgspec.msgpack.decode(_ask(address_of(mesh, rank), _CHECK_QUESTION, b"", _RANK_ANSWER), type=EditorAttached)


def _ask(address: str, question: str, argument: bytes, timeout: float) -> bytes:
    answers = survey.ask(question, argument, timeout=timeout, only=[address]).get()
    reply = answers.replies.get(address)
    if reply is None:
        raise ValueError(f"{address}: {answers.silent.get(address, 'it gave no answer')}")
    return reply


def _carry(sock: socket.socket, address: str, number: int) -> None:
    """Carries bytes between the editor and the rank until one of them has gone."""
    pause = _SOON
    coming = select.poll()  # which takes any descriptor, select only those below 1024
    coming.register(sock, select.POLLIN)
    sock.settimeout(_SLOW)
    while True:
        data = b""
        if coming.poll(1000 * pause):
            data = sock.recv(_READ)
            if not data:
                return
        reply = _ask(address, _EXCHANGE_QUESTION, msgspec.msgpack.encode(EditorInput(number, data)), _RANK_ANSWER)
        news = _decode(reply)
        if news.data:
            sock.sendall(news.data)
        if news.ended:
            return
        pause = _SOON if news.data or data else min(2 * pause, _IDLE)


_decode = msgspec.msgpack.Decoder(EditorOutput).decode
