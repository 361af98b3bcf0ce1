"""Leaks of a piece of code: descriptors, threads, child processes, shared memory, sockets on disk.

Compares the state of this operating-system process before and after. Knows of the client of this process,
whose agent, threads and folder live until the program ends and are no leak, whenever it was started.
"""

from __future__ import annotations

import gc
import os
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from monarch._linux import private_files, procfs
from monarch._linux.thread_frames import thread_frames
from monarch._mesh.process import client as clients
from monarch._mesh.start.run_directory import user_folders

_SEGMENTS = "/dev/shm"
_SEGMENT_NAMES = ("monarch",)  # other programs of this user have segments of their own
_FIRST_LOOK, _LONGEST = 0.001, 0.05  # seconds between two looks


class LeakError(AssertionError):
    """Something was left behind; the text lists it, one a line."""


class Leak(NamedTuple):
    """`kind` is fd, thread, process, segment or socket; `key` tells two of a kind apart; `shown` is for
    people."""

    kind: str
    key: str
    shown: str


@contextmanager
def check_leaks(grace: float = 5.0) -> Iterator[None]:
    """Raises LeakError when the block leaves more behind than was there before.

        with check_leaks():
            ...

    Looked at: open descriptors and threads of this process, its child processes, segments of the runtime in
    /dev/shm, and sockets of this process in the runtime's folder. What is still closing gets `grace` real
    seconds to be gone; without a leak the check does not wait. An exception of the block passes, unchecked.
    What the client of this process owns is no leak.
    """
    before = {(leak.kind, leak.key) for leak in everything()}
    yield
    left = _left(before, grace)
    if left:
        lines = "\n".join(f"  {leak.kind:8}{leak.shown}" for leak in left)
        raise LeakError(f"{len(left)} thing(s) were left behind (waited {grace:g} s for them to go):\n{lines}")


def _left(before: set[tuple[str, str]], grace: float) -> list[Leak]:
    """Returns what is new, once nothing is or the time is up."""
    deadline = time.monotonic() + grace
    pause, collected = _FIRST_LOOK, False
    while True:
        left = [leak for leak in everything() if (leak.kind, leak.key) not in before]
        if left and not collected:
            gc.collect()  # descriptors of what nobody refers to any more
            collected = True
            continue
        remaining = deadline - time.monotonic()
        if not left or remaining <= 0:
            return left
        threading.Event().wait(min(pause, remaining))
        pause = min(2 * pause, _LONGEST)


def everything() -> list[Leak]:
    """All there is now but for what the client of this process owns."""
    own = _OfTheClient()
    return [*_descriptors(own), *_threads(own), *_processes(own), *_segments(), *_sockets(own)]


class _OfTheClient:
    """The things that live as long as the program, from the client's start on."""

    def __init__(self) -> None:
        client = clients.client()
        self.descriptors: set[int] = set()
        self.pids: set[int] = set()
        self.folder = ""
        self.threads: set[str] = set()
        if client is not None and client.proc.closed is None:
            self.descriptors = {*client.proc.loop.descriptors(), client.lock}
            self.pids = {client.agent.pid}
            self.folder = client.directory
            self.threads = {"monarch-io", "monarch-alarm", "monarch-log", "monarch-output"}


def _descriptors(own: _OfTheClient) -> Iterator[Leak]:
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:  # the descriptor of the listing itself
            continue
        if int(name) not in own.descriptors:
            yield Leak("fd", f"{name} {target}", f"{name} -> {target}")


def _threads(own: _OfTheClient) -> Iterator[Leak]:
    stacks = thread_frames()
    for thread in threading.enumerate():
        if thread.name in own.threads:
            continue
        frame = stacks.get(thread.ident or 0)
        where = ""
        if frame is not None:
            last = traceback.extract_stack(frame)[-1]
            where = f", at {last.filename}:{last.lineno} in {last.name}"
        yield Leak("thread", str(id(thread)), f"{thread.name}{where}")


def _processes(own: _OfTheClient) -> Iterator[Leak]:
    for pid in procfs.children_of("self"):
        if pid not in own.pids:
            words = procfs.command_line(pid)[:120]
            gone = "(gone)" if procfs.stat(pid) is None else "(ended, not waited for)"
            yield Leak("process", str(pid), f"{pid}: {words or gone}")


def _segments() -> Iterator[Leak]:
    try:
        names = os.listdir(_SEGMENTS)
    except OSError:
        return
    for name in names:
        if name.startswith(_SEGMENT_NAMES) and not _of_another(name):
            yield Leak("segment", name, f"{_SEGMENTS}/{name}")


def _of_another(name: str) -> bool:
    """Returns whether the segment belongs to another process that lives: names hold their makers' pids between
    dashes."""
    pids = [part for part in name.split("-") if part.isdigit()]
    return str(os.getpid()) not in pids and any(os.path.exists(f"/proc/{pid}") for pid in pids)


def _sockets(own: _OfTheClient) -> Iterator[Leak]:
    """Folders of this process's clients, and what is in them."""
    try:
        folders = [os.path.join(parent, name) for parent in user_folders() for name in os.listdir(parent)]
    except OSError:
        return
    for folder in folders:
        try:
            if int(private_files.read(os.path.join(folder, "pid"), 20) or 0) != os.getpid():
                continue
            names = os.listdir(folder)
        except (OSError, ValueError):
            continue
        for name in names if folder == own.folder else ["", *names]:
            if not (folder == own.folder and name in ("agent", "client", "lock", "pid")):
                path = os.path.join(folder, name)
                yield Leak("socket", path, path)
