"""The commands of an engine, carried out in simulated time: what each means for clocks, memory and references.

Takes commands in the order in which they were issued; sends, waits for and computes nothing. Who wants to know of them
(traces, graphs, histories) is given each as a `SimulatedCommand`.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from monarch.tensor import metadata, worker_commands
from monarch.tensor.metadata import Meta
from monarch.tensor.signature import OpCall
from monarch.tensor.simulator.communication import NODE
from monarch.tensor.simulator.effects import Effect, Effects
from monarch.tensor.simulator.estimates import RuntimeEstimator, TimingType
from monarch.tensor.simulator.machine import SimulatedDevice, SimulatedMachine, Team
from monarch.tensor.simulator.task import SimulatedCommand, Task, TaskKind, Use
from monarch.tensor.worker.collectives import ReduceTensor
from monarch.tensor.worker.events import AliasTensor, AwaitEvent, PostEvent
from monarch.tensor.worker.groups import DropGroup
from monarch.tensor.worker.moves import AdoptTensors, CopyTensor, ReceiveTensor, SendTensor
from monarch.tensor.worker.recorded import RecordedSegment, RecordedStep
from monarch.tensor.worker.worker_mesh import WorkerMesh

if TYPE_CHECKING:
    from collections.abc import Hashable

    from monarch.tensor.signature import Scalar

ALIASES = 1 << 16  # borrows whose alias may still be deleted; the end of an older one may be told as that of another
Issue = tuple[Any, Any]  # what `set_meta` said, and the stack, of a command


class Buffer:
    """Memory of `nbytes` on each rank of `team`, made on `stream`. `users`: how many values lie in it."""

    __slots__ = ("nbytes", "number", "stream", "team", "users")

    def __init__(self, number: int, nbytes: int, team: Team, stream: int) -> None:
        self.number = number
        self.nbytes = nbytes
        self.team = team
        self.stream = stream
        self.users = 0


class SimulatedValue:
    """One tensor, as its ranks have it: `meta` is None where nothing is known of it."""

    __slots__ = ("buffer", "meta")

    def __init__(self, meta: Meta | None, buffer: Buffer) -> None:
        self.meta = meta
        self.buffer = buffer
        buffer.users += 1

    def again(self) -> SimulatedValue:
        """Returns another reference to the same."""
        return SimulatedValue(self.meta, self.buffer)

    def leave(self) -> Buffer | None:
        """It is deleted. Its buffer, when nobody lies in it any more."""
        self.buffer.users -= 1
        return self.buffer if not self.buffer.users else None


# Of each input its reference and what that stands for, where it is known.
Inputs = Sequence[tuple[int, "SimulatedValue | None"]]


class SimulatedPlacement:
    """The ranks of a mesh and the stream where commands run."""

    __slots__ = ("mesh", "partitions", "stream", "team")

    def __init__(self, mesh: WorkerMesh, stream: int) -> None:
        self.mesh = mesh
        self.stream = stream
        self.team = Team(mesh.ranks)
        self.partitions: dict[tuple[str, ...], list[list[int]]] = {}

    def along(self, dims: tuple[str, ...]) -> list[list[int]]:
        """The ranks, in the groups that `dims` makes of them."""
        found = self.partitions.get(dims)
        if found is None:
            found, seen = [], set()
            for rank in self.mesh.ranks:
                if rank not in seen:
                    found.append(self.mesh.along(rank, dims))
                    seen.update(found[-1])
            self.partitions[dims] = found
        return found


class Interpreter:
    """`issued(ident)` gives the Issue of a command; each of `sinks` is called with every Command."""

    def __init__(
        self,
        machine: SimulatedMachine,
        estimator: RuntimeEstimator,
        issued: Callable[[int], Issue],
        sinks: Sequence[Callable[[SimulatedCommand], None]] = (),
    ) -> None:
        self.machine = machine
        self.estimator = estimator
        self.streams = {0: "main"}
        self.refs: dict[int, SimulatedValue] = {}
        self._issued = issued
        self._sinks = sinks
        self._effects = Effects()
        self._calls: dict[int, Any] = {}
        self._meshes: dict[int, WorkerMesh] = {}
        self._places: dict[tuple[int, int], SimulatedPlacement] = {}
        self._place: Any = None
        self._buffers = 0
        self._order = 0
        self._deleted: list[Use] = []  # refs of consecutive deletes
        self._freed: list[int] = []
        self._borrows = _Borrows()
        self._sent: dict[Hashable, deque[SimulatedCommand]] = {}

    # --- commands

    def take(self, batch: Iterable[Any], payloads: Sequence[Any]) -> None:
        """One batch, as it would go to the workers, with calls and local tensors as they are."""
        for command in batch:
            kind = type(command)
            if kind is int:
                self._delete(command)
            elif kind is worker_commands.SetPlacement:
                self._place = self.place(command.mesh, command.stream)
            elif kind is worker_commands.Run:
                self._run(self._calls[command.signature], command.ident, command.inputs, command.scalars)
            elif kind is worker_commands.Do:
                self._run(payloads[command.payload], command.ident, command.inputs, ())
            elif kind is worker_commands.Constant:
                self._constant(command.ident, payloads[command.payload])
            elif kind is worker_commands.Define:
                self._calls[command.signature] = payloads[command.payload]
            elif kind is worker_commands.Forget:
                self._calls.pop(command.signature, None)
            elif kind is worker_commands.DefineMesh:
                self._meshes[command.mesh] = WorkerMesh(command.names, command.sizes, command.ranks)
            elif kind is worker_commands.DefineStream:
                self.streams[command.stream] = command.name
        self._flush_deletes()

    def place(self, mesh: int, stream: int) -> SimulatedPlacement:
        found = self._places.get((mesh, stream))
        if found is None:
            found = self._places[mesh, stream] = SimulatedPlacement(self._meshes[mesh], stream)
        return found

    def fetch(
        self, ident: int, refs: Sequence[int], rank: int, place: SimulatedPlacement
    ) -> tuple[list[Meta | None], int]:
        """The metadata of what rank `rank` has, and when it has it."""
        inputs = [self._use(ref) for ref in refs]
        command = self._command(TaskKind.FETCH, "SendValue", ident, place, inputs)
        ready = max(self.machine.now, self.machine.device_of(rank).clock(place.stream))
        self._tell(command, ready)
        return [use.meta for use in inputs], ready

    def call(self, ident: int, name: str, refs: Sequence[int], place: SimulatedPlacement) -> int:
        """A function that is run for what it returns. When it has."""
        task = Task(TaskKind.CALL, name, tuple(self._use(ref).meta for ref in refs), meta=self._issued(ident)[0])
        command = self._command(TaskKind.CALL, name, ident, place, [self._use(ref) for ref in refs])
        self._work(task, command, place)
        return command.start + command.duration

    def note(self, kind: TaskKind) -> None:
        """A command that only the controller has anything to do with."""
        self._tell(self._command(kind, kind.value, 0, None, []), self.machine.now)

    # --- calls

    def _run(self, call: Any, ident: int, inputs: Sequence[int], numbers: Sequence[Scalar]) -> None:
        if type(call) is RecordedSegment:
            self._recorded(call, ident, inputs)
            return
        for place, value in enumerate(
            self._perform(call, ident, [(ref, self.refs.get(ref)) for ref in inputs], numbers)
        ):
            self.refs[ident + place] = value

    def _perform(
        self,
        call: Any,
        ident: int,
        inputs: Inputs,
        numbers: Sequence[Scalar],
        where: str = "",
    ) -> list[SimulatedValue]:
        """Does it at the present place; what it made."""
        kind = type(call)
        self._borrows.step(kind)
        if kind is PostEvent:
            return self._post(int(numbers[0]), ident)
        if kind is AwaitEvent:
            return self._await(int(numbers[0]), ident)
        if kind is SendTensor:
            return self._send(call, ident, inputs, int(numbers[0]))
        if kind is ReceiveTensor:
            return self._receive(call, ident, int(numbers[0]))
        if kind is DropGroup or kind is AdoptTensors:
            return []
        place: SimulatedPlacement = self._place
        metas = [value.meta if value is not None else None for _, value in inputs]
        if kind is AliasTensor:
            command = self._command(TaskKind.BORROW, "BorrowCreate", ident, place, _uses(inputs), where)
            made = self._make(Effect([(metas[0], 0)]), inputs, place, command)
            command.facts["borrow"] = self._borrows.created(ident, self.streams[place.stream])
            self._tell(command, self.machine.now)
            return made
        if kind is CopyTensor:
            effect = Effect([(metas[0] and metadata.contiguous(metas[0].shape, metas[0].dtype, metas[0].device), -1)])
            task = Task(TaskKind.SEND, "SendTensor", tuple(metas), (effect.made[0][0],), local=True)
        elif kind is ReduceTensor:
            peers = len(place.along(call._dims)[0])
            effect = self._effects.of(call, metas, numbers, peers)
            name, collective = reduction_names(call)
            task = Task(TaskKind.REDUCE, name, tuple(metas), _outputs(effect), peers=peers, collective=collective)
        else:
            effect = self._effects.of(call, metas, numbers)
            task = Task(TaskKind.CALL, call_name(call), tuple(metas), _outputs(effect), tuple(numbers))
        command = self._command(task.kind, task.name, ident, place, _uses(inputs), where)
        if kind is CopyTensor:
            command.facts["pairs"] = tuple((rank, rank) for rank in place.team.ranks)
        if kind is ReduceTensor:
            command.facts["peers"] = task.peers
        if effect.is_view and kind is OpCall:
            made = self._make(effect, inputs, place, command)
            self._change(effect, inputs, command)
            self._tell(command, self.machine.now)
            return made
        made = []

        def begun(ago: int) -> None:
            made.extend(self._make(effect, inputs, place, command, ago))
            self._change(effect, inputs, command, ago)

        self._work(task, command, place, begun, place.along(call._dims) if kind is ReduceTensor else None)
        return made

    def _work(
        self, task: Task, command: SimulatedCommand, place: SimulatedPlacement, begun: Callable[[int], None] | None = None,
        members: Sequence[Sequence[int]] | None = None,
    ) -> None:  # fmt: skip
        """Does what takes time on the stream of `place`; `begun` is told how long before the stream's time it began."""
        task = self._tagged(task, command)
        kind = TimingType.SEND_TENSOR if task.kind is TaskKind.SEND else TimingType.CALL_FUNCTION
        if task.kind is TaskKind.REDUCE:
            kind = TimingType.REDUCE
        duration = self.estimator.get_runtime(kind, task)
        self._launch(command, task)
        what = (place.stream, duration, task.name, task.kind.value, command.order)
        if members is not None:
            start = self.machine.collect(place.team, members, *what)
        else:
            start = self.machine.run(place.team, *what)
        command.start, command.duration = start, duration
        if begun is not None:
            begun(duration)
        self._emit(command)

    def _constant(self, ident: int, local: object) -> None:
        meta = metadata.of(local)
        place: SimulatedPlacement = self._place
        self._borrows.step(None)
        command = self._command(TaskKind.CALL, "constant", ident, place, [])
        effect = Effect([(meta, -1)])

        def begun(ago: int) -> None:
            (self.refs[ident],) = self._make(effect, [], place, command, ago)

        self._work(Task(TaskKind.CALL, "constant", (), (meta,)), command, place, begun)

    def _recorded(self, call: RecordedSegment, ident: int, inputs: Sequence[int]) -> None:
        """A segment of a recording, operation by operation."""
        for _, ref in call.stores:
            self._drop(self.refs.pop(ref, None))
        slots: dict[int, tuple[int, SimulatedValue | None]] = {}
        for slot, ref in enumerate((*inputs, *call.reads)):
            slots[slot] = (ref, self.refs.get(ref))
        own: dict[int, SimulatedValue] = {}
        dead = call._last_used()
        for number, step in enumerate(call.steps):
            made = self._step(step, ident, slots)
            for slot, value in zip(step.results, made, strict=False):
                own[slot] = value
                slots[slot] = (-slot - 1, value)
            for slot in dead[number]:
                self._drop(own.pop(slot, None))
        for place, slot in enumerate(call.gives):
            self._bind(ident + place, slots[slot][1])
        for slot, ref in call.stores:
            self._bind(ref, slots[slot][1])
        for value in own.values():
            self._drop(value)

    def _step(
        self, step: RecordedStep, ident: int, slots: dict[int, tuple[int, SimulatedValue | None]]
    ) -> list[SimulatedValue]:
        return self._perform(step.call, ident, [slots[slot] for slot in step.inputs], step.numbers, step.where)

    def _bind(self, ref: int, value: SimulatedValue | None) -> None:
        if value is not None:
            self.refs[ref] = value.again()

    # --- streams and meshes

    def _post(self, number: int, ident: int) -> list[SimulatedValue]:
        place: SimulatedPlacement = self._place
        kind = self._borrows.post(number, self.streams[place.stream])
        if kind is None:  # belongs to the BorrowCreate before it
            self.machine.post(place.team, place.stream, number)
            return []
        command = self._command(kind, kind.value, ident, place, [])
        command.facts.update(event=number, borrow=self._borrows.of(number))
        self._launch(command, Task(kind, kind.value))
        self.machine.post(place.team, place.stream, number)
        self._emit(command)
        return []

    def _await(self, number: int, ident: int) -> list[SimulatedValue]:
        place: SimulatedPlacement = self._place
        kind = self._borrows.wait(number, self.streams[place.stream])
        command = self._command(kind, kind.value, ident, place, [])
        command.facts.update(event=number, borrow=self._borrows.of(number))
        task = self._tagged(Task(kind, kind.value), command)
        duration = self.estimator.get_runtime(TimingType.WAIT_EVENT, task)
        self._launch(command, task)
        start = self.machine.wait(place.team, place.stream, number, duration, self.streams.__getitem__, command.order)
        command.start, command.duration = start, duration
        self._emit(command)
        return []

    def _send(self, call: SendTensor, ident: int, inputs: Inputs, number: int) -> list[SimulatedValue]:
        place: SimulatedPlacement = self._place
        shape, dtype, device = call._what
        meta = metadata.contiguous(shape, dtype, device)
        command = self._command(TaskKind.SEND, "SendTensor", ident, place, _uses(inputs))
        command.facts.update(pairs=call._pairs, to_stream=self.streams[call._streams[1]])
        durations: dict[int, int] = {}
        known: dict[tuple[bool, bool], int] = {}
        for sender, receiver in call._pairs:
            how = (sender == receiver, sender // NODE == receiver // NODE)
            if how not in known:
                task = Task(TaskKind.SEND, "SendTensor", (meta,), (meta,), local=how[0], same_node=how[1])
                known[how] = self.estimator.get_runtime(TimingType.SEND_TENSOR, self._tagged(task, command))
            durations[sender] = max(durations.get(sender, 0), known[how])
        self._launch(command, Task(TaskKind.SEND, "SendTensor", (meta,), (meta,)))
        what = (durations, "SendTensor", TaskKind.SEND.value, command.order)
        command.start = self.machine.send(place.team, place.stream, (call._streams, number), *what)
        command.duration = max(durations.values(), default=0)
        self._sent.setdefault((call._streams, number), deque()).append(command)
        return []

    def _receive(self, call: ReceiveTensor, ident: int, number: int) -> list[SimulatedValue]:
        place: SimulatedPlacement = self._place
        shape, dtype, device = call._what
        effect = Effect([(metadata.contiguous(shape, dtype, device), -1)])
        key = (call._streams, number)
        command = self._sent[key].popleft()
        if not self._sent[key]:
            del self._sent[key]
        senders = {receiver: sender for sender, receiver in call._pairs}
        made = self._make(effect, [], place, command, ident=ident)
        self.machine.receive(
            place.team, place.stream, key, senders, "RecvTensor", TaskKind.RECEIVE.value, command.order
        )
        self._emit(command)
        return made

    # --- memory and references

    def _make(
        self, effect: Effect, inputs: Inputs, place: SimulatedPlacement, command: SimulatedCommand, ago: int = 0,
        ident: int = 0,
    ) -> list[SimulatedValue]:  # fmt: skip
        """The values that a command makes, in memory from when its stream began it: so many nanoseconds ago."""
        made: list[SimulatedValue] = []
        for number, (meta, home) in enumerate(effect.made):
            source = inputs[home][1] if home >= 0 else made[-2 - home] if home < -1 else None
            if source is not None:
                value = SimulatedValue(meta, source.buffer)
            else:
                value = SimulatedValue(meta, self._buffer(meta, place, command, ago))
            made.append(value)
            command.outputs.append(Use((ident or command.ident) + number, value.buffer.number, meta))
        return made

    def _buffer(self, meta: Meta | None, place: SimulatedPlacement, command: SimulatedCommand, ago: int) -> Buffer:
        self._buffers += 1
        buffer = Buffer(self._buffers, 0, place.team, place.stream)
        self._grow(buffer, meta.nbytes if meta is not None else 0, command, ago)
        return buffer

    def _change(
        self,
        effect: Effect,
        inputs: Inputs,
        command: SimulatedCommand,
        ago: int = 0,
    ) -> None:
        """Applies what a command does to its inputs."""
        command.writes = tuple(value.buffer.number for at in effect.writes if (value := inputs[at][1]) is not None)
        for at, source in effect.moved:
            value = inputs[at][1]
            if value is None:
                continue
            home = inputs[source][1] if source >= 0 else None
            meta = dict(effect.changed).get(at, value.meta)
            buffer = home.buffer if home is not None else self._buffer(meta, self._place, command, ago)
            buffer.users += 1
            self._free(value.leave())
            value.buffer = buffer
        for at, meta in effect.changed:
            value = inputs[at][1]
            if value is not None:
                value.meta = meta
                self._grow(value.buffer, meta.nbytes, command, ago)

    def _grow(self, buffer: Buffer, nbytes: int, command: SimulatedCommand, ago: int) -> None:
        more = nbytes - buffer.nbytes
        if more > 0:
            buffer.nbytes = nbytes
            for device in self.machine.cover(buffer.team):
                time = self._clock(device, buffer.stream) - ago
                device.ledger.add(time, buffer.number, more, command.order)

    def _clock(self, device: SimulatedDevice, stream: int) -> int:
        """Returns when the stream has time for what is issued now."""
        return max(self.machine.now, device.clock(stream))

    def _delete(self, ref: int) -> None:
        value = self.refs.pop(ref, None)
        if value is None:
            return
        self._deleted.append(Use(ref, value.buffer.number, value.meta))
        self._borrows.deleted(ref)
        self._drop(value)

    def _drop(self, value: SimulatedValue | None) -> None:
        if value is not None:
            self._free(value.leave())

    def _free(self, buffer: Buffer | None) -> None:
        if buffer is not None:
            self._freed.append(buffer.number)
            for device in self.machine.cover(buffer.team):
                device.ledger.free(self._clock(device, buffer.stream), buffer.number, self._order)

    def _flush_deletes(self) -> None:
        if not self._deleted:
            return
        deleted, self._deleted = self._deleted, []
        command = self._command(TaskKind.DELETE, "DeleteRefs", 0, self._place, deleted)
        self._tell(command, self.machine.now)

    # --- telling

    def _use(self, ref: int) -> Use:
        value = self.refs.get(ref)
        return Use(ref, value.buffer.number, value.meta) if value is not None else Use(ref, 0, None)

    def _command(
        self,
        kind: TaskKind,
        name: str,
        ident: int,
        place: SimulatedPlacement | None,
        inputs: list[Use],
        where: str = "",
    ) -> SimulatedCommand:
        if kind is not TaskKind.DELETE:
            self._flush_deletes()
        self._order += 1
        meta, stack = self._issued(ident) if ident else (None, None)
        stream = self.streams[place.stream] if place is not None else ""
        ranks = place.team.ranks if place is not None else ()
        return SimulatedCommand(self._order, ident, kind, name, stream, ranks, inputs, meta=meta, stack=where or stack)

    def _tagged(self, task: Task, command: SimulatedCommand) -> Task:
        if command.meta is None:
            return task
        return dataclasses.replace(task, meta=command.meta)

    def _launch(self, command: SimulatedCommand, task: Task) -> None:
        duration = self.estimator.get_runtime(TimingType.KERNEL_LAUNCH, self._tagged(task, command))
        command.issued = self.machine.launch(duration)
        command.facts["launch"] = duration

    def _tell(self, command: SimulatedCommand, start: int) -> None:
        """A command that takes no time on a stream."""
        self._launch(command, Task(command.kind, command.name))
        command.start = start
        self._emit(command)

    def _emit(self, command: SimulatedCommand) -> None:
        command.freed, self._freed = tuple(self._freed), []
        for sink in self._sinks:
            sink(command)


class _Borrows:
    """The events between streams that belong to borrows: a post right after an alias is its beginning, the wait for
    it its first use; the next post of the borrowing stream gives it back, the wait for that is its end."""

    def __init__(self) -> None:
        self._count = 0
        self._numbers: dict[int, int] = {}  # of borrows, by the reference of the alias
        self._latest = 0  # the borrow that the command before began
        self._origin = ""
        self._users: dict[int, str] = {}  # the stream of each borrow that was used
        # Of each event its borrow, and whose memory it is if it begins one.
        self._events: dict[int, tuple[int, str]] = {}
        self._told: dict[int, int] = {}
        self._gone = 0  # the borrow whose alias was deleted last

    def step(self, kind: object) -> None:
        """The next command is of that kind."""
        if kind is not PostEvent:
            self._latest = 0

    def created(self, alias: int, stream: str) -> int:
        """The number of the borrow of a tensor of `stream` that begins."""
        self._count += 1
        if len(self._numbers) >= ALIASES:  # those of recordings have no reference that could be deleted
            del self._numbers[next(iter(self._numbers))]
        self._numbers[alias] = self._latest = self._count
        self._origin = stream
        return self._count

    def deleted(self, ref: int) -> None:
        self._gone = self._numbers.pop(ref, self._gone)

    def post(self, number: int, stream: str) -> TaskKind | None:
        if self._latest:
            self._events[number] = (self._latest, self._origin)
            self._latest = 0
            return None
        borrow = self._gone if self._users.get(self._gone) == stream else 0
        borrow = borrow or next((one for one, user in reversed(self._users.items()) if user == stream), 0)
        if not borrow:
            return TaskKind.RECORD
        del self._users[borrow]
        self._events[number] = (borrow, "")
        self._told[number] = borrow
        return TaskKind.LAST_USE

    def wait(self, number: int, stream: str) -> TaskKind:
        borrow, origin = self._events.pop(number, (0, ""))
        if not borrow:
            return TaskKind.WAIT
        self._told[number] = borrow
        if origin and origin != stream:
            self._users[borrow] = stream
            return TaskKind.FIRST_USE
        return TaskKind.DROP

    def of(self, number: int) -> int:
        """The borrow of an event, for the command that it was told as; 0 if it belongs to none."""
        return self._told.pop(number, 0)


def call_name(call: Any) -> str:
    """Returns a call's name as traces show it: `aten.mm`, `aten.add.Tensor`, the name of a function."""
    if type(call) is OpCall:
        return call.target.removesuffix(".default")
    return str(getattr(call, "label", None) or call.name())


def reduction_names(call: ReduceTensor) -> tuple[str, str]:
    """Returns what traces call a reduction, and which collective it is. Those in place are called reduce_scatter, as
    programs that read traces expect."""
    if call._reduction == "stack":
        return ("all_to_all",) * 2 if call._scatter else ("all_gather",) * 2
    if call._scatter:
        return "reduce_scatter", "reduce_scatter"
    return "reduce_scatter" if call._inplace else "all_reduce", "all_reduce"


def _uses(inputs: Inputs) -> list[Use]:
    return [Use(ref, value.buffer.number, value.meta) if value else Use(ref, 0, None) for ref, value in inputs]


def _outputs(effect: Effect) -> tuple[Meta | None, ...]:
    return tuple(meta for meta, _ in effect.made)
