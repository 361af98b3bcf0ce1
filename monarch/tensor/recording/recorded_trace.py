"""A Recording and its surroundings in the controller: what has to be true for a replay, and what a replay gives the program.

`compiled` and `function` decide what to record and when; this is what both need.
"""

from __future__ import annotations

import gc
import operator
import weakref
from collections.abc import Sequence
from operator import call, is_
from typing import TYPE_CHECKING, Any

import torch

from monarch.tensor.controller import misuse
from monarch.tensor.controller.activation import active_mesh
from monarch.tensor.controller.checks import trouble
from monarch.tensor.controller.handles import make
from monarch.tensor.controller.issued import IssuedCommand
from monarch.tensor.controller.records import DROPPED, KNOWN, TensorRecord, TensorStorage, share
from monarch.tensor.controller.stream import MAIN, get_active_stream
from monarch.tensor.controller.taint import merge
from monarch.tensor.frames import PACKAGE, internal
from monarch.tensor.recording.evolving import OPTIMIZERS
from monarch.tensor.recording.rates import Rates, marked
from monarch.tensor.recording.recorder import CommandRecorder, assemble

if TYPE_CHECKING:
    from monarch.tensor.controller.stream_placement import StreamPlacement
    from monarch.tensor.controller.taint import Taint
    from monarch.tensor.controller.tensor import Tensor
    from monarch.tensor.metadata import Meta
    from monarch.tensor.recording.evolving import Evolution
    from monarch.tensor.recording.recorder import RecordingSegment

_flags = operator.attrgetter("flags")
_taint = operator.attrgetter("taint")
_meta = operator.attrgetter("meta")
_requires_grad = operator.attrgetter("requires_grad")
_USABLE = frozenset({0, KNOWN})
_NOTHING: dict[int, Any] = {}
_ARGUMENT, _THERE, _NEW = range(3)  # where the memory of a result is


class Unrecordable(Exception):
    """A reason why a recording cannot be replayed."""


