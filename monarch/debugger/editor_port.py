"""A port of this machine for an editor, and behind it a rank on any host: the program carries the bytes."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable

from monarch._wire import loopback_peer

_READ = 1 << 16


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
    """One editor after the other, for ever. `connect` makes the connection to the rank; what it raises is said."""
    while True:
        editor, _ = listening.accept()
        with editor:
            if not loopback_peer.is_socket_ours(editor):
                say("refused a connection of another user's program")
                continue
            try:
                rank = connect()
            except (OSError, ValueError, RuntimeError) as error:
                say(f"no connection to the rank: {error}")
                continue
            with rank:
                say("an editor has attached")
                _carry(editor, rank)
                say("the editor has left")


def _carry(one: socket.socket, other: socket.socket) -> None:
    """Both ways, until either has gone."""
    back = threading.Thread(target=_pump, args=(other, one), daemon=True)
    back.start()
    _pump(one, other)
    back.join()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(_READ):
            sink.sendall(data)
    for end in (source, sink):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
