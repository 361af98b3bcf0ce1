"""One worker's side: local tensors by reference, and how each command changes them.

No message is read here and none is sent: commands in, answers out through a callable, so that it runs as well without
processes.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from monarch._devices import own_device, statistics
from monarch.tensor import signature, worker_commands
from monarch.tensor.failures import Failed, OneLine, Tainted, is_echo
from monarch.tensor.frames import PACKAGE
from monarch.tensor.signature import flatten
from monarch.tensor.worker.current import thread
from monarch.tensor.worker.poisoned import advice, device_here, is_poisoned, report
from monarch.tensor.worker.worker_mesh import WorkerMesh
from monarch.tensor.worker_commands import (
    AskRanks,
    Constant,
    Define,
    DefineMesh,
    DefineStream,
    Do,
    Fetch,
    Forget,
    Run,
    SetPlacement,
    Sync,
)

if TYPE_CHECKING:
    from monarch.actor.lowlevel import Sealed
    from monarch.tensor.signature import Scalar

Answer = Callable[[Any], object]
Payloads = Sequence[Any]  # what only pickle can carry, by the places that commands name
FAILURES = 256  # failures that wait to be told; the ident of a later one is enough to find it on its results


class Executor:
    """The tensors of one worker, rank `rank` of its engine's mesh. Several streams run commands on it, each in a thread."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.tensors: dict[int, Any] = {}
        self.signatures: dict[int, _Defined] = {}
        self.meshes: dict[int, WorkerMesh] = {}
        self.failures: list[Failed | Tainted] = []
        self.tainted: dict[int, Failed] = {}  # commands between ranks in which this one took part with other data
        # Calls that could not be read, by ident: how many results they have is not known, so none of these is in `tensors`.
        self.unread: deque[tuple[int, Failed]] = deque(maxlen=1024)
        self.poisoned = ""  # why this process cannot use its device any more
        self._poison: Failed | None = None  # that failure; everything later is it too
        self.end: Callable[[str], object] = lambda why: None  # ends the worker for it
        self.extras: dict[str, Any] = {}  # what parts of the engine keep here: process groups, objects, events

    # --- commands

    def run(self, waiting: Sequence[Any], payloads: Payloads, answer: Answer) -> None:
        """Carries out commands of one stream, in order. Never raises for what the program did wrong."""
        tensors, signatures, poisoned = self.tensors, self.signatures, self.poisoned
        for command in waiting:
            kind = type(command)
            if kind is Run:
                defined = signatures[command.signature]
                try:
                    if poisoned:
                        raise OneLine(poisoned)
                    result = defined.run([tensors[ref] for ref in command.inputs], command.scalars)
                    if defined.single:
                        tensors[command.ident] = result
                    else:
                        self._keep(command.ident, defined.keeps, result)
                except Exception as exc:
                    self._fail(command, defined, exc)
                    poisoned = self.poisoned
            elif kind is int:
                tensors.pop(command, None)
            else:
                _HANDLERS[kind](self, command, payloads, answer)
                poisoned = self.poisoned
        if poisoned:
            self.end(poisoned)

    def _keep(self, ident: int, keeps: tuple[int, ...] | None, result: object) -> None:
        if keeps is None:
            self.tensors[ident] = result
            return
        if not keeps:
            return
        leaves = flatten(result)
        if keeps[-1] >= len(leaves):
            raise RuntimeError(
                f"unexpected number of returns from op, expected {len(keeps)}, got {len(leaves)}: what `propagate` "
                f"returns has "
                f"to have the structure of what the function returns"
            )
        for place, index in enumerate(keeps):
            self.tensors[ident + place] = leaves[index]

    def define(self, command: Define, payloads: Payloads) -> None:
        """Before any stream meets a Run of it: definitions are read by the thread that hands commands out."""
        self.signatures[command.signature] = _Defined(payloads[command.payload], self)

    def _forget(self, command: Forget, payloads: Payloads, answer: Answer) -> None:
        self.signatures.pop(command.signature, None)

    def _constant(self, command: Constant, payloads: Payloads, answer: Answer) -> None:
        value = payloads[command.payload]
        # In a message's memory it could not grow, as an operation on it may want.
        self.tensors[command.ident] = value if value.untyped_storage().resizable() else value.clone()

    def _do(self, command: Do, payloads: Payloads, answer: Answer) -> None:
        defined = _Defined(payloads[command.payload], self)
        try:
            if self.poisoned:
                raise OneLine(self.poisoned)
            result = defined.run([self.tensors[ref] for ref in command.inputs], ())
            self._keep(command.ident, defined.keeps, result)
        except Exception as exc:
            self._fail(command, defined, exc)

    def _fetch(self, command: Fetch, payloads: Payloads, answer: Answer) -> None:
        failed = _first(self._there(ref) for ref in command.refs)
        if failed is None:
            failed = next((self.tainted[ident] for ident in command.taints if ident in self.tainted), None)
        if failed is not None:
            answer((failed, self.told(), command.ident))
            return
        value: Any = None
        told: list[Failed | Tainted] = []
        try:
            if command.rank == self.rank:
                value = [_to_cpu(self.tensors[ref]) for ref in command.refs]
                self._confirm()
            told = self.told()
            answer((value, told, command.ident))
        except Exception as exc:  # of a device, or because the value cannot be sent
            failed = self.failed(command.ident, "fetch", exc)
            answer((failed, told + self.told(), command.ident))

    def _ask(self, command: AskRanks, payloads: Payloads, answer: Answer) -> None:
        failed = _first(self._there(ref) for ref in command.inputs)
        if failed is None:
            failed = next((self.tainted[ident] for ident in command.taints if ident in self.tainted), None)
        if failed is not None:
            answer((failed, (), command.ident))
            return
        if not self.meshes[command.mesh].has(self.rank):
            answer(None)
            return
        defined = _Defined(payloads[command.payload], self)
        try:
            value = defined.run([self.tensors[ref] for ref in command.inputs], ())
            self._confirm()
            answer((value, (), command.ident))
        except Exception as exc:  # of the function, or because its result cannot be sent
            failed = self.failed(command.ident, defined.name(), exc)
            self._abort(defined, failed)
            answer((failed, (), command.ident))

    def _sync(self, command: Sync, payloads: Payloads, answer: Answer) -> None:
        answer((None, self.told(), command.ident))

    def _confirm(self) -> None:
        """Before values leave this process. GroupLost when a collective of a device has failed behind its stream's back."""
        groups = self.extras.get("groups")
        if groups is not None:
            groups.confirm()

    # --- failures

    def told(self) -> list[Failed | Tainted]:
        """The failures that no answer has told of yet."""
        found, self.failures = self.failures, []
        return found

    def failed(self, ident: int, command: str, error: BaseException) -> Failed:
        """A failure of this rank, noted."""
        if self._poison is not None:
            return self._poison
        where = statistics.at_out_of_memory(error)
        if where:
            error.add_note(f"out of memory on rank {self.rank} ({where})")
        text = _text(error) + advice(command)
        if not self.poisoned and is_poisoned(error):
            self.poisoned = report(error, command, self.rank, socket.gethostname(), device_here())
            text = f"{self.poisoned}\n{text}"
        failed = Failed(ident, self.rank, command, text, _pickled(error), is_echo(error))
        self._poison = failed if self.poisoned else None
        if len(self.failures) < FAILURES:
            self.failures.append(failed)
        return failed

    def _fail(self, command: Run | Do, defined: _Defined, error: Exception) -> None:
        """The results of a command that did not run, or raised, are its failure: that of an input when there is one."""
        inputs = [self._there(ref) for ref in command.inputs]
        inputs += [self._there(ref) for ref in getattr(defined.call, "reads", ())]
        root = _first(inputs)
        failed = root if root is not None else self.failed(command.ident, defined.name(), error)
        call = defined.call
        if getattr(call, "between_ranks", False) and len(self.tainted) < 1 << 16:
            self.tainted[command.ident] = failed
            self.failures.append(Tainted(command.ident))
        self._abort(defined, failed)
        if call is None:
            self.unread.append((command.ident, failed))
        for place in range(len(defined.keeps) if defined.keeps is not None else 1):
            self.tensors[command.ident + place] = failed
        for index in defined.mutates:
            self.lose(command.inputs[index], failed)
        for ref in getattr(call, "loses", ()):
            self.lose(ref, failed)

    def _abort(self, defined: _Defined, failed: Failed) -> None:
        """Lets go of the process groups that a call was given, so that its peers in them fail too, and do not wait."""
        for group in defined.groups:
            group.lose(f"{defined.name()} was given it, and failed on rank {self.rank}: {failed.text.strip()[-300:]}")

    def _there(self, ref: int) -> Any:
        """The tensor of a reference, or the failure of the call that should have made it, which could not be read."""
        value = self.tensors.get(ref)
        if value is None:
            return max((one for one in self.unread if one[0] <= ref), key=lambda one: one[0], default=(0, None))[1]
        return value

    def lose(self, ref: int, failed: Failed) -> None:
        """`ref` and all that shares its memory were to be changed by what failed: they are that failure from here on."""
        lost = self.tensors.get(ref)
        self.tensors[ref] = failed
        if not isinstance(lost, torch.Tensor):
            return
        memory = lost.untyped_storage()._cdata
        for other, value in list(self.tensors.items()):
            if isinstance(value, torch.Tensor) and value.untyped_storage()._cdata == memory:
                self.tensors[other] = failed


