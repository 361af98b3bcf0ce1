"""A running program, asked through its admin socket."""

from __future__ import annotations

import logging
import os
import shlex
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from monarch._mesh.inspection import stacks_of_program
from monarch._mesh.inspection.diagnosis import Diagnosis
from monarch._mesh.inspection.stack_records import ProcessStacks, ThreadStack
from monarch.admin.output import OutputPage, OutputRequest, read
from monarch.admin.query import ProgramQueries, ProgramQueryFailed
from monarch.dashboard.pages.icicle import RankStack
from monarch.dashboard.pages.live_data import LiveStacks
from monarch.telemetry.store import Store
from monarch.trace.profiling import profile_of

if TYPE_CHECKING:
    from monarch.admin.programs import Program

logger = logging.getLogger("monarch.dashboard")

SECONDS = 2.0  # for processes to tell their stacks


class LiveProgram:
    """The program behind a run folder, as `LiveData`."""

    def __init__(self, program: Program, store: Store) -> None:
        self._program = program
        self._store = store

    def about(self) -> dict[str, Any]:
        program = self._program
        started = getattr(program, "started", None)
        return {
            "name": name_of(program.command),
            "pid": program.pid,
            "started_us": None if started is None else int(started * 1e6),
            "command": program.command,
        }

    def payloads(self) -> list[dict[str, Any]]:
        try:
            tree = ProgramQueries(self._program).tree()
        except ProgramQueryFailed as exc:
            raise RuntimeError(str(exc)) from exc
        made: list[dict[str, Any]] = msgspec.to_builtins(list(tree.nodes.values()))
        return made

    def diagnosis(self) -> Diagnosis:
        try:
            return ProgramQueries(self._program).doctor()
        except ProgramQueryFailed as exc:
            raise RuntimeError(str(exc)) from exc

    def output(self, wanted: OutputRequest) -> Sequence[OutputPage]:
        return read(self._program, wanted)[1]

    def stacks(self) -> LiveStacks:
        return self._stacks(None)

    def stacks_of(self, reference: str) -> LiveStacks:
        """Returns those of the process of one actor, as the admin API names it."""
        try:
            address = ProgramQueries(self._program).tree().addresses.get(reference)
        except ProgramQueryFailed as exc:
            raise RuntimeError(str(exc)) from exc
        if address is None:
            raise LookupError("its process has ended")
        return self._stacks([address])

    def _stacks(self, only: list[str] | None) -> LiveStacks:
        found = stacks_of_program.gather(self._program.ask, stacks_of_program.StacksQuery(only, SECONDS))
        return LiveStacks([stack for process in found.processes for stack in folded(process)], found.silent)

    def capture(self, reference: str) -> dict[str, Any]:
        queries = ProgramQueries(self._program)
        try:
            return queries.stacks(queries.tree(), reference)
        except ProgramQueryFailed as exc:
            raise RuntimeError(str(exc)) from exc

    def profile(self, seconds: float, path: str) -> None:
        with profile_of(self._program, lambda: _StoreClient(self._store), say=logger.info) as profile:
            threading.Event().wait(seconds)
        profile.export_perfetto_trace(path)


class _StoreClient:
    """The store, as those who know it over HTTP ask it."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def query(self, sql: str, timeout: float | None = None) -> dict[str, Any]:
        result = self._store.query(sql, timeout=timeout, typed=False)
        return {"rows": result.dicts(), "truncated": result.truncated, "note": result.note}


def folded(process: ProcessStacks) -> Iterator[RankStack]:
    """Each thread, under the mesh whose threads it is compared with."""
    for thread in process.threads:
        group = thread.actor or f"processes of {process.mesh}" if process.mesh else thread.actor or "client"
        rank = thread.rank if thread.key else process.rank
        frames = [(frame.function, frame.file, frame.line) for frame in thread.frames]
        name = (thread.endpoint and f"{thread.endpoint}()") or thread.task or thread.thread
        yield RankStack(f"{group} {rank}", group, frames, thread.idle or not frames or is_ours(thread), name)


def is_ours(thread: ThreadStack) -> bool:
    """A thread of the runtime beside the program's: it waits for what is none of the program's business."""
    return not thread.actor and thread.thread.startswith("monarch-")


def name_of(command: str) -> str:
    """Returns what people call the program: `train.py` of `/usr/bin/python3 -u /home/me/train.py --lr 1`."""
    try:
        words = shlex.split(command)
    except ValueError:
        words = command.split()
    for number, word in enumerate(words[1:], 1):
        if word == "-m" and number + 1 < len(words):
            return words[number + 1]
        if word == "-c":
            break
        if word.endswith((".py", ".ipynb")):
            return os.path.basename(word)
    return os.path.basename(words[0]) if words else "program"
