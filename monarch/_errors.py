"""Every exception that a user of the runtime can meet.

    Exception
    ├── ActorError                    the endpoint raised; its actor lives on
    ├── RDMAError                     a transfer of monarch.rdma; each is also what its line names beside it
    │   ├── BufferDroppedError        the buffer was dropped before the transfer, or meanwhile
    │   ├── OwnerEndedError           the process that owns the buffer has ended
    │   ├── RDMATimeoutError          (TimeoutError) not done within the transfer's timeout
    │   │   └── StateDictBusyError    no whole version of the weights could be read in that time
    │   ├── RDMAUnavailableError      (RuntimeError) no way from here to the owner that settings allow
    │   ├── RDMAMemoryError           (ValueError) not memory that can be registered or moved
    │   ├── RDMASizeError             (ValueError) the two sides' sizes do not fit
    │   ├── RDMAReadOnlyError         (ValueError) the bytes may not be written to
    │   └── StateDictMismatchError    (ValueError) names, shapes or dtypes of two sides differ
    ├── RuntimeError
    │   ├── SupervisionError          the target, its process or its owner failed or was stopped
    │   ├── ClientClosedError         *you* shut this process's client down and then used it
    │   ├── ForkedClientError         a process forked from a client used the client's links
    │   ├── DeadlockError             actors wait for each other in a circle
    │   ├── SpawnError                processes could not be started; says which limit or program
    │   ├── BackpressureTimeout       a receiver took nothing for message_delivery_timeout
    │   └── WorkspaceError            sync_workspace could not make the hosts' files like the local ones
    ├── TypeError
    │   └── NotSendableError          an argument or result that cannot cross a process
    └── ValueError
        ├── MessageTooLargeError      over codec_max_frame_length; nothing was sent
        └── NotFoundError             no such job, mesh or program, of the command line
    KeyboardInterrupt
    └── UnhandledFaultError           a failure nobody supervised reached the root client

Knows nothing of processes, sockets or meshes.
"""

from __future__ import annotations

import os
import re
import sys
from typing import Any

from monarch._text import sendable

PACKAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "")  # what the files of this package begin with

_FRAME = re.compile(r'( *)File "([^"]+)", line (\d+), in ')
_CHAINED = re.compile(r"^(?:The above exception was the direct cause|During handling of the above exception)", re.M)
_LAYERS = ("_mesh", "_runtime", "_wire", "references", "service")
_RUNTIME = tuple(os.path.join(PACKAGE, layer, "") for layer in _LAYERS)
# Behind a frame of ours also Python's, by which a function is handed to a thread.
_OUTER = (
    *_RUNTIME,
    *(os.path.join(os.path.dirname(os.__file__), *parts) for parts in (("asyncio", ""), ("concurrent", "futures", ""))),
)


class _DrawnError:
    """An exception that a notebook draws."""

    def _repr_html_(self) -> str | None:
        """Draws what went wrong, where, and the root cause."""
        from monarch import _html  # loaded when a notebook asks

        return _html.drawn(self._draw)

    def _draw(self) -> str:
        from monarch import _html

        return _html.failure(*_html.of_report(type(self).__name__, str(self)))