class _Defined:
    """A signature as a worker has it: opened and prepared on first use, in the thread of its stream."""

    __slots__ = ("_executor", "_sealed", "call", "groups", "keeps", "mutates", "run", "single")

    def __init__(self, sealed: Sealed, executor: Executor) -> None:
        self._sealed: Sealed | None = sealed
        self._executor = executor
        self.call: Any = None
        self.groups: list[Any] = []  # process groups among its arguments
        self.keeps: tuple[int, ...] | None = ()
        self.mutates: tuple[int, ...] = ()
        self.single = False
        self.run: signature.Runner = self._first

    def _first(self, tensors: Sequence[torch.Tensor], numbers: Sequence[Scalar]) -> object:
        if self.call is None:
            thread.groups = self.groups
            try:
                assert self._sealed is not None
                self.call = self._sealed.open()
            finally:
                thread.groups = None
            self.keeps, self.mutates = self.call.keeps, self.call.mutates
        self.run = self.call.prepare(self._executor)
        self.single = self.keeps is None
        self._sealed = None
        return self.run(tensors, numbers)

    def name(self) -> str:
        return str(self.call.name()) if self.call is not None else "a call that could not be read"


_HANDLERS: dict[type, Callable[[Executor, Any, Payloads, Answer], None]] = {
    Constant: Executor._constant,
    AskRanks: Executor._ask,
    Do: Executor._do,
    Fetch: Executor._fetch,
    Forget: Executor._forget,
    Sync: Executor._sync,
}


