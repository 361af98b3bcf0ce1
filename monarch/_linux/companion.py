"""A helper process beside a program, started once by whichever of several that want it comes first.

It has a folder of its own, 0700: `socket`, where it listens; `lock`, held locked as long as it lives; `log` (0600, bounded).
One that has an owner ends with it: when the owner ends, in whatever way, and when it becomes another program (exec).
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence

from monarch._linux import local_socket, private_files, procfs
from monarch._linux.descriptors import OUT_OF
from monarch._linux.locks import Lock
from monarch._linux.maker import Maker

READY = 60.0  # seconds for one to start
ENDS = 3.0  # seconds to end, before it is killed
LOG_LIMIT = 1 << 20  # bytes of its log; a longer one loses its beginning
_LOG_KEPT = 1 << 18
_LONGEST = 1 << 16  # characters of one record in it; of a longer one the beginning is kept
_SAID = 2000  # bytes of its log that an error shows
_BACKLOG = 128
_ATTEMPTS = 200  # at the lock
_BETWEEN = 0.05
_LINES, _LINES_SECONDS = 5, 10.0  # of its log, of one kind
_KINDS = 64  # of lines that are counted
_PR_SET_PDEATHSIG = 1
_pause = threading.Event()

logger = logging.getLogger("monarch.companion")


class CompanionFailed(RuntimeError):
    """None came up; the text is what it wrote."""


# --- the starter's side


class Companion:
    """The one of a folder, running or not. Any thread."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.socket = os.path.join(folder, "socket")
        self.process: subprocess.Popen[bytes] | None = None  # if this process has started it
        self._starter = Maker()
        self._said_before = 0  # bytes of the log that are older than the one that this process has started

    def connect(self, timeout: float | None = None) -> socket.socket:
        """Returns a connection to it. OSError when it does not run."""
        return local_socket.connect(self.socket, timeout, root=True)

    def answers(self) -> bool:
        try:
            self.connect(ENDS).close()
        except OSError:
            return False
        return True

    def start(self, module: str, environment: dict[str, str], *, owned: bool, stdin: bytes = b"") -> None:
        """Starts `python -m MODULE FOLDER READY OWNER THREAD` as a child in a session of its own, which reads `stdin`.

        Returns when one answers: it, or that of another who was first. `owned`: it ends with this process; else OWNER is 0.
        Whether the child reads `stdin` or not, nobody waits for it.

        CompanionFailed with what it wrote; OSError when no process can be started.
        """
        _make_own(self.folder)
        self._starter = Maker()
        log = private_files.open_log(os.path.join(self.folder, "log"))
        self._said_before = os.fstat(log).st_size
        given = private_files.memory_file(stdin)  # which nobody else has: secrets may be in it
        ready, writing = os.pipe2(os.O_CLOEXEC)
        begun = threading.Event()
        failed: list[BaseException] = []

        def run() -> None:
            """The kernel tells the child when this thread ends: with the process, and when that becomes another program."""
            owner = (os.getpid(), threading.get_native_id()) if owned else (0, 0)
            try:
                process = self.process = subprocess.Popen(
                    [sys.executable, "-m", module, self.folder, str(writing), *map(str, owner)],
                    stdin=given,
                    stdout=log,
                    stderr=log,
                    pass_fds=[writing],
                    cwd="/",
                    env=environment,
                    start_new_session=True,
                )
            except BaseException as exc:
                failed.append(exc)
                return
            finally:
                for descriptor in (log, given, writing):
                    os.close(descriptor)
                begun.set()
            process.wait()

        threading.Thread(target=run, name="monarch-companion", daemon=True).start()
        try:
            begun.wait()
            if failed:
                raise failed[0]
            readable([ready], READY)  # it listens, or it has ended
        finally:
            os.close(ready)
        for _ in range(int(ENDS / _BETWEEN)):  # one that another has started may not listen yet
            if self.answers():
                return
            _pause.wait(_BETWEEN)
        raise CompanionFailed(self.said())

    def said(self) -> str:
        """Returns the end of its log, or "nothing"."""
        try:
            with open(private_files.open_to_read(os.path.join(self.folder, "log"), root=False), "rb") as file:
                size = os.fstat(file.fileno()).st_size
                before = self._said_before if self._said_before <= size else 0  # else it was emptied since then
                file.seek(max(before, size - _SAID))
                return file.read(_SAID).decode(errors="replace").strip() or "nothing"
        except OSError:
            return "nothing"

    @property
    def inherited(self) -> bool:
        """True in a forked child of the process that has started it, whose it stays."""
        return not self._starter.is_here

    def end(self) -> None:
        """Waits until the one that this process has started has ended; kills it when it does not, also a stopped one."""
        process = self.process
        if process is None or self.inherited:
            return
        for numbers in ((), (signal.SIGTERM, signal.SIGCONT), (signal.SIGKILL,)):
            for number in numbers:
                process.send_signal(number)
            try:
                process.wait(ENDS)
                return
            except subprocess.TimeoutExpired:
                continue


