"""Every struct that crosses a socket, one tagged union a conversation.

Grouped by who receives it. Heads only: user payloads travel beside them in the frame (see `frame`), encoded by `codec`,
and nothing here is ever unpickled. Structs are arrays on the wire; fields are only ever added at the end.

Over 600 lines because the whole dialogue is read in one place, and it is only declarations.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from monarch._text import NAME_LIMIT, TEXT_LIMIT, sendable
from monarch._wire.software import Software

VERSION = 1

# What an Answer carries.
VALUE = 0  # the endpoint's result
ERROR = 1  # an exception of the endpoint: payload is (exception or None, message, formatted)
RAISED = 2  # port.exception(e): payload is e, raised as it is
FAILED = 3  # the target failed: payload is a Failure, msgpack
MERGED = 4  # part of the answer of the rank before it: no payload


class _Message(msgspec.Struct, array_like=True, gc=False):
    pass


class Text:
    """A base of structs that carry text of a program or of the system. What is in their fields `texts` and `names` is made
    fit to send when they are made: texts have TEXT_LIMIT characters at most, names NAME_LIMIT."""

    __slots__ = ()
    texts: ClassVar[tuple[str, ...]] = ()
    names: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        for fields, limit in ((self.texts, TEXT_LIMIT), (self.names, NAME_LIMIT)):
            for field in fields:
                given = getattr(self, field)
                if type(given) is str:
                    clean: Any = sendable(given, limit)
                else:
                    clean = [sendable(line, limit) for line in given]
                if clean is not given:
                    msgspec.structs.force_setattr(self, field, clean)  # type: ignore[arg-type]  # of a frozen one, too


class _Telling(Text, _Message):
    """A message that carries text for people."""


# --- both ways ----------------------------------------------------------------------------------------------


class Hello(_Message, tag=0):
    """First frame of a connection: who dialled. Payload messages may follow at once."""

    version: int
    address: str
    pid: int
    incarnation: int = 0  # of the process: how often the one at this address was replaced by a new one
    target_incarnation: int = (
        -1
    )  # the incarnation of the other process that the dialler was told of; -1: of none, anyone will do
    again: bool = False  # a connection to it broke before, on which messages may have been lost


class Welcome(_Message, tag=12):
    """The answer to Hello of a process that is not the first at its address."""

    incarnation: int


class Bye(_Telling, tag=1):
    """Last frame: the sender closes this connection on purpose."""

    texts = ("reason",)

    reason: str


# --- to an actor --------------------------------------------------------------------------------------------


NO_METHOD = ""  # of a Call that runs nothing: it is there for its number


class Call(_Message, tag=2):
    """Run an endpoint. `seq` counts (sender, to) from 1; `port` 0 means nobody waits for an answer."""

    to: str  # actor key: mesh uid, or a singleton's name
    sender: str  # the sending actor's unique name
    seq: int
    method: str
    port: int
    back: str  # address of the process that holds the port; "" is the process this came from
    rank: int  # of the receiver in the addressed view
    view: bytes  # that view's extent, msgpack [labels, sizes]
    adverb: int
    incarnation: int = 0  # of the receiving actor, as far as the sender knows; see `_runtime.incarnations`


class Spawn(_Telling, tag=3):
    """Construct an actor. Payload: (class, args, kwargs, proc mesh)."""

    names = ("name", "creator", "cls")

    key: str
    name: str
    rank: int
    view: bytes
    owner: str  # the owning actor's unique name
    owner_proc: str  # and its process
    creator: str  # display name of the owner, for reports
    cls: str  # module.QualName of the class, for reports
    loop: bool  # the class has async endpoints or hooks: it needs an event loop
    setup: bool = False  # this is the mesh's bootstrap actor: it starts before the gate opens
    incarnation: int = 0
    port: int = (
        0  # of the owner: answered (as rank `index`) once it is ready, when it takes the place of one that ended
    )
    index: int = 0
    failure: Failure | None = None  # then: why that one ended, for `__restarted__`
    restarts: bool = False  # a RestartPolicy puts another in its place should it fail
    record: bytes = b""  # what it receives is recorded in this folder
    record_bytes: int = 0  # and at most so much of it
    system: bool = False  # it belongs to the runtime and not to the program


class Restarted(_Message, tag=13):
    """A new actor has taken the place of one that this process has sent to. Answered on `port`, so that the process which
    restarted it knows that nobody still means the old one."""

    key: str
    rank: int
    incarnation: int
    port: int


class StopActor(_Telling, tag=4):
    """Stop one actor of this process: answer on `port` (0: none) once its cleanup has run."""

    texts = ("reason",)

    key: str
    reason: str
    port: int
    rank: int
    replaced: bool = False  # another takes its place: messages that nobody waits for are lost, and that harms nobody
    incarnation: int = 0  # of the one that is replaced: a later one goes on, and it is not constructed after this


class Probe(_Message, tag=5):
    """Answer on `port` when everything sent before on this connection has been delivered and `key` exists here.

    With `ready`: when its constructor (and `__restarted__`) has returned; FAILED when it is not here, or ends before. No
    sooner than it is known here that the processes in `over` have ended, given as their addresses and the least incarnation
    that may live there (see `address.by_ranges`).
    """

    key: str
    port: int
    rank: int
    ready: bool = False
    living: bool = False  # an actor that has ended, or is not there yet, answers with a failure
    over: dict[str, list[tuple[int, int, int]]] = {}


# --- what processes tell of themselves ----------------------------------------------------------------------


class Ask(_Telling, tag=14):
    """A question to the process itself (`inspection.questions`), payload: its argument, msgpack. Answered on `port`."""

    names = ("question",)

    port: int
    rank: int
    question: str


class Recorded(_Message, tag=16):
    """Message to the client: what a process has recorded (`inspection.recording`), which it passes on unread. Answered
    on `port` with (the client's time, seconds to wait before the next), msgpack."""

    port: int


class DeadlockProbe(_Telling, tag=15):
    """Follows a chain of waits from process to process; where it meets the wait it began with, it has found a circle.

    It asks what keeps actor `key` from answering the message whose answer goes to `port` of process `back`. See `deadlock`.
    """

    texts = ("path",)
    names = ("who",)

    key: str
    port: int
    back: str
    origin: str  # address of the process of the wait it began with
    number: int  # of that wait, there
    since: float  # and when that began, by its own process's clock
    who: str  # the actor that waits there
    attempt: int  # how often that wait has been asked about
    steps: int
    path: list[str] = []  # a line for people for each wait on the way; filled in the second time round
    again: bool = False  # it went round once and makes sure


# --- to a port ----------------------------------------------------------------------------------------------


class Answer(_Message, tag=6):
    """A reply or a port message. `rank` -1: the sender had no rank."""

    port: int
    rank: int
    kind: int
    sender: str = ""


class Bounced(_Telling, tag=7):
    """A message without a waiting caller could not be delivered; goes back to the sending actor's process."""

    texts = ("error",)
    names = ("dest", "what")

    sender: str
    dest: str
    what: str
    error: str
    hook: bool  # whether the sender's `_handle_undeliverable_message` is asked


class SenderEnded(_Message, tag=10):
    """The actor `sender` has ended: receivers need not remember its number."""

    sender: str


class Pause(_Message, tag=8):
    """The mailbox of `key` is full (on) or has room again (off): senders hold their messages to it."""

    key: str
    on: bool


# --- to an owner --------------------------------------------------------------------------------------------


class Failure(_Telling, tag=9):
    """The reason why an actor or a process ended, told by the process that saw it."""

    texts = ("report", "event")
    names = ("mesh_name",)

    report: str  # for people: which actor, rank, host, and the root cause
    mesh: str = ""  # actor mesh uid
    mesh_name: str = ""
    ranks: list[int] = []
    event: str = ""
    stopped: bool = False  # an ordinary end: callers are told, owners are not
    error: bytes = b""  # a pickled exception to raise as it is, in place of a SupervisionError
    incarnation: int = 0  # of the actor that ended
    will_restart: bool = False  # another takes its place: what was sent to it meanwhile is lost, and that harms nobody


class ActorEnded(_Message, tag=11):
    """Message to the owner's process: one of its actors failed (or ended by itself)."""

    owner: str
    failure: Failure


# --- client, procs -> host agent ----------------------------------------------------------------------------


class SpawnProcs(_Telling, tag=20):
    """Start `count` processes `<mesh>.<first>...`; payload is a LaunchSpec, msgpack."""

    names = ("name",)

    mesh: str
    name: str
    first: int
    count: int
    owner: str  # address of the owning process: they do not outlive it
    host: str = ""  # the address prefix by which the owner knows this host; "" is the host's own


class RestartProcs(_Telling, tag=27):
    """Start new processes at the addresses of ranks of a mesh of ours; payload is a LaunchSpec, msgpack.

    One that still runs is stopped first (its owner has asked it to, with StopProc), killed after `grace` seconds.
    `incarnations[i]` is that of the new process at `ranks[i]`; a rank that has it already is left alone. `first` and `count`
    as in SpawnProcs: the ranks of the mesh on this host.
    """

    names = ("name",)

    mesh: str
    name: str
    first: int
    count: int
    ranks: list[int]
    incarnations: list[int]
    owner: str
    grace: float
    host: str = ""


class EnvChange(msgspec.Struct):
    """The difference of a process's environment from another one: values, None removes. Without `inherit` it has these
    alone."""

    values: dict[str, str | None]
    inherit: bool = True

    def over(self, env: Mapping[str, str]) -> dict[str, str]:
        changed = {**env, **self.values} if self.inherit else self.values
        return {name: value for name, value in changed.items() if value is not None}


class DeviceSlots(msgspec.Struct):
    """The devices of their host that a mesh's processes use: see `monarch._devices.own_device.Assignment`."""

    first: int
    processes: int
    rank: int
    others: list[tuple[str, int, int]]


class LaunchSpec(Text, msgspec.Struct):
    """Everything a new process needs to know before it imports anything."""

    names = ("name",)

    name: str
    env: dict[str, str]
    cwd: str
    path: list[str]
    executable: str
    config: bytes  # settings of the client, pickled by nobody: msgpack
    forward_logs: bool
    prefix_with_rank: bool
    preload: list[str]
    gated: bool  # spawns wait until the mesh's bootstrap function has run
    commands: list[Command | None] | None = None  # a rank: exec this instead of forking
    binds: list[dict[str, str]] | None = None  # a rank: numactl / taskset arguments
    client: str = ""  # address of the root client
    # For another host: what `env` is made of there; `cwd` and `path` count where they exist.
    change: EnvChange | None = None
    folder: str = ""  # of the host's sockets; known to its agent
    stream_lines: bool = False  # output goes to the client line by line with its origin, unless it asks otherwise
    # What a process that takes another's place will import: forked off a fork server that has it, if there is one by then.
    warm: list[str] = []
    # Unless the environment says how many threads libraries take, each process gets a share.
    share_threads: bool = False
    threads: int = 0  # which is so many; known to the host's agent; 0 is as many as they want
    reached_at: str = ""  # where others dial the host; known to its agent
    # Each process uses a device of its host: the mesh takes some for itself ("take"), or uses what is free ("use"), or
    # those that its environment names ("see"); "" leaves all as it is.
    share_devices: str = ""
    devices: DeviceSlots | None = None  # which those are; known to the host's agent


class Command(msgspec.Struct):
    program: str
    arg0: str | None
    args: list[str]
    env: dict[str, str]
    change: EnvChange | None = None  # for another host: what `env` is made of there


class StopProcs(_Telling, tag=21):
    """Stop these processes: politely for `grace` seconds, then kill. Answered by ProcsStopped on `port`.

    The asker sends each a StopProc itself, behind the spawns it sent them before; the agent sees to it that they end.
    """

    texts = ("reason",)

    mesh: str
    reason: str
    grace: float
    port: int


class Watch(_Message, tag=22):
    """Tell this connection when the process at `address` ends (at once if it has, or was never started), and when another
    takes its place. `incarnation` is the one the asker means; of an earlier one it is told the end first. `lost`: that one
    was lost with its host, in whose place this is now; when no other is here, it has ended, and one may come."""

    address: str
    incarnation: int = 0
    lost: bool = False


class IncarnationAck(_Message, tag=28):
    """This process knows of the new process at `address`."""

    address: str
    incarnation: int


class Pong(_Message, tag=29):
    """The answer to Ping, from the I/O thread."""

    token: int


class ListProcs(_Message, tag=19):
    """Send the addresses of all processes of this host that run, as Answer to `port` (payload: msgpack list)."""

    port: int


class Shutdown(_Message, tag=23):
    """Stop every process, remove the runtime folder, exit."""

    grace: float
    agent: str = ""  # whom it is for, by its unique id: not who has taken that address meanwhile; "": whoever gets it


class Flush(_Message, tag=24):
    """Send everything captured so far, then Flushed(token)."""

    token: int


class Printed(_Message, tag=73):
    """So many characters of the Output `counted` under that number are printed."""

    counted: int
    size: int


class LogOption(_Message, tag=25):
    """Streaming and aggregation of the output of one mesh. `window` 0: no aggregation. Answer to `port` once it is in force,
    with that rank."""

    mesh: str
    stream: bool
    window: float
    port: int
    rank: int


class Preload(_Message, tag=26):
    """A hint: processes with this spec (payload, msgpack) will be wanted; warm a fork server up, for those that take
    another's place where the spec says what they will import (`warm`)."""


# --- host agent -> client, procs ----------------------------------------------------------------------------


class ProcReachable(_Message, tag=30):
    """The process at `address` can be reached; the answer to Watch when it lives. With an incarnation above the one that
    was known: a new process has taken its place (answered by IncarnationAck)."""

    address: str
    incarnation: int = 0


class ProcStarted(_Message, tag=31):
    mesh: str
    rank: int
    pid: int
    incarnation: int = 0
    threads: int = 0  # its share of the host's, if it was given one


class ProcsRefused(_Telling, tag=32):
    """The mesh could not be started; nothing of it runs."""

    texts = ("error",)

    mesh: str
    error: str


class ProcEnded(_Telling, tag=33):
    """A process is gone. `code` >= 0 exit status, < 0 signal number, as `subprocess` has it."""

    texts = ("tail", "detail")
    names = ("hostname",)

    address: str
    pid: int
    code: int
    stopped: bool  # it was asked to
    tail: list[str]
    detail: str = ""
    incarnation: int = 0
    replaced: bool = False  # it was asked to end because another is to take its place
    hostname: str = ""


class ProcsStopped(_Message, tag=34):
    mesh: str
    port: int


class Suspected(_Telling, tag=37):
    """Message to the owner: a process does not run, and is killed after `limit` seconds of it. `why` "": it runs
    again."""

    texts = ("why",)

    address: str
    pid: int
    why: str
    limit: float


class Output(_Message, tag=35):
    """Lines of a process for the client's stdout (1) or stderr (2), ready to print. `counted`: the agent's number for whose
    they are, to be told when they are printed (Printed); 0: it need not be."""

    stream: int
    text: str
    source: str = ""  # whose output it is
    counted: int = 0


class Flushed(_Message, tag=36):
    token: int


# --- owner, host agent -> a proc --------------------------------------------------------------------------------


class StopProc(_Telling, tag=40):
    """Stop your actors, finish, exit. From the owner, or from the agent."""

    texts = ("reason",)

    reason: str
    incarnation: int | None = None  # of the process that is meant; None: whichever is there


class Ping(_Message, tag=41):
    """Message from the agent: answer with Pong."""

    token: int


# --- between hosts ------------------------------------------------------------------------------------------


class Envelope(_Message, tag=50):
    """A message from a process of one host to one of another; `head` is that message's own, body and buffers are the frame's.

    Processes give it to the agent of their host, which passes the frame on as it is. See `routes`.
    """

    to: str
    source: str
    target_incarnation: (
        int  # the incarnation of the process that is meant; -1: the sender knows of none, anyone will do
    )
    head: bytes


class LinkHello(_Message, tag=51):
    """First frame on a connection of a link, both ways, the dialler's first. See `link`."""

    version: int
    host: str  # address prefix that the sender's host goes by; the acceptor repeats `reached`
    agent: str  # unique id of the sender's process: another one at the same address is another host
    link: str  # unique id of the link, chosen by the dialler; the acceptor repeats it
    reached: str  # the address that the dialler dialled: the acceptor's host goes by it from now on
    received: int  # data frames of this link that the sender has received so far
    resume: bool  # whether the sender has had a connection of this link before
    to: str = ""  # the process it is for, when not the host's agent; the sender is one then too (see `_runtime.direct`)
    # The incarnation of that process; of an agent, the generation of the host that is meant by `reached` (see HostReplaced).
    target_incarnation: int = -1
    incarnation: int = 0  # of the process that dials
    purpose: str = ""  # where this is no link: WHO asks which agent answers here; of a stream see `_runtime.streams`
    software: Software | None = None  # what the sender's host runs; None: it does not say, and nothing is compared
    pem: bytes = b""  # of a stream with TLS of its two processes: their key and certificate, made for it alone

    def __repr__(self) -> str:
        return f"<LinkHello of {self.host} {self.link} {self.purpose}>"


WHO = "who"  # a LinkHello with it is answered by one that names the agent, and that is all


class Beat(_Message, tag=52):
    """A sign of life on a link, and how many data frames its sender has received so far."""

    received: int


class SetCredentials(_Message, tag=54):
    """Message from a client to its own agent: how to prove itself to these hosts; payload: `Credentials`, msgpack."""

    hosts: list[str]
    config: bytes  # the client's settings as they are now


class HostReplaced(_Message, tag=59):
    """The host that goes by the name `host` is another one from now on: its agent is the process with the unique id `agent`,
    and it is dialled at `at`. From the owner of a mesh of hosts to agents, who answer on `port`, and from each agent to the
    processes of its own host. `agent` "": only where to dial has changed, and who answers there is not known yet.
    `generation`: how often that host was replaced."""

    host: str
    at: str
    agent: str
    generation: int
    port: int = 0
    rank: int = 0


class HostHeard(_Message, tag=38):
    """Message from a process to its agent: it knows that the host was replaced, and what became of the processes
    there."""

    host: str
    generation: int


class Attach(_Message, tag=55):
    """Message from a client to the agent of another host: it is going to use it. Answered on `port`; payload:
    AttachedHost."""

    config: bytes  # the client's settings
    env: bytes  # for the processes that are started there from now on: names and values, see `os_text`
    port: int
    rank: int
    replaces: str = (
        ""  # the name of a host that was lost, in whose place it is: what it may have run by that name is over
    )
    moves: list[HostReplaced] = []  # what else the client has replaced so far


class AttachedHost(msgspec.Struct):
    """A host's description of itself when a client attaches."""

    hostname: str
    pid: int
    python: str
    agent: str = ""  # the unique id of its agent's process, as in LinkHello


class HostEnded(_Telling, tag=53):
    """Message from an agent: that host cannot be reached any more, and counts as ended with everything on it."""

    texts = ("why",)

    host: str
    why: str
    generation: int = 0  # of the host: how often it had been replaced


class HostAsked(_Message, tag=82):
    """Message from an agent to that of a client: has that host ended, which cannot be reached from here? Answered by
    HostEnded if it has."""

    host: str


class AskDirect(_Message, tag=56):
    """Message from a process to the agent of its host: may it dial that process of another host itself? Answered by
    MayDial."""

    address: str
    stream: bool = False  # for a stream, not for a link
    # Has the agent connect a stream to a host with TLS: the socket is handed over with this, or MayDial says why not.
    hello: LinkHello | None = None


class MayDial(_Telling, tag=57):
    """Directions for a direct link; or `why` not, for all processes of that host and for good. Never leaves the host:
    it holds the job's secret."""

    texts = ("why",)

    address: str
    secret: bytes = b""
    why: str = ""
    stream: bool = False  # as it was asked
    at: str = ""  # where its host is dialled
    encrypted: bool = False  # messages to that host go by TLS, which is the only reason why not
    link: str = ""  # of the hello with which the agent should have connected a stream

    def __repr__(self) -> str:
        return f"<MayDial {self.address} {'(' + self.why + ')' if self.why else 'with secret' if self.secret else ''}>"


class Barrier(_Message, tag=58):
    """The last message of a process to another that goes through the agents: those behind it go over that link."""

    link: str


# --- payloads in shared memory ------------------------------------------------------------------------------


class SharedPayload(_Message, tag=80):
    """A message whose buffers, and perhaps body, are in a segment; `head` is its own. See `segments`, `payloads`."""

    head: bytes
    segment: int
    slot: int  # of the receiver's flag
    others: bool  # whether others get the same payload
    body: int  # bytes of the body there; -1: it is the frame's
    lengths: list[int]


class SegmentsGone(_Message, tag=81):
    """Nothing more comes in these segments."""

    segments: list[int]


class LentSegment(msgspec.Struct, array_like=True):
    """Goes with the descriptor of a segment: the process whose it is, its incarnation, and the segment's number."""

    source: str
    incarnation: int
    number: int


# --- casts over a tree --------------------------------------------------------------------------------------

# Numbers of a cast, one a position: one for all where they are the same, else runs (number, length). See `ordering`.
Stamp = int | list[tuple[int, int]]


class PlanHost(msgspec.Struct, array_like=True, gc=False):
    """Receivers on one host: `names[i]` is a process's name in it, `indices[i]` the receiver's rank in the view."""

    host: str
    names: list[str]
    indices: list[int]


class CastPlan(_Message, tag=60):
    """The receivers of the casts that name this number. From a sender to the agent of its host, and from agent to
    agent.

    The order of the hosts is the tree: with `serve`, the first is the one this is sent to, and the rest is cut into at most
    `width` parts of nearly equal size, whose first host passes on to the others (see `tree`). Positions count the receivers
    in that order, so a part is a contiguous range of them. The number is its sender's choice, above those it chose before.
    """

    number: int
    width: int
    serve: bool
    hosts: list[PlanHost]


class ForgetPlan(_Message, tag=61):
    """No more casts name this plan."""

    number: int


class Cast(_Message, tag=63):
    """A Call for every position of a plan; body and buffers of the frame are the call's.

    `number` counts the casts of one agent to another from 1; it is 0 from a sender to the agent of its host. Without `skip`
    it is delivered as Call, with it as Skip. `again`: the agent of that host has had it and ended, so it may be a repeat.
    """

    plan: int
    number: int
    source: str  # address of the sending process
    to: str
    sender: str
    method: str
    port: int
    back: str  # "": the source
    view: bytes
    adverb: int
    seqs: Stamp
    incarnations: Stamp
    # Seconds that an answer may wait for others to travel with; below 0: answers do not come up the tree. When they do,
    # the port is this cast's alone and takes one answer from each receiver.
    gather: float = -1.0
    skip: bool = False
    again: str = ""
    combine: bytes = b""  # how answers are folded on their way (see Combine); b"": they are not
    target_incarnation: Stamp = -1  # incarnations of the processes that are meant, as in Envelope


class PlanUnknown(_Message, tag=62):
    """The cast names a plan that this agent does not have: it and the frame's body and buffers go back to its sender,
    who registers the plan and sends it again."""

    cast: Cast


class Answers(_Message, tag=64):
    """Answers of several receivers to one port; the frame's body is their bodies one after the other, of `sizes` bytes.

    An answer with buffers, or above 64 KiB, comes alone. `gone`: ranks that will not answer, of which the caller is told by
    others (their process or host has ended).
    """

    back: str
    port: int
    ranks: list[int]
    kinds: list[int]
    sizes: list[int]
    gone: list[int] = []


class Delivered(_Message, tag=65):
    """Casts up to `number` that nobody answers have reached every receiver below this agent."""

    number: int


class CancelGather(_Message, tag=66):
    """Nobody waits for answers to that port any more."""

    back: str
    port: int


class Skip(_Message, tag=67):
    """Message to an actor: messages of `sender` may have been lost with a host on their way; do not wait for them."""

    to: str
    sender: str


class HostUnreachable(_Message, tag=72):
    """Message from an agent to those above it: that host below it counts as ended here. Perhaps they can reach it."""

    host: str


class TreeCall(_Message, tag=68):
    """Message from the agent of this host: a call that came down the tree from the process at `source`. `up`: its
    answer goes back to the agent (TreeAnswer)."""

    source: str
    call: Call
    up: bool
    target_incarnation: int = -1


class TreeAnswer(_Message, tag=69):
    """Message to the agent of this host: an answer to a port of the process at `back`, which goes up the tree."""

    back: str
    answer: Answer


class Combine(_Message, tag=70):
    """Message from the agent of this host: fold answers into one for each group of neighbours, by the order in which
    they stand.

    The frame's body are their bodies one after the other, of `sizes` bytes; its buffers are theirs, `buffers[i]` of answer i.
    Answered by a Combined for each group.
    """

    back: str
    port: int
    combine: bytes  # the pickled function, or its name: see `reduce`
    groups: list[int]  # answers in each
    sizes: list[int]
    buffers: list[int]


class Combined(_Message, tag=71):
    """The result of a group; a VALUE or an ERROR."""

    back: str
    port: int
    group: int
    kind: int


Message = (
    Hello | Welcome | Bye | Call | Spawn | Restarted | StopActor | Probe | Ask | Recorded | DeadlockProbe | Answer | Bounced
    | SenderEnded | Pause | Failure | ActorEnded | SpawnProcs | RestartProcs | StopProcs | Watch | IncarnationAck
    | Pong | ListProcs | Shutdown | Flush | LogOption | Preload | ProcReachable | ProcStarted | ProcsRefused
    | ProcEnded | ProcsStopped | Suspected | Output | Printed | Flushed | StopProc | Ping | Envelope | LinkHello | Beat
    | HostEnded | HostAsked | HostReplaced | HostHeard
    | SetCredentials | Attach | AskDirect | MayDial | Barrier | CastPlan | ForgetPlan | Cast
    | PlanUnknown | Answers | Delivered | CancelGather | Skip | TreeCall | TreeAnswer | Combine | Combined
    | HostUnreachable | SharedPayload | SegmentsGone
)  # fmt: skip

_encoder = msgspec.msgpack.Encoder()
_extents: dict[bytes, tuple[tuple[str, ...], tuple[int, ...]]] = {}
_EXTENTS_KEPT = 4096

# What decoding raises for bytes that are none of ours: the last for arrays in arrays, deeper than Python goes.
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)

