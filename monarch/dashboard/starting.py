"""Opens the dashboard of the program that runs here, asked by the program itself or from outside."""

from __future__ import annotations

import json
import os
import socket
from typing import Any

from monarch import telemetry
from monarch._linux.locks import Lock
from monarch._mesh import plugins
from monarch.telemetry.starting import FOLDER, run_folder

HOST, PORT = "127.0.0.1", 8265
LONGEST_ORDER = 4096  # bytes

_lock = Lock()
_said: set[str] = set()


def start(host: str = HOST, port: int = PORT) -> str:
    """Serves the dashboard of this program, from the process beside it, and prints where; its URL. Starts telemetry when
    it does not run yet: the dashboard shows what is recorded from then on.

    A port that is taken is replaced by any free one, which is said. A `host` beyond this machine is for those with the URL,
    which has a token in it. Called again it gives the same URL; the first call's arguments hold.

    ImportError when packages of the extra `dashboard` are missing; RuntimeError in a process of a mesh, or when nothing can
    be served there.
    """
    url, notes = opened(host, port)
    with _lock:
        new = url not in _said
        _said.add(url)
    if new:
        for note in notes:
            print(f"monarch: {note}", flush=True)
        print(f"Monarch Dashboard: {url}", flush=True)
    return url


def opened(host: str, port: int) -> tuple[str, list[str]]:
    """The URL, and what people should know of it."""
    running = telemetry.start()
    if running.dashboard_url:
        asked = (host, port) != (HOST, PORT)
        return running.dashboard_url, ["the dashboard is open already: where it is now holds"] if asked else []
    folder = run_folder()
    addresses = plugins.outer("observer.start")(
        os.path.join(folder, FOLDER), program=folder, dashboard=True, dashboard_host=host, dashboard_port=port
    )
    notes = [note for note in addresses.notes if "dashboard" in note]
    if not addresses.dashboard_url:
        raise RuntimeError(f"the dashboard could not be opened: {'; '.join(notes) or 'no reason is known'}")
    running.dashboard_url = addresses.dashboard_url
    return addresses.dashboard_url, notes


def serve(sock: socket.socket, argument: bytes) -> None:
    """The admin socket's stream "dashboard": opens it for somebody outside, and says where as JSON.
    Nothing is printed here: the program's output is its own."""
    answer: dict[str, Any]
    try:
        order = json.loads(argument[:LONGEST_ORDER] or b"{}")
        url, notes = opened(str(order.get("host") or HOST), int(order.get("port", PORT)))
        answer = {"url": url, "notes": notes}
    except Exception as exc:  # the asker tells people
        answer = {"error": str(exc) or type(exc).__name__}
    sock.sendall(json.dumps(answer).encode())
