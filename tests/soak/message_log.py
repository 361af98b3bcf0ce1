"""A flight recorder of the numbers of messages, which says where each one is, for a soak that has failed.

The runtime knows nothing of it and pays nothing for it. In the block of `recording` functions of its classes are replaced by
ones that also note a step: numbered, posted, taken by a connection or kept, read, held behind a number, put into the mailbox,
handled, answered, refused. Bounded: the oldest steps go. With a folder each process also appends to a file there, so that
what it noted outlives it.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from monarch._mesh.actors.async_behaviour import AsyncActorBehaviour
from monarch._mesh.actors.behaviour import ActorBehaviour
from monarch._mesh.agent.base_host_agent import BaseHostAgent
from monarch._runtime.actor_table import ActorTable
from monarch._runtime.instance import Delivery, Instance
from monarch._runtime.ordering import Numbering, Reorder, expand
from monarch._runtime.proc import Proc
from monarch._runtime.replies import Entry, Ports
from monarch._wire.message import Answer, Call, Cast, TreeAnswer

FOLDER = "MONARCH_SOAK_MESSAGES"  # the variable by which processes know that and where they write
KEPT = 200_000  # steps
_FILE = 32 * 1024 * 1024  # bytes that a process writes into a folder, at most
_SHOWN = 40  # messages in a report
_STEPS = 30  # of each of them
_OVER = ("closed", "refused", "a repeat", "handled", "not sent")  # beginnings of the last step of a message or a port


class Step(NamedTuple):
    """`at` is monotonic, one clock for all processes of the machine; `key` is a message, a stream of them or a port."""

    at: float
    where: str
    key: str
    what: str


class MessageLog:
    """Steps in the order in which they were noted. Any thread may note. With a `folder` they are written there, too; `others`
    is where other processes write."""

    def __init__(self, folder: str = "", others: str = "") -> None:
        self.others = others
        self._steps: deque[Step] = deque(maxlen=KEPT)
        self.places: dict[int, str] = {}  # table of ports -> its process
        self.here = threading.local()  # what this thread does just now
        self._left = _FILE
        self._fd = -1
        if folder:
            path = os.path.join(folder, f"messages.{os.getpid()}")
            self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def note(self, where: str, key: str, what: str) -> None:
        step = Step(time.monotonic(), where, key, what)
        self._steps.append(step)
        if self._fd >= 0 and self._left > 0:
            fields = (f"{step.at:.6f}", *(" ".join(field.split()) for field in step[1:]))
            line = ("\t".join(fields) + "\n").encode(errors="replace")
            self._left -= os.write(self._fd, line)

    @property
    def last(self) -> float:
        """Returns when the last step was noted."""
        return self._steps[-1].at if self._steps else 0.0

    def steps(self) -> list[Step]:
        steps = list(self._steps.copy())
        return sorted(steps + _read(self.others)) if self.others else steps


def record_here() -> None:
    """In a process of a soak: notes until it ends."""
    folder = os.environ.get(FOLDER)
    if folder:
        recording(MessageLog(folder)).__enter__()


def _read(folder: str) -> list[Step]:
    """Returns what all processes have written there."""
    steps = []
    for name in os.listdir(folder):
        with open(os.path.join(folder, name), encoding="utf-8", errors="replace") as file:
            fields = [line.rstrip("\n").split("\t", 3) for line in file]
        steps += [Step(float(at), *rest) for at, *rest in fields if len(rest) == 3]
    return steps


_STREAM_STEPS = ("missed", "take_up", "path_lost", "skip_lost", "sender_ended", "_refuse_waiting")


# --- what a report says


def report(steps: Sequence[Step]) -> str:
    """The messages that have not come to their end, with all that is known of each, and of those that they wait for."""
    by_key: dict[str, list[Step]] = defaultdict(list)
    for step in steps:
        by_key[step.key].append(step)
    pending = [key for key, life in by_key.items() if "#" in key and not _is_over(by_key, life)]
    count = len({*pending, *(key for key in by_key if "@" in key)})
    parts = [f"{len(pending)} of {count} messages have not come to their end"]
    shown: set[str] = set()
    for key in sorted(pending, key=lambda key: by_key[key][0].at)[:_SHOWN]:
        for related in (key, *_awaited(by_key, key)):
            if related not in shown:
                shown.add(related)
                parts.append(_life(related, by_key[related]))
    return "\n".join(parts)


def _is_over(by_key: dict[str, list[Step]], life: list[Step]) -> bool:
    """An answer counts where it came; without a port, handling does."""
    whats = [step.what for step in life]
    if whats[0].startswith("numbered"):
        return any(what.startswith("posted") for what in whats)
    port = next((what.partition(" for ")[2] for what in whats if " for port " in what), "")
    if port:
        return any(step.what.startswith(_OVER) for step in by_key.get(port, ()))
    return any(what.startswith(_OVER) for what in whats)


def _awaited(by_key: dict[str, list[Step]], key: str) -> list[str]:
    """The keys of the number behind which a message is held, of its stream and of its answer's port."""
    stream = key.partition("#")[0].partition("@")[0].partition("[")[0]
    found = [key for key in by_key if key == stream]
    for step in by_key[key]:
        if step.what.startswith("held behind "):
            number = step.what.split()[2]
            found += [
                other
                for other in by_key
                if other.startswith((f"{stream}@", f"{stream}[")) and _number(other) == number and other not in found
            ]
        if " for port " in step.what:
            found.append(step.what.partition(" for ")[2])
    return [other for other in found if other in by_key]


