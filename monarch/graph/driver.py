"""The part of an actor in compiled graphs: on its own thread, between two messages, it runs what is due.

A step whose values are there goes behind the messages that wait in the actor's mailbox, one step at a time; so what was sent
to the actor before is served before, and neither starves the other. It runs there as a call does: same context, same records,
same errors.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from monarch._linux import procfs
from monarch.actor import Extent, NDSlice, Shape, ValueMesh
from monarch.actor._feeding import (
    FedCall,
    call_for,
    decode,
    expect_end,
    own_instance,
)
from monarch.actor.lowlevel import watch_processes
from monarch.graph.bells import DescriptorAt, OtherBell, OwnBell, SharedMachine, Spin, this_machine
from monarch.graph.gate import GateStream, GraphGate
from monarch.graph.hosts import GateSpec, stream_reader, too_large
from monarch.graph.memory import VALUE, GraphMemory, Lent, Value
from monarch.graph.plan import Ring, Step, Take, Turns


@dataclass
class Entered:
    """An actor's own facts: `why_not` it can take part; "" if it can. `cores` are those of its process. Of a gate, where the
    memory of its host is, and the bells of its streams."""

    bell: DescriptorAt
    machine: SharedMachine
    why_not: str
    cores: int = 1
    memory: DescriptorAt | None = None
    streams: dict[int, DescriptorAt] = field(default_factory=dict)


@dataclass
class Connect:
    """The word to a gate that joins it to others: the addresses of those that it dials, by host; the readers on its host of
    each ring that comes; their bells."""

    dials: dict[int, str]
    readers: dict[int, list[int]]
    bells: dict[int, DescriptorAt]


@dataclass
class Part:
    """A graph as the client describes it to an actor. `bells` are of the client (number -1), the actors and the streams (see
    `hosts`) that it wakes, on its host."""

    memory: DescriptorAt  # where the file is
    depth: int
    slot_size: int
    buffer: int
    rings: list[Ring]
    steps: list[Step]
    bells: dict[int, DescriptorAt]
    spin: float
    sender: str
    back: str


def mesh_of(extent: Extent, values: list[Any]) -> ValueMesh[Any]:
    return ValueMesh(Shape(list(extent.labels), NDSlice.new_row_major(list(extent.sizes))), values)


class GraphMember:
    """One graph of an actor."""

    def __init__(self, driver: Driver, name: str, ends: Sequence[Callable[[], None]]) -> None:
        self.driver = driver
        self.name = name
        self.memory: GraphMemory | None = None
        self._ends = list(ends)
        self._bells: dict[int, OtherBell | GateStream] = {}
        self.gate: GraphGate | None = None  # of this host, if it is here
        self.gone = False  # its client has ended
        self.spin = Spin(0.0)

    def join(self, part: Part) -> None:
        self.spin = Spin(part.spin)
        if self.gate is not None:
            self._bells |= {stream_reader(host): stream for host, stream in self.gate.streams.items()}
        for number, at in part.bells.items():
            if number not in self._bells:
                self._bells[number] = OtherBell(at)
        fd = part.memory.open(os.O_RDWR)
        private = [ring.reads > 1 for ring in part.rings]
        memory = GraphMemory(fd, len(part.rings), part.depth, part.slot_size, private, part.buffer)
        self._part = part
        self._turns = Turns([step.reads for step in part.steps])
        self.memory = memory

    def due(self) -> bool:
        memory = self.memory
        return self.gone or (memory is not None and (memory.ended or self._turns.due(memory.written) is not None))

    def next(self) -> GraphCall | None:
        """The call that is due. What only passes on an error is done here."""
        memory = self.memory
        assert memory is not None
        while (due := self._turns.due(memory.written)) is not None:
            index, number = due
            part = self._part
            step = part.steps[index]
            self._turns.done(index)
            values, lent = memory.read(step.reads, number)
            slot, instance = values[step.reads[0]].slot, self.driver.instance
            call = GraphCall(
                call_for(instance, step.method, step.index, step.view, part.sender, part.back), b"", (), part.back, True,
                instance=instance, member=self, step=step, number=number, slot=slot, _values=values, _lent=lent,
            )  # fmt: skip
            for value in values.values():
                if value.kind != VALUE:
                    call.pass_on(value)
                    break
            else:
                return call
        return None

    def write(self, call: GraphCall, kind: int, body: Any, buffers: Sequence[Any]) -> None:
        memory, step = self.memory, call.step
        if memory is not None:
            memory.write(step.ring, call.slot, kind, body, buffers, f"the return value of {step.label}()")

    def tell(self, call: GraphCall) -> None:
        memory = self.memory
        if memory is not None:
            memory.tell(call.step.ring, call.number, call.slot)
            for reader in self._part.rings[call.step.ring].readers:
                self._bells[reader].ring()

    def leave(self) -> None:
        for end in self._ends:
            end()
        self._ends.clear()
        for bell in self._bells.values():
            bell.close()
        self._bells.clear()
        memory, self.memory = self.memory, None
        if memory is not None:
            memory.close()
        gate, self.gate = self.gate, None
        if gate is not None:
            gate.close()


class GraphCall(FedCall, kw_only=True, eq=False):
    """One step of one execution, in the actor's mailbox."""

    member: GraphMember
    step: Step
    number: int
    slot: int
    _values: dict[int, Value]
    _lent: list[Lent]

    def arguments(self) -> Any:
        values, self._values = self._values, {}
        args, kwargs = [], {}  # loops: a comprehension would cost more than what it does
        for arg in self.step.args:
            args.append(self._argument(arg, values))
        for name, arg in self.step.kwargs.items():
            kwargs[name] = self._argument(arg, values)
        return args, kwargs

    def _argument(self, arg: Any, values: dict[int, Value]) -> Any:
        if type(arg) is not Take:
            return arg
        if arg.extent is not None:
            return mesh_of(arg.extent, [decode(values[ring].body, values[ring].buffers) for ring in arg.rings])
        value = values[arg.rings[0]]
        made = decode(value.body, value.buffers)
        if arg.part is None:
            return made
        args, kwargs = made
        return args[arg.part] if isinstance(arg.part, int) else kwargs[arg.part]

    def keep(self, kind: int, body: Any, buffers: Sequence[Any]) -> None:
        self.member.write(self, kind, body, buffers)
        self.member.driver.answered(self)

    def pass_on(self, failed: Value) -> None:
        self.member.write(self, failed.kind, failed.body, failed.buffers)
        self._values = {}
        failed.buffers = ()
        self.release()
        self.member.tell(self)

    @property
    def lends(self) -> bool:
        return bool(self._lent)

    def release(self) -> None:
        """Gives back what the arguments lay in."""
        self._values = {}
        memory, lent = self.member.memory, self._lent
        self._lent = []
        if memory is not None:
            for each in lent:
                memory.give_back(each)