class StreamThreads:
    """Hands the commands of a worker to its streams: one thread each, made when first named."""

    def __init__(
        self,
        executor: Executor,
        start: Callable[..., threading.Thread],
        enter: Callable[[str], contextlib.AbstractContextManager[object]],
    ) -> None:
        self.executor = executor
        self._start = start
        self._enter = enter
        self._names = {0: "main"}
        self._queues: dict[int, queue.SimpleQueue[Any]] = {}
        self._threads: list[threading.Thread] = []
        self._last = 0

    def take(self, number: int, data: bytes, payloads: Payloads, answer: Answer) -> None:
        """One batch. Those that came before are passed over: a controller that was interrupted sends one again.

        `answer` is called once for a batch whose last command asks for it: by the stream it is on, or at once with None when
        this rank has no part in it.
        """
        if number <= self._last:
            answer(None)
            return
        self._last = number
        executor = self.executor
        stream, here = 0, True
        part: list[int | worker_commands.AnyCommand] = []
        asked = False
        command: Any
        for command in worker_commands.decode(data):
            kind = type(command)
            if kind is Run:
                if here:
                    part.append(command)
            elif kind is int:
                part.append(command)  # a mesh's tensors may be deleted among the commands of a part of it
            elif kind is SetPlacement:
                if part:
                    self._put(stream, part, payloads, answer)
                    part = []
                stream = command.stream
                here = executor.meshes[command.mesh].has(executor.rank)
            elif kind is Define:
                executor.define(command, payloads)
            elif kind is Forget:
                part.append(command)  # on every rank, behind the Runs of it that its stream has yet to come to
            elif kind is DefineMesh:
                executor.meshes[command.mesh] = WorkerMesh(command.names, command.sizes, command.ranks)
            elif kind is DefineStream:
                self._names[command.stream] = command.name
            else:
                asked = kind is Fetch or kind is Sync
                if here:
                    part.append(command)
                elif asked:
                    answer(None)
        if part:
            self._put(stream, part, payloads, answer)

    def _put(
        self, stream: int, part: list[int | worker_commands.AnyCommand], payloads: Payloads, answer: Answer
    ) -> None:
        waiting = self._queues.get(stream)
        if waiting is None:
            waiting = self._queues[stream] = queue.SimpleQueue()
            thread = self._start(self._work, f"tensor-{self._names[stream]}", waiting, self._names[stream], stream)
            self._threads.append(thread)
        waiting.put((part, payloads, answer))

    def _work(self, waiting: queue.SimpleQueue[Any], name: str, number: int) -> None:
        thread.stream = number
        with self._enter(name), torch.no_grad():
            while True:
                item = waiting.get()
                if item is None:
                    return
                own_device.enter()  # another thread may have been the first to use it
                try:
                    self.executor.run(*item)
                except Exception as exc:  # a fault of ours: whoever waits for this stream would wait for ever
                    self.executor.end(
                        f"the thread of stream {name!r} failed on rank {self.executor.rank}:\n{_text(exc)}"
                    )
                    raise
                del item  # nothing of a batch outlives it

    def close(self, seconds: float) -> None:
        """Drops what waits and ends the threads; waits up to `seconds` for what each is at.

        A thread must not be in the midst of an operation when the interpreter ends: torch would bring the process down.
        """
        for waiting in self._queues.values():
            with contextlib.suppress(queue.Empty):
                while True:
                    waiting.get_nowait()
            waiting.put(None)
        end = time.monotonic() + seconds
        for running in self._threads:
            running.join(max(0.0, end - time.monotonic()))


def _first(values: Iterable[object]) -> Failed | None:
    """Returns the failure among `values` that was issued first."""
    return min((value for value in values if type(value) is Failed), key=lambda failed: failed.ident, default=None)


def _to_cpu(value: object) -> Any:
    return value.detach().cpu() if isinstance(value, torch.Tensor) else value


def _text(error: BaseException) -> str:
    if isinstance(error, OneLine):
        return str(error)
    tb = error.__traceback__
    while tb is not None and tb.tb_next is not None and tb.tb_frame.f_code.co_filename.startswith(_OWN):
        tb = tb.tb_next  # from where the call begins
    return "".join(traceback.format_exception(type(error), error, tb))


_OWN = (PACKAGE, "<string>")  # code of this package, and what `signature.runner` makes


def _pickled(error: BaseException) -> bytes:
    import pickle

    try:
        data = pickle.dumps(error)
        pickle.loads(data)
    except Exception:
        return b""
    return data
