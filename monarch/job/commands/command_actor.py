"""The end of a command in the process that runs it: starts it, hands out what it writes, and says how it ended.

The client asks for each piece of output, so a command that writes faster than the client prints waits at its pipe. What a
process holds is bounded: _PIECES pieces of at most _PIECE bytes.

A child stays in the process group of its process. So whatever it started ends with the process, when that is stopped and also
when it or the client is killed: the host agent ends the whole group.
"""

from __future__ import annotations

import asyncio
import errno
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext

import msgspec

from monarch._linux import private_files
from monarch.actor import Actor, bind_context, concurrent_endpoint, endpoint
from monarch.actor.lowlevel import importable, start_thread
from monarch.actor.run_folders import remove_with_run
from monarch.job.commands.command_plan import PYTHON, RankCommand, Sink, shell_status
from monarch.job.commands.loop_queue import put_from_thread
from monarch.job.commands.standard_input import InputPipe, take
from monarch.job.commands.stopped_child import wait_unless_stopped
from monarch.metrics import passing
from monarch.spmd.main_program import flush, main_status

_PIECE = 64 * 1024
_PIECES = 16
_LEFT_OPEN = 1000  # milliseconds that is read on after the end, where something left running still has the pipe
_NOT_FOUND, _NOT_ALLOWED = 127, 126  # as shells have it


class OutputPiece(msgspec.Struct, frozen=True):
    """Something that a command wrote: to 1, stdout, or 2, stderr."""

    stream: int
    data: bytes


class CommandEnded(msgspec.Struct, frozen=True):
    """All was read. `status`: the exit status, as a shell says it; `signal`: what ended it, or 0; `at`: when, in
    seconds since the epoch; `report`: what it wrote into the file that it was given for that; `stopped`: the signal that it
    was stopped by for `stopped_limit`, and was killed for that, or 0."""

    status: int
    signal: int
    pid: int
    at: float = 0.0
    report: bytes = b""
    stopped: int = 0


class CommandStopped(msgspec.Struct, frozen=True):
    """It was stopped by that signal, and is killed unless it goes on within `stopped_limit`."""

    signal: int


CommandNews = OutputPiece | CommandStopped | CommandEnded