class Driver:
    """The Feed of an actor that takes part in graphs. `answered` and `close` on any thread, all else on the actor's."""

    def __init__(self, instance: Any) -> None:
        self.instance = instance
        self.bell = OwnBell()
        self.members: list[GraphMember] = []
        self._spin = Spin(0.0)
        self._call: GraphCall | None = None  # in the mailbox, or running
        self._answered: GraphCall | None = None  # its arguments may still be used by the frame that made the answer
        self._loop: Any = None

    # --- the actor's thread

    def begin(self) -> None:
        self.instance.mailbox.feed = self
        if self.instance.behaviour.is_async:
            self._loop = self.instance.task.get_loop()
            self._loop.add_reader(self.bell.fileno(), self._rung)

    def _rung(self) -> None:
        """A callback of the actor's event loop, which has looked before: what came since would wait for the next ring."""
        self.bell.forget()
        if self._due():
            self.instance.mailbox.put_control(None)  # it looks again before it sleeps

    def poll(self) -> None:
        answered = self._answered
        if answered is not None:
            self._answered = None
            answered.release()
            answered.member.tell(answered)
        if self._call is not None:
            return
        for index, member in enumerate(self.members):
            memory = member.memory
            if member.gone or (memory is not None and memory.ended):
                self.leave(member)
                return
            if memory is None:
                continue
            call = member.next()
            if call is not None:
                self._call = call
                self._spin = member.spin  # it waits as this graph does, until another has a call for it
                self.members.append(self.members.pop(index))  # another graph is first the next time
                self.instance.mailbox.messages.append(call)
                return

    def _due(self) -> bool:
        mailbox = self.instance.mailbox
        if mailbox.control or mailbox.messages:
            return True
        for member in self.members:  # noqa: SIM110 - a generator costs more than the rest
            if member.due():
                return True
        return False

    def wait(self, mailbox: Any) -> None:
        gate = self.members[-1].gate if self.members else None  # of the graph that it has last run a step of
        if gate is not None:
            if mailbox.arm(self.bell.ring):
                gate.sleep(self.bell, None, self._spin, self._due)
                mailbox.disarm()
        elif not self._spin.until(self._due) and mailbox.arm(self.bell.ring):
            self.bell.sleep()  # what came since it was looked for has rung
            mailbox.disarm()

    def answered(self, call: GraphCall) -> None:
        """Tells the readers, at once or when nothing uses the arguments any more."""
        self._call = None
        if call.lends:
            self._answered = call
        else:
            call.member.tell(call)

    def join(self, member: GraphMember, part: Part) -> None:
        member.join(part)
        self._spin = member.spin

    def leave(self, member: GraphMember) -> None:
        if member in self.members:
            self.members.remove(member)
        call = self._call
        if call is not None and call.member is member and self.instance.current is not call:
            with contextlib.suppress(ValueError):  # it is on its way to those who wait for it
                self.instance.mailbox.messages.remove(call)
            self._call = None
            call.release()
        member.leave()
        if not self.members:
            self._end()

    def _end(self) -> None:
        if self.instance.mailbox.feed is self:
            self.instance.mailbox.feed = None
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self.bell.fileno())
        self.bell.close()

    def close(self) -> None:
        """The actor has ended: those who wait for it are told by the runtime, or by the failure that its call was answered
        with."""
        answered, self._answered = self._answered, None
        if answered is not None:
            answered.release()
            answered.member.tell(answered)
        for member in list(self.members):
            with contextlib.suppress(ValueError):
                self.leave(member)


