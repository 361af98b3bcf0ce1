"""Trees of agents in memory: hosts whose agents are connected by queues, callers, receivers, and what may happen to them."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any

from monarch._mesh.agent.effects import Arm, Disarm
from monarch._mesh.casts.plan import RemoteReceivers
from monarch._mesh.casts.relay import Casts, Deliver, DirectReply, Forward, Reply
from monarch._runtime.ordering import Numbering, Reorder, compress
from monarch._wire import message
from monarch._wire.address import host_of
from monarch._wire.message import (
    FAILED,
    VALUE,
    Answer,
    Answers,
    Call,
    CancelGather,
    Cast,
    CastPlan,
    Delivered,
    ForgetPlan,
    HostUnreachable,
    PlanUnknown,
    Skip,
)


class Receiver:
    """A process with one actor: handles what its `Reorder` lets through, and answers it some time later."""

    def __init__(self, rank: int, address: str) -> None:
        self.rank = rank
        self.address = address
        self.alive = True
        self.reorder: Reorder[Call] = Reorder()
        self.handled: list[tuple[str, int]] = []
        self.unanswered: list[Call] = []

    def receive(self, msg: Call | Skip) -> None:
        if isinstance(msg, Skip):
            ready = self.reorder.lost(msg.sender)
            if not self.reorder.knows(msg.sender):
                self.reorder.skip(msg.sender)
        else:
            ready = list(self.reorder.accept(msg.sender, msg.seq, msg) or ())
        for call in ready:
            self.handled.append((call.sender, call.seq))
            if call.port:
                self.unanswered.append(call)


class Caller:
    """A process on a host that does not end, which casts to views of all receivers."""

    def __init__(self, name: str, host: str) -> None:
        self.name = name
        self.host = host
        self.address = f"{host}/{name}"
        self.numbering = Numbering()
        self.plans: dict[int, list[int]] = {}  # number -> ranks of the receivers, in the order of their positions
        self.indices: dict[int, list[int]] = {}
        self.sent: dict[int, list[int]] = {}  # receiver -> its numbers
        self.calls: dict[int, dict[int, int]] = {}  # port -> rank in the view -> receiver
        self.bodies: dict[int, bytes] = {}
        self.answers: dict[int, Counter[int]] = {}
        self.failed: list[tuple[int, int]] = []
        self.ports = 0


class CastWorld:
    """Hosts whose agents are connected by queues, and what may happen next. Everything follows from the seed."""

    def __init__(self, seed: int, hosts: int, width: int, roots: int, views: int) -> None:
        self.random = random.Random(seed)
        self.width = width
        self.views = views
        self.now = 0.0
        self.hosts = [f"h{n}" for n in range(hosts)]
        self.alive = set(self.hosts)
        self.parted: set[frozenset[str]] = set()
        self.agents = {host: Casts(1e6) for host in self.hosts}
        self.queues: dict[tuple[str, str], deque[Any]] = {}  # (from, to): hosts' agents, processes
        self.timers: dict[str, dict[tuple[Any, ...], float]] = {host: {} for host in self.hosts}
        self.receivers: dict[str, Receiver] = {}
        for host in self.hosts:
            for _ in range(self.random.randint(0 if host == "h0" else 1, 2)):
                rank = len(self.receivers)
                self.receivers[f"{host}/m.{rank}"] = Receiver(rank, f"{host}/m.{rank}")
        self.addresses = list(self.receivers)
        self.roots = self.hosts[:roots]
        self.callers = {c.address: c for c in (Caller(f"client{n}", root) for n, root in enumerate(self.roots))}
        self.most = 0  # messages of a root on account of one cast

    # what happens

    def step(self) -> bool:
        """One of the things that may happen; False when none may."""
        ready = [path for path, queue in self.queues.items() if queue]
        busy = [receiver for receiver in self.receivers.values() if receiver.alive and receiver.unanswered]
        timers = [(host, key) for host in self.hosts for key in self.timers[host] if key[0] != "orphans"]
        choices: list[tuple[int, Callable[[], None]]] = [
            (6, lambda: self.carry(self.random.choice(ready))) if ready else (0, self.step),
            (3, lambda: self.respond(self.random.choice(busy))) if busy else (0, self.step),
            (1, lambda: self.fire(*self.random.choice(timers))) if timers else (0, self.step),
        ]
        weights = [weight for weight, _ in choices]
        if not any(weights):
            return False
        self.random.choices(choices, weights)[0][1]()
        return True

    def carry(self, path: tuple[str, str]) -> None:
        """The next message of a queue arrives."""
        origin, target = path
        encoded, body, buffers = self.queues[path].popleft()
        msg = encoded if isinstance(encoded, str) else message.decode(encoded)
        if target in self.receivers:
            if self.receivers[target].alive:
                self.receivers[target].receive(msg)
            else:
                self.put(target, host_of(target), "ended")
        elif target in self.callers:
            self.back_at_caller(self.callers[target], msg, body)
        else:
            self.arrive(target, origin, msg, body, buffers)

    def arrive(self, host: str, origin: str, msg: Any, body: bytes, buffers: Sequence[bytes]) -> None:
        agent, now = self.agents[host], self.now
        match msg:
            case "ended":
                process = origin in self.receivers
                effects = agent.process_ended(now, origin) if process else agent.host_ended(now, origin)
            case CastPlan():
                effects = agent.plan(now, origin, msg)
            case ForgetPlan():
                effects = agent.forget(now, origin, msg)
            case Cast():
                effects = agent.cast(now, origin, msg, body, buffers)
                self.most = max(self.most, sum(type(e) is Forward and type(e.message) is Cast for e in effects))
            case CancelGather():
                effects = agent.unwanted(now, origin, msg)
            case Answer():
                effects = agent.answer(now, msg.sender, msg, body, buffers)
            case Answers():
                effects = agent.answers(now, origin, msg, body, buffers)
            case Delivered():
                effects = agent.delivered(now, origin, msg)
            case PlanUnknown():
                effects = agent.plan_unknown(now, origin, msg, body, buffers)
            case HostUnreachable():
                effects = agent.unreached(now, origin, msg)
            case _:
                raise AssertionError(f"nobody sends {msg!r} to an agent")
        self.carry_out(host, effects)

    def carry_out(self, host: str, effects: Iterable[Any]) -> None:
        for effect in effects:
            match effect:
                case Deliver(address, msg, body, buffers, _):
                    self.put(host, address, msg, body, buffers)
                case Forward(target, msg, body, buffers):
                    if target in self.alive and frozenset((host, target)) not in self.parted:
                        self.put(host, target, msg, body, buffers)
                    else:
                        self.put(target, host, "ended")
                case Reply(upstream, msg, body, buffers):
                    there = upstream in self.alive and frozenset((host, upstream)) not in self.parted
                    if there or upstream in self.callers:
                        self.put(host, upstream, msg, body, buffers)
                case DirectReply(address, msg, body, buffers):
                    self.put(host, address, msg, body, buffers)
                case Arm(key, delay):
                    self.timers[host][key] = self.now + delay
                case Disarm(key):
                    del self.timers[host][key]

    def put(self, origin: str, target: str, msg: Any, body: Any = b"", buffers: Sequence[Any] = ()) -> None:
        encoded = msg if isinstance(msg, str) else message.encode(msg)
        self.queues.setdefault((origin, target), deque()).append((encoded, bytes(body), tuple(buffers)))

    def fire(self, host: str, key: tuple[Any, ...]) -> None:
        self.now = max(self.now, self.timers[host].pop(key))
        self.carry_out(host, self.agents[host].fired(self.now, key))

    # processes

    def respond(self, receiver: Receiver) -> None:
        at = self.random.randrange(len(receiver.unanswered))
        self.answer(receiver, at, (b"buffer",) if self.random.random() < 0.1 else ())

    def answer(self, receiver: Receiver, at: int, buffers: Sequence[bytes] = ()) -> None:
        call = receiver.unanswered.pop(at)
        # an answer's `sender` says here to whom it goes, which otherwise an Envelope does
        body = b"%d of %d" % (receiver.rank, call.port)
        self.put(
            receiver.address, host_of(receiver.address), Answer(call.port, call.rank, VALUE, call.back), body, buffers
        )

    def back_at_caller(self, caller: Caller, msg: Any, body: bytes) -> None:
        if isinstance(msg, PlanUnknown):
            self.register(caller, msg.cast.plan)
            self.put(caller.address, caller.host, msg.cast, body)
            return
        if isinstance(msg, Answer):
            msg = Answers(caller.address, msg.port, [msg.rank], [msg.kind], [len(body)])
        assert isinstance(msg, Answers)
        start = 0
        for index, kind, size in zip(msg.ranks, msg.kinds, msg.sizes, strict=True):
            caller.answers[msg.port][index] += 1
            if kind == FAILED:
                caller.failed.append((msg.port, index))
            else:
                assert body[start : start + size] == b"%d of %d" % (caller.calls[msg.port][index], msg.port)
            start += size
        assert start == len(body)

    def register(self, caller: Caller, number: int) -> None:
        addresses = [self.addresses[rank] for rank in caller.plans[number]]
        receivers = tuple((index, index, address) for index, address in enumerate(addresses))
        hosts = sorted(
            RemoteReceivers(receivers, "").hosts, key=lambda there: there.host != caller.host
        )  # its own first
        caller.indices[number] = [index for host in hosts for index in host.indices]
        serve = bool(hosts) and hosts[0].host == caller.host
        self.put(caller.address, caller.host, CastPlan(number, self.width, serve, hosts))

    def send(self) -> None:
        """Some caller casts to a view."""
        caller = self.random.choice(list(self.callers.values()))
        number = self.random.randint(1, self.views)
        if number not in caller.plans:
            count = self.random.randint(1, len(self.addresses))
            caller.plans[number] = self.random.sample(range(len(self.addresses)), count)
            self.register(caller, number)
        elif self.views > 1 and self.random.random() < 0.05:
            self.put(caller.address, caller.host, ForgetPlan(number))  # and is found to be unknown
        gather = self.random.choice((0.0, 0.01)) if self.random.random() < 0.5 else -1.0
        self.cast(caller, number, gather, b"arguments" * self.random.randint(0, 3))

    def cast(self, caller: Caller, number: int, gather: float, body: bytes) -> None:
        """`gather`: as in a Cast, negative for one that nobody answers."""
        view = caller.plans[number]
        order = [view[index] for index in caller.indices[number]]
        calls = [SimpleNamespace(seq=0) for _ in order]
        for call, rank in zip(calls, order, strict=True):
            caller.numbering.next(call, "actors", rank)
        seqs = [call.seq for call in calls]
        for rank, seq in zip(order, seqs, strict=True):
            caller.sent.setdefault(rank, []).append(seq)
        port = 0
        if gather >= 0:
            caller.ports += 1
            port = caller.ports
            caller.calls[port] = dict(enumerate(view))
            caller.answers[port] = Counter()
        self.put(
            caller.address,
            caller.host,
            Cast(number, 0, caller.address, "actors", caller.name, "work", port, "", b"", 0, compress(seqs), 0, gather),
            body,
        )

    # ends

    def end_process(self) -> None:
        living = [receiver for receiver in self.receivers.values() if receiver.alive]
        if living:
            receiver = self.random.choice(living)
            receiver.alive = False
            self.put(receiver.address, host_of(receiver.address), "ended")

    def end_host(self) -> None:
        if mortal := self.mortal():
            self.end(self.random.choice(mortal), self.some)

    def some(self, path: tuple[str, str]) -> int:
        return self.random.randint(0, len(self.queues[path]))

    def mortal(self) -> list[str]:
        return sorted(self.alive - set(self.roots))

    def end(self, host: str, lost: Callable[[tuple[str, str]], int]) -> None:
        """Ends a host: what it has sent arrives up to some message, for `lost` says how many of those under way on a
        path do not; what was sent to it does not arrive."""
        self.alive.remove(host)
        self.timers[host].clear()
        for address, receiver in self.receivers.items():
            if host_of(address) == host:
                receiver.alive = False
        for (origin, target), queue in self.queues.items():
            inside = host in (host_of(origin), host_of(target))
            if inside or target == host:
                queue.clear()
            elif origin == host:
                for _ in range(lost((origin, target))):
                    queue.pop()
        for other in sorted(self.alive):
            self.put(host, other, "ended")

    def part(self) -> None:
        others = self.mortal()
        if len(others) >= 2 and frozenset(pair := self.random.sample(others, 2)) not in self.parted:
            self.separate(*pair, self.some)

    def separate(self, one: str, other: str, lost: Callable[[tuple[str, str]], int]) -> None:
        """Two hosts that live cannot reach each other any more; of what was under way so many are lost, the last ones."""
        self.parted.add(frozenset((one, other)))
        for origin, target in ((one, other), (other, one)):
            queue = self.queues.setdefault((origin, target), deque())
            for _ in range(lost((origin, target))):
                queue.pop()
            self.put(origin, target, "ended")

    # the whole story

    def run(self, casts: int, ends: int, parted: int = 0) -> None:
        events: list[Callable[[], None]] = [self.send] * casts + [self.part] * parted
        events += [self.random.choice((self.end_host, self.end_process)) for _ in range(ends)]
        self.random.shuffle(events)
        for event in events:
            for _ in range(self.random.choice((0, 3, 20, 100))):
                self.step()
            event()
        while self.step():
            pass

    def tidy(self) -> None:
        """The callers leave; then nothing is left."""
        for caller in self.callers.values():
            for number in caller.plans:
                self.put(caller.address, caller.host, ForgetPlan(number))
        while self.step():
            pass
        while any(self.timers.values()):
            for host in sorted(self.alive):
                for key in list(self.timers[host]):
                    if key in self.timers[host]:
                        self.fire(host, key)
            while self.step():
                pass
        for host in sorted(self.alive):
            assert self.agents[host].counts()._replace(finished=0) == (0,) * 9, host

    def check_that_all_is_served(self) -> None:
        """Each living receiver has handled every cast once and in order, and answered once."""
        for caller in self.callers.values():
            for rank, address in enumerate(self.addresses):
                receiver = self.receivers[address]
                if receiver.alive:
                    handled = [seq for sender, seq in receiver.handled if sender == caller.name]
                    assert handled == caller.sent.get(rank, [])
            for port, ranks in caller.calls.items():
                counted = caller.answers[port]
                assert max(counted.values(), default=0) <= 1
                assert [index for index, rank in ranks.items() if self.lives(rank) and not counted[index]] == []
            assert caller.failed == []

    def lives(self, rank: int) -> bool:
        return self.receivers[self.addresses[rank]].alive
