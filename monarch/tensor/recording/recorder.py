"""The recorder of a function that runs, which makes a Recording: the same commands with holes, to be issued at once
later on.

A reference that the noted commands make is a value of the Recording; one that was there before is an argument
(`formals`) or a capture, which is looked up by its number whenever the Recording runs. Nothing here sends or receives.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from monarch.tensor.controller import records
from monarch.tensor.controller.activation import in_this_thread
from monarch.tensor.controller.derivations import KnownPart, KnownReads
from monarch.tensor.controller.issued import IssuedCommand
from monarch.tensor.recording.evolving import EvolvingValues
from monarch.tensor.recording.rates import StepForm
from monarch.tensor.signature import OpCall
from monarch.tensor.worker.recorded import RecordedSegment, RecordedStep

if TYPE_CHECKING:
    import torch
    from torch.utils.hooks import RemovableHandle

    from monarch.tensor.controller.pending import PendingReduce
    from monarch.tensor.controller.stream_placement import StreamPlacement
    from monarch.tensor.controller.tensor import Tensor
    from monarch.tensor.metadata import Meta
    from monarch.tensor.recording.evolving import Evolution
    from monarch.tensor.signature import Args, Kwargs, Scalar, WorkerCall

HELD = 1 << 16  # commands that are noted in one go, at most


# --- noting ---------------------------------------------------------------------------------------------------


class CommandWatcher:
    """An observer of what one thread does with distributed tensors, in its `with` block: here only which parameters
    it used."""

    keeps_back = False
    replays = False  # whether what is issued meanwhile will be issued again
    evolving: EvolvingValues | None = None  # of what is issued again

    def __init__(self) -> None:
        self._thread = 0
        self.run = object()  # stands for what happens between enter and exit; may be kept for longer
        self.grads: dict[
            int, tuple[Tensor, Tensor | None]
        ] = {}  # leaves of autograd: the tensor, and its gradient when it was met

    def __enter__(self) -> Any:
        self._thread = threading.get_ident()
        assert self._thread not in records.recorders
        if self.keeps_back:
            records.holders.add(self._thread)
        records.recorders[self._thread] = self
        self._derivatives = in_this_thread()
        return self

    def __exit__(self, *exc: object) -> None:
        records.recorders.pop(self._thread, None)
        records.holders.discard(self._thread)
        self._derivatives.__exit__()

    def meet(self, tensor: Tensor) -> None:
        if tensor.requires_grad and tensor.is_leaf and id(tensor) not in self.grads:
            self.grads[id(tensor)] = (tensor, tensor.grad)

    def read(self, tensors: Iterable[Any]) -> None:
        """Notes that operations are about to use these (distributed tensors, and others)."""
        for tensor in tensors:
            if hasattr(tensor, "_record"):
                self.meet(tensor)

    def born(self, record: records.TensorRecord) -> None:
        """Notes that a tensor was made."""

    def note(self, noted: IssuedCommand) -> bool:
        """Notes a command that was issued; True keeps it back."""
        return False

    def began(self, pending: PendingReduce, inplace: bool) -> None:
        """Notes that a reduction begins that will be waited for."""

    def waits_for(self, pending: PendingReduce) -> None:
        """Notes that it is waited for."""

    def known(self, what: str, part: KnownPart, value: torch.Tensor) -> None:
        """Notes that the program reads, with `what`, a value that this process knows and that was not made in this run."""

    def overwrites_known(self, storage: records.TensorStorage) -> None:
        """Notes that it changes in place what this process knows, and values that were not made in this run are in it."""

    def fetching(self, what: str = "fetching results") -> None:
        """Notes that the program asks workers for something."""

    def asking(self, call: WorkerCall) -> None:
        """Notes the same with `call`, a WorkerCall that is run for its answer."""
        self.fetching("fetching what a remote function returns")


class CommandRecorder(CommandWatcher):
    """All of it. `problem` is why the commands cannot be replayed, when they cannot.

    With `hold` commands are kept back: `held` has them.
    """

    replays = True

    def __init__(self, hold: bool = False) -> None:
        super().__init__()
        self.keeps_back = hold
        self.notes: list[IssuedCommand] = []
        self.problem = ""
        self.engine: Any = None
        self.made: dict[int, weakref.ref[records.TensorRecord]] = {}
        # Record, tensor, metadata.
        self.met: dict[int, tuple[weakref.ref[records.TensorRecord], weakref.ref[Tensor], Meta]] = {}
        self.storages: dict[int, records.TensorStorage] = {}
        self._events: set[tuple[Scalar, ...]] = set()  # that were posted, and not waited for yet
        self._waited: set[tuple[Scalar, ...]] = set()
        self._pending: dict[int, PendingReduce] = {}  # reductions that were begun, by id
        # Reads of values from outside, by where these are; and the call that made the first.
        self._reads: dict[tuple[int, Meta], tuple[KnownPart, torch.Tensor]] = {}
        self.read_with = ""
        self._overwritten: list[records.TensorStorage] = []
        self.evolving = None if hold else EvolvingValues(self.run)
        self._hooks: list[RemovableHandle] = []

    def __enter__(self) -> Any:
        if self.evolving is not None:
            self._hooks = [
                register_optimizer_step_pre_hook(self._step_begins),
                register_optimizer_step_post_hook(self._step_ends),
            ]
        return super().__enter__()

    def __exit__(self, *exc: object) -> None:
        super().__exit__(*exc)
        for hook in self._hooks:
            hook.remove()
        if self.evolving is not None:
            self.evolving.return_rates()

    def _step_begins(self, optimizer: torch.optim.Optimizer, args: Args, kwargs: Kwargs) -> None:
        if self.evolving is not None and records.recorder() is self:
            self.evolving.lend_rates(optimizer, args[1:], kwargs)

    def _step_ends(self, optimizer: torch.optim.Optimizer, args: Args, kwargs: Kwargs) -> None:
        if self.evolving is not None and records.recorder() is self:
            self.evolving.return_rates()

    def read(self, tensors: Iterable[Any]) -> None:
        for tensor in tensors:
            record = getattr(tensor, "_record", None)
            if record is None or record.ref in self.met:
                continue
            self.met[record.ref] = (weakref.ref(record), weakref.ref(tensor), record.meta)
            self.storages[record.ref] = record.storage
            if record.ref not in self.made:
                self.meet(tensor)

    def born(self, record: records.TensorRecord) -> None:
        self.made[record.ref] = weakref.ref(record)
        self.storages[record.ref] = record.storage

    def note(self, noted: IssuedCommand) -> bool:
        event = getattr(noted.call, "event", "")
        if event == "post":
            self._events.add(noted.numbers)
        elif event == "await":
            if noted.numbers not in self._events:
                return False  # for what came before the recording, so only now
            self._events.remove(noted.numbers)
            self._waited.add(noted.numbers)
        elif getattr(noted.call, "adopts", False) and noted.numbers and noted.numbers not in self._waited:
            return False  # what was lent before the recording
        if self.engine is None:
            self.engine = noted.place.engine
        if noted.place.engine is not self.engine:
            self.refuse("it works on tensors of two meshes of different processes")
        elif noted.call is None:
            self.refuse("an operation in it is no longer known")
        elif not getattr(noted.call, "repeatable", bool(noted.signature)):
            self.refuse(f"{noted.name()} cannot be done a second time as it was done the first")
        if len(self.notes) < HELD:
            self.notes.append(noted)
        elif self.keeps_back:
            raise RuntimeError(f"more than {HELD} operations in one compiled function: compile parts of it")
        else:
            self.refuse(f"it has more than {HELD} operations: make functions of its parts")
        return self.keeps_back

    def refuse(self, why: str) -> None:
        self.problem = self.problem or why

    def known(self, what: str, part: KnownPart, value: torch.Tensor) -> None:
        self.read_with = self.read_with or what
        self._reads.setdefault((id(part.source), part.meta), (part, value))

    def overwrites_known(self, storage: records.TensorStorage) -> None:
        self._overwritten.append(storage)
        if self.evolving is not None:
            self.evolving.lose(storage)

    def known_reads(self, places: Mapping[int, int]) -> KnownReads | None:
        """Returns what was read of values from outside; None when nothing was. `places`: of the arguments' memory."""
        if not self._reads:
            return None
        met = [(record, self.storages[ref]) for ref, (record, _, _) in self.met.items() if ref not in self.made]
        reads = KnownReads(list(self._reads.values()), places, met)
        if reads.evolves or any(map(reads.depends_on, self._overwritten)):
            self.refuse(
                f"it reads a number with {self.read_with}, which would stay as it is now: keep such numbers in tensors "
                f"(of optimizers: Adam(..., fused=True) or capturable=True)"
            )
        return reads

    def evolution(self, places: Mapping[int, int]) -> Evolution | None:
        """Returns what becomes of scalars with each replay; None where nothing does, or nobody knows of it."""
        if self.evolving is None:
            return None
        found, problem = self.evolving.finish(places)
        if problem:
            self.refuse(problem)
        return found

    def asking(self, call: WorkerCall) -> None:
        if not getattr(call, "describes", False):
            super().asking(call)

    def began(self, pending: PendingReduce, inplace: bool) -> None:
        self._pending[id(pending)] = pending

    def waits_for(self, pending: PendingReduce) -> None:
        if self._pending.pop(id(pending), None) is None:
            raise RuntimeError(
                "a reduction that was begun outside of a recorded function is waited for in it, and would be with each "
                "replay: wait for it before, and pass what it gives"
            )

    def finish(self) -> None:
        """Notes that the call has ended."""
        if self._pending:
            self._pending.clear()
            self.refuse("a reduction begins in it (async_op=True) and is not waited for in it: call wait() inside")
        if self._events:
            self.refuse("a borrow begins in it and does not end in it: drop it inside")

    def fetching(self, what: str = "fetching results") -> None:
        self.refuse(f"it needs values while it runs ({what}): return the tensors and fetch them outside")


