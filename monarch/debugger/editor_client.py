"""In the client: carries an editor's bytes between the door and a rank, which may be on any host."""

from __future__ import annotations

import select
import socket
from typing import Any

import msgspec

from monarch._mesh.inspection import survey
from monarch._runtime.context import home
from monarch.debugger.editor_rank import Exchange, Exchanged, Opened

CHECK, BEGIN = "debugger.editor.check", "debugger.editor.begin"
EXCHANGE, END = "debugger.editor.exchange", "debugger.editor.end"
_START = 60.0  # seconds for debugpy to be imported and started there
_ANSWER = 20.0  # seconds for a rank that is alive
_SOON, _IDLE = (
    0.001,
    0.05,
)  # seconds between two looks for news of the rank: just after some, and after none for a while
_READ = 1 << 16
_NAMED = 20


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


def check(mesh: str | None, rank: int) -> Opened:
    """Where an editor could attach. ValueError says why it cannot."""
    return msgspec.msgpack.decode(_ask(address_of(mesh, rank), CHECK, b"", _ANSWER), type=Opened)


def _ask(address: str, question: str, argument: bytes, timeout: float) -> bytes:
    answers = survey.ask(question, argument, timeout=timeout, only=[address]).get()
    reply = answers.replies.get(address)
    if reply is None:
        raise ValueError(f"{address}: {answers.silent.get(address, 'it gave no answer')}")
    return reply


class Editor:
    """One conversation of an editor with a rank. ValueError says why there is none."""

    def __init__(self, mesh: str | None, rank: int) -> None:
        self._address = address_of(mesh, rank)
        self.opened = msgspec.msgpack.decode(_ask(self._address, BEGIN, b"", _START), type=Opened)

    def carry(self, sock: socket.socket) -> None:
        """Until one of them has gone."""
        number, pause = self.opened.number, _SOON
        try:
            while True:
                data = b""
                if select.select([sock], [], [], pause)[0]:
                    data = sock.recv(_READ)
                    if not data:
                        return
                reply = _ask(self._address, EXCHANGE, msgspec.msgpack.encode(Exchange(number, data)), _ANSWER)
                news = _decode(reply)
                if news.data:
                    sock.sendall(news.data)
                if news.ended:
                    return
                pause = _SOON if news.data or data else min(2 * pause, _IDLE)
        except (OSError, ValueError):  # the editor, or the rank
            pass
        finally:
            try:
                _ask(self._address, END, msgspec.msgpack.encode(Exchange(number, last=True)), _ANSWER)
            except (RuntimeError, ValueError):  # the rank has gone, or the client goes
                pass


_decode = msgspec.msgpack.Decoder(Exchanged).decode