class CommandActor(Actor):
    """One command. `start` it, then `read` until it says CommandEnded."""

    def __init__(self) -> None:
        self._pieces: asyncio.Queue[CommandNews | Exception] = asyncio.Queue(_PIECES)
        self._failed: Exception | None = None  # the reason why nothing more can be read
        self._child: subprocess.Popen[bytes] | None = None
        self._input: InputPipe | None = None  # of a command on another machine than its client
        self._grace = 0.0
        self._stopped = asyncio.Event()

    @endpoint
    async def start(self, command: RankCommand) -> int:
        """The pid of what runs it. What keeps it from starting is its output and its exit status, as in a shell.
        OSError when a file for its output cannot be made."""
        self._loop = asyncio.get_running_loop()
        self._grace = command.grace
        if command.passing:
            remove_with_run(command.passing)
        output = _CommandOutput([command.stdout, command.stderr])
        try:
            return self._start_here(command, output) if command.in_process else self._start_child(command, output)
        except OSError as error:
            _say(command, error, output.writing[1])
            status = _NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_ALLOWED
            output.close_writing()
            self._follow(output, lambda: CommandEnded(status, 0, 0, time.time()))
            return 0

    @concurrent_endpoint
    async def read(self) -> list[CommandNews]:
        """Returns what came since the last call, in order; waits for something. The last one of all is CommandEnded. Raises
        what keeps the command from being followed, such as OSError where a file for its output cannot be written."""
        found: list[CommandNews] = []
        while self._failed is None and (not found or not self._pieces.empty()):
            piece = await self._pieces.get()
            if isinstance(piece, Exception):
                self._failed = piece
            else:
                found.append(piece)
        if self._failed is not None and not found:
            raise self._failed
        return found

    @endpoint
    async def send_signal(self, number: int) -> None:
        """Sends a signal to the command, if it runs. A Python program in the process itself cannot be signalled: it ends
        with the process."""
        if self._child is not None:
            self._child.send_signal(number)  # nothing, once it has ended

    @endpoint
    async def lacks_input(self) -> bool:
        """Returns whether the client's standard input has to be sent: the command could not take it."""
        return self._input is not None

    @concurrent_endpoint
    async def give_input(self, data: bytes) -> bool:
        """Takes what the client has read, b"" at the end; waits while the command does not read. Whether it may read more."""
        return self._input is not None and await asyncio.to_thread(self._input.put, data)

    async def __cleanup__(self, exc: Exception | None) -> None:
        child = self._child
        if child is None or child.returncode is not None:
            return
        child.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(self._stopped.wait(), self._grace)
        except TimeoutError:
            child.kill()

    # --- a child

    def _start_child(self, command: RankCommand, output: _CommandOutput) -> int:
        words = [sys.executable, *command.words[1:]] if command.words[0] == PYTHON else command.words
        report = _Report(command.report_variable)
        given = take(command.stdin) if command.stdin else None
        if command.stdin and given is None:
            self._input = InputPipe()
            given = self._input.reading
        rank = command.env.get("RANK", "")
        logged = passing.received(int(rank)) if rank.isdecimal() else None
        metrics = {} if logged is None else passing.variables(logged)
        with _script(command) as (beginning, script), _closed_here(given), logged or nullcontext():
            self._child = child = subprocess.Popen(
                [*beginning, *words],
                stdin=subprocess.DEVNULL if given is None else given,
                stdout=output.writing[0],
                stderr=output.writing[1],
                cwd=_folder(command),
                env={
                    **command.defaults,
                    **os.environ,
                    **_path(command),
                    **command.env,
                    **report.environment,
                    **metrics,
                },
                pass_fds=[*script, *(() if logged is None else [logged.fileno()])],
            )
        output.close_writing()

        def wait() -> CommandEnded:
            stopped = wait_unless_stopped(child, command.stopped_limit, self._tell_stopped)
            code = child.wait()
            at = time.time()
            if self._input is not None:
                self._input.end()
            try:
                self._loop.call_soon_threadsafe(self._stopped.set)
            except RuntimeError:  # the actor has stopped
                pass
            return CommandEnded(shell_status(code), max(0, -code), child.pid, at, report.value(), stopped)

        self._follow(output, wait)
        return child.pid

    def _tell_stopped(self, number: int) -> None:
        start_thread(self._put, "monarch-stopped", CommandStopped(number))

    # --- a Python program in this process

    def _start_here(self, command: RankCommand, output: _CommandOutput) -> int:
        folder = _folder(command)
        if folder is not None:
            os.chdir(folder)
        os.environ.update({**_path(command), **command.env})
        importable(__name__)  # found out now, and kept: a program may change sys.path while answers are encoded

        def run() -> CommandEnded:
            with _redirected(output.writing):
                output.close_writing()
                return CommandEnded(main_status(command.words), 0, os.getpid(), time.time())

        self._follow(output, bind_context(run))
        return os.getpid()

    # --- output

    def _follow(self, output: _CommandOutput, run: Callable[[], CommandEnded]) -> None:
        """Hands out what is written, and at the end what `run` returns, which waits for the end."""
        threads = [
            start_thread(self._pump, f"monarch-output-{number}", output, number)
            for number in (1, 2)
            if output.reading[number - 1] is not None
        ]

        def follow() -> None:
            ended: CommandEnded | Exception
            try:
                ended = run()
            except Exception as exc:
                ended = exc
            output.set_ended()
            for thread in threads:
                thread.join()
            output.close()
            self._put(ended)

        start_thread(follow, "monarch-command")

    def _pump(self, output: _CommandOutput, number: int) -> None:
        try:
            for data in output.pieces(number - 1):
                self._put(OutputPiece(number, data))
        except Exception as exc:  # the command would wait at its pipe
            self._put(exc)

    def _put(self, item: CommandNews | Exception) -> None:
        """Waits while the client has enough to print."""
        put_from_thread(self._pieces, self._loop, item)


@contextmanager
def _script(command: RankCommand) -> Iterator[tuple[list[str], list[int]]]:
    """Yields the words that have bash run the command's script, and the descriptors that it needs for that. Everybody sees a
    command line, and the kernel takes 128 KiB a word."""
    if command.script is None:
        yield [], []
        return
    file = os.memfd_create("monarch-script", os.MFD_CLOEXEC)
    try:
        _write(file, command.script)
        yield ["bash", "-c", f". /proc/self/fd/{file}"], [file]
    finally:
        os.close(file)


@contextmanager
def _closed_here(descriptor: int | None) -> Iterator[None]:
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _terminal(rows: int, columns: int) -> tuple[int, int]:
    """Returns both ends of a terminal that passes on what is written as it is: the client's own does the rest."""
    reading, writing = pty.openpty()
    settings = termios.tcgetattr(writing)
    settings[1] &= ~termios.OPOST
    settings[3] &= ~termios.ECHO
    termios.tcsetattr(writing, termios.TCSANOW, settings)
    termios.tcsetwinsize(writing, (rows, columns))
    return reading, writing


class _Report:
    """A file for what a command wants to have told at its end. It is in memory, and leaves nothing behind whatever
    happens."""

    def __init__(self, variable: str) -> None:
        self._file = os.memfd_create("monarch-report", os.MFD_CLOEXEC) if variable else -1
        self.environment = {variable: f"/proc/{os.getpid()}/fd/{self._file}"} if variable else {}

    def value(self) -> bytes:
        """Returns what it wrote, _PIECE bytes at most. Once."""
        if self._file < 0:
            return b""
        data = os.pread(self._file, _PIECE, 0)
        os.close(self._file)
        return data


