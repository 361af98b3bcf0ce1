"""Failures of workers, as the controller raises them: which rank, the line that issued it, the worker's traceback."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from typing import Any

import msgspec


class Failed(msgspec.Struct, frozen=True):
    """A command that failed on one rank. What depends on its results there is this same object."""

    ident: int  # of the command
    rank: int  # in the engine's mesh
    command: str  # what it was
    text: str  # the worker's traceback, or one line for what never ran
    error: bytes = b""  # the exception's pickle, where it has one
    echo: bool = False  # a group was lost, most likely by what failed on another rank

    @property
    def order(self) -> tuple[int, bool, int]:
        """The failure to tell of comes first: that issued first, and of its ranks one that is no echo."""
        return self.ident, self.echo, self.rank


class Tainted(msgspec.Struct, frozen=True):
    """One rank had no data of its own for command `ident` between ranks: what it gave the others is not to be used."""

    ident: int


class RemoteException(Exception):
    """Something a fetched value depends on failed in a worker.

    `controller_frames`: the program's stack where it issued what failed; `worker_error_string`: the worker's traceback;
    `rank`: the worker's rank in the engine's mesh. `__cause__` is the original exception where it could be sent.
    """

    def __init__(
        self,
        worker_error_string: str,
        controller_frames: Sequence[traceback.FrameSummary],
        rank: int,
        command: str = "",
    ) -> None:
        self.worker_error_string = worker_error_string
        self.controller_frames = list(controller_frames)
        self.rank = rank
        self.command = command
        super().__init__(worker_error_string, self.controller_frames, rank, command)

    def __str__(self) -> str:
        stack = "".join(traceback.format_list(self.controller_frames)) or "  (no longer known)\n"
        what = f" ({self.command})" if self.command else ""
        return (
            f"A remote operation{what} has failed asynchronously on rank {self.rank}.\n"
            f"Traceback of where the remote operation was issued on controller (most recent call last):\n{stack}"
            f"Error as reported from worker:\n{self.worker_error_string}"
        )


def remote_exception(failed: Failed, frames: Sequence[traceback.FrameSummary]) -> RemoteException:
    """The exception for `failed`, whose command was issued at `frames`."""
    error = RemoteException(failed.text, frames, failed.rank, failed.command)
    error.__cause__ = _original(failed.error)
    return error


def cause_of(report: str) -> str:
    """A report of supervision without the line that names the worker actor: programs know their processes, not our
    actors."""
    for line in ("have failed:\n", "has status:\n"):
        _, found, cause = report.partition(line)
        if found:
            return "\n" + cause
    return report


def _original(pickled: bytes) -> Any:
    import pickle

    if not pickled:
        return None
    try:
        cause = pickle.loads(pickled)  # an answer of our own worker, as every other
    except Exception:
        return None
    return cause if isinstance(cause, BaseException) else None


class GroupLost(RuntimeError):
    """A process group is of no use any more: a process of it has ended, was too late, or failed while it used the group."""


def is_echo(error: BaseException) -> bool:
    """True if `error` only says that other ranks are gone: GroupLost, or what torch raises when a connection breaks."""
    return isinstance(error, GroupLost) or (isinstance(error, RuntimeError) and "gloo/transport" in str(error))


class OneLine(RuntimeError):
    """Raised in a worker where its traceback would say nothing: reports have its text alone."""
