"""Programs: what a soak test does, as data. `generate` makes one from a seed, `run` carries it out.

Names: "p0" a mesh of processes and "p0[1]" one of them, "m0" a mesh of actors and "m0[1]" one of them, "client" the process
of the program. `str()` of an operation is a line of the ordinary API, as far as there is one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

CLIENT, AGENT, ANY = "client", "agent", "*"

# Adverbs, and methods of the actors (see `actors`).
CALL, CALL_ONE, CHOOSE, STREAM, BROADCAST = "call", "call_one", "choose", "stream", "broadcast"
WORK, FAIL, ABORT, EXIT, LEAVE = "work", "fail", "abort", "exit", "leave"


@dataclass(frozen=True)
class SpawnProcs:
    """On the client's host, on one of the `hosts` (indices), or one process on each of several that follow each other."""

    procs: str
    size: int
    hosts: tuple[int, ...] = ()

    def __str__(self) -> str:
        if len(self.hosts) > 1:
            return (
                f"{self.procs} = cluster.hosts.slice(hosts=slice({self.hosts[0]}, {self.hosts[-1] + 1})).spawn_procs()"
            )
        where = f"cluster.hosts.slice(hosts={self.hosts[0]})" if self.hosts else "this_host()"
        return f"{self.procs} = {where}.spawn_procs({{'gpus': {self.size}}})"


@dataclass(frozen=True)
class Policy:
    strategy: str
    max_restarts: int
    backoff: float

    def __str__(self) -> str:
        return f"RestartPolicy({self.strategy!r}, max_restarts={self.max_restarts}, backoff={self.backoff})"


@dataclass(frozen=True)
class Spawn:
    """Actors on `count` processes from `first` on. Ranks in `broken` raise in their constructor. `owner`: the actor that
    spawns them, "" for the client; `handles`: what `__supervise__` of these actors answers."""

    meshes: tuple[str, ...]
    procs: str
    first: int
    count: int
    kind: str
    broken: tuple[int, ...] = ()
    handles: bool = True
    policy: Policy | None = None
    owner: tuple[str, int] | None = None
    number: int = 0  # of the message to the owner

    def __str__(self) -> str:
        where = f"{self.procs}.slice(gpus=slice({self.first}, {self.first + self.count}))"
        extra = "".join([f", broken={self.broken}" if self.broken else "", "" if self.handles else ", handles=False"])
        spawns = "; ".join(f"{mesh} = {where}.spawn({mesh!r}, {self.kind}{extra})" for mesh in self.meshes)
        if self.owner is not None:
            return f"in {actor(*self.owner)}: {spawns}"
        return f"with {self.policy}: {spawns}" if self.policy else spawns


@dataclass(frozen=True)
class Cast:
    """One message to a mesh (`rank` None) or to one actor of it. `via`: sent by that actor, which the client asks to.
    Not `kept`: its Future is dropped at once."""

    number: int
    mesh: str
    rank: int | None
    adverb: str
    method: str = WORK
    deadline: float | None = None
    via: tuple[str, int] | None = None
    kept: bool = True

    def __str__(self) -> str:
        limit = f".with_timeout({self.deadline})" if self.deadline is not None else ""
        target = self.mesh if self.rank is None else actor(self.mesh, self.rank)
        text = f"{target}.{self.method}{limit}.{self.adverb}({self.number})"
        if self.via is not None:
            text = f"{actor(*self.via)}.relay.call_one(lambda: {text})"
        return text if self.adverb == BROADCAST or not self.kept else f"f{self.number} = {text}"


@dataclass(frozen=True)
class Hold:
    """A pause: that actor stands still in an endpoint until `number` is opened, at the latest at the next Join."""

    number: int
    mesh: str
    rank: int

    def __str__(self) -> str:
        return f"{actor(self.mesh, self.rank)}.hold.broadcast({self.number}, gate{self.number})"


@dataclass(frozen=True)
class Open:
    number: int

    def __str__(self) -> str:
        return f"gate{self.number}.set()"


@dataclass(frozen=True)
class Kill:
    procs: str
    rank: int

    def __str__(self) -> str:
        return f"cluster.kill({self.procs}, {self.rank})"


@dataclass(frozen=True)
class Freeze:
    """A freeze as by SIGSTOP, until the next Join."""

    procs: str
    rank: int

    def __str__(self) -> str:
        return f"cluster.stop_process({self.procs}, {self.rank})"


@dataclass(frozen=True)
class StopActors:
    mesh: str

    def __str__(self) -> str:
        return f"{self.mesh}.stop()"


@dataclass(frozen=True)
class StopProcs:
    procs: str

    def __str__(self) -> str:
        return f"{self.procs}.stop()"