class CommandHolder(CommandWatcher):
    """Keeps commands back; `release` issues those so far, when the workers are needed to go on."""

    keeps_back = True

    def __init__(self, release: Callable[[list[IssuedCommand]], None]) -> None:
        super().__init__()
        self._release = release
        self.notes: list[IssuedCommand] = []
        self.made: list[weakref.ref[records.TensorRecord]] = []

    def read(self, tensors: Iterable[object]) -> None:
        """Ignores what is read: a block that is only sent later depends on nothing."""

    def born(self, record: records.TensorRecord) -> None:
        self.made.append(weakref.ref(record))

    def note(self, noted: IssuedCommand) -> bool:
        if len(self.notes) >= HELD:
            raise RuntimeError(f"more than {HELD} operations in one coalescing block: leave it from time to time")
        self.notes.append(noted)
        return True

    def asking(self, call: WorkerCall) -> None:
        if getattr(call, "describes", False):
            self._release(self.notes)
        else:
            super().asking(call)

    def fetching(self, what: str = "fetching results") -> None:
        raise NotImplementedError(f"NYI: {what} during a coalescing block: leave the block first")


# --- putting together -----------------------------------------------------------------------------------------


class RecordingSegment:
    """Consecutive commands of one place. `takes`: its inputs, as (-1, argument) or (segment, reference made there);
    `gives`: the references whose values it hands over, in order."""

    __slots__ = ("call", "gives", "place", "takes")

    def __init__(
        self, place: StreamPlacement, takes: list[tuple[int, int]], gives: list[int], call: RecordedSegment
    ) -> None:
        self.place = place
        self.takes = takes
        self.gives = gives
        self.call = call


