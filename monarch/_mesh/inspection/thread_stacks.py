"""Stacks of every thread of this process and of every suspended task of its actors: the questions "stacks" and "locals".

"stacks" is answered on the I/O thread, so also while user code is stuck; it runs no user code and takes no lock that user
code could hold. "locals" adds the variables of each frame as text (`local_variables`).

Bounds: THREADS threads and tasks, FRAMES innermost frames of each; what is left out is counted.
"""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any

import msgspec

from monarch._linux.procfs import thread_state
from monarch._linux.thread_frames import thread_frames
from monarch._mesh.failures import stacks
from monarch._mesh.failures.activity import Job, jobs_of
from monarch._mesh.inspection.folding import is_library
from monarch._mesh.inspection.local_variables import LocalsLook, LocalsThread
from monarch._mesh.inspection.stack_records import ProcessStacks, StackFrame, ThreadStack
from monarch._text import NAME_LIMIT, sendable
from monarch._wire.address import name_of, split_proc_name

if TYPE_CHECKING:
    from monarch._runtime.instance import Instance
    from monarch._runtime.proc import Proc

THREADS = 1000
FRAMES = 100

Locals = Callable[[FrameType], dict[str, str]]


class StacksWanted(msgspec.Struct, frozen=True):
    """The argument of both questions. `all_threads`: the runtime's own threads and frames too."""

    all_threads: bool = False


def answer(proc: Proc, argument: bytes) -> bytes:
    return msgspec.msgpack.encode(collect(proc, _wanted(argument).all_threads))


def answer_with_locals(proc: Proc, argument: bytes) -> bytes:
    look = LocalsLook()
    found = collect(proc, _wanted(argument).all_threads, look.note)
    _locals_thread.fill(look)
    return msgspec.msgpack.encode(found)


_locals_thread = LocalsThread()


def _wanted(argument: bytes) -> StacksWanted:
    return msgspec.msgpack.decode(argument, type=StacksWanted) if argument else StacksWanted()


def collect(proc: Proc, all_threads: bool = False, locals_of: Locals | None = None) -> ProcessStacks:
    """The stacks of this process, the main thread and the actors first."""
    collector = _Collector(proc, all_threads, locals_of)
    found: list[ThreadStack] = []
    left_out = 0
    for stack in collector.everything():
        if len(found) < THREADS:
            found.append(stack)
        else:
            left_out += 1
    place = split_proc_name(name_of(proc.address))
    mesh = getattr(getattr(proc, "mesh", None), "name", "")
    host = sendable(socket.gethostname(), NAME_LIMIT)
    return ProcessStacks(
        proc.address, host, proc.pid, mesh if place else "", place[1] if place else 0, found, left_out=left_out
    )


class _Collector:
    def __init__(self, proc: Proc, all_threads: bool, locals_of: Locals | None) -> None:
        self._proc = proc
        self._all = all_threads
        self._locals_of = locals_of
        self._running = thread_frames()
        # Not by threading.enumerate(), whose lock a thread may hold that is stuck.
        self._threads: dict[int, Any] = dict(getattr(threading, "_active", {}))

    def everything(self) -> Iterator[ThreadStack]:
        actors = {instance.thread_ident: instance for instance in list(self._proc.actors.values())}
        main = threading.main_thread().ident or 0
        if main not in actors:
            yield from self._of_thread(main)
        for ident, instance in actors.items():
            if instance.behaviour is not None and ident:
                yield from self._of_actor(instance, ident)
        for ident in self._running:
            if ident != main and ident not in actors:
                yield from self._of_thread(ident)

    def _of_thread(self, ident: int) -> Iterator[ThreadStack]:
        """A thread of no actor; nothing when only the runtime is in it."""
        frames, left_out = self._shown(stacks.frames_of_thread(self._running.get(ident)))
        name, number = self._name(ident)
        if frames and (self._all or not _is_ours(name, frames)):
            yield ThreadStack(name, number, frames, state=self._state(ident), left_out=left_out)

    def _of_actor(self, instance: Instance, ident: int) -> Iterator[ThreadStack]:
        """Its thread, and its suspended tasks. A thread that only waits for these to go on is not told of."""
        jobs = jobs_of(instance)
        suspended = [job for job in jobs if job.task is not None and not stacks.is_running(job.task)]
        active = next((job for job in jobs if job not in suspended), None)
        chain = stacks.frames_of_thread(self._running.get(ident))
        own = bool(stacks.of_program([frame.f_code.co_filename for frame in chain]))
        others = list(self._other_tasks(instance, suspended))
        if own or not (suspended or others) or self._all:
            idle = not jobs and not own
            yield self._actor_stack(instance, chain, active, idle=idle, state=self._state(ident))
        for job in suspended:
            yield self._actor_stack(instance, stacks.frames_of_task(job.task), job, task=_task_name(job.task))
        yield from others

    def _other_tasks(self, instance: Instance, jobs: list[Job]) -> Iterator[ThreadStack]:
        """Collects the tasks that an endpoint has begun."""
        if instance.task is None:
            return
        handled = [instance.task, *(job.task for job in jobs)]
        for task in sys.modules["asyncio"].all_tasks(instance.task.get_loop()):
            if any(task is other for other in handled) or stacks.is_running(task):
                continue
            stack = self._actor_stack(instance, stacks.frames_of_task(task), task=_task_name(task))
            if stack.frames:
                yield stack

    def _actor_stack(
        self,
        instance: Instance,
        chain: list[FrameType],
        job: Job | None = None,
        *,
        task: str = "",
        idle: bool = False,
        state: str = "",
    ) -> ThreadStack:
        frames, left_out = self._shown(chain)
        name, number = self._name(instance.thread_ident)
        endpoint, seconds = "", 0.0
        if job is not None:
            endpoint, seconds = job.delivery.call.method, max(0.0, self._proc.loop.now() - job.delivery.started)
        return ThreadStack(
            name,
            number,
            frames,
            actor=sendable(instance.name, NAME_LIMIT),
            key=instance.key,
            rank=instance.rank,
            endpoint=endpoint,
            seconds=seconds,
            task=task,
            idle=idle,
            state=state,
            left_out=left_out,
        )

    def _shown(self, chain: list[FrameType]) -> tuple[list[StackFrame], int]:
        if not self._all:
            chain = [chain[index] for index in stacks.of_program([frame.f_code.co_filename for frame in chain])]
        left_out = max(0, len(chain) - FRAMES)
        return [self._frame(frame) for frame in chain[left_out:]], left_out

    def _frame(self, frame: FrameType) -> StackFrame:
        file, line, function = stacks.line_of(frame)
        found = StackFrame(sendable(file, NAME_LIMIT), line, sendable(function, NAME_LIMIT))
        if self._locals_of is None or stacks.is_hidden(file):
            return found
        return msgspec.structs.replace(found, locals=self._locals_of(frame))

    def _name(self, ident: int) -> tuple[str, int]:
        thread = self._threads.get(ident)
        if thread is None:
            return f"thread {ident}", 0
        return sendable(str(thread.name), NAME_LIMIT), thread.native_id or 0

    def _state(self, ident: int) -> str:
        thread = self._threads.get(ident)
        return "" if thread is None else thread_state(self._proc.pid, thread.native_id or 0)


def _is_ours(name: str, frames: list[StackFrame]) -> bool:
    """True of a thread of the runtime that is in nothing but Python's own modules: it waits for a process, say."""
    own = all(is_library(frame) and "-packages/" not in frame.file for frame in frames)
    return own and name.startswith("monarch-")


def _task_name(task: Any) -> str:
    return sendable(str(task.get_name()), NAME_LIMIT)
