"""What every host agent does: gives messages, timers and ends to the Roster, and carries out what it wants done.

How a process starts, is signalled and cleaned up after is left to the agent: of real processes in `agents`, of simulated
ones in `monarch.testing.simulated`. Everything here runs on the agent's loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from monarch._mesh.effects import (
    Arm,
    Disarm,
    Done,
    Effect,
    Ended,
    Launch,
    Limits,
    MeshEnded,
    Prepare,
    Refuse,
    Send,
    Signal,
    Start,
)
from monarch._mesh.roster import Roster
from monarch._runtime.loop import Loop, Timer
from monarch._wire import frame as frames
from monarch._wire import message
from monarch._wire.frame import Frame
from monarch._wire.message import (
    VERSION,
    Bye,
    Census,
    Heard,
    Hello,
    LaunchSpec,
    Pong,
    ProcEnded,
    RestartProcs,
    Shutdown,
    SpawnProcs,
    StopProcs,
    Watch,
)
from monarch._wire.peer import PeerEnded
from monarch._wire.transport.base import Connection, ConnectionLost
from monarch.config import settings

# (connection, message, its frame)
Receiver = Callable[[Connection, Any, Frame], None]


class Steward:
    """`host` is the address prefix of the processes. `receivers` are for messages that concern one kind of agent only."""

    def __init__(self, host: str, loop: Loop) -> None:
        self.host = host
        self.loop = loop
        self.roster = Roster(host, settings.get("host_spawn_ready_timeout"))
        self._timers: dict[tuple[Any, ...], Timer] = {}
        self._effects: deque[Effect] = deque()
        self._acting = False
        roster, now = self.roster, loop.now
        self.receivers: dict[type, Receiver] = {
            SpawnProcs: lambda c, m, f: self.act(roster.spawn(now(), c, m, *_launch(f))),
            RestartProcs: lambda c, m, f: self.act(roster.restart(now(), c, m, *_launch(f))),
            StopProcs: lambda c, m, f: self.act(roster.stop(now(), c, m)),
            Watch: lambda c, m, f: self.act(roster.watch(now(), c, m)),
            Heard: lambda c, m, f: self.act(roster.heard(now(), c, m)),
            Census: lambda c, m, f: self.act(roster.census(now(), c, m)),
            Shutdown: lambda c, m, f: self.shutdown(m.grace),
            Pong: lambda c, m, f: self.act(roster.pong(now(), c, m.token)),
        }

    # --- what an agent supplies

    def prepare(self, starts: Sequence[Start]) -> None:
        """See `effects.Prepare`."""
        raise NotImplementedError

    def launch(self, starts: Sequence[Start]) -> None:
        """See `effects.Launch`."""
        raise NotImplementedError

    def send_signal(self, pid: int, number: int) -> None:
        raise NotImplementedError

    def release(self, ended: ProcEnded) -> None:
        """See `effects.Ended`."""
        raise NotImplementedError

    def mesh_ended(self, mesh: str) -> None:
        raise NotImplementedError

    def finish(self) -> None:
        """After a shutdown, when no process is left."""
        raise NotImplementedError

    # --- events

    def shutdown(self, grace: float) -> None:
        """Stops every process, then finishes."""
        self.act(self.roster.shutdown(self.loop.now(), grace))

    def connection_received(self, connection: Connection, received: list[Frame]) -> None:
        self.act(self.roster.alive(self.loop.now(), connection))
        for frame in received:
            msg = message.decode(frame.head)
            if not connection.remote:
                if not self._on_hello(connection, msg):
                    return
                continue
            receiver = self.receivers.get(type(msg))
            if receiver is not None:
                receiver(connection, msg, frame)

    def _on_hello(self, connection: Connection, hello: Any) -> bool:
        if type(hello) is not Hello or hello.version != VERSION:
            self._refuse(connection, "not a Hello of this version")
            return False
        connection.remote = hello.address
        connection.pid = hello.pid
        self.act(self.roster.hello(self.loop.now(), connection, hello))
        return not connection.lost

    def connection_lost(self, connection: Connection, reason: str) -> None:
        self.act(self.roster.connection_lost(self.loop.now(), connection))

    # --- effects

    def act(self, effects: Iterable[Effect]) -> None:
        """Carries them out in order. What comes of one of them is done after those that were wanted before."""
        self._effects.extend(effects)
        if self._acting:
            return
        self._acting = True
        while self._effects:
            try:
                self._do(self._effects.popleft())
            except Exception as exc:  # one's trouble must not cost those behind it
                self.loop.on_error(exc)
        self._acting = False

    def _do(self, effect: Effect) -> None:
        match effect:
            case Send(connection, msg, body):
                self.send(connection, msg, body)
            case Prepare(starts):
                self.prepare(starts)
            case Launch(starts):
                self.launch(starts)
            case Signal(pid, number):
                self.send_signal(pid, number)
            case Ended(ended):
                self.release(ended)
            case MeshEnded(mesh):
                self.mesh_ended(mesh)
            case Arm(key, delay):
                self._disarm(key)
                self._timers[key] = self.loop.call_later(delay, lambda: self._fired(key))
            case Disarm(key):
                self._disarm(key)
            case Refuse(connection, why):
                self._refuse(connection, why)
            case Done():
                self.finish()

    def send(self, connection: Connection, msg: Any, body: bytes = b"") -> None:
        try:
            connection.send(frames.encode(message.encode(msg), body))
        except (ConnectionLost, PeerEnded):
            pass

    def _refuse(self, connection: Connection, why: str) -> None:
        self.send(connection, Bye(why))
        connection.close(why)

    def _disarm(self, key: tuple[Any, ...]) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()

    def _fired(self, key: tuple[Any, ...]) -> None:
        del self._timers[key]
        self.act(self.roster.fired(self.loop.now(), key))


def _launch(frame: Frame) -> tuple[LaunchSpec, Limits]:
    """What the message's body says of the processes. The settings are those of the client whose mesh it is, not ours."""
    spec = msgspec.msgpack.decode(frame.body, type=LaunchSpec)
    told = msgspec.msgpack.decode(spec.config)
    names = ("host_spawn_ready_timeout", "suspect_after", "suspect_timeout")
    return spec, Limits(*(settings.told(told, name) for name in names))
