"""The controller's side of distributed tensors on one mesh: numbers commands, batches them, and takes the answers.

Commands wait in a list until it is full, two milliseconds old, or somebody fetches; then they travel in one message to
every worker of the engine. Each worker skips what is not for it. Nothing waits for the workers, except that a program
which is more than a window of batches ahead of them waits for the oldest.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any

from monarch._linux.locks import Lock, RLock
from monarch.actor import Channel, Future, Shape, SupervisionError, send
from monarch.actor.lowlevel import Sealed, follow
from monarch.tensor import worker_commands
from monarch.tensor.controller.engine_threads import AGE, FlushTimer, UnfetchedFailures
from monarch.tensor.controller.events import follow_stream
from monarch.tensor.controller.fetched import note
from monarch.tensor.controller.issued import CommandStacks, IssuedCommand, RepeatedConstant, UnsentBatch, _gather
from monarch.tensor.controller.mesh import DeviceMesh
from monarch.tensor.controller.records import holders, recorder, recorders
from monarch.tensor.controller.stream import MAIN, Stream
from monarch.tensor.controller.stream_placement import StreamPlacement
from monarch.tensor.controller.taint import Taint, Taints, unconfirmed
from monarch.tensor.failures import Failed, RemoteException, Tainted, cause_of, remote_exception

if TYPE_CHECKING:
    import torch
    from torch.utils._pytree import PyTree

    from monarch.tensor.controller.dispatch import KnownCall
    from monarch.tensor.signature import Scalar, WorkerCall

BATCH = 192  # commands in a full batch
ENTRIES = 1 << 15  # known calls; beyond that all are forgotten and learned anew
SIGNATURES = 1 << 15  # defined on the workers; the same
ACK_EVERY = 16  # batches between two acknowledgements
WINDOW = 4  # acknowledgements that may be open


class EngineEnded(SupervisionError):
    """The engine of this tensor's mesh has ended: it was exited, or one of its processes has failed, and its tensors
    are gone."""


class TensorEngine:
    """One for each root ProcMesh. `workers`: its tensor workers, `shape`: the mesh's."""

    def __init__(self, name: str, shape: Shape, workers: Any, stop: Callable[[], object]) -> None:
        self.name = name
        self.shape = shape
        self._workers = workers
        self._stop = stop
        self._lock = Lock()  # numbers and the list of what waits
        self._sending = RLock()  # batches leave in order
        self._next = 1
        self._waiting: list[int | worker_commands.AnyCommand] = []
        self._payloads: list[object] = []
        self._since = 0.0
        self._unsent: deque[UnsentBatch] = deque()
        self._batches = itertools.count(1)
        self._place: StreamPlacement | None = None
        self.issued = CommandStacks()
        self.unfetched = UnfetchedFailures(self)
        self._note_stack = self.issued.note
        self.entries: dict[Hashable, Any] = {}
        self._signatures: dict[Hashable, int] = {}
        self._retired: list[int] = []  # signatures that nothing here names any more, and the workers still know
        self.calls: dict[int, WorkerCall] = {}  # what signatures do, for recordings
        self._forgotten: list[tuple[int, StreamPlacement]] = []
        self._numbers = itertools.count(1)  # of signatures, meshes, streams
        self._meshes: dict[Hashable, DeviceMesh] = {}
        self._streams: dict[Stream, int] = {}
        self._dead: dict[Stream, list[int]] = {}
        self._views: dict[int, Any] = {}  # workers of a mesh, by its number
        self._acks: deque[Future[Any]] = deque()
        self._told: set[int] = set()
        self._untold: dict[int, Failed] = {}
        self.taints = Taints()
        self.rendezvous: Any = None  # where groups of workers meet
        self._ended: str | None = None
        # Batches that nobody answers report to a port: a worker's end is told by `end`, not as a fault of the program.
        self._lost: Any = None
        self._losses: Any = None
        self._timer = FlushTimer(self)
        self._root = self.mesh(shape)

    # --- meshes and streams

    @property
    def root(self) -> DeviceMesh:
        """The mesh of all its workers."""
        return self._root

    def mesh(self, shape: Shape) -> DeviceMesh:
        """Returns the mesh of these ranks and names; the same object each time."""
        key = (tuple(shape.labels), tuple(shape.extent.sizes), tuple(shape.ndslice))
        with self._lock:
            known = self._meshes.get(key)
            if known is None:
                known = self._meshes[key] = DeviceMesh(self, shape, next(self._numbers))
                self._put(worker_commands.DefineMesh(known.number, *key))
        return known

    def stream_number(self, stream: Stream) -> int:
        """Returns the number of `stream` on the workers, which learn of it by this."""
        with self._lock:
            number = self._streams.get(stream)
            if number is None:
                number = self._streams[stream] = 0 if stream is MAIN else next(self._numbers)
                if number:
                    self._put(worker_commands.DefineStream(number, stream.name))
        return number

    def dead_of(self, stream: Stream) -> list[int]:
        """Returns the references on `stream` that no tensor has any more, until the next command there takes them along."""
        return self._dead.setdefault(stream, [])

    @property
    def streams(self) -> list[Stream]:
        """The streams that the workers know."""
        return list(self._streams)

    @property
    def workers(self) -> Any:
        """Its tensor workers, as a mesh of actors."""
        return self._workers

    @property
    def worker_key(self) -> str:
        """The name of its workers in their processes."""
        return str(self._workers._spec.key)

    @property
    def addresses(self) -> Sequence[str]:
        """The addresses of the workers' processes, by rank."""
        found: Sequence[str] = self._workers._spec.addresses
        return found

    # --- commands

    def run(
        self, place: StreamPlacement, signature: int, inputs: Sequence[int], numbers: Sequence[Scalar], results: int,
        stack: object = None,
    ) -> int:  # fmt: skip
        """Issues a Run at `place`; returns its ident, which is its first result. `stack`: the caller's, if it has it."""
        with self._lock:
            if self._ended is not None:
                self.check_alive()
            ident = self._next
            self._next = ident + (results or 1)
            if recorders and self._held(place, ident, self.calls.get(signature), inputs, numbers, results, signature):
                return ident
            if self._place is not place:
                self._move(place)
            waiting = self._waiting
            if (dead := place.dead) and not holders:  # as `_bury`
                if len(dead) > 1:
                    self._bury(dead)
                else:
                    waiting.append(dead[0])
                    del dead[0]
            self._note_stack((ident, stack if stack is not None else _gather(True, False, False)))
            waiting.append(worker_commands.Run(signature, ident, inputs, numbers))  # type: ignore[arg-type]  # any sequence encodes
            full = len(waiting)
            first = self._since == 0.0
            if first:
                self._since = time.monotonic()
        if first and self._timer.idle:
            self._timer.wake()
        if full >= BATCH:
            self.flush()
        return ident

    def do(self, place: StreamPlacement, call: WorkerCall, inputs: Sequence[int], results: int) -> int:
        """Issues a call that is made once (`signature.WorkerCall`); returns its ident, which is its first result."""
        sealed = Sealed(call)
        return self._issue(
            place, call, inputs, results, lambda ident: worker_commands.Do(ident, self._carry(sealed), tuple(inputs))
        )

    def constant(self, place: StreamPlacement, local: torch.Tensor) -> int:
        """Sends a local tensor; returns the reference that it becomes on every rank of the place."""
        call = RepeatedConstant(local)
        return self._issue(place, call, (), 1, lambda ident: worker_commands.Constant(ident, self._carry(local)))

    def _issue(
        self, place: StreamPlacement, call: WorkerCall, inputs: Sequence[int], results: int,
        command: Callable[[int], worker_commands.AnyCommand],
    ) -> int:  # fmt: skip
        """Issues `command(ident)` at `place`, unless a recorder keeps it back as `call`. `run` is the same for what comes by
        the thousand."""
        with self._lock:
            if self._ended is not None:
                self.check_alive()
            ident = self._next
            self._next = ident + (results or 1)
            if recorders and self._held(place, ident, call, inputs, (), results):
                return ident
            if self._place is not place:
                self._move(place)
            self._bury(place.dead)
            self.issued.add(ident)
            self._put(command(ident))
        self._nudge()
        return ident

    def _held(
        self, place: StreamPlacement, ident: int, call: WorkerCall | None, inputs: Sequence[int], numbers: Sequence[Scalar],
        results: int, signature: int = 0,
    ) -> bool:  # fmt: skip
        """Tells this thread's recorder of a command; whether it keeps it back."""
        here = recorder()
        if here is None:
            return False
        stack = _gather(True, False, False)
        return bool(
            here.note(IssuedCommand(place, ident, call, tuple(inputs), tuple(numbers), results, signature, stack))
        )

    def issue(self, held: Sequence[IssuedCommand]) -> None:
        """Issues, in order, what a recorder has kept back."""
        with self._lock:
            self.check_alive()
            for noted in held:
                if self._place is not noted.place:
                    self._move(noted.place)
                self.issued.note((noted.ident, noted.stack))
                if noted.signature:
                    self._put(worker_commands.Run(noted.signature, noted.ident, noted.inputs, noted.numbers))
                elif isinstance(noted.call, RepeatedConstant):
                    self._put(worker_commands.Constant(noted.ident, self._carry(noted.call.value)))
                else:
                    self._put(worker_commands.Do(noted.ident, self._carry(Sealed(noted.call)), noted.inputs))
        self.flush()

    def define(self, key: Hashable, call: WorkerCall) -> int:
        """Returns the number of the signature that does `call`, defined on the workers the first time. `key`: equal
        for calls that are the same; with one that cannot be hashed it is defined anew."""
        try:
            number = self._signatures.get(key)
        except TypeError:
            number, key = None, object()  # forgotten with the others
        if number is not None:
            return number
        sealed = Sealed(call)
        with self._lock:
            number = next(self._numbers)
            if key is not None:
                if len(self._signatures) >= SIGNATURES:
                    self._forget_signatures()
                self._signatures[key] = number
                self.calls[number] = call
            self._put(worker_commands.Define(number, self._carry(sealed)))
        self._nudge()
        return number

    def forget(self, signature: int, place: StreamPlacement) -> None:
        """Forgets `signature`, which no command will name any more; those that did are at `place`. Safe from
        whatever the collector interrupts."""
        self._forgotten.append((signature, place))

    def remember(self, key: Hashable, entry: KnownCall) -> None:
        """Keeps what a call with `key` gives."""
        if len(self.entries) >= ENTRIES:
            self.entries.clear()
        self.entries[key] = entry

    def _forget_signatures(self) -> None:
        # Entries name signatures: both start over together. Another thread may just be issuing one of these, so the workers
        # forget them only when as many again have come after them.
        self.entries.clear()
        for number in self._retired:
            self.calls.pop(number, None)
            self._put(worker_commands.Forget(number))
        self._retired = list(self._signatures.values())
        self._signatures.clear()

    def _move(self, place: StreamPlacement) -> None:
        if place.engine is not self:
            raise AssertionError("a place of another engine")
        self._waiting.append(worker_commands.SetPlacement(place.mesh_number, place.stream_number))
        self._place = place

    def _bury(self, dead: list[int]) -> None:
        """Deletes, in order, what no tensor refers to any more. The list only grows at its end while this runs."""
        if holders:
            return
        count = len(dead)
        self._waiting.extend(dead[:count])
        del dead[:count]

    def _put(self, command: worker_commands.AnyCommand) -> None:
        self._waiting.append(command)
        if self._since == 0.0:
            self._since = time.monotonic()

    def _carry(self, payload: object) -> int:
        self._payloads.append(payload)
        return len(self._payloads) - 1

    def _nudge(self) -> None:
        if self._timer.idle:
            self._timer.wake()
        if len(self._waiting) >= BATCH:
            self.flush()

    # --- batches

    def flush(self) -> None:
        """Sends what waits. Raises EngineEnded, and whatever stands in the way of sending."""
        with self._sending:
            ack = self._gather_batch()
            if ack is not None:
                self._keep_pace()
            self._send()

    def pulse(self) -> bool:
        """Sends what has waited long enough; True if anything waits or waited. The timer's thread calls it."""
        since = self._since
        if not since:
            if not any(self._dead.values()):
                return False
            with self._lock:
                self._since = time.monotonic()
            self.flush()
        elif time.monotonic() - since >= AGE:
            self.flush()
        return True

    def _gather_batch(
        self, last: worker_commands.Fetch | worker_commands.Sync | None = None, place: StreamPlacement | None = None
    ) -> Any:
        """Puts what waits, and `last` at `place`, into a batch of its own. The ident of a Sync if it has one."""
        number = next(self._batches)
        ack = None
        # Made outside of the lock, which it takes.
        everywhere, main = [self._root.place(stream) for stream in list(self._dead)], self._root.place(MAIN)
        with self._lock:
            for root in everywhere:
                if root.dead and not holders:
                    self._move(root)
                    self._bury(root.dead)
            while self._forgotten and not holders:
                signature, where = self._forgotten.pop()
                self.calls.pop(signature, None)
                self._move(where)
                self._put(worker_commands.Forget(signature))
            if last is not None:
                assert place is not None
                self._move(place)
                self._put(last)
            elif not self._waiting:
                return None
            elif number % ACK_EVERY == 0:
                ack = self._next
                self._next += 1
                self._move(main)
                self._put(worker_commands.Sync(ack))
            batch = UnsentBatch(number, self._waiting, self._payloads, last if last is not None else ack)
            # Interrupted anywhere here, nothing is lost: the lists leave only once they are in the queue.
            self._unsent.append(batch)
            self._waiting, self._payloads, self._since = [], [], 0.0
            self._place = None
        return ack

    def _send(self, wanted: Any = None) -> Future[Any] | None:
        """Sends the batches that are ready, oldest first. The answers to the last one, if `wanted` is in it."""
        answers: Future[Any] | None = None
        unsent = self._unsent
        while unsent:
            number, waiting, payloads, mark = unsent[0]
            data = worker_commands.encode(waiting)
            if mark is not None:
                answers = self._workers.execute.call(number, data, tuple(payloads))
                if mark is not wanted:
                    self._acks.append(answers)
            else:
                if self._lost is None:
                    self._lost, self._losses = Channel.open()
                send(self._workers.execute, (number, data, tuple(payloads)), {}, port=self._lost)
            unsent.popleft()
        return answers

    def _keep_pace(self) -> None:
        """Waits until no more than a window of batches is under way."""
        while len(self._acks) >= WINDOW:
            self._take(self._acks[0])
            self._acks.popleft()

    def _take(self, future: Future[Any], stream: Stream = MAIN) -> list[Any]:
        """Returns the answers of all workers to a Sync on `stream`; what failed is noted."""
        try:
            answers = list(future.get().values())
        except SupervisionError as exc:
            raise self.rescue(exc) from exc
        for answer in answers:
            self.note(answer)
        confirmed = min((answer[2] for answer in answers if answer is not None), default=0)
        if stream is MAIN:
            self.taints.done(confirmed)
        return answers

    def note(self, answer: Any) -> None:
        """Notes the failures that an answer of a worker tells of."""
        if answer is not None:
            for failed in answer[1]:
                if type(failed) is Tainted:
                    self.taints.bad(failed.ident)
                elif failed.ident not in self._told and len(self._untold) < 1024:
                    known = self._untold.setdefault(failed.ident, failed)
                    if failed.order < known.order:
                        self._untold[failed.ident] = failed

    # --- answers

    def _question(self) -> int:
        """Returns the ident of what the workers are about to be asked. Under the lock. EngineEnded."""
        self.check_alive()
        ident = self._next
        self._next += 1
        self.issued.add(ident)
        return ident

    def fetch(
        self, mesh: DeviceMesh, rank: int, refs: Sequence[int], taints: Sequence[Taint | None],
        convert: Callable[[list[torch.Tensor]], PyTree], stream: Stream = MAIN,
    ) -> Future[Any]:  # fmt: skip
        """Fetches the local tensors of rank `rank` of the engine, when every rank on which they depend has them without
        failure.

        The Future raises RemoteException for the failure issued first, SupervisionError when a worker has ended.
        """
        if recorders and (here := recorder()) is not None:
            here.fetching()
        place = mesh.place(stream)
        with self._sending:
            with self._lock:
                ident = self._question()
            open_ = unconfirmed(taints)
            command = worker_commands.Fetch(ident, tuple(refs), rank, tuple(taint.ident for taint in open_))
            self._gather_batch(command, self._reach(place, open_))
            answers = self._send(command)
        assert answers is not None
        return follow(self.unfetched.watched(answers), lambda values: self._fetched(values, convert), self.rescue)

    def _reach(self, place: StreamPlacement, open_: list[Taint]) -> StreamPlacement:
        """Returns where to ask for what the values at `place` depend on: there, or, where other ranks took part, on
        all ranks. What ran on other streams comes first."""
        others = {taint.place for taint in open_ if taint.place is not None and taint.place is not place}
        if not others:
            return place
        for other in others:
            if other.stream is not place.stream:
                follow_stream(other, place.stream)
        return self._root.place(place.stream)

    def _fetched(self, values: Any, convert: Callable[[list[torch.Tensor]], PyTree]) -> PyTree:
        result: list[torch.Tensor] = []
        worst: Failed | None = None
        for answer in values.values():
            if answer is None:
                continue
            self.note(answer)
            value = answer[0]
            if isinstance(value, Failed):
                if worst is None or value.order < worst.order:
                    worst = value
            elif value is not None:
                result = value
        if worst is not None:
            raise self.exception_of(worst)
        note(result)
        return convert(result)

    def ask(
        self, mesh: DeviceMesh, wide: DeviceMesh, call: WorkerCall, refs: Sequence[int], taints: Sequence[Taint | None],
        adverb: str, stream: Stream,
    ) -> Any:  # fmt: skip
        """Runs `call` once on the ranks of `mesh`, with the tensors `refs` of the ranks of `wide`, of which these are a part.

        With adverb "call" a Future of a ValueMesh over the ranks that were asked, with "stream" their Futures as they answer:
        a rank's answer is (value or Failed, failures, ident), or None where it only has nothing against it; see `value_of`.
        """
        if recorders and (here := recorder()) is not None:
            here.asking(call)
        sealed = Sealed(call)
        open_ = unconfirmed(taints)
        asked = self._root if open_ else wide
        place = asked.place(stream)  # before the lock: a stream that is new to the workers is defined by this
        with self._sending:
            self.flush()
            with self._lock:
                ident = self._question()
                commands_ = [
                    worker_commands.SetPlacement(place.mesh_number, place.stream_number),
                    worker_commands.AskRanks(ident, 0, mesh.number, tuple(refs), tuple(taint.ident for taint in open_)),
                ]
            workers = self._views.get(asked.number)
            if workers is None:
                workers = self._views[asked.number] = self._workers._new_with_shape(asked._shape)
            encoded = worker_commands.encode(commands_)
            answers = getattr(workers.execute, adverb)(next(self._batches), encoded, (sealed,))
            return self.unfetched.watched(answers) if adverb == "call" else answers

    @property
    def untold(self) -> list[Failed]:
        """Failures that the program was not told of, in the order in which they were issued."""
        return [self._untold[ident] for ident in sorted(self._untold)]

    def is_told(self, failed: Failed) -> bool:
        return failed.ident in self._told

    def value_of(self, answer: Any) -> Any:
        """Returns the value of an answer to `ask`. RemoteException when it failed."""
        self.note(answer)
        if answer is not None and isinstance(answer[0], Failed):
            raise self.exception_of(answer[0])
        return answer[0] if answer is not None else None

    def exception_of(self, failed: Failed) -> RemoteException:
        """Returns the error for the program; `failed` counts as told from here on."""
        if len(self._told) >= 4096:  # one told twice does no harm
            self._told.clear()
        self._told.add(failed.ident)
        self._untold.pop(failed.ident, None)
        return remote_exception(failed, self.issued.frames(failed.ident))

    def sync(self) -> None:
        """Waits until the workers have done everything issued so far, on every stream. Raises SupervisionError when one
        has ended."""
        waits = [(self._sync(stream), stream) for stream in list(self._streams)]
        for answers, stream in waits:
            self._take(answers, stream)

    def _sync(self, stream: Stream) -> Future[Any]:
        with self._sending:
            with self._lock:
                self.check_alive()
                command = worker_commands.Sync(self._next)
                self._next += 1
            self._gather_batch(command, self._root.place(stream))
            answers = self._send(command)
        assert answers is not None
        return answers

    # --- life

    def check_alive(self) -> None:
        """Raises EngineEnded when it has ended, with why."""
        if self._ended is not None:
            raise EngineEnded(self._ended)

    @property
    def ended(self) -> bool:
        return self._ended is not None

    def end(self, why: str) -> None:
        """Ends it: later commands raise EngineEnded with `why`. Idempotent."""
        if self._ended is None:
            self._ended = (
                f"The tensor engine of {self.root} has ended, and its tensors with it: {why}\n"
                f"To go on: procs.restart(failed=True).get() if processes have died, activate the mesh again, and make the "
                f"tensors anew"
            )
            self._timer.stop()
            self.unfetched.say_untold(why)
            self._waiting, self._payloads = [], []
            self._unsent = deque()  # a thread that is sending goes on with the one before

    def rescue(self, error: Exception) -> Exception:
        """Returns the error for the program when a worker did not answer."""
        if isinstance(error, SupervisionError):
            self.end(cause_of(str(error)))
            return EngineEnded(self._ended or "")
        return error

    def exit(self) -> None:
        """Waits for what was issued, stops the workers. Raises RemoteException for the first failure nobody was told of; the
        others are logged."""
        if self._ended is not None:
            return
        first: RemoteException | None = None
        try:
            self.sync()
            first = next((self.exception_of(failed) for failed in self.untold), None)
        finally:
            self.end("exit() was called")
            self._stop()
        if first is not None:
            raise first

    shutdown = exit

    def __repr__(self) -> str:
        return f"<Engine of {self.name}{', ended' if self.ended else ''}>"