class ActorError(_DrawnError, Exception):
    """An endpoint raised an exception, and the caller was waiting for its answer.

    The actor that raised lives on. ``exception`` is the remote exception, or a stand-in where that cannot be pickled: of a
    class with the same name and the same built-in base, with its arguments, attributes and notes; None where this process
    cannot unpickle it. The text says which and why. ``message`` says which actor and endpoint, ``exception_formatted`` is the
    whole remote traceback as text, causes and contexts included. ``rank``, ``point`` and ``host`` say which actor of its mesh
    it was and where (None, {} and "" when unknown), ``raised`` and ``ranks`` how many of how many ranks raised. ``str()``
    shows all of it.
    """

    _told_whole = True  # its text says where: frames of the runtime alone, by which it came, are left out of reports

    def __init__(
        self,
        exception: BaseException | None,
        message: str = "A remote actor call has failed.",
        exception_formatted: str | None = None,
    ) -> None:
        self.exception = exception
        self.message = message
        self.exception_formatted = exception_formatted or format_remote(exception)
        self.rank: int | None = None
        self.point: dict[str, int] = {}
        self.host = ""
        self.raised = self.ranks = 1
        super().__init__(exception, message, self.exception_formatted)

    def __str__(self) -> str:
        return f"{self.message}{self._place()}\n {self.exception_formatted}"

    def _draw(self) -> str:
        from monarch import _html

        point = ", ".join(f"{label}={index}" for label, index in self.point.items())
        facts = {
            "rank": "" if self.rank is None else f"{self.rank}{f' ({point})' if point else ''}",
            "host": self.host,
            "raised": f"{self.raised} of {self.ranks} ranks" if self.ranks > 1 else "",
        }
        root, text = _root_cause(self.exception_formatted), self.exception_formatted
        return _html.failure(
            "ActorError", self.message, [fact for fact in facts.items() if fact[1]], root, text, "remote traceback"
        )

    def _place(self) -> str:
        if self.rank is None:
            return ""
        point = ", ".join(f"{label}={index}" for label, index in self.point.items())
        shown = f"\n Rank {self.rank}" + (f" ({point})" if point else "") + (f" on {self.host}" if self.host else "")
        return shown + (f"; {self.raised} of {self.ranks} raised" if self.ranks > 1 else "")


def _root_cause(formatted: str) -> str:
    """Returns the line that names the first exception of a chain, of which a traceback as text tells first."""
    first = _CHAINED.split(formatted, 1)[0]
    named = [line for line in first.splitlines() if line[:1].strip() and not line.startswith("Traceback")]
    return named[0] if named else ""


class RemoteStandIn(Exception):
    """Stands in for a remote exception that cannot be sent, as ``ActorError.exception``.

    Its class is a subclass with the name of the original's class and the built-in exception that this derives from, so
    ``isinstance(error.exception, ValueError)`` holds of what was one. ``args``, attributes, notes and ``__cause__`` are the
    original's; those that cannot be sent are there as text. ``why``: what pickling the original raised.
    """

    why = ""

    def __reduce__(self) -> Any:
        kind = type(self)
        return stand_in, (
            kind.__module__,
            kind.__qualname__,
            kind.__bases__[1:],
            self.args,
            self.__dict__,
            self.__cause__,
        )


def stand_in(
    module: str,
    name: str,
    bases: tuple[type, ...],
    args: tuple[Any, ...],
    attributes: dict[str, Any],
    cause: BaseException | None,
) -> RemoteStandIn:
    """Makes a RemoteStandIn for an exception of class `name`."""
    names, short = {"__module__": module, "__qualname__": name}, name.rpartition(".")[2]
    kind: Any
    try:
        kind = type(short, (RemoteStandIn, *bases), names)
        made: RemoteStandIn = kind.__new__(kind, *args)
    except Exception:  # a built-in class that takes no text in the place of what could not be sent
        kind = type(short, (RemoteStandIn,), names)
        made = kind.__new__(kind)
    made.args, made.__cause__ = args, cause
    made.__dict__.update(attributes)
    return made


def format_remote(exception: BaseException | None, show_internal: bool = False) -> str:
    """The chained traceback of `exception` as text, its heading saying that it happened elsewhere. The frames of the runtime,
    which tell a user nothing, are folded into a line unless `show_internal`. Fit to send: TEXT_LIMIT characters at most.
    Never raises, whatever the exception's own methods do."""
    if exception is None:
        return "(the remote exception could not be unpickled here)"
    import traceback  # slow to import and only ever needed once something went wrong

    folded = 0
    for left in (2, 1, 0):
        try:
            shown = traceback.TracebackException.from_exception(exception)
            folded = 0 if show_internal else _fold(shown)
            if not show_internal and getattr(exception, "_told_whole", False) and _is_runtimes(shown.stack):
                shown.stack = None  # type: ignore[assignment]  # then there is no heading either
                shown.__cause__ = shown.__context__ = None
            text = "".join(shown.format())
            break
        except BaseException as exc:  # of a method of the exception
            # Of `ast.parse`, by which Python marks places in lines, when two threads do so at once (Python 3.11).
            if left and isinstance(exc, SystemError):
                continue
            text = f"{type(exception).__name__} (its text cannot be shown: that raised {type(exc).__name__})"
            break
    text = text.replace(
        "Traceback (most recent call last):",
        "Traceback of where the remote call failed (most recent call last):",
    )
    if folded:
        # Before the last line: programs, and people, look for the exception there.
        head, line, last = text.rstrip("\n").rpartition("\n")
        note = f"  [{folded} frame(s) of monarch itself folded away: setting show_internal_frames]"
        text = f"{head}\n{note}\n{last}\n" if line and not last.startswith(" ") else f"{text.rstrip()}\n{note}\n"
    return sendable(text)