def readable(descriptors: Sequence[int], patience: float | None = None) -> list[int]:
    """Waits for those that can be read, or have ended. Numbers from 1,024 on are as good, which select() refuses."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return [found for found, _ in poll.poll(None if patience is None else patience * 1000)]


def end_process(process: int, patience: float) -> None:
    """Ends the process of a pidfd, also a stopped one: SIGTERM, and SIGKILL after `patience` seconds. Returns when it has."""
    try:
        for number in (signal.SIGTERM, signal.SIGCONT):
            signal.pidfd_send_signal(process, number)
        if not readable([process], patience):
            signal.pidfd_send_signal(process, signal.SIGKILL)
            readable([process])
    except ProcessLookupError:
        pass


def environment(without: Sequence[str] = (), **changes: str) -> dict[str, str]:
    """Returns this process's environment for a helper: the search path of this interpreter as it is, nothing by a relative
    one, and not MONARCH_RUN, the sign by which what is left of a run is killed."""
    kept = {name: value for name, value in os.environ.items() if name not in ("MONARCH_RUN", *without)}
    paths = [path for path in sys.path if os.path.isabs(path)]
    return {**kept, "PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1", **changes}


# --- the helper's side


class CompanionOwner:
    """The process that this one is to end with, and the thread there that has started it.

    That thread waits as long as this process lives. It ends earlier only with its process, or when that calls exec: the
    kernel then sends this process a signal. It is SIGCONT, which a stopped process notices too.
    """

    def __init__(self, pid: int, thread: int) -> None:
        """ProcessLookupError when it has ended. To be called in the main thread."""
        import ctypes

        self._thread = (pid, thread)
        self._alive = os.pidfd_open(pid)
        self._woken, wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.signal(signal.SIGCONT, lambda *_: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGCONT, 0, 0, 0)
        if os.getppid() != pid or self.gone():
            raise ProcessLookupError(errno.ESRCH, f"process {pid} has ended")

    def gone(self) -> bool:
        """True if it has ended, or is another program now."""
        return bool(readable([self._alive], 0)) or procfs.thread_exits(*self._thread)

    def wait(self, also: int) -> None:
        """Returns when it is gone, or when the descriptor `also` can be read."""
        while not self.gone():
            found = readable([self._alive, self._woken, also])
            if also in found:
                return
            if self._woken in found:
                os.read(self._woken, 4096)


def take(folder: str, *, keep_log: bool = False) -> bool:
    """Takes the folder's lock as long as this process lives, and writes to its log, which is emptied unless `keep_log`.
    False when another has it and answers.

    One that was killed may hold it for a moment longer than its socket. Runs that begin remove the folders of dead ones, so
    this one may be removed until its lock is taken.
    """
    path = os.path.join(folder, "lock")
    for _ in range(_ATTEMPTS):
        _make_own(folder)
        try:
            lock = private_files.open_lock(path)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.fstat(lock), os.stat(path)):
                    _log_to(os.path.join(folder, "log"), keep_log)
                    return True
            except BlockingIOError:
                if Companion(folder).answers():
                    return False
            os.close(lock)
        except FileNotFoundError:
            pass
        _pause.wait(_BETWEEN)
    raise RuntimeError(f"the lock of {folder} is taken, and nobody answers there")


def listen(folder: str, ready: int) -> socket.socket:
    """Listens at the folder's socket, and says on the descriptor `ready` that it does."""
    path = os.path.join(folder, "socket")
    if os.path.lexists(path):
        os.unlink(path)  # of one that was killed
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    listening.bind(path)
    listening.listen(_BACKLOG)
    os.write(ready, b"ready")
    os.close(ready)
    return listening


