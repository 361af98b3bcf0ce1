"""An endpoint of this process that stands at a breakpoint: on its thread, from the first breakpoint until it returns.

It waits for nothing but the debugger's controller, in the client; the I/O thread of the process goes on.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import socket
import sys
from bdb import BdbQuit
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from monarch._mesh.actors.behaviour import ActorBehaviour
from monarch._runtime.context import current
from monarch._runtime.future import once
from monarch._runtime.instance import Instance, Leave
from monarch._runtime.loop import start_thread
from monarch._shape.extent import Extent, Point
from monarch._wire.message import Call, decode_extent
from monarch.config import settings
from monarch.debugger.debug_sessions import DebugSessionInfo
from monarch.debugger.rank_pdb import Abandon, LetGo, RankPdb
from monarch.debugger.sources import FetchedSources

_CONTROLLER_WITHIN = 60.0  # seconds for the client to take note of a breakpoint
_LOOK = 0.5  # seconds between two looks whether the actor is being stopped
_WRITE = 1 << 15  # characters that are kept back until there is a line to read

_passed_over = False


class DebuggerError(RuntimeError):
    """A breakpoint was reached, and nobody could ever look at it. It is raised where the breakpoint is."""


def stop(frame: FrameType, header: str | None) -> None:
    """At the next line of `frame`, which an actor runs: the current thread waits there for the debugger."""
    running = current.get()
    assert running is not None
    session = _session(running.instance, running.call, frame, "stands at a breakpoint", None)
    if session is not None:
        session.pdb.stop(frame, header)


def stop_at(instance: Instance, call: Call, error: BaseException) -> None:
    """Stops where `error` was raised, for as long as the setting says. Never raises."""
    if not isinstance(error, Exception) or isinstance(error, BdbQuit) or _is_ours(instance):
        return
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    frame = traceback.tb_frame if traceback is not None else sys._getframe()
    reason = f"raised {type(error).__name__}"
    try:
        session = _session(instance, call, frame, reason, settings.debug_exception_timeout())
    except DebuggerError:  # it fails as it would have
        return
    if session is not None:
        session.returned(instance, call, error)


def _is_ours(instance: Instance) -> bool:
    return bool(getattr(getattr(instance.behaviour, "cls", None), "_is_system_actor", False))


def _session(
    instance: Instance, call: Call | None, frame: FrameType, reason: str, patience: float | None
) -> StoppedActor | None:
    """Returns the session of the actor, or a new one. None when there are too many in the program."""
    behaviour: Any = instance.behaviour
    known = behaviour.__dict__.get("debugging")
    session = known if isinstance(known, StoppedActor) else None
    if session is None:
        try:
            with _plain_thread():
                session = StoppedActor.start(instance, frame, reason, patience)
        except Exception as error:
            raise DebuggerError(f"nobody can be asked at this breakpoint: {_reason(error)}") from error
        if session is None:
            _say_passed_over(frame)
            return None
        behaviour.debugging = session
    session.calls.append(call)
    return session


def _reason(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(error).__name__


def _say_passed_over(frame: FrameType) -> None:
    global _passed_over
    if not _passed_over:
        _passed_over = True
        where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        print(f"monarch: too many breakpoints already; that at {where} is passed over", file=sys.stderr, flush=True)


class StoppedActor:
    """The session of one actor; of several endpoints if concurrent ones reach breakpoints. `token` names it to the
    controller."""

    def __init__(self, instance: Instance, controller: Any, token: int) -> None:
        self._instance = instance
        self._controller = controller
        self._token = token
        self.calls: list[Call | None] = []
        self._kept: list[str] = []
        self._size = 0
        self._place = ("", 0)
        self._traced_before = sys.gettrace()
        self.pdb = RankPdb(self, FetchedSources(self._source))
        context = contextvars.copy_context()
        instance.ended.on_ready(once(lambda: self._actor_ended(context)))

    @classmethod
    def start(cls, instance: Instance, frame: FrameType, reason: str, patience: float | None) -> StoppedActor | None:
        from monarch.debugger.controller import debug_controller

        running = current.get()
        assert running is not None
        controller = debug_controller()
        proc = instance.proc
        extent = Extent(*decode_extent(running.view))
        info = DebugSessionInfo(
            instance.name,
            running.rank,
            dict(Point(running.rank, extent)),
            socket.gethostname(),
            f"{frame.f_globals.get('__name__', '?')}.{frame.f_code.co_name}",
            frame.f_lineno,
        )
        started = controller.debugger_session_start.call_one(info, proc.address, os.getpid(), reason, patience)
        token = started.get(_CONTROLLER_WITHIN)
        return cls(instance, controller, token) if token else None

    # --- what its pdb asks for

    def write(self, text: str) -> None:
        self._kept.append(text)
        self._size += len(text)
        if self._size > _WRITE:
            self._flush()

    def stands_at(self, function: str, lineno: int) -> None:
        self._place = (function, lineno)

    def line(self) -> str:
        self._flush()
        with _plain_thread():
            coming = self._controller.debugger_read.call_one(self._token)
            while True:
                try:
                    line: str | None = coming.get(_LOOK)
                    break
                except TimeoutError:
                    if self._is_leaving():
                        raise Abandon from None
                except Exception:  # the client has gone, or its controller
                    raise LetGo from None
        if line is None:
            raise LetGo
        return line

    def _flush(self) -> None:
        text, self._kept, self._size = "".join(self._kept), [], 0
        try:
            with _plain_thread():
                self._controller.debugger_write.call_one(self._token, text, *self._place).get(_CONTROLLER_WITHIN)
        except Exception:
            raise LetGo from None

    def _source(self, filename: str) -> tuple[str, str] | None:
        try:
            with _plain_thread():
                found: tuple[str, str] | None = self._controller.debugger_source.call_one(filename).get(
                    _CONTROLLER_WITHIN
                )
            return found
        except Exception:  # it does without
            return None

    def _is_leaving(self) -> bool:
        instance = self._instance
        if instance.leaving is not None or instance.stopping or instance.end is not None:
            return True
        return any(isinstance(item, Leave) for item in list(instance.mailbox.control))

    # --- its end

    def continues(self) -> None:
        """It stops no more by itself. Outside of endpoints (`__init__`, hooks) nobody says when the code has returned."""
        if self._is_outside():
            self._end()

    def _is_outside(self) -> bool:
        return bool(self.calls) and all(call is None for call in self.calls)

    def returned(self, instance: Instance, call: Call, error: BaseException | None) -> None:
        """One of the endpoints that stopped here has returned; or another of the actor."""
        if self._is_outside():  # it had breakpoints, and is over
            sys.settrace(self._traced_before)
            self._end()
        if not any(known is call for known in self.calls):
            shared = ActorBehaviour.debugging
            if shared is not None:
                shared.returned(instance, call, error)
            return
        sys.settrace(self._traced_before)
        try:
            if isinstance(error, Exception) and not isinstance(error, BdbQuit) and not self._is_leaving():
                self.pdb.post_mortem(error)
        except Exception as failed:  # pdb's own; the endpoint's result is what counts
            print(f"monarch: the debugger failed: {failed!r}", file=sys.stderr, flush=True)
        finally:
            sys.settrace(self._traced_before)
            self.calls = [known for known in self.calls if known is not call and known is not None]
            if not self.calls:
                self._end()

    def _end(self) -> None:
        self.calls = []
        behaviour: Any = self._instance.behaviour
        if behaviour.__dict__.get("debugging") is self:
            del behaviour.debugging
        self.pdb.end()
        self._tell_end()

    def _tell_end(self) -> None:
        text = "".join(self._kept)
        self._kept = []
        try:
            with _plain_thread():
                if text:
                    self._controller.debugger_write.call_one(self._token, text, "", 0).get(_CONTROLLER_WITHIN)
                self._controller.debugger_session_end.call_one(self._token).get(_CONTROLLER_WITHIN)
        except Exception:  # with the client its sessions have gone
            pass

    def _actor_ended(self, context: contextvars.Context) -> None:
        """It has ended in an endpoint that stopped (SystemExit): on the I/O thread, perhaps."""
        behaviour: Any = self._instance.behaviour
        if behaviour.__dict__.get("debugging") is self:
            del behaviour.debugging
            try:
                start_thread(lambda: context.run(self._tell_end), "monarch-debug-end")
            except RuntimeError:  # no more threads
                pass


@contextmanager
def _plain_thread() -> Iterator[None]:
    """Waiting for the controller is plain code, also on the thread of an event loop."""
    loop = asyncio._get_running_loop()
    if loop is None:
        yield
        return
    asyncio._set_running_loop(None)
    try:
        yield
    finally:
        asyncio._set_running_loop(loop)