def _number(key: str) -> str:
    return key.partition("#")[2].partition("~")[0]


def _life(title: str, steps: Sequence[Step]) -> str:
    return f"  {title}\n" + "\n".join(f"    {step.at:.6f} {step.where}: {step.what}" for step in steps[-_STEPS:])


def lines(steps: Sequence[Step]) -> str:
    """One a line, whatever they are of."""
    return "\n".join(f"  {step.at:.6f} {step.where}: {step.key}: {step.what}" for step in steps)


# --- where steps are noted


@contextlib.contextmanager
def recording(log: MessageLog) -> Iterator[MessageLog]:
    """Notes the steps of all messages of this process in its block."""
    before = [(cls, name, cls.__dict__[name]) for cls, name, _ in _REPLACED]
    for cls, name, replace in _REPLACED:
        setattr(cls, name, replace(log, cls.__dict__[name]))
    try:
        yield log
    finally:
        for cls, name, function in before:
            setattr(cls, name, function)


def _message(call: Call, address: str) -> str:
    """The key of a message, the same at both ends."""
    life = f"~{call.incarnation}" if call.incarnation else ""
    return f"{call.sender}>{call.to}@{address}#{call.seq}{life}"


def _port(address: str, number: int) -> str:
    return f"port {address}:{number}"


def _next(log: MessageLog, original: Callable[..., Any]) -> Callable[..., Any]:
    def next(self: Numbering, message: Any, mesh: Any, rank: Any) -> None:
        original(self, message, mesh, rank)
        log.here.numbered = message, [f"{message.sender}>{message.to}[{rank}]#{message.seq}"]
        log.note("", log.here.numbered[1][0], "numbered")

    return next


def _next_many(log: MessageLog, original: Callable[..., Any]) -> Callable[..., Any]:
    def next_many(self: Numbering, message: Any, mesh: Any, ranks: Sequence[Any]) -> None:
        original(self, message, mesh, ranks)
        numbers = zip(ranks, expand(message.seqs, len(ranks)), strict=True)
        keys = [f"{message.sender}>{message.to}[{rank}]#{number}" for rank, number in numbers]
        log.here.numbered = message, keys
        for key in keys:
            log.note("", key, "numbered")

    return next_many


def _post(log: MessageLog, original: Callable[..., Any]) -> Callable[..., Any]:
    def post(self: Proc, address: str, msg: Any, *args: Any, **kwargs: Any) -> Any:
        log.places[id(self.ports._entries)] = self.address
        answer = msg.answer if type(msg) is TreeAnswer else msg
        if type(msg) is Call:
            key = _message(msg, address)
            for_port = f" for {_port(msg.back or self.address, msg.port)}" if msg.port else ""
            log.note(self.address, key, f"posted: {msg.method}(){for_port}")
        elif type(answer) is Answer:
            key = _port(msg.back if type(msg) is TreeAnswer else address, answer.port)
            log.note(self.address, key, f"answered by rank {answer.rank}, kind {answer.kind}, to {address}")
        elif type(msg) is Cast:
            key = f"{msg.sender}>{msg.to}"
            log.note(self.address, key, f"cast: {msg.method}(), numbers {msg.seqs}, port {msg.port}")
        else:
            return original(self, address, msg, *args, **kwargs)
        message, keys = getattr(log.here, "numbered", (None, ()))
        if message is msg:
            log.here.numbered = None, ()
            for numbered in keys:
                log.note(self.address, numbered, f"posted to {address}")
        try:
            taken = original(self, address, msg, *args, **kwargs)
        except BaseException as exc:
            log.note(self.address, key, f"not sent: {type(exc).__name__}")
            raise
        log.note(self.address, key, f"taken by {taken!r}" if taken is not None else "kept, or delivered here")
        return taken

    return post


def _post_alike(log: MessageLog, original: Callable[..., Any]) -> Callable[..., Any]:
    def post_alike(self: Proc, call: Call, receivers: Any, *args: Any) -> Any:
        log.places[id(self.ports._entries)] = self.address
        for_port = f" for {_port(call.back or self.address, call.port)}" if call.port else ""
        for _, rank, address in receivers:
            log.note(self.address, f"{call.sender}>{call.to}[{rank}]#{call.seq}", f"posted to {address}")
            log.note(self.address, _message(call, address), f"posted: {call.method}(){for_port}")
        return original(self, call, receivers, *args)

    return post_alike


def _refuse(log: MessageLog, original: Callable[..., Any]) -> Callable[..., Any]:
    def refuse(self: Proc, delivery: Delivery, failure: Any) -> None:
        log.note(self.address, _message(delivery.call, self.address), f"refused: {failure.report}")
        original(self, delivery, failure)

    return refuse


