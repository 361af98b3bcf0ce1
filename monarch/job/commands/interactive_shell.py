"""shell: an interactive shell on one host, on this program's terminal."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import struct
import sys
import termios
import threading
import tty
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from monarch.actor import HostMesh, bind_context
from monarch.actor.lowlevel import start_thread
from monarch.job.commands.run_command import own_folder
from monarch.job.commands.terminal_actor import ShellLaunch, TerminalActor

_TYPED = 4096


def shell(host_mesh: HostMesh, *, env: Mapping[str, str] | None = None, workdir: str | None = None) -> int:
    """An interactive shell ($SHELL there, else bash) on one host, on the terminal of this program; returns its exit
    status, as a shell says it: 128 + n for one that signal n ended.

    Keys go to the shell, Ctrl-C and Ctrl-Z too; it learns the size of the window, and when that changes. It starts in
    `workdir`, or else in this program's working directory if the host has it, with TERM as it is here, and `env`.
    Where stdin is not a terminal, its end is Ctrl-D, and what runs on for 5 s without reading that is hung up on: the status
    is not 0 then. The shell and what runs in it end with this call, and with this program.

    ValueError unless the mesh is of one host; OSError for what keeps the shell from starting. Blocks; to be called on
    the main thread, where changes of the window's size are noticed.
    """
    if len(host_mesh) != 1:
        raise ValueError(
            f"shell needs a singleton HostMesh, and this one has {len(host_mesh)} hosts: slice it, as in hosts.slice(hosts=0)"
        )
    rows, columns = _size()
    environment = {"TERM": os.environ.get("TERM", "dumb"), **(env or {})}
    launch = ShellLaunch(environment, workdir, own_folder(), rows, columns)
    procs = host_mesh.spawn_procs(name="shell")
    try:
        actor: Any = procs.spawn("shell", TerminalActor)
        _started(actor, launch)
        sys.stdout.flush()
        with _raw_terminal(), _typing(actor):
            return _show(actor)
    finally:
        procs.stop().get()


def _started(actor: Any, launch: ShellLaunch) -> None:
    from monarch.actor import ActorError

    try:
        actor.start.call_one(launch).get()
    except ActorError as error:
        if isinstance(error.exception, OSError):
            raise error.exception from None
        raise


def _show(actor: Any) -> int:
    """Shows what the shell shows, and returns its exit status."""
    while True:
        for item in actor.read.call_one().get():
            if isinstance(item, int):
                return item
            _write(item)


def _write(data: bytes) -> None:
    try:
        output = sys.stdout.fileno()
    except (OSError, ValueError, AttributeError):  # a notebook's: text, not a terminal
        sys.stdout.write(data.decode(errors="replace"))
        sys.stdout.flush()
        return
    view = memoryview(data)
    while view:
        view = view[os.write(output, view) :]


@contextmanager
def _typing(actor: Any) -> Iterator[None]:
    """Inside, what is typed goes to the shell, and the size of the window."""
    reading, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    thread = start_thread(bind_context(_send), "monarch-keys", actor, reading)
    before: Any = None
    on_main = threading.current_thread() is threading.main_thread()
    if on_main:
        # Only a note: the runtime may be anywhere when a signal comes.
        before = signal.signal(signal.SIGWINCH, lambda _number, _frame: _note(writing, b"w"))
    try:
        yield
    finally:
        if on_main:
            signal.signal(signal.SIGWINCH, before)
        _note(writing, b"q")
        thread.join()
        os.close(writing)
        os.close(reading)


def _note(writing: int, what: bytes) -> None:
    try:
        os.write(writing, what)
    except BlockingIOError:  # thousands are there already
        pass


def _send(actor: Any, notes: int) -> None:
    """Until "q" is noted."""
    keys: int | None = _stdin()
    if keys is None:
        actor.end_input.broadcast()
    while True:
        ready, _, _ = select.select([notes] if keys is None else [notes, keys], [], [])
        try:
            if notes in ready:
                if b"q" in os.read(notes, _TYPED):
                    return
                actor.resize.call_one(*_size()).get()
            elif keys is not None and (data := _typed(keys)):
                actor.type.call_one(data).get()
            else:
                keys = None
                actor.end_input.broadcast()
        except Exception:  # the shell has ended, or its host: who reads what it shows is told
            keys = None
            if b"q" in _read_note(notes):
                return


def _read_note(notes: int) -> bytes:
    select.select([notes], [], [])
    return os.read(notes, _TYPED)


def _typed(keys: int) -> bytes:
    try:
        return os.read(keys, _TYPED)
    except OSError:  # the terminal is gone
        return b""


def _stdin() -> int | None:
    try:
        return sys.stdin.fileno()
    except (OSError, ValueError, AttributeError):
        return None


def _size() -> tuple[int, int]:
    """Rows and columns of the window; those of an old terminal where there is none."""
    for number in (0, 1, 2):
        try:
            rows, columns, _, _ = struct.unpack("HHHH", fcntl.ioctl(number, termios.TIOCGWINSZ, bytes(8)))
        except OSError:
            continue
        if rows and columns:
            return rows, columns
    return 24, 80


@contextmanager
def _raw_terminal() -> Iterator[None]:
    """Inside, each key is read as it is typed, and none means anything here."""
    keys = _stdin()
    if keys is None or not os.isatty(keys):
        yield
        return
    before = termios.tcgetattr(keys)
    try:
        tty.setraw(keys, termios.TCSADRAIN)  # what was typed ahead is for the shell
        yield
    finally:
        termios.tcsetattr(keys, termios.TCSADRAIN, before)