encode = _encoder.encode
if TYPE_CHECKING:
    _decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)
    decode = _decoder.decode
else:

    def __getattr__(name: str) -> Any:
        """`decode` is made for the first message that comes: the decoder takes longer than the rest of this file."""
        if name != "decode":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        made = globals()["decode"] = msgspec.msgpack.Decoder(Message).decode
        return made


def encode_around_rank(call: Call) -> tuple[bytes, bytes]:
    """Returns the encoded Call in two parts: between them belongs `encode(rank)`, of whichever rank. For one message to many,
    which differs in nothing else."""
    behind = encode((call.view, call.adverb, call.incarnation))[1:]  # an array of three begins with one byte
    whole = encode(call)
    return whole[: -len(behind) - len(encode(call.rank))], behind


def encode_extent(labels: tuple[str, ...], sizes: tuple[int, ...]) -> bytes:
    return _encoder.encode((labels, sizes))


def decode_extent(view: bytes) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """(labels, sizes); remembered for the last few thousand different views, for every message carries one."""
    known = _extents.get(view)
    if known is None:
        labels, sizes = msgspec.msgpack.decode(view, type=tuple[tuple[str, ...], tuple[int, ...]])
        if len(_extents) >= _EXTENTS_KEPT:
            _extents.clear()
        known = _extents[bytes(view)] = labels, sizes
    return known