class _LineFilter:
    """The lines of a stream that have one of some words, appended to a file. Each is one write, so those of commands that
    share the file stay whole."""

    def __init__(self, sink: Sink) -> None:
        self._words = [word.encode() for word in sink.filters]
        self._label = sink.label.encode()
        self._file = _opened(sink.filtered, empty=False)
        self._left = b""

    def feed(self, data: bytes) -> None:
        *lines, self._left = (self._left + data).split(b"\n")
        for line in lines:
            self._look(line + b"\n")
        if len(self._left) > _PIECE:  # a line that does not end
            self._look(self._left)
            self._left = b""

    def close(self) -> None:
        """Takes what was not ended as a line, too."""
        if self._left:
            self._look(self._left)
        if self._file is not None:
            os.close(self._file)

    def _look(self, line: bytes) -> None:
        if self._file is not None and any(word in line for word in self._words):
            _write(self._file, self._label + line)


class _CommandOutput:
    """The two streams of a command. `writing`: what it writes to; `reading`: where that comes out, None where it goes
    straight into a file."""

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self._sinks = sinks
        self._ended = os.eventfd(0, os.EFD_CLOEXEC)
        self._files: list[int | None] = []
        self._filters: list[_LineFilter | None] = []
        self.reading: list[int | None] = []
        self.writing: list[int] = []
        try:
            for sink in sinks:
                self._filters.append(_LineFilter(sink) if sink.filtered else None)
                file = _opened(sink.file, empty=True)
                if sink.shown or file is None:
                    reading, writing = os.pipe() if sink.terminal == (0, 0) else _terminal(*sink.terminal)
                    self.reading.append(reading)
                    self.writing.append(writing)
                    self._files.append(file)
                else:
                    self.reading.append(None)
                    self.writing.append(file)
                    self._files.append(None)
        except BaseException:
            self.close_writing()
            self.close()
            raise

    def pieces(self, index: int) -> Iterator[bytes]:
        """Yields what comes out, for the client; into the file as well, if there is one. Ends when nobody can write any
        more, and a while after the command has ended."""
        reading, file, shown = self.reading[index], self._files[index], self._sinks[index].shown
        lines = self._filters[index]
        assert reading is not None
        poll = select.poll()
        poll.register(reading, select.POLLIN)
        poll.register(self._ended, select.POLLIN)
        patience = None
        while ready := poll.poll(patience):
            if all(descriptor == self._ended for descriptor, _ in ready):
                poll.unregister(self._ended)
                patience = _LEFT_OPEN
                continue
            try:
                data = os.read(reading, _PIECE)
            except OSError as exc:
                if exc.errno != errno.EIO:  # of a terminal that nobody has open any more
                    raise
                return
            if not data:
                return
            if file is not None:
                try:
                    _write(file, data)
                except OSError as exc:
                    raise OSError(exc.errno, os.strerror(exc.errno or 0), self._sinks[index].file) from None
            if lines is not None:
                lines.feed(data)
            if shown:
                yield data

    def set_ended(self) -> None:
        os.eventfd_write(self._ended, 1)

    def close_writing(self) -> None:
        for descriptor in self.writing:
            os.close(descriptor)
        self.writing = []

    def close(self) -> None:
        for lines in filter(None, self._filters):
            lines.close()
        for descriptor in (*self.reading, *self._files, self._ended):
            if descriptor is not None:
                os.close(descriptor)


@contextmanager
def _redirected(descriptors: Sequence[int]) -> Iterator[None]:
    """Inside, 1 and 2 of this process, and of what it starts, lead to these; afterwards to where they led."""
    flush()
    kept = [os.dup(number) for number in (1, 2)]
    try:
        for number, descriptor in enumerate(descriptors, 1):
            os.dup2(descriptor, number)
        yield
        flush()
    finally:
        for number, descriptor in enumerate(kept, 1):
            os.dup2(descriptor, number)
            os.close(descriptor)


def _folder(command: RankCommand) -> str | None:
    if command.workdir is None:
        return command.folder if os.path.isdir(command.folder) else None
    return command.workdir


def _path(command: RankCommand) -> dict[str, str]:
    if not command.path_first:
        return {}
    return {"PATH": os.pathsep.join(filter(None, (command.path_first, os.environ.get("PATH", os.defpath))))}


def _opened(file: str, *, empty: bool) -> int | None:
    if not file:
        return None
    try:
        private_files.make_folder(os.path.dirname(os.path.abspath(file)), mine=False, closed=False)
        return private_files.open_log(file, empty=empty)
    except private_files.UntrustedFileError as exc:
        raise PermissionError(
            f"on {os.uname().nodename} {exc}: what a command writes is not put there. Name another folder"
        ) from None


def _write(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


def _say(command: RankCommand, error: OSError, descriptor: int) -> None:
    what = error.filename if isinstance(error.filename, str) else command.words[0]
    _write(descriptor, f"{what}: {error.strerror or error}\n".encode())