def _fold(shown: Any) -> int:
    """Takes our own frames out of a TracebackException and of all it is chained with; how many there were. The outermost,
    which called the endpoint, are in each and are not counted. What has no others keeps them."""
    folded, todo, seen = 0, [shown], set()
    while todo:
        each = todo.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        todo += [each.__cause__, each.__context__, *(each.exceptions or ())]
        frames = list(each.stack)
        outer = 0
        while outer < len(frames) and frames[outer].filename.startswith(_OUTER if outer else _RUNTIME):
            outer += 1
        kept = [frame for frame in frames[outer:] if not frame.filename.startswith(_RUNTIME)]
        if kept:
            folded += len(frames) - outer - len(kept)
            each.stack[:] = kept
    return folded


def _is_runtimes(stack: Any) -> bool:
    return all(frame.filename.startswith(_RUNTIME) for frame in stack)


def with_local_source(formatted: str) -> str:
    """Fills in the lines of source that a remote process did not have, and this one has: of a notebook's cells."""
    cached = sys.modules.get("linecache")
    if cached is None:
        return formatted
    lines = formatted.split("\n")
    filled: list[str] = []
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        filled.append(line)
        found = _FRAME.match(line)
        if found is not None and not following.startswith(f"{found[1]}  "):
            source = cached.getline(found[2], int(found[3])).strip()
            if source:
                filled.append(f"{found[1]}  {source}")
    return "\n".join(filled)


class SupervisionError(_DrawnError, RuntimeError):
    """The target of a call, its process or its owner has failed or was stopped.

    The text names the endpoint when it is known, the actor, its rank and the root cause.
    """

    def __init__(self, message: str, endpoint: str | None = None) -> None:
        self.message = message
        self.endpoint = endpoint
        super().__init__(message, endpoint)

    def __str__(self) -> str:
        if self.endpoint is None:
            return self.message
        return f"Endpoint call {self.endpoint}() failed, {self.message}"


class ClientClosedError(RuntimeError):
    """`shutdown_context` ran in this process; its client cannot be started again."""


class ForkedClientError(RuntimeError):
    """This process was forked (`os.fork`) from one that has a running client: its links, jobs and mounts are the parent's."""


class DeadlockError(_DrawnError, RuntimeError):
    """Actors wait for each other in a circle, and this wait was given up to break it.

    The text names every actor of the circle: whom it waits for, since when, and at which source line. `cycle` is the same as
    a list of lines.
    """

    def __init__(self, message: str, cycle: list[str] | None = None) -> None:
        self.cycle = cycle or []
        super().__init__(message, self.cycle)

    def __str__(self) -> str:
        return str(self.args[0])


class SpawnError(RuntimeError):
    """Processes could not be started: the text names the limit, program or folder that stood in the way."""


class BackpressureTimeout(RuntimeError):
    """A receiver took nothing for `message_delivery_timeout`, and the bounded queue towards it is full."""


class WorkspaceError(RuntimeError):
    """`sync_workspace` failed: the text names hosts, paths, the cause and what to do.

    What was written stays, each file whole; the next sync goes on from there.
    """


class NotSendableError(TypeError):
    """The object belongs to this process and cannot be an argument, a result or a port message."""


