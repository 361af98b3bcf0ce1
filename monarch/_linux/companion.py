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
from collections.abc import Callable, Sequence

from monarch._linux import local_socket, private_files, procfs

READY = 60.0  # seconds for one to start
ENDS = 3.0  # seconds to end, before it is killed
LOG_LIMIT = 1 << 20  # bytes of its log; a longer one loses its beginning
_LOG_KEPT = 1 << 18
_SAID = 2000  # characters of its log that an error shows
_ATTEMPTS = 200  # at the lock
_BETWEEN = 0.05
_FULL = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
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
        self._starter = os.getpid()

    def connect(self, timeout: float | None = None) -> socket.socket:
        """Returns a connection to it. OSError when it does not run."""
        return local_socket.connect(self.socket, timeout, root=True)

    def answers(self) -> bool:
        try:
            self.connect(ENDS).close()
        except OSError:
            return False
        return True

    def start(
        self, module: str, environment: dict[str, str], *, owned: bool, stdin: bytes = b"", keep_log: bool = False
    ) -> None:
        """Starts `python -m MODULE FOLDER READY OWNER THREAD` as a child in a session of its own, which reads `stdin`.

        Returns when one answers: it, or that of another who was first. `owned`: it ends with this process; else OWNER is 0.

        CompanionFailed with what it wrote; OSError when no process can be started.
        """
        _make_own(self.folder)
        self._starter = os.getpid()
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        log = os.open(os.path.join(self.folder, "log"), flags | (0 if keep_log else os.O_TRUNC), 0o600)
        ready, writing = os.pipe2(os.O_CLOEXEC)
        begun = threading.Event()
        failed: list[BaseException] = []

        def run() -> None:
            """The kernel tells the child when this thread ends: with the process, and when that becomes another program."""
            owner = (os.getpid(), threading.get_native_id()) if owned else (0, 0)
            try:
                process = self.process = subprocess.Popen(
                    [sys.executable, "-m", module, self.folder, str(writing), *map(str, owner)],
                    stdin=subprocess.PIPE,
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
                os.close(log)
                os.close(writing)
                begun.set()
            process.wait()

        threading.Thread(target=run, name="monarch-companion", daemon=True).start()
        try:
            begun.wait()
            if failed:
                raise failed[0]
            assert self.process is not None and self.process.stdin is not None
            try:
                with self.process.stdin as pipe:
                    pipe.write(stdin)  # a pipe that nobody else has: secrets may be in it
            except BrokenPipeError:
                pass
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
            with open(os.path.join(self.folder, "log"), errors="replace") as file:
                return file.read()[-_SAID:].strip() or "nothing"
        except OSError:
            return "nothing"

    @property
    def inherited(self) -> bool:
        """True in a forked child of the process that has started it, whose it stays."""
        return self._starter != os.getpid()

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


def take(folder: str) -> bool:
    """Takes the folder's lock as long as this process lives, and writes to its log. False when another has it and answers.

    One that was killed may hold it for a moment longer than its socket. Runs that begin remove the folders of dead ones, so
    this one may be removed until its lock is taken.
    """
    path = os.path.join(folder, "lock")
    for _ in range(_ATTEMPTS):
        _make_own(folder)
        try:
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.fstat(lock), os.stat(path)):
                    _log_to(os.path.join(folder, "log"))
                    return True
            except BlockingIOError:
                if Companion(folder).answers():
                    return False
            os.close(lock)
        except FileNotFoundError:
            pass
        _pause.wait(_BETWEEN)
    raise RuntimeError(f"the lock of {folder} is taken, and nobody answers there")


def listen(folder: str, connections: int, ready: int) -> socket.socket:
    """Listens at the folder's socket, and says on the descriptor `ready` that it does."""
    path = os.path.join(folder, "socket")
    if os.path.lexists(path):
        os.unlink(path)  # of one that was killed
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    listening.bind(path)
    listening.listen(connections)
    os.write(ready, b"ready")
    os.close(ready)
    return listening


def serve(listening: socket.socket, what: str, most: int, talk: Callable[[socket.socket], None]) -> None:
    """Gives each connection of this user a thread that runs `talk`, `most` at a time; others are refused. Returns when
    `listening` is closed."""
    places = threading.BoundedSemaphore(most)

    def run(connection: socket.socket) -> None:
        try:
            talk(connection)
        finally:
            places.release()

    while True:
        try:
            connection, _ = listening.accept()
        except OSError as exc:
            if exc.errno in _FULL:  # it waits in the queue until there is room
                _pause.wait(_BETWEEN)
                continue
            return  # it is closed: this process ends
        try:
            local_socket.check_peer(connection, what)
            if not places.acquire(blocking=False):
                raise ConnectionRefusedError(f"more than {most} connections")
            try:
                threading.Thread(target=run, args=(connection,), name="connection", daemon=True).start()
            except RuntimeError as exc:  # the machine has no thread left
                places.release()
                raise ConnectionRefusedError(str(exc)) from None
        except OSError as exc:
            logger.warning("refused: %s", exc)
            connection.close()


class BoundedLog(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to stderr, which is a file: when that grows beyond LOG_LIMIT its beginning goes."""

    def emit(self, record: logging.LogRecord) -> None:
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
    os.makedirs(os.path.dirname(folder), mode=0o700, exist_ok=True)
    if not private_files.take_folder(folder):
        raise private_files.UntrustedFileError(folder, "is not a folder of this user")


def _log_to(path: str) -> None:
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    for output in (1, 2):
        os.dup2(log, output)
    os.close(log)
