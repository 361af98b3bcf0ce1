"""A port of this machine for an editor, and behind it a rank on any host: the program carries the bytes."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
import time
from collections.abc import Callable
from operator import itemgetter

from monarch._linux import loopback_peer
from monarch._linux.descriptors import OUT_OF
from monarch._linux.locks import Lock
from monarch._text import counted
from monarch._wire.transport.handshake_slots import HandshakeSlots

MOST = 16  # visitors at a time that have not begun as an editor does
_READ = 1 << 16
_GREETS_WITHIN = 10.0  # seconds
_GREETING = 1 << 16  # bytes of the first request, at most
_REQUEST = 1 << 24  # and of a later one
_HEAD = 64  # and of the head before it
_FIELD = b"content-length:"
_LENGTH = re.compile(rb"content-length: *(\d{1,9})", re.IGNORECASE)
_NO_ROOM_PAUSE = 0.2  # seconds until it is tried again


def entry(name: str, port: int, folder: str) -> str:
    """Returns what goes into `configurations` of .vscode/launch.json."""
    return json.dumps(
        {
            "name": name,
            "type": "debugpy",
            "request": "attach",
            "connect": {"host": "127.0.0.1", "port": port},
            "pathMappings": [{"localRoot": "${workspaceFolder}", "remoteRoot": folder}],
            "justMyCode": True,
        },
        indent=4,
    )


def listen(port: int) -> socket.socket:
    """At that port, or at any that is free when it is taken; 0 is any."""
    try:
        return socket.create_server(("127.0.0.1", port))
    except OSError:
        return socket.create_server(("127.0.0.1", 0))


def serve(listening: socket.socket, connect: Callable[[], socket.socket], say: Callable[[str], None]) -> None:
    """Lets editors in, one at a time, until `listening` is closed. `connect` makes the connection to the rank; what it raises
    is said. A new editor takes the place of the one there is, which may have been left.

    An editor is a program of this user that begins as the protocol says (`greeting`) within some seconds. Others are closed,
    and get no byte to the rank: other users' programs; what is silent; what says something else, as a browser does that a
    web page has sent here. It has left as soon as it says what is no request."""
    _EditorPort(connect, say).serve(listening)


class _EditorPort:
    def __init__(self, connect: Callable[[], socket.socket], say: Callable[[str], None]) -> None:
        self._connect = connect
        self._say = say
        self._door = loopback_peer.Doorkeeper(
            lambda count: say(f"refused {counted(count, 'connection')} of other users")
        )
        self._lock = Lock()
        self._waiting: HandshakeSlots[socket.socket] = HandshakeSlots(MOST, itemgetter(0))
        self._editor: socket.socket | None = None  # that has been let in

    def serve(self, listening: socket.socket) -> None:
        while True:
            try:
                visitor, _ = listening.accept()
            except ConnectionError:  # it has gone again
                continue
            except OSError as error:
                if listening.fileno() < 0 or error.errno not in OUT_OF:
                    return
                time.sleep(_NO_ROOM_PAUSE)
                continue
            if not self._door.lets_in(visitor):
                visitor.close()
                continue
            with self._lock:
                goes = self._waiting.enter(visitor, "")
                if goes is not None:
                    _break(goes)
            try:
                threading.Thread(target=self._visit, args=(visitor,), name="monarch-editor", daemon=True).start()
            except RuntimeError:  # no more threads
                with self._lock:
                    self._waiting.remove(visitor)
                visitor.close()

    def _visit(self, visitor: socket.socket) -> None:
        with visitor:
            try:
                said = _greeting_of(visitor)
            except OSError:
                said = b""
            with self._lock:
                if not self._waiting.remove(visitor) or not said:
                    return
                before, self._editor = self._editor, visitor
                if before is not None:
                    _break(before)
            try:
                self._attach(visitor, said)
            finally:
                with self._lock:
                    if self._editor is visitor:
                        self._editor = None

    def _attach(self, editor: socket.socket, said: bytes) -> None:
        try:
            rank = self._connect()
        except (OSError, ValueError, RuntimeError) as error:
            self._say(f"no connection to the rank: {error}")
            return
        with rank:
            with self._lock:
                if self._editor is not editor:  # another has come meanwhile
                    return
            self._say("an editor has attached")
            with contextlib.suppress(OSError):
                editor.settimeout(None)
                requests = EditorRequests()
                rank.sendall(requests.feed(said))
                _carry(editor, rank, requests.feed)
            self._say("the editor has left")


def greeting(came: bytes) -> bool | None:
    """Returns whether an editor begins so: with the request `initialize` of the Debug Adapter Protocol. None: that is not yet
    to be said. Lines of another kind before it, as of HTTP, are none of an editor. Pure."""
    head, end, body = came.partition(b"\r\n\r\n")
    if not end:
        return None if len(head) <= _HEAD and _FIELD.startswith(head[: len(_FIELD)].lower()) else False
    found = _LENGTH.fullmatch(head)
    if found is None or not 0 < int(found[1]) <= _GREETING:
        return False
    length = int(found[1])
    if len(body) < length:
        return None
    try:
        request = json.loads(body[:length])
    except (ValueError, RecursionError):
        return False
    return isinstance(request, dict) and request.get("type") == "request" and request.get("command") == "initialize"


class EditorRequests:
    """Messages of an editor from its greeting on. Only whole messages of the protocol go on: debugpy, in the rank, writes a
    traceback about anything else and is not ready for the next editor. Pure."""

    def __init__(self) -> None:
        self._came = b""

    def feed(self, data: bytes) -> bytes:
        """Returns the messages that are whole with it. ValueError when what has come is none."""
        came, passed = self._came + data, 0
        while passed < len(came):
            end = came.find(b"\r\n\r\n", passed, passed + _HEAD + 4)
            head = came[passed : end if end >= 0 else None]
            if end < 0:
                if len(head) > _HEAD or not _FIELD.startswith(head[: len(_FIELD)].lower()):
                    raise ValueError("no message of the Debug Adapter Protocol")
                break
            found = _LENGTH.fullmatch(head)
            if found is None or not 0 < int(found[1]) <= _REQUEST:
                raise ValueError("no length of a message")
            whole = end + 4 + int(found[1])
            if len(came) < whole:
                break
            try:
                request = json.loads(came[end + 4 : whole])
            except RecursionError:
                request = None
            if not isinstance(request, dict):
                raise ValueError("no object in a message")
            passed = whole
        self._came = came[passed:]
        return came[:passed]


def _greeting_of(visitor: socket.socket) -> bytes:
    """Returns what an editor said first; nothing when it is none."""
    came = b""
    limit = time.monotonic() + _GREETS_WITHIN
    while (said := greeting(came)) is None:
        visitor.settimeout(max(0.001, limit - time.monotonic()))
        data = visitor.recv(_READ)
        if not data:
            return b""
        came += data
    return came if said else b""


def _carry(one: socket.socket, other: socket.socket, passing: Callable[[bytes], bytes]) -> None:
    """Carries bytes both ways, what `passing` returns of those of `one`, until either has gone."""
    back = threading.Thread(target=_pump, args=(other, one, bytes), name="monarch-editor", daemon=True)
    back.start()
    _pump(one, other, passing)
    back.join()


def _pump(source: socket.socket, sink: socket.socket, passing: Callable[[bytes], bytes]) -> None:
    with contextlib.suppress(OSError, ValueError):
        while data := source.recv(_READ):
            sink.sendall(passing(data))
    for end in (source, sink):
        _break(end)


def _break(sock: socket.socket) -> None:
    """Ends it for both sides; its own thread closes it."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