class MessageTooLargeError(ValueError):
    """The message is larger than `codec_max_frame_length`; nothing was sent and nobody is harmed."""


class NotFoundError(ValueError):
    """A job, mesh, program or log that was named and is not there, or none where one is needed."""


class UnhandledFaultError(_DrawnError, KeyboardInterrupt):
    """A failure reached the root client and no `unhandled_fault_hook` took it; raised in the main thread, wherever it waits.

    A subclass of KeyboardInterrupt so that `finally` blocks and atexit handlers run and ordinary `except Exception`
    does not swallow it. The text is the report of the failure, which is on stderr too. Uncaught it ends the program with
    status 1, as an exception does, never with that of Ctrl-C. Caught, the program goes on: what failed stays failed, and the
    next failure is raised again. A failure that a call has raised is not raised a second time here: docs/reliability.md.

    Of several failures that come together one is raised and all are reported: those that come while this exception is
    handled (until the `except` or `finally` block ends) are not raised. One that comes after that, while this
    exception object still exists, is raised when it is gone, or after 10 s.

    asyncio: it is raised in the task or callback that runs. While none runs, `run_until_complete` and `run_forever` raise it;
    `asyncio.run` cancels every task before it does, so the tasks see CancelledError.

    A program that has its own handler of SIGINT (`signal.signal`, `loop.add_signal_handler`, `signal.sigwait`) says itself
    what interrupts it: after the report the handler is called as for Ctrl-C, once in 10 s at most, instead of this exception.
    So is trio's, which raises KeyboardInterrupt.

    IPython and Jupyter: it ends the running cell, never the kernel. Without a running cell the report is all.

    A main thread that is inside native code hears of it when it is back in Python. KeyboardInterrupt is raised instead where
    the main thread cannot be told which it is: SIGURG has a handler of the program, or `monarch.actor` was first imported in
    another thread and no client was started in the main one.
    """


class NoStreamError(ConnectionError):
    """No stream can be opened to that process, at least at present; the text says why."""


class RDMAError(Exception):
    """A transfer of `monarch.rdma` failed, or could not begin; the subclasses say why. The text names the path, the
    buffer and its owner.

    Mistakes in the arguments (memory, size, read-only, timeout) are raised by the call; everything else by the Future.
    After a failure the destination holds a mixture of old and new bytes; nothing
    outside of it was touched, and no copying goes on (RDMATimeoutError tells of the exception).
    """


class BufferDroppedError(RDMAError):
    """The buffer was dropped, by its owner or by anybody who had it, before the transfer or while it went on."""


class OwnerEndedError(RDMAError):
    """The process that owns the buffer has ended, or its host; the memory is gone for good. Ask its successor for a new
    buffer.
    """


class RDMATimeoutError(RDMAError, TimeoutError):
    """The transfer was not done within its `timeout` and was given up.

    Where the bytes go through the owner's process ("tcp", "actor"), a part of a write that was on its way may still arrive
    later; on all other paths nothing moves any more when this is raised.
    """


class StateDictBusyError(RDMATimeoutError):
    """A StateDict could not be read whole within the timeout: its owner was in the middle of an update all the time, or
    every read was overtaken by one. The text names the owner and says which.
    """


class RDMAUnavailableError(RDMAError, RuntimeError):
    """No path leads from this process to the buffer's owner, or settings forbid those that do; the text names each and
    why.
    """


class RDMAMemoryError(RDMAError, ValueError):
    """Not memory that can be registered or moved: of another type, of size 0, not contiguous, or on a device without a
    path.
    """


class RDMASizeError(RDMAError, ValueError):
    """The range does not lie in the buffer, or the local memory is too small for it; the text names both sizes in
    bytes.
    """


class RDMAReadOnlyError(RDMAError, ValueError):
    """The transfer would write into memory that is read-only: the destination of a read, or the buffer of a write."""


class StateDictMismatchError(RDMAError, ValueError):
    """A StateDict and what it is read into (or what it was made of) differ in names, shapes or dtypes; the text names the
    keys.
    """
