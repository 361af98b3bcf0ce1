"""The last resort: the stacks of a process that does not answer, because native code holds its interpreter lock.

Each process lets Python's faulthandler listen for a signal (setting `stack_signal`), with a file in the run folder to
write to. Whoever may see that folder, the host agent or a program of the same user, sends the signal and reads the file. A
process is signalled only when it has said in a note beside that file that it listens, when the kernel says that it still has
a handler, and when the descriptor is still that file: the default action of the signal would end a process, and
a program may have closed descriptors that are not its own. A process that is stopped is not waited for.

The handler runs on whichever thread the kernel interrupts, mostly the main one, and system calls are restarted (SA_RESTART)
or, where they cannot be (sleep, poll, epoll), give EINTR, after which Python goes on waiting. It walks frames without the
interpreter lock, so it is sent only when a process has not answered.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import NamedTuple

from monarch._wire.address import name_of
from monarch.config import settings

NOTE, DUMP = ".listens", ".stacks"  # of the note and of the file, after the name of the process
LARGEST = 8 << 20  # bytes of a file that are kept; it is emptied before each signal
_LOOKS = 0.02  # seconds between two looks whether all has been written


class CannotSignal(RuntimeError):
    """Why a process was not asked by a signal."""


def listen(folder: str, address: str) -> None:
    """Lets this process write its stacks when it is signalled. What goes wrong is written into the note: nothing here keeps
    a process from starting."""
    path = os.path.join(folder, name_of(address))
    number = settings.get("stack_signal")
    with contextlib.suppress(OSError):
        try:
            text = _register(number, path + DUMP)
        except (OSError, ValueError, RuntimeError, AttributeError) as exc:
            text = f"- {exc}"
        descriptor = os.open(path + NOTE, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, f"{os.getpid()} {text}".encode(errors="replace"))
        finally:
            os.close(descriptor)


def _register(number: int, path: str) -> str:
    import faulthandler

    if number == 0:
        return "- the setting stack_signal is 0"
    if signal.getsignal(number) != signal.SIG_DFL:
        return f"- the program uses signal {number} itself; the setting stack_signal names another"
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
    faulthandler.register(number, file, all_threads=True, chain=False)
    return f"{number} {file}"


def forget(folder: str, name: str) -> None:
    """Removes the files of a process that has ended."""
    for suffix in (NOTE, DUMP):
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(folder, name + suffix))


def listening(folder: str) -> list[str]:
    """The names of the processes that have a note in a run folder."""
    try:
        return sorted(entry.removesuffix(NOTE) for entry in os.listdir(folder) if entry.endswith(NOTE))
    except OSError:
        return []


class Note(NamedTuple):
    """What a process has said: its pid, the signal it listens for and its descriptor of the file; or why it does not."""

    pid: int
    number: int
    descriptor: int
    why: str = ""


def read_note(text: str) -> Note:
    """ValueError for what is no note."""
    pid, number, rest = text.split(" ", 2)
    return Note(int(pid), 0, -1, rest) if number == "-" else Note(int(pid), int(number), int(rest))


def pid_of(folder: str, name: str) -> int:
    """Of a process in that run folder; 0 when it is not known here."""
    try:
        with open(os.path.join(folder, name + NOTE)) as file:
            return read_note(file.read()).pid
    except (OSError, ValueError):
        return 0


class Signalled:
    """One request. `ask` sends the signal; `take` gives what has been written, or None while that may not be all."""

    def __init__(self, folder: str, name: str) -> None:
        self.name = name
        self._path = os.path.join(folder, name)
        self._size = -1
        self._device = False
        self.pid = 0

    def ask(self) -> None:
        """CannotSignal says why not."""
        try:
            with open(self._path + NOTE) as file:
                note = read_note(file.read())
        except FileNotFoundError:
            raise CannotSignal("it has not begun to listen for the signal, or has ended") from None
        except (OSError, ValueError) as exc:
            raise CannotSignal(f"its note cannot be read: {exc}") from None
        self.pid = note.pid
        state = self._check(note)
        try:
            os.truncate(self._path + DUMP, 0)
            os.kill(note.pid, note.number)
        except OSError as exc:
            raise CannotSignal(f"signal {note.number} could not be sent: {exc.strerror}") from None
        self._device = state == "D"

    def _check(self, note: Note) -> str:
        status = status_of(note.pid)
        if not status:
            raise CannotSignal("it has ended")
        state = status.get("State", "?")[0]
        if state in _STATES:
            raise CannotSignal(_STATES[state])
        if state == "t":
            raise CannotSignal(f"it is stopped by a debugger (pid {status.get('TracerPid', '?')})")
        if not note.number:
            raise CannotSignal(note.why)
        if not int(status.get("SigCgt", "0"), 16) >> (note.number - 1) & 1:
            raise CannotSignal(f"it does not handle signal {note.number} any more")
        try:
            same = os.path.samestat(os.stat(f"/proc/{note.pid}/fd/{note.descriptor}"), os.stat(self._path + DUMP))
        except OSError:
            same = False
        if not same:
            raise CannotSignal("the descriptor that it would write to is not open any more")
        return state

    def take(self) -> str | None:
        """What was written, when it has not become more since the last look."""
        try:
            size = os.stat(self._path + DUMP).st_size
            if size == 0 or size != self._size:
                self._size = size
                return None
            with open(self._path + DUMP, "rb") as file:
                return file.read(LARGEST).decode(errors="replace")
        except OSError as exc:
            raise CannotSignal(f"what it wrote cannot be read: {exc}") from None

    def late(self) -> str:
        """Why nothing was written in time."""
        wait = " It waits in the kernel, for a device or a file system (state D)." if self._device else ""
        return f"it wrote nothing after the signal.{wait}"


_STATES = {
    "T": "it is stopped (SIGSTOP or Ctrl-Z); `kill -CONT` lets it run again",
    "Z": "it has ended",
    "X": "it has ended",
}


def status_of(pid: int) -> dict[str, str]:
    """/proc/<pid>/status; {} when there is no such process."""
    try:
        with open(f"/proc/{pid}/status", errors="replace") as file:
            return {key: value.strip() for key, _, value in (line.partition(":") for line in file)}
    except OSError:
        return {}


def ask_by_signal(folder: str, names: list[str], seconds: float) -> tuple[dict[str, tuple[int, str]], dict[str, str]]:
    """Signals these processes of a run folder, all at once, and waits `seconds` at most: (pid and dump by name; why not, by
    name). Blocks."""
    dumps: dict[str, tuple[int, str]] = {}
    silent: dict[str, str] = {}
    waiting: list[Signalled] = []
    for name in names:
        signalled = Signalled(folder, name)
        try:
            signalled.ask()
            waiting.append(signalled)
        except CannotSignal as exc:
            silent[name] = str(exc)
    deadline = time.monotonic() + seconds
    while waiting:
        time.sleep(_LOOKS)
        late = time.monotonic() > deadline
        still = []
        for signalled in waiting:
            try:
                text = signalled.take()
            except CannotSignal as exc:
                silent[signalled.name] = str(exc)
                continue
            if text is not None:
                dumps[signalled.name] = signalled.pid, text
            elif late:
                silent[signalled.name] = signalled.late()
            else:
                still.append(signalled)
        waiting = still
    return dumps, silent