class CommandRecording:
    """`segments` in order; `captures`: references it looks up; `written`: arguments and captures whose memory it changes."""

    __slots__ = ("captures", "homes", "segments", "steps", "written")

    def __init__(
        self, segments: list[RecordingSegment], captures: frozenset[int], written: tuple[frozenset[int], frozenset[int]],
        homes: dict[int, int], steps: list[StepForm],
    ) -> None:  # fmt: skip
        self.segments = segments
        self.captures = captures
        self.written = written
        self.homes = homes  # the segment that makes a reference
        self.steps = steps  # what two recordings of the same function have in common


class _Draft:
    """A segment while its commands are gathered. Slots number the values it knows, its inputs first."""

    def __init__(self, place: StreamPlacement, event: bool) -> None:
        self.place = place
        self.event = event
        self.slots: dict[int, int] = {}
        self.takes: list[tuple[int, int]] = []
        self.taken: list[int] = []
        self.reads: list[int] = []
        self.steps: list[tuple[IssuedCommand, str, tuple[Scalar, ...]]] = []
        self.gives: dict[int, None] = {}


def assemble(
    notes: Sequence[IssuedCommand], formals: Mapping[int, int], results: Iterable[int], kept: Iterable[int],
    storages: Mapping[int, object], label: str, where: Sequence[str], numbers: Sequence[tuple[Scalar, ...]],
) -> CommandRecording:  # fmt: skip
    """The Recording of `notes`, with these `numbers` of each.

    `formals`: number of the argument by reference. `results`: references made by the notes that a replay makes anew;
    `kept`: those that it stores under the same number. `storages`: an object for each memory, by reference. `where`:
    the line of each note.
    """
    drafts: list[_Draft] = []
    homes: dict[int, int] = {}
    for noted, line, given in zip(notes, where, numbers, strict=True):
        # Events between streams stand alone: what goes before or after them has to be there before or looked up after.
        event = bool(getattr(noted.call, "event", ""))
        if not drafts or drafts[-1].place is not noted.place or event or drafts[-1].event:
            drafts.append(_Draft(noted.place, event))
        draft = drafts[-1]
        for ref in noted.inputs:
            if ref in draft.slots:
                continue
            draft.slots[ref] = len(draft.slots)
            if ref in formals:
                draft.takes.append((-1, formals[ref]))
                draft.taken.append(ref)
            elif ref in homes:
                draft.takes.append((homes[ref], ref))
                draft.taken.append(ref)
                drafts[homes[ref]].gives[ref] = None
            else:
                draft.reads.append(ref)
        draft.steps.append((noted, line, given))
        for ref in range(noted.ident, noted.ident + noted.results):
            draft.slots[ref] = len(draft.slots)
            homes[ref] = len(drafts) - 1
    for ref in results:
        drafts[homes[ref]].gives[ref] = None
    stored: list[list[int]] = [[] for _ in drafts]
    for ref in kept:
        stored[homes[ref]].append(ref)
    segments, written_formals, written_captures, steps = [], set(), set(), []
    first = 0
    for draft, own in zip(drafts, stored, strict=True):
        changed = {
            id(storages.get(noted.inputs[at], draft)) for noted, _, _ in draft.steps for at in noted.call.mutates
        }
        mutates = [at for at, ref in enumerate(draft.taken) if id(storages.get(ref)) in changed]
        loses = [ref for ref in draft.reads if id(storages.get(ref)) in changed]
        written_formals |= {draft.takes[at][1] for at in mutates if draft.takes[at][0] == -1}
        written_captures |= set(loses)
        order = _slots(draft)
        call = RecordedSegment(
            label,
            first,
            len(notes),
            [
                RecordedStep(
                    noted.call, given, [order[ref] for ref in noted.inputs],
                    [order[ref] for ref in range(noted.ident, noted.ident + noted.results)], line,
                )
                for noted, line, given in draft.steps
            ],
            len(draft.taken), draft.reads, [order[ref] for ref in draft.gives], [(order[ref], ref) for ref in own],
            mutates, loses,
        )  # fmt: skip
        first += len(draft.steps)
        segments.append(RecordingSegment(draft.place, draft.takes, list(draft.gives), call))
    known: dict[int, tuple[str, int]] = {ref: ("argument", place) for ref, place in formals.items()}
    for noted, given in zip(notes, numbers, strict=True):
        inputs = tuple(known.get(ref, ref) for ref in noted.inputs)
        computed = given if _computes(noted.call) else ()
        steps.append(StepForm(noted.place, noted.signature or noted.name(), computed, inputs, noted.results))
        for ref in range(noted.ident, noted.ident + noted.results):
            known[ref] = ("value", len(known))
    captures = frozenset(ref for draft in drafts for ref in draft.reads)
    return CommandRecording(segments, captures, (frozenset(written_formals), frozenset(written_captures)), homes, steps)