def serve(order: str, name: str, *args: Any) -> Any:
    """Does what the client of a graph asks of an actor, on its thread: "enter", "connect" of a gate, "join", then "leave"."""
    instance = own_instance()
    driver = instance.mailbox.feed
    if order == "enter":
        return _enter(instance, driver, name, *args)
    members = driver.members if isinstance(driver, Driver) else []
    member = next((one for one in members if one.name == name), None)
    if order == "leave":
        if member is not None:
            member.driver.leave(member)
        return None
    if member is None:
        raise RuntimeError("the graph has ended meanwhile")
    if order == "connect":
        connect = args[0].get(instance.rank)
        return "" if connect is None else _connect(member, connect)
    if member.memory is None:
        member.driver.join(member, args[0][instance.rank])
    return None


def _connect(member: GraphMember, connect: Connect) -> str:
    """Returns why a stream cannot be had; "" when all can."""
    if member.gate is None:
        raise RuntimeError("the graph has ended meanwhile")
    own = member.driver.bell

    def bell_at(at: DescriptorAt) -> OwnBell | OtherBell:
        return own if at == own.at else OtherBell(at)

    bells = {ring: [bell_at(connect.bells[reader]) for reader in readers] for ring, readers in connect.readers.items()}
    return member.gate.connect(connect.dials, bells)


def _enter(
    instance: Any,
    driver: Any,
    name: str,
    back: str,
    incarnation: int,
    watches: dict[int, list[tuple[int, int]]],
    gates: dict[int, GateSpec],
) -> Entered:
    machine, cores, spec = this_machine(), len(os.sched_getaffinity(0)), gates.get(instance.rank)
    if instance.watcher is not None:
        return Entered(
            DescriptorAt(0, 0), machine, "what it receives is recorded for a replay, which has messages only"
        )
    if spec is not None and (why := too_large(spec, procfs.memory()[1], spec.names[spec.host])):
        return Entered(DescriptorAt(0, 0), machine, why)
    if driver is None:
        driver = Driver(instance)
        driver.begin()
    member = next((one for one in driver.members if one.name == name), None)
    if member is None:
        ends = [expect_end(instance, back, number, index) for number, index in watches[instance.rank]]
        member = GraphMember(driver, name, ends)

        def client_ended(_address: str, _how: str, _stopped: bool) -> None:
            member.gone = True
            driver.bell.ring()

        member._ends.append(watch_processes({back: incarnation}, client_ended))
        driver.members.append(member)
    gate = member.gate
    if gate is None and spec is not None:
        gate = member.gate = GraphGate(name, spec, lambda _words: driver.bell.ring())
    if gate is None:
        return Entered(driver.bell.at, machine, "", cores)
    return Entered(driver.bell.at, machine, "", cores, gate.at, gate.bells)
