"""The last resort: the stacks of a process that does not answer, because native code holds its interpreter lock.

Each process lets Python's faulthandler listen for a signal (setting `stack_signal`), with a file in the run folder to
write to, whose first line is a note: who listens, and how. Any that may see that folder, the host agent or a program of the
same user, sends the signal and reads the file.

That must harm no process:

- It is signalled only when it has said in that note that it listens, when the kernel says that it still has a handler
  (without one the signal would end it), and when the descriptor is still that file (a program may have closed
  descriptors that are not its own). One that is stopped is not waited for.
- faulthandler follows the frames of all threads without the interpreter lock: a process whose threads run Python code
  crashes after a dozen of such signals. So a process is signalled only when its I/O thread is seen to ask for the
  lock in vain, and no thread works as those do that share it: in turns of milliseconds. Then it is native code that holds
  the lock, and no frame changes.
- The signal goes to the I/O thread, so no system call of the program is interrupted.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import NamedTuple

from monarch._wire.address import name_of
from monarch.config import settings

FILE = ".stacks"  # after the name of the process
LARGEST = 8 << 20  # bytes of a file that are read; it is cut back to its note before each signal
_LOOKS = 0.002  # seconds between two looks whether all has been written
_AT_ONCE = 16  # processes that are signalled at a time
_WAKES = 5  # how often a thread has to be seen to ask for the lock again; it does each switch interval, 1 or 5 ms
_WRITING = 1.0  # seconds that a process has to write, at least
_WATCHED = 0.3  # seconds for which threads are watched
_TURN = (
    200_000  # nanoseconds on the processor, from which a thread that then waits had the lock: to ask for it takes few
)


class CannotSignal(RuntimeError):
    """The reason that a process was not asked by a signal."""


def listen(folder: str, address: str, thread: int) -> None:
    """Lets this process write its stacks when it is signalled. `thread`: the number of its I/O thread. What goes wrong is
    written into the note: nothing here keeps a process from starting."""
    path = os.path.join(folder, name_of(address)) + FILE
    with contextlib.suppress(OSError):
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            number = _register(settings.stack_signal(), file)
            note = f"{number} {file} {thread}"
        except (OSError, ValueError, RuntimeError, AttributeError) as exc:
            note = f"- {exc}".partition("\n")[0]
        os.write(file, f"{os.getpid()} {note}\n".encode(errors="replace"))
        if note.startswith("-"):
            os.close(file)


def _register(number: int, file: int) -> int:
    import faulthandler

    if number == 0:
        raise ValueError("the setting stack_signal is 0")
    if signal.getsignal(number) != signal.SIG_DFL:
        raise ValueError(f"the program uses signal {number} itself; the setting stack_signal names another")
    faulthandler.register(number, file, all_threads=True, chain=False)
    return number


def forget(folder: str, name: str) -> None:
    """Removes the file of a process that has ended."""
    with contextlib.suppress(OSError):
        os.unlink(os.path.join(folder, name + FILE))


def listening(folder: str) -> list[str]:
    """The names of the processes that have a note in a run folder."""
    try:
        return sorted(entry.removesuffix(FILE) for entry in os.listdir(folder) if entry.endswith(FILE))
    except OSError:
        return []


class Note(NamedTuple):
    """The note of a process: its pid, the signal it listens for, its descriptor of the file and its I/O thread; or why
    it does not listen."""

    pid: int
    number: int
    descriptor: int
    thread: int
    why: str = ""


def read_note(text: str) -> Note:
    """The first line of a file. ValueError for what is not a note."""
    pid, number, rest = text.partition("\n")[0].split(" ", 2)
    if number == "-":
        return Note(int(pid), 0, -1, 0, rest)
    descriptor, thread = rest.split(" ")
    return Note(int(pid), int(number), int(descriptor), int(thread))


def pid_of(folder: str, name: str) -> int:
    """Returns the pid of a process in that run folder; 0 when it is not known here."""
    try:
        with open(os.path.join(folder, name + FILE), errors="replace") as file:
            return read_note(file.readline()).pid
    except (OSError, ValueError):
        return 0


class Signalled:
    """One process. CannotSignal says why not."""

    def __init__(self, folder: str, name: str) -> None:
        self._path = os.path.join(folder, name + FILE)
        try:
            with open(self._path, "rb") as file:
                line = file.readline()
            self._head = len(line)
            self._note = read_note(line.decode(errors="replace"))
        except FileNotFoundError:
            raise CannotSignal("it has not begun to listen for the signal, or has ended") from None
        except (OSError, ValueError) as exc:
            raise CannotSignal(f"its note cannot be read: {exc}") from None
        self.pid = self._note.pid
        self._check()

    def _check(self) -> None:
        note = self._note
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
        if not _has(status, "SigCgt", note.number):
            raise CannotSignal(f"it does not handle signal {note.number} any more")
        try:
            same = os.path.samestat(os.stat(f"/proc/{note.pid}/fd/{note.descriptor}"), os.stat(self._path))
        except OSError:
            same = False
        if not same:
            raise CannotSignal("the descriptor that it would write to is not open any more")

    def dump(self, seconds: float) -> str:
        """Returns what the process wrote. Blocks: it is watched first, and then has `seconds` to write."""
        note = self._note
        why = why_not_held(note.pid, note.thread)
        if why:
            raise CannotSignal(why)
        self._check()
        try:
            os.truncate(self._path, self._head)
            import ctypes  # here: every process imports this file, and few get here

            if ctypes.CDLL(None, use_errno=True).tgkill(note.pid, note.thread, note.number) != 0:
                raise CannotSignal("it has ended")
        except (OSError, AttributeError) as exc:
            raise CannotSignal(f"signal {note.number} could not be sent: {exc}") from None
        size = self._head
        deadline = time.monotonic() + seconds
        while time.monotonic() <= deadline:
            time.sleep(_LOOKS)
            if _has(status_of(note.pid, note.thread), "SigPnd", note.number):
                continue  # it has not begun to write
            before, size = size, os.stat(self._path).st_size
            if self._head < size == before:
                with open(self._path, "rb") as file:
                    file.seek(self._head)
                    return file.read(LARGEST).decode(errors="replace")
        raise CannotSignal("it wrote nothing after the signal")


def why_not_held(pid: int, thread: int) -> str:
    """Returns why it cannot be said that native code holds the interpreter lock; "" when it does. `thread` asks for it
    in vain: it wakes up each switch interval, and waits for the same futex again. Takes _WATCHED seconds."""
    before = _work_of_threads(pid)
    first = int(status_of(pid, thread).get(_SWITCHES, "0"))
    until = time.monotonic() + _WATCHED
    while time.monotonic() < until:
        call = _system_call(pid, thread)
        if call is None:
            return (
                "what its threads wait for cannot be seen from here: the kernel shows that to the same user, and with yama's "
                "ptrace_scope 1 only to parents; --native shows it as root"
            )
        if call not in ("running", _FUTEX):
            return _NOT_HELD
        time.sleep(_LOOKS)
    if int(status_of(pid, thread).get(_SWITCHES, "0")) - first < _WAKES:
        return "its I/O thread does not ask for the interpreter lock: it waits for something else, or never runs"
    for number, (ran, waits) in _work_of_threads(pid).items():
        ran_before, waits_before = before.get(number, (0, 0))
        turns = waits - waits_before
        if turns > 0 and ran - ran_before > _TURN * turns:
            return _NOT_HELD
    return ""


_SWITCHES = "voluntary_ctxt_switches"
_NOT_HELD = (
    "nothing shows that native code holds its interpreter lock: it may get too little of the processor, or have much to do; "
    "--native looks at it with py-spy"
)


def _work_of_threads(pid: int) -> dict[int, tuple[int, int]]:
    """Returns for each thread (nanoseconds on the processor, how often it went to wait by itself)."""
    found = {}
    try:
        for name in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{name}/schedstat") as file:
                ran = int(file.read().split()[0])
            found[int(name)] = ran, int(status_of(pid, int(name)).get(_SWITCHES, "0"))
    except (OSError, ValueError, IndexError):  # a thread has just ended; the others count
        pass
    return found


# By machine, the number of the system call with which a thread waits for a lock.
_FUTEX = {"x86_64": "202", "aarch64": "98", "ppc64le": "221", "s390x": "238", "riscv64": "98"}.get(
    os.uname().machine, "?"
)


def _system_call(pid: int, thread: int) -> str | None:
    """The number of the one that a thread is in, `running` when in none; None when that is not shown."""
    try:
        with open(f"/proc/{pid}/task/{thread}/syscall") as file:
            return file.read().partition(" ")[0].strip()
    except OSError:
        return None


def _has(status: dict[str, str], key: str, number: int) -> bool:
    """True if a set of signals in a status has that one."""
    return bool(int(status.get(key, "0"), 16) >> (number - 1) & 1)


_STATES = {
    "T": "it is stopped (SIGSTOP or Ctrl-Z); `kill -CONT` lets it run again",
    "Z": "it has ended",
    "X": "it has ended",
}


def status_of(pid: int, thread: int | None = None) -> dict[str, str]:
    """/proc/<pid>/status, or that of one of its threads; {} when there is no such process."""
    try:
        with open(f"/proc/{pid}/{'' if thread is None else f'task/{thread}/'}status", errors="replace") as file:
            return {key: value.strip() for key, _, value in (line.partition(":") for line in file)}
    except OSError:
        return {}


def ask_by_signal(folder: str, names: list[str], seconds: float) -> tuple[dict[str, tuple[int, str]], dict[str, str]]:
    """Signals these processes of a run folder, and waits a little more than `seconds` at most for each: (pid and dump, by the
    process's name; why not, by name). Blocks."""
    from concurrent.futures import ThreadPoolExecutor  # every process imports this file, and few get here

    dumps: dict[str, tuple[int, str]] = {}
    silent: dict[str, str] = {}

    def ask(name: str) -> None:
        try:
            signalled = Signalled(folder, name)
            dumps[name] = signalled.pid, signalled.dump(max(seconds, _WRITING))
        except CannotSignal as exc:
            silent[name] = str(exc)
        except OSError as exc:  # its files went with it
            silent[name] = f"it has ended ({exc.strerror})"

    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="monarch-signals") as pool:
        list(pool.map(ask, names))
    return dumps, silent