def _computes(call: WorkerCall) -> bool:
    """True if the numbers of a Run are values, and no names of its own."""
    return type(call) is OpCall or getattr(call, "repeatable", False)


def _slots(draft: _Draft) -> dict[int, int]:
    """Slots by reference: inputs first, then what is looked up, then what the commands make."""
    order = {ref: slot for slot, ref in enumerate((*draft.taken, *draft.reads))}
    for ref in draft.slots:
        order.setdefault(ref, len(order))
    return order


def divergence(first: CommandRecording, second: CommandRecording) -> str:
    """Returns where two recordings of the same function differ; "" when they do not."""
    for number, (one, other) in enumerate(zip(first.steps, second.steps, strict=False)):
        if one != other:
            return f"operation {number + 1}: {_shown(first, number)} first, {_shown(second, number)} now"
    if len(first.steps) != len(second.steps):
        short = min(len(first.steps), len(second.steps))
        return f"operation {short + 1}: {len(first.steps)} operations first, {len(second.steps)} now"
    return ""


def _shown(recording: CommandRecording, number: int) -> str:
    for segment in recording.segments:
        if number < len(segment.call.steps):
            step = segment.call.steps[number]
            return f"{step.call.name()}{list(step.numbers) or ''}{f' ({step.where})' if step.where else ''}"
        number -= len(segment.call.steps)
    raise AssertionError("no such operation")