def serve(listening: socket.socket, what: str, most: int, talk: Callable[[socket.socket], None]) -> None:
    """Gives each connection of this user a thread, `most` at a time, which runs `talk` when the other side has said something
    or has gone. When there is no room for another, the oldest that has said nothing yet is closed for it; when all have, it
    is refused. Returns when `listening` is closed."""
    silent: dict[socket.socket, None] = {}
    heard: set[socket.socket] = set()
    changing = Lock()

    def run(connection: socket.socket) -> None:
        readable([connection.fileno()])
        with changing:
            if connection in silent:
                del silent[connection]
                heard.add(connection)
        try:
            talk(connection)
        finally:
            heard.discard(connection)

    while True:
        try:
            connection, _ = listening.accept()
        except OSError as exc:
            if exc.errno in OUT_OF:  # it waits in the queue until there is room
                _pause.wait(_BETWEEN)
                continue
            return  # it is closed: this process ends
        try:
            local_socket.check_peer(connection, what)
            with changing:
                if len(silent) + len(heard) >= most:
                    if not silent:
                        raise ConnectionRefusedError(f"more than {most} connections")
                    oldest = next(iter(silent))
                    del silent[oldest]
                    oldest.shutdown(socket.SHUT_RDWR)  # wakes its thread up
                silent[connection] = None
            try:
                threading.Thread(target=run, args=(connection,), name="connection", daemon=True).start()
            except RuntimeError as exc:  # the machine has no thread left
                with changing:
                    silent.pop(connection, None)
                raise ConnectionRefusedError(str(exc)) from None
        except OSError as exc:
            logger.warning("refused: %s", exc)
            connection.close()


class LineLimit:
    """A limit of log lines: `_LINES` of one kind in `_LINES_SECONDS`, then how many were left out. Of `_KINDS` kinds; the one
    that began first is forgotten for another. Pure."""

    def __init__(self) -> None:
        self._kinds: dict[str, list[float]] = {}  # when it began, how many came since

    def admits(self, kind: str, now: float) -> tuple[bool, list[tuple[str, int]]]:
        """Returns whether a line of that kind is to be written, and the kinds whose time is over and of which lines were left
        out, with their number."""
        over = [each for each, (began, _) in self._kinds.items() if now - began >= _LINES_SECONDS]
        if kind not in self._kinds and len(self._kinds) - len(over) >= _KINDS:
            over.append(next(each for each in self._kinds if each not in over))
        left_out = [(each, int(self._kinds.pop(each)[1]) - _LINES) for each in over]
        counted = self._kinds.setdefault(kind, [now, 0])
        counted[1] += 1
        return counted[1] <= _LINES, [(each, count) for each, count in left_out if count > 0]


class BoundedLog(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to stderr, which is a file: when that grows beyond LOG_LIMIT its beginning goes. Whoever causes lines without an
    end, causes five of a kind in ten seconds: others are not driven out. Long records lose their end."""

    def __init__(self) -> None:
        super().__init__()
        self._limit = LineLimit()

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        left_out = len(text) - _LONGEST
        return text if left_out <= 0 else f"{text[:_LONGEST]} [and {left_out:,} characters]"

    def emit(self, record: logging.LogRecord) -> None:
        admitted, left_out = self._limit.admits(str(record.msg), time.monotonic())
        for kind, count in left_out:
            said = {"msg": "%d more lines like this: %s", "args": (count, kind), "levelno": record.levelno}
            self._write(logging.makeLogRecord(said))
        if admitted:
            self._write(record)

    def _write(self, record: logging.LogRecord) -> None:
        super().emit(record)
        try:
            if os.fstat(2).st_size > LOG_LIMIT:
                with open("/proc/self/fd/2", "rb") as file:
                    file.seek(-_LOG_KEPT, os.SEEK_END)
                    kept = file.read().partition(b"\n")[2]
                os.ftruncate(2, 0)
                os.write(2, kept)  # O_APPEND: at the beginning now
        except OSError:  # no file
            pass


def log_to_stderr() -> None:
    """Has the helper log on stderr, bounded, what its threads raise as well."""
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO, handlers=[BoundedLog()])
    threading.excepthook = lambda raised: logger.error(
        "in thread %s",
        raised.thread.name if raised.thread is not None else "",
        exc_info=(raised.exc_type, raised.exc_value or raised.exc_type(), raised.exc_traceback),
    )


def _make_own(folder: str) -> None:
    private_files.make_folder(os.path.dirname(folder))
    if not private_files.take_folder(folder):
        raise private_files.UntrustedFileError(folder, "is not a folder of this user")


def _log_to(path: str, keep: bool) -> None:
    log = private_files.open_log(path, empty=not keep)
    for output in (1, 2):
        os.dup2(log, output)
    os.close(log)
