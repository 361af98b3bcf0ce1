"""Effects that a Roster wants, and their arguments. Carried out by a host agent, in the order given."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

from monarch._mesh.casts.machine import Arm, Disarm
from monarch._wire.message import LaunchSpec, ProcEnded

Connection: TypeAlias = Any  # a key; only the one that carries out effects knows more


class Limits(NamedTuple):
    """Settings of the client whose mesh it is, in seconds."""

    ready: float  # until a process must be up
    suspect_after: float  # without a sign of life until it is suspected; 0: never
    suspect_timeout: float  # suspected until it is killed; 0: never


class Start(NamedTuple):
    """One process to start; the `place`-th of its mesh on this host."""

    mesh: str
    name: str
    rank: int
    place: int
    address: str
    incarnation: int
    spec: LaunchSpec
    limits: Limits

    @property
    def key(self) -> tuple[str, int]:
        """Returns which process it is: the address and the incarnation."""
        return self.address, self.incarnation


class Send(NamedTuple):
    """A message for a connection, which may be gone."""

    connection: Connection
    message: Any
    body: bytes = b""


class Refuse(NamedTuple):
    """The order to send Bye and close."""

    connection: Connection
    why: str


class Prepare(NamedTuple):
    """Open the sockets of these, so that others can send to them: all or none. Answered by `prepared` or `refused`."""

    starts: tuple[Start, ...]


class Launch(NamedTuple):
    """Start them. Answered for each by `pid_known` or `not_started`."""

    starts: tuple[Start, ...]


class Signal(NamedTuple):
    pid: int
    number: int


class ReleaseProcess(NamedTuple):
    """A process has ended: release what it held, and put its last lines into `ended.tail`, which is sent to others
    next."""

    ended: ProcEnded


class MeshEnded(NamedTuple):
    """No process of the mesh is left."""

    mesh: str


class HostEmpty(NamedTuple):
    """The host was asked to shut down, and no process is left."""


Effect: TypeAlias = Send | Refuse | Prepare | Launch | Signal | ReleaseProcess | MeshEnded | Arm | Disarm | HostEmpty