class RecordedTrace:
    """A Recording with what belongs to it here. `stale`: a tensor that it reads or stores is gone, so it is of no use
    any more."""

    def __init__(
        self, label: str, recorder: CommandRecorder, formals: Sequence[Tensor], results: Sequence[Tensor], keep: bool,
        groups: Sequence[dict[str, Any]] = (), evolution: Evolution | None = None,
    ) -> None:  # fmt: skip
        """`formals`: what the function was given; `results`: tensors it made and returned. With `keep` each replay
        stores anew what else it made that lives. `groups`: of optimizers, with learning rates that may turn out to be
        inputs (`rates`). `evolution`: of scalars that it changes. Raises Unrecordable."""
        self._segments: list[tuple[StreamPlacement, int, list[tuple[int, int]], int, bool]] = []
        recorder.finish()
        if recorder.problem:
            raise Unrecordable(recorder.problem)
        self.label = label
        self.engine = recorder.engine
        places = {tensor._record.ref: at for at, tensor in reversed(list(enumerate(formals)))}
        returned = list(dict.fromkeys(tensor._record.ref for tensor in results))
        kept = _living(recorder, {*returned, *places}) if keep else []
        lines, passed_on = _issued_at(recorder.notes)
        given = [noted.numbers for noted in recorder.notes]
        numbers, computed = marked(given, passed_on, [group["lr"] for group in groups])
        self.recording = assemble(
            recorder.notes, places, returned, [record.ref for record in kept],
            {ref: _lender(storage) for ref, storage in recorder.storages.items()}, label, lines, numbers,
        )  # fmt: skip
        self.rates = Rates(groups, self.recording.steps, computed)
        self.evolution = evolution
        self._gone: list[object] = []
        self._captured: list[tuple[weakref.ref[TensorRecord], weakref.ref[Tensor]]] = []
        # Records, their metadata; tensors, whether they require grad.
        self._read: tuple[list[weakref.ref[TensorRecord]], list[Meta], list[weakref.ref[Tensor]], list[bool]] = (
            [],
            [],
            [],
            [],
        )
        self._stored = [weakref.ref(record, self._gone.append) for record in kept]
        storages = self._adopt_captures(recorder)
        self._adopt_results(results, formals, storages, kept)
        if any(tensor._record.storage.flags & DROPPED for tensor in formals):
            raise Unrecordable("it drops an argument")
        self._issued(recorder)
        self._storages = tuple(storages.values())
        written = {id(storage): storage for storage in (record.storage for record in kept)}
        written |= {id(s): s for ref in self.recording.written[1] if (s := _lender(recorder.storages[ref]))}
        self._written = tuple(written.values())
        tensors = {id(_lender(recorder.storages[ref])): recorder.met[ref][1] for ref in self.recording.written[1]}
        self._captures_written = tuple(tensors.values())
        self._formals_written = tuple(sorted(self.recording.written[0]))
        self._tainted = False
        lasting = evolution.changed if evolution is not None else frozenset()
        for storage in self._written:
            if id(storage) not in lasting:
                storage.known, storage.flags = None, storage.flags & ~KNOWN

    def _adopt_captures(self, recorder: CommandRecorder) -> dict[int, TensorStorage]:
        """Takes over the tensors that were there before the recording; returns their storages by id."""
        storages: dict[int, TensorStorage] = {}
        for ref in sorted(self.recording.captures):
            met = recorder.met.get(ref)
            if met is None:
                raise Unrecordable("it uses a tensor in a way that cannot be recorded")
            record = met[0]()
            if record is None or record.ref != ref:
                raise Unrecordable(
                    "a tensor that was there before it is replaced by a new one each time: change it in place, or pass and "
                    "return it"
                )
            if record.meta is not met[2] or record.storage is not recorder.storages[ref]:
                raise Unrecordable("it changes the shape or the memory of a tensor that was there before")
            self._captured.append((weakref.ref(record, self._gone.append), met[1]))
            self._read[0].append(met[0])
            self._read[1].append(met[2])
            if (tensor := met[1]()) is not None and tensor.is_leaf:
                self._read[2].append(met[1])
                self._read[3].append(tensor.requires_grad)
            storages[id(record.storage)] = record.storage
        return storages

    def _adopt_results(
        self,
        results: Sequence[Tensor],
        formals: Sequence[Tensor],
        storages: dict[int, TensorStorage],
        kept: Sequence[TensorRecord],
    ) -> None:
        arguments = {id(tensor._record.storage): at for at, tensor in reversed(list(enumerate(formals)))}
        there = {id(record.storage): weakref.ref(record) for record in kept}
        there |= {id(record.storage): weak for weak, _ in self._captured if (record := weak()) is not None}
        new: dict[int, int] = {}
        self._results: list[tuple[int, int, Meta, StreamPlacement, int, Any]] = []
        for tensor in results:
            record = tensor._record
            memory = id(record.storage)
            segment = self.recording.homes[record.ref]
            position = self.recording.segments[segment].gives.index(record.ref)
            kind: tuple[int, Any] = (_NEW, new.setdefault(memory, len(new)))
            if memory in arguments:
                kind = (_ARGUMENT, arguments[memory])
            elif memory in there:
                kind = (_THERE, there[memory])
            self._results.append((segment, position, record.meta, record.place, *kind))

    def _issued(self, recorder: CommandRecorder) -> None:
        """Defines the segments on the workers."""
        segments = self.recording.segments
        self._segments = [
            (
                segment.place,
                self.engine.define([], segment.call),
                [(at, ref if at < 0 else segments[at].gives.index(ref)) for at, ref in segment.takes],
                len(segment.gives),
                segment.call.between_ranks,
            )
            for segment in segments
        ]
        self._followed = followed(segments)
        own = {(segment, position) for segment, position, *_ in self._results}
        # What passes from one segment to others is deleted behind the last of these, which may be of another stream.
        last = {taken: segment.place for segment in segments for taken in segment.takes}
        self._passing = [
            (last.get((number, segment.gives[position]), segment.place).dead, number, position)
            for number, segment in enumerate(segments)
            for position in range(len(segment.gives))
            if (number, position) not in own
        ]

    @property
    def stale(self) -> bool:
        """True if a tensor that it reads or stores is gone, or its engine."""
        return bool(self._gone) or (self.engine is not None and self.engine.ended)

    def same_tensors(self) -> bool:
        """True if the tensors that it reads, and was not given, have the metadata that they had, and require grad as
        they did."""
        weak, metas, tensors, needed = self._read
        try:
            return all(map(is_, map(_meta, map(call, weak)), metas)) and all(
                map(is_, map(_requires_grad, map(call, tensors)), needed)
            )
        except AttributeError:  # one is gone
            return False

    def forget(self) -> None:
        """Forgets it on the workers: it is not replayed any more. Idempotent."""
        while self._segments:
            place, signature, *_ = self._segments.pop()
            self.engine.forget(signature, place)

    __del__ = forget

    # --- replay

    def replay(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Issues it with `tensors` as arguments; the tensors it gives.

        Raises TypeError when an argument or a captured tensor may not be used now, EngineEnded.
        """
        given = [tensor._record for tensor in tensors]
        taint = None
        flags = 0
        for record in given:
            flags |= record.storage.flags
            taint = merge(taint, record.storage.taint)
        if flags & ~KNOWN or not _USABLE.issuperset(map(_flags, self._storages)):
            self._check(tensors)
        for other in set(map(_taint, self._storages)):
            taint = merge(taint, other)
        idents: list[int] = []
        issued: dict[int, Taint] = {}
        known = self.evolution.now() if self.evolution is not None else _NOTHING
        assert known is not None  # or else it does not fit
        numbers = self.rates.numbers(known)
        for number, (place, signature, takes, gives, between) in enumerate(self._segments):
            refs = [given[at].ref if source < 0 else idents[source] + at for source, at in takes]
            ident = self.engine.run(place, signature, refs, numbers, gives)
            idents.append(ident)
            if between:
                taint = issued[number] = self.engine.taints.issued(ident, place, (taint,))
            for other in self._followed.get(number, ()):
                self.engine.taints.follow(issued[other], ident)
        results = self._made(given, idents, taint)
        for dead, segment, position in self._passing:
            dead.append(idents[segment] + position)
        self._write(tensors, given, taint)
        if self.evolution is not None:
            self.evolution.advance(known)
        return results

    def _made(self, given: list[TensorRecord], idents: list[int], taint: Taint | None) -> list[Tensor]:
        results: list[Tensor] = []
        new: dict[int, TensorRecord] = {}
        for segment, position, meta, place, kind, which in self._results:
            source: Any = new.get(which) if kind == _NEW else given[which] if kind == _ARGUMENT else which()
            storage = source.storage if source is not None else TensorStorage(taint)
            record = TensorRecord(idents[segment] + position, meta, place, storage)
            if source is not None:
                share(source, record)
            else:
                new[which] = record
            results.append(make(record))
        return results

    def _write(self, tensors: Sequence[Tensor], given: list[TensorRecord], taint: Taint | None) -> None:
        """Marks what a replay changed as different from here on, also to autograd."""
        changed = [tensor for weak in self._captures_written if (tensor := weak()) is not None]
        for at in self._formals_written:
            storage = _lender(given[at].storage)
            storage.taint, storage.known, storage.flags = taint, None, storage.flags & ~KNOWN
            changed.append(tensors[at])
        if taint is not None or self._tainted:
            self._tainted = taint is not None
            for storage in self._written:
                storage.taint = taint
        if changed:
            torch.autograd.graph.increment_version(changed)

    def _check(self, tensors: Sequence[Tensor]) -> None:
        used = {at for segment in self.recording.segments for source, at in segment.takes if source < 0}
        problems = [
            trouble(tensor, tensor._record.place, at in self._formals_written)
            for at, tensor in enumerate(tensors)
            if at in used
        ]
        for weak, tensor in self._captured:
            record = weak()
            if record is not None and record.storage.flags & ~KNOWN:
                found = tensor()
                found = found if found is not None else make(record)
                writes = any(storage is record.storage for storage in self._written)
                problems.append(trouble(found, record.place, writes))
        wrong = [problem for problem in problems if problem is not None]
        if wrong:
            arguments = [*tensors, *(problem.tensor for problem in wrong)]
            raise misuse.incorrect(self.label, arguments, {}, wrong, active_mesh(), get_active_stream())


def followed(segments: Sequence[RecordingSegment]) -> dict[int, list[int]]:
    """Returns, for each segment in which the main stream waits for another one, those between ranks of that stream
    that are known to be done when it is. Events are segments of their own, each of a post and a wait of one number."""
    found: dict[int, list[int]] = {}
    for number, segment in enumerate(segments):
        first = segment.call.steps[0]
        if getattr(first.call, "event", "") != "await" or segment.place.stream is not MAIN:
            continue
        posted = next(
            at
            for at, other in enumerate(segments[:number])
            if getattr(other.call.steps[0].call, "event", "") == "post" and other.call.steps[0].numbers == first.numbers
        )
        done = {at for group in found.values() for at in group}
        found[number] = [
            at
            for at, other in enumerate(segments[:posted])
            if other.call.between_ranks and other.place is segments[posted].place and at not in done
        ]
    return found


def _living(recorder: CommandRecorder, without: set[int]) -> list[TensorRecord]:
    """Returns what was made and lives, other than these references."""
    made = {ref for noted in recorder.notes for ref in range(noted.ident, noted.ident + noted.results)}

    def found() -> list[TensorRecord]:
        living = ((ref, weak()) for ref, weak in list(recorder.made.items()) if ref in made and ref not in without)
        return [record for ref, record in living if record is not None and record.ref == ref]

    if found():
        gc.collect()  # the graphs of derivatives have circles
    return found()


def _lender(storage: TensorStorage) -> TensorStorage:
    """The memory itself, of a borrow."""
    while storage.borrows is not None and storage.borrows.own is not None:
        storage = storage.borrows.own.lent
    return storage


def _issued_at(notes: Sequence[IssuedCommand]) -> tuple[list[str], list[bool]]:
    """The program's line of each, `file:line in function`; and whether one of torch's optimizers issued it."""
    stacks = torch._C._profiler.symbolize_tracebacks([noted.stack for noted in notes]) if notes else []
    lines, passed_on = [], []
    for stack in stacks:
        own = next((frame for frame in stack if not internal(frame["filename"])), None)
        lines.append(f"{own['filename']}:{own['line']} in {own['name']}" if own is not None else "")
        outer = next((frame["filename"] for frame in stack if not frame["filename"].startswith(PACKAGE)), "")
        passed_on.append(outer.startswith(OPTIMIZERS))
    return lines, passed_on


def drop_leaked(recorder: CommandRecorder, without: set[int]) -> None:
    """Marks what a recording made, which exists only in its replays, as dropped for what else has it."""
    for record in _living(recorder, without):
        storage = TensorStorage()
        storage.flags, storage.why = (
            DROPPED,
            f"the end of the recording that made it; return it instead\n{misuse.here(3)}",
        )
        record.storage, record.ref = storage, -1
