"""`compile`: a function of distributed tensors is recorded once for each pattern of arguments and replayed after that.

Its older sibling `function` is for training: it knows gradients, optimizers and tensors that stay behind, and runs what
it records.
"""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from monarch.tensor.controller import misuse
from monarch.tensor.controller.activation import active_mesh
from monarch.tensor.controller.records import recorder
from monarch.tensor.controller.stream import get_active_stream
from monarch.tensor.recording.arguments import Arguments
from monarch.tensor.recording.calls import TRACES, RecordedCall, Replay, label_of
from monarch.tensor.recording.recorder import CommandRecorder, divergence
from monarch.tensor.recording.trace import RecordedTrace, Unrecordable, drop_leaked

if TYPE_CHECKING:
    from torch.utils._pytree import PyTree

    from monarch.tensor.controller.tensor import Tensor
    from monarch.tensor.signature import WorkerCall


def compile(fn: Callable[..., Any] | None = None, verify: bool = True) -> Any:
    """`fn`, recorded: its operations on distributed tensors are noted instead of done, and then done by one command a
    call.

    A recording is made for each pattern of arguments: metadata, meshes, streams and aliasing of the tensors, values of
    everything else (which has to be hashable), and the mesh, stream and grad mode that are active. At most 64 are kept.
    With `verify` the first call that could use a recording makes it a second time: RuntimeError ("diverges at operation
    ...") when it came out otherwise.

    `fn` runs only while it is recorded. What it does besides (counting, printing) happens then alone, and Python values
    it reads stay as they were. Tensors that it uses without being given them are read again at each call, and what it
    changes in place is changed at each call. Tensors it makes and does not return are dropped at its end. A result that
    is an argument is that argument.

    Neither arguments nor results may require grad (TypeError REQUIRES_GRAD), and each call checks that the tensors it
    uses may be used (TypeError DROPPED, BORROWED, ...). Fetching inside is a NotImplementedError, as is `.item()`. When
    one operation fails in a worker, every result of that call fails, and what the call changes in place is lost. Inside
    another `compile`, a `function` that records, or `coalescing`, `fn` is simply called. When results of a remote
    function have to be found out first (the first call with propagate="cached"), `fn` begins again and runs operation
    by operation, and is recorded the next time.

    `monarch.function` is the one for training steps: it lets gradients be computed inside and tensors stay behind in
    Python objects, and runs operation by operation what cannot be recorded. This one is strict: what it takes, it
    replays from the first call on.
    """
    if fn is None:
        return functools.partial(compile, verify=verify)
    return _Compiled(fn, verify)


class _CompiledReplay(Replay):
    """`verified`: it was recorded twice, and came out the same, or need not."""

    __slots__ = ("verified",)

    def __init__(self, trace: RecordedTrace, run: RecordedCall, verified: bool) -> None:
        super().__init__(trace, run)
        self.verified = verified


class _Compiled:
    def __init__(self, function: Callable[..., Any], verify: bool) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._verify = verify
        self._label = label_of(function)
        self._kept: OrderedDict[Any, _CompiledReplay] = OrderedDict()
        self._lock = threading.Lock()

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __call__(self, *args: object, **kwargs: object) -> PyTree:
        if recorder() is not None:
            return self._function(*args, **kwargs)
        arguments = Arguments(args, kwargs)
        self._no_grad(arguments.tensors, "argument")
        with self._lock:
            kept = self._kept.get(arguments.key)
            if kept is not None and kept.trace.stale:
                del self._kept[arguments.key]
                kept = None
            if kept is not None:
                self._kept.move_to_end(arguments.key)
        try:
            if kept is None:
                kept = self._record(arguments)
                self._keep(arguments.key, kept)
            elif not kept.verified:
                self._verified(kept, self._record(arguments))
        except _Unknown:  # nothing was done so far
            return self._function(*args, **kwargs)
        return kept.call(arguments)

    def _record(self, arguments: Arguments) -> _CompiledReplay:
        noted = _Strict(hold=True)
        run = RecordedCall(noted, self._function, arguments, False, lambda made: self._no_grad(made, "result"))
        try:
            trace = RecordedTrace(self._label, noted, run.formals, run.made, keep=False)
        except Unrecordable as exc:
            raise NotImplementedError(
                f"{self._label} cannot be compiled: {exc} (monarch.function runs such functions operation by operation)"
            ) from None
        drop_leaked(noted, {tensor._record.ref for tensor in run.made})
        return _CompiledReplay(trace, run, not self._verify)

    def _verified(self, kept: _CompiledReplay, again: _CompiledReplay) -> None:
        again.trace.forget()
        where = divergence(kept.trace.recording, again.trace.recording)
        if where or repr(kept.plan) != repr(again.plan):
            raise RuntimeError(
                f"{self._label} diverges at {where or 'what it returns'}: recorded twice for the same arguments, it did "
                f"something else. What it does may depend on its arguments alone (verify=False takes the first recording)"
            )
        kept.verified = True

    def _keep(self, key: object, kept: _CompiledReplay) -> None:
        with self._lock:
            self._kept[key] = kept
            oldest = self._kept.popitem(last=False)[1] if len(self._kept) > TRACES else None
        if oldest is not None:
            oldest.trace.forget()

    def _no_grad(self, tensors: list[Tensor], what: str) -> None:
        problems = [misuse.OperandProblem(tensor, "REQUIRES_GRAD") for tensor in tensors if tensor.requires_grad]
        if problems:
            raise misuse.incorrect(f"{self._label}: {what}", tensors, {}, problems, active_mesh(), get_active_stream())


class _Unknown(BaseException):
    """The workers are needed to go on: what a remote function gives has to be found out."""


class _Strict(CommandRecorder):
    """Says at once what a recording cannot have."""

    def known(self, what: str) -> None:
        raise NotImplementedError(f"NYI: {what} in a compiled function: the number would stay as it is now")

    def asking(self, call: WorkerCall) -> None:
        if getattr(call, "describes", False):
            raise _Unknown
        super().asking(call)

    def fetching(self, what: str = "fetching results") -> None:
        raise NotImplementedError(f"NYI: {what} in a compiled function: return the tensors and fetch them outside")