@dataclass(frozen=True)
class RestartActors:
    """A restart of actors: of one rank or all, perhaps only what has failed."""

    mesh: str
    rank: int | None
    failed: bool = False

    def __str__(self) -> str:
        return f"{self.mesh}.restart({_selection(self.rank, self.failed)})"


@dataclass(frozen=True)
class RestartProcs:
    """A restart of processes: of one rank or all, perhaps only what has failed."""

    procs: str
    rank: int | None
    failed: bool = False

    def __str__(self) -> str:
        return f"{self.procs}.restart({_selection(self.rank, self.failed)})"


@dataclass(frozen=True)
class Disturb:
    """A rule of the network until the next Calm or Join."""

    source: str
    target: str
    hold: bool = False
    delay: tuple[float, float] | None = None
    duplicate: float = 0.0

    def __str__(self) -> str:
        what = "hold(" if self.hold else f"duplicate({self.duplicate}, " if self.duplicate else ""
        if self.delay is not None:
            what = f"delay({self.delay[0]}, {self.delay[1]}, "
        return f"network.{what}source={self.source!r}, target={self.target!r})"


@dataclass(frozen=True)
class Calm:
    def __str__(self) -> str:
        return "network.calm()"


@dataclass(frozen=True)
class Lose:
    """Everything of before has its answer (a Join). Then `share` of the frames from the client to a process is lost while
    `casts` are sent, which have deadlines; the deadlines pass, or do not (`patient`), and the connection is cut."""

    target: str
    share: float
    casts: tuple[Cast, ...]
    patient: bool

    def __str__(self) -> str:
        casts = "; ".join(map(str, self.casts))
        wait = "; clock.advance(deadline)" if self.patient else ""
        return f"join(); with network.drop({self.share}, 'client', {self.target!r}): {casts}{wait}; network.cut(...)"


@dataclass(frozen=True)
class Cut:
    """The connection between two processes is cut while `casts`, and whatever else, are under way."""

    source: str
    target: str
    casts: tuple[Cast, ...]

    def __str__(self) -> str:
        casts = "; ".join(map(str, self.casts))
        return f"{casts}{'; ' if casts else ''}network.cut({self.source!r}, {self.target!r})"


@dataclass(frozen=True)
class CutHosts:
    """The connections between two hosts break while `casts`, and whatever else, are under way. `parted`: they cannot connect
    again until the next Join, or until a second has passed. No failure: nothing may come of it."""

    one: int | str
    other: int | str
    parted: bool
    casts: tuple[Cast, ...]

    def __str__(self) -> str:
        casts = "; ".join(map(str, self.casts))
        what = "part_hosts" if self.parted else "cut_hosts"
        return f"{casts}{'; ' if casts else ''}cluster.{what}({self.one!r}, {self.other!r})"


@dataclass(frozen=True)
class KillHost:
    """A host loses power, or its agent is killed and its processes with it."""

    host: int
    power: bool

    def __str__(self) -> str:
        return f"cluster.{'kill_agent' if self.power else 'kill_host'}({self.host})"


@dataclass(frozen=True)
class Advance:
    seconds: float

    def __str__(self) -> str:
        return f"clock.advance({self.seconds})"


@dataclass(frozen=True)
class Join:
    """Opens every gate, lets every process run, calms the network, lets delays pass, and waits for every Future."""

    def __str__(self) -> str:
        return "join()"


Operation = (
    SpawnProcs | Spawn | Cast | Hold | Open | Kill | Freeze | StopActors | StopProcs | RestartActors | RestartProcs | Disturb
    | Calm | Lose | Cut | CutHosts | KillHost | Advance | Join
)  # fmt: skip


@dataclass(frozen=True)
class Program:
    """`switch_interval`: how soon Python takes the interpreter from a thread, in seconds; shakes the interleaving. `hosts`,
    `gateway`: see InProcessCluster."""

    seed: int
    operations: Sequence[Operation] = field(default_factory=tuple)
    switch_interval: float = 0.005
    hosts: int = 0
    gateway: int | None = None

    def __str__(self) -> str:
        lines = [f"  InProcessCluster(hosts={self.hosts}, gateway={self.gateway})"] if self.hosts else []
        return "\n".join(lines + [f"  {index:3}  {operation}" for index, operation in enumerate(self.operations)])


def _selection(rank: int | None, failed: bool) -> str:
    return ", ".join((["failed=True"] if failed else []) + ([] if rank is None else [f"gpus={rank}"]))


def actor(mesh: str, rank: int) -> str:
    return f"{mesh}[{rank}]"


def process(procs: str, rank: int) -> str:
    return f"{procs}[{rank}]"
