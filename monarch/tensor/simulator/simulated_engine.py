"""An Engine whose batches go to simulated workers: everything that a program does with it is checked and known as
ever, and takes simulated time in place of real."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from torch.utils import _pytree as pytree

from monarch.actor import Future, Promise, Shape
from monarch.actor.lowlevel import Sealed, follow
from monarch.tensor import worker_commands
from monarch.tensor.controller.engine import TensorEngine
from monarch.tensor.controller.issued import CommandStacks, IssuedCommand, RepeatedConstant
from monarch.tensor.controller.mesh import DeviceMesh
from monarch.tensor.controller.records import recorder, recorders
from monarch.tensor.controller.stream import Stream
from monarch.tensor.controller.stream_placement import StreamPlacement
from monarch.tensor.controller.taint import Taint
from monarch.tensor.metadata import Meta
from monarch.tensor.remote.rref import TakeResult
from monarch.tensor.simulator import effects
from monarch.tensor.simulator.estimates import RuntimeEstimator
from monarch.tensor.simulator.interpreter import Interpreter, Issue
from monarch.tensor.simulator.machine import SimulatedMachine
from monarch.tensor.simulator.reports import Reports
from monarch.tensor.simulator.task import TaskKind
from monarch.tensor.worker.actor_transfers import PublishTensors
from monarch.tensor.worker.function_call import FunctionCall, PatternCall, ValueCall

if TYPE_CHECKING:
    import torch
    from torch.utils._pytree import PyTree

    from monarch.tensor.signature import WorkerCall


class _Tag(threading.local):
    value: Any = None


_tag = _Tag()


@contextlib.contextmanager
def set_meta(value: object) -> Iterator[None]:
    """Tags what this thread issues in the block with `value`: simulations show it in traces and exports and give it
    to timing functions as `task.meta`. The innermost block counts. Has no effect on real meshes."""
    before, _tag.value = _tag.value, value
    try:
        yield
    finally:
        _tag.value = before


def _current_meta() -> Any:
    """The tag of this thread, None outside of `set_meta`."""
    return _tag.value


class SimulatedEngine(TensorEngine):
    """An engine for a mesh of `shape` that nobody runs. Its tensors have metadata and no contents; what is fetched is
    zeros."""

    def __init__(
        self, name: str, shape: Shape, reports: Reports, estimator: RuntimeEstimator, grouped: bool = False
    ) -> None:
        self.machine = SimulatedMachine(len(shape.ndslice), grouped)
        self.reports = reports
        self.estimator = estimator
        self._open: dict[int, Issue] = {}  # of commands that are not simulated yet
        self._interpreter = Interpreter(self.machine, estimator, self._issue_of, [reports.add])
        self._due = _DueCalls()
        super().__init__(name, shape, _AbsentWorkers(name), lambda: None)
        self._timer = _NoTimer()  # type: ignore[assignment]  # no thread flushes by the clock
        self.rendezvous = _UnconnectedPort()
        self.issued = _TaggedStacks(self._open)
        self._note_stack = self.issued.note

    # --- what goes to workers elsewhere: calls as they are, in place of what is pickled of them

    def define(self, key: object, call: WorkerCall) -> int:
        if isinstance(call, FunctionCall):
            key = (key, _Unique())  # equal functions that give other metadata are calls of their own here
        with self._due.calls(call):
            return super().define(key, call)

    def do(self, place: StreamPlacement, call: WorkerCall, inputs: Sequence[int], results: int) -> int:
        if isinstance(call, PublishTensors | TakeResult):
            raise NotImplementedError(
                f"{call.name()}: actors can neither take nor return tensors of a simulated mesh, because it has no "
                f"processes: call a monarch.remote function in place of the endpoint"
            )
        with self._due.calls(call):
            return super().do(place, call, inputs, results)

    def issue(self, held: Sequence[IssuedCommand]) -> None:
        calls = [noted.call for noted in held if not noted.signature and not isinstance(noted.call, RepeatedConstant)]
        with self._due.calls(*calls):
            super().issue(held)

    def _carry(self, payload: object) -> int:
        return super()._carry(self._due.next() if isinstance(payload, Sealed) else payload)

    def _send(self, wanted: object = None) -> Future[Any] | None:
        answers: Future[Any] | None = None
        while self._unsent:
            _, waiting, payloads, mark = self._unsent.popleft()
            try:
                self._interpreter.take(waiting, payloads)
            except (
                Exception
            ) as exc:  # a timing function's, mostly: what follows would be told of tensors it does not know
                self.end(f"its simulation failed: {type(exc).__name__}: {exc}")
                raise
            answer: Any = None
            if isinstance(mark, worker_commands.Fetch):
                at: Any = next(one for one in reversed(waiting) if isinstance(one, worker_commands.SetPlacement))
                place = self._interpreter.place(at.mesh, at.stream)
                metas, ready = self._interpreter.fetch(mark.ident, mark.refs, mark.rank, place)
                answer = (metas, (), mark.ident, ready)
            elif mark is not None:
                answer = (None, (), mark if isinstance(mark, int) else mark.ident)
            self._done(waiting)
            if mark is not None:
                answers = _ready({0: answer})
                if mark is not wanted:
                    self._acks.append(answers)
        return answers

    def _done(self, waiting: Sequence[object]) -> None:
        """The commands in `waiting` are done: who issued them need not be known any more."""
        last = max((one.ident for one in waiting if hasattr(one, "ident")), default=0)
        while self._open and (first := next(iter(self._open))) <= last:
            del self._open[first]

    def _issue_of(self, ident: int) -> Issue:
        return self._open.get(ident, (None, None))

    # --- answers

    def _fetched(self, values: Any, convert: Callable[[list[torch.Tensor]], PyTree]) -> PyTree:
        metas, _, _, ready = values[0]
        self.machine.wait_until(ready)  # who reads a value has waited for it
        return convert([effects.zeros(meta) for meta in metas])

    def ask(
        self, mesh: DeviceMesh, wide: DeviceMesh, call: WorkerCall, refs: Sequence[int], taints: Sequence[Taint | None],
        adverb: str, stream: Stream,
    ) -> Any:  # fmt: skip
        """Runs the function of `call` once, here, on fake tensors; its tensors come back as zeros, the same from each
        rank.

        NotImplementedError when it needs values, or this process cannot run it.
        """
        if recorders and (here := recorder()) is not None:
            here.asking(call)
        place = mesh.place(stream)
        with self._sending:
            self.flush()
            with self._lock:
                ident = self._question()
            value, ready = self._asked(call, ident, refs, place)
        self._open.pop(ident, None)
        asked = set(mesh.processes)
        answers: dict[int, object] = {}
        for rank in wide.processes:
            answers[rank] = (_filled(value), (), ident, ready) if rank in asked else None

        def waited(found: object) -> Any:
            self.machine.wait_until(ready)
            return found

        if adverb == "call":
            return follow(_ready(answers), waited)
        return (follow(_ready(answer), waited) for answer in answers.values() if answer is not None)

    def _asked(self, call: WorkerCall, ident: int, refs: Sequence[int], place: StreamPlacement) -> tuple[Any, int]:
        if not isinstance(call, PatternCall | ValueCall):
            raise NotImplementedError(f"{call.name()}: a simulated mesh has no processes that could answer")
        there = self._interpreter.place(place.mesh_number, place.stream_number)
        values = [self._interpreter.refs[ref] for ref in refs]
        inputs: list[tuple[Meta, Any]] = [(value.meta, value.buffer) for value in values if value.meta is not None]
        try:
            if len(inputs) < len(values):
                raise ValueError("the shape and dtype of one of its tensors is not known")
            if isinstance(call, PatternCall):
                return effects.described(call.call, inputs), self.machine.now
            found = effects.returned(call.call, inputs)
        except Exception as exc:
            raise NotImplementedError(
                f"what {call.call.name()} gives is found by running it here on tensors without values, and that failed: "
                f"{type(exc).__name__}: {exc}. Give it `propagate=`, a function of fake tensors, and fetch what it returns"
            ) from exc
        return found, self._interpreter.call(ident, call.call.label, refs, there)

    # --- life

    def step(self) -> tuple[float, float]:
        """Ends an iteration: (seconds it took, megabytes that a device had at most), both simulated.

        Everything issued so far is done then; the files of the iteration are written, where the mode says so. Raises
        EngineEnded, and OSError when a file cannot be written.
        """
        with self._sending:
            self.check_alive()
            self.flush()
            return self.reports.step(self.machine, self._interpreter.streams)

    def write(self) -> Any:
        """Writes the trace of what came since the last step; its path."""
        with self._sending:
            if not self.ended:
                self.flush()
            return self.reports.write(self.machine, self._interpreter.streams)

    def sync(self) -> None:
        with self._sending:
            self.check_alive()
            self.flush()
            self._interpreter.note(TaskKind.STATUS)

    def exit(self) -> None:
        """Ends it and writes the last files. Idempotent."""
        if self.ended:
            return
        super().exit()
        self._interpreter.note(TaskKind.EXIT)
        self.reports.finish(self.machine, self._interpreter.streams)


class _TaggedStacks(CommandStacks):
    """Keeps, of each command, what `set_meta` said, and the stack, until it is simulated."""

    def __init__(self, open_: dict[int, Issue]) -> None:
        super().__init__()
        note = self.note

        def noticed(entry: tuple[int, Any]) -> None:
            note(entry)
            open_[entry[0]] = (_current_meta(), entry[1])

        self.note = noticed


class _DueCalls(threading.local):
    """The calls that this thread is about to hand over, in order."""

    def __init__(self) -> None:
        self._waiting: deque[object] = deque()

    def calls(self, *calls: object) -> _DueCalls:
        self._waiting.extend(calls)
        return self

    def next(self) -> object:
        return self._waiting.popleft()

    def __enter__(self) -> None: ...

    def __exit__(self, *exc: object) -> None:
        self._waiting.clear()


class _Unique:
    """A value that equals nothing else."""


class _NoTimer:
    """A stand-in for the thread that sends what has waited: nothing waits here."""

    idle = False

    def wake(self) -> None: ...

    def stop(self) -> None: ...


class _UnconnectedPort:
    """Takes every message, and does nothing."""

    def __getattr__(self, name: str) -> _UnconnectedPort:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def broadcast(self, *args: object) -> None: ...


class _AbsentWorkers:
    """A stand-in for an engine's workers."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise NotImplementedError(
            f"the mesh {self._name!r} is simulated: it has no processes, so actors, and all that needs processes, "
            f"cannot work with its tensors"
        )


def _filled(value: object) -> PyTree:
    """`value` with zeros in place of metadata."""
    return pytree.tree_map_only(Meta, effects.zeros, value)


def _ready(value: object) -> Future[Any]:
    promise: Promise[Any] = Promise()
    promise.set(value)
    return promise.future