def _arrive(log: MessageLog, original: Callable[..., Any]) -> Callable[..., Any]:
    def deliver(self: ActorTable, call: Call, body: Any, buffers: Any, source: str, up: bool = False) -> None:
        where = "" if call.to in self.actors else "; its actor is not here"
        log.note(self._address, _message(call, self._address), f"read, from {source}{where}")
        original(self, call, body, buffers, source, up)

    return deliver


def _deliver(log: MessageLog, original: Callable[..., Any]) -> Callable[..., Any]:
    def deliver(self: Instance, delivery: Delivery) -> None:
        log.here.instance = self
        original(self, delivery)

    return deliver


def _accept(log: MessageLog, original: Callable[..., Any]) -> Callable[..., Any]:
    def accept(self: Reorder[Any], sender: Any, number: int, item: Any) -> Any:
        before = abs(self._expected.get(sender, 1))
        accepted = original(self, sender, number, item)
        instance = getattr(log.here, "instance", None)
        if type(item) is not Delivery or instance is None:
            return accepted
        address, life = instance.proc.address, f"~{instance.incarnation}"
        if not accepted:
            held = number in self._held.get(sender, ()) and number >= before
            what = "given up before" if accepted is None else f"held behind {before}" if held else "a repeat"
            log.note(address, _message(item.call, address), f"{what} (actor {life})")
        for ready in accepted or ():
            log.note(address, _message(ready.call, address), f"in the mailbox (actor {life})")
        return accepted

    return accept


def _handle(log: MessageLog, original: Callable[..., Any]) -> Callable[..., Any]:
    def handle(self: ActorBehaviour, delivery: Delivery) -> None:
        address = self.instance.proc.address
        log.note(address, _message(delivery.call, address), "begun")
        try:
            original(self, delivery)
        finally:
            log.note(address, _message(delivery.call, address), "handled")

    return handle


def _handle_async(log: MessageLog, original: Callable[..., Any]) -> Callable[..., Any]:
    async def handle_async(self: AsyncActorBehaviour, delivery: Delivery) -> None:
        address = self.instance.proc.address
        log.note(address, _message(delivery.call, address), "begun")
        try:
            await original(self, delivery)
        finally:
            log.note(address, _message(delivery.call, address), "handled")

    return handle_async


def _receive(log: MessageLog, original: Callable[..., Any]) -> Callable[..., Any]:
    def receive(self: Ports, number: int, raw: Any) -> bool:
        found: bool = original(self, number, raw)
        address = log.places.get(id(self._entries), "?")
        log.note(address, _port(address, number), f"answer of rank {raw[0]} came{'' if found else ', to nobody'}")
        return found

    return receive


def _close(log: MessageLog, original: Callable[..., Any]) -> Callable[..., Any]:
    def close(self: Entry) -> None:
        address = log.places.get(id(self.table), "?")
        original(self)
        log.note(address, _port(address, self.number), "closed")

    return close


def _abandon(log: MessageLog, original: Callable[..., Any]) -> Callable[..., Any]:
    def abandon(self: Ports, entry: Entry) -> bool:
        address = log.places.get(id(self._entries), "?")
        log.note(address, _port(address, entry.number), "closed: its Future was dropped")
        done: bool = original(self, entry)
        return done

    return abandon


def _of_stream(name: str) -> Callable[[MessageLog, Callable[..., Any]], Callable[..., Any]]:
    """A step of all that one actor has sent to another; `sender` is the first argument, or its Call is."""

    def replace(log: MessageLog, original: Callable[..., Any]) -> Callable[..., Any]:
        def step(self: Instance, sender: Any, *args: Any) -> Any:
            shown = sender.sender if type(sender) is Call else sender
            shown = shown[0] if isinstance(shown, tuple) else shown
            log.note(self.proc.address, f"{shown}>{self.key}", f"{name}{args} (actor ~{self.incarnation})")
            return original(self, sender, *args)

        return step

    return replace


def _deal(log: MessageLog, original: Callable[..., Any]) -> Callable[..., Any]:
    def deal(self: BaseHostAgent, deliver: Any) -> None:
        if type(deliver.message) is Call:
            log.note(self.host, _message(deliver.message, deliver.address), "dealt by the agent")
        original(self, deliver)

    return deal


_REPLACED: Sequence[tuple[type, str, Callable[[MessageLog, Callable[..., Any]], Callable[..., Any]]]] = (
    (Numbering, "next", _next),
    (Numbering, "next_many", _next_many),
    (Proc, "post", _post),
    (Proc, "post_alike", _post_alike),
    (Proc, "refuse", _refuse),
    (ActorTable, "deliver", _arrive),
    (Instance, "deliver", _deliver),
    (Reorder, "accept", _accept),
    (ActorBehaviour, "handle", _handle),
    (AsyncActorBehaviour, "handle_async", _handle_async),
    (Ports, "receive", _receive),
    (Ports, "abandon", _abandon),
    (Entry, "close", _close),
    (BaseHostAgent, "_deal", _deal),
    *((Instance, name, _of_stream(name)) for name in _STREAM_STEPS),
)
