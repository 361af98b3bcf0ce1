"""Output of the processes of a host: read by their agent, kept for reports, shown on the client's terminal or sent to it."""

from __future__ import annotations

import codecs
import fcntl
import itertools
import os
import socket
import sys
import termios
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from monarch._mesh.output import log_lines
from monarch._mesh.output.kept import KeptOutput, KeptOutputs
from monarch._mesh.output.left_out import LeftOut
from monarch._mesh.output.rank_files import RankFile, RankFiles, path_of
from monarch._runtime.loop import Loop, TimerHandle
from monarch._text import NAME_LIMIT, sendable
from monarch._wire.address import name_of, split_proc_name
from monarch._wire.message import Output

_READ = 65536
_AGAIN = 0.02  # seconds until a terminal that took nothing is tried again
_NOTE_AGAIN = 0.2  # seconds until a client that took nothing is tried again


def _named(output: ProcOutput) -> str:
    return f"rank {output.rank} of mesh {output.mesh.name}"


def _standing(fd: int) -> int:
    """The bytes that a pipe holds."""
    return int.from_bytes(fcntl.ioctl(fd, termios.FIONREAD, bytes(4)), sys.byteorder)


def _host() -> str:
    """This host for people; one of several on a machine has a name of its own, given by their job."""
    own = sendable(os.environ.get("HYPERACTOR_PROCESS_NAME", ""), NAME_LIMIT)
    return f"{socket.gethostname()}/{own}" if own else socket.gethostname()


class MeshOutput:
    """The way in which the output of one mesh is shown: as it is, or (`stream`) line by line with its origin, or folded
    over `window`.

    `streams`: it is streamed also when the program does not ask for that, for it comes from another host than the
    client's.
    """

    def __init__(
        self,
        name: str,
        forward: bool,
        with_rank: bool,
        client: str = "",
        tail: int = 20,
        streams: bool = False,
        files: str = "",
        file_limit: int = 0,
    ) -> None:
        self.name = name
        self.client = client  # address of the client that sees it
        self.tail = tail  # lines of each process's stderr kept for reports
        self.forward = forward  # to the client, rather than to the terminal it shares with us
        self.with_rank = with_rank
        self.streams = streams
        self.stream = streams
        self.window = 0.0
        self.files = files  # the folder of a file for each process; "": there are none
        self.file_limit = file_limit
        self.counted = 0  # the number of what is folded, where it is counted
        self.aggregators: dict[int, log_lines.Aggregator] = {}


class ProcOutput:
    """The pipes of one process, and the last lines it wrote to stderr."""

    def __init__(self, mesh: MeshOutput, rank: int, address: str = "", incarnation: int = 0) -> None:
        self.mesh = mesh
        self.rank = rank
        self.file: RankFile | None = None
        if mesh.files:
            uid = (split_proc_name(name_of(address)) or ("", 0))[0]
            self.file = RankFile(path_of(mesh.files, mesh.name, uid, rank), mesh.file_limit)
        path = self.file.path if self.file is not None else ""
        self.kept = KeptOutput(address, incarnation, mesh.name, rank, mesh.forward or bool(path), path)
        self.tail = LastWords(mesh.tail)
        self.pipes: list[_Pipe] = []
        self.counted = 0  # its number, where what is on its way is counted


class _Pipe:
    """The reading end of a process's stdout (1) or stderr (2)."""

    def __init__(self, fd: int, stream: int) -> None:
        os.set_blocking(fd, False)
        self.fd = fd
        self.stream = stream
        self.lines = log_lines.Lines()
        self.text = codecs.getincrementaldecoder("utf-8")("replace")  # a read may end within a character


class Outputs:
    """`send` takes what goes to a client; `has_room` says whether more may wait on the way there."""

    def __init__(
        self, loop: Loop, send: Callable[[str, Output], None], has_room: Callable[[str], bool] = lambda client: True
    ) -> None:
        self._loop = loop
        self._send = send
        self._has_room = has_room
        self._left_out: dict[str, LeftOut] = {}  # by client
        self._note_timer: TimerHandle | None = None
        self._echo = {1: log_lines.Echo(1), 2: log_lines.Echo(2)}
        self._echo_timer: TimerHandle | None = None
        self.kept = KeptOutputs()
        self.files = RankFiles(self._complain)
        self._procs: set[ProcOutput] = set()
        self._budget = Budget()
        self._numbers = itertools.count(1)
        self._origins: dict[int, tuple[MeshOutput, str]] = {}  # by number: how the lines begin

    def open(self, output: ProcOutput) -> dict[str, int]:
        """Writing ends for a new process, by name; the reading ends are watched from now on. stdout is inherited unless
        it is forwarded."""
        writing = {}
        mesh = output.mesh
        if mesh.streams:
            output.counted = next(self._numbers)
            self._origins[output.counted] = mesh, log_lines.origin(_host(), mesh.name, output.rank, mesh.with_rank)
            mesh.counted = mesh.counted or next(self._numbers)
            self._origins[mesh.counted] = mesh, log_lines.origin(_host(), mesh.name)
        for name, stream in (("stdout", 1), ("stderr", 2)):
            if stream == 1 and not output.mesh.forward and output.file is None:
                continue
            read_fd, write_fd = os.pipe()
            pipe = _Pipe(read_fd, stream)
            output.pipes.append(pipe)
            self._loop.add(read_fd, lambda mask, pipe=pipe: self._read(output, pipe))  # type: ignore[misc]
            writing[name] = write_fd
        self._procs.add(output)
        self.kept.add(output.kept)
        return writing

    def close(self, output: ProcOutput) -> None:
        """The process is gone: takes what stands in its pipes now. Programs that it has left behind may write on, faster than
        we read; they find their pipes closed."""
        for pipe in output.pipes:
            left = _standing(pipe.fd) if pipe.fd >= 0 else 0
            while left > 0 and (data := os.read(pipe.fd, min(left, _READ))):
                left -= len(data)
                self._take(output, pipe, data)
            self._take_lines(output, pipe, pipe.lines.flush())
            self._close_pipe(pipe)
        self._procs.discard(output)
        self.kept.end(output.kept)
        if output.file is not None:
            self.files.close(output.file)
        if output.counted:
            self._say_lost(output.counted)
            del self._origins[output.counted]

    def read_now(self, mesh: MeshOutput | None = None) -> None:
        """Takes what stands in the pipes (of one mesh); one read takes as much as a pipe holds."""
        for output in list(self._procs):
            if mesh is None or output.mesh is mesh:
                for pipe in output.pipes:
                    if pipe.fd >= 0:
                        self._read(output, pipe)

    def show_gathered(self, meshes: Iterable[MeshOutput]) -> None:
        """Ends the windows of these meshes."""
        for mesh in meshes:
            for stream, aggregator in mesh.aggregators.items():
                self._send_folded(mesh, stream, aggregator)

    def mesh_ended(self, mesh: MeshOutput) -> None:
        self.show_gathered([mesh])
        if mesh.counted:
            self._say_lost(mesh.counted)
            del self._origins[mesh.counted]

    def printed(self, counted: int, size: int) -> None:
        """The client has printed so much of what is counted under that number."""
        for lost in self._budget.printed(counted, size):
            self._say_lost(lost)

    def _say_lost(self, counted: int) -> None:
        lost = self._budget.lost(counted)
        if lost:
            mesh, origin = self._origins[counted]
            self._show(mesh, Output(2, f"{origin}{lost}\n"))

    def _send_lines(self, mesh: MeshOutput, stream: int, lines: Sequence[str], source: str, counted: int) -> None:
        """Lines with their newlines. If they are counted, they are dropped beyond what may be on its way."""
        if counted:
            lines = self._budget.admit(counted, lines, TOTAL if counted == mesh.counted else PROCESS)
        text = "".join(lines)
        if text and not self._show(mesh, Output(stream, text, source, counted)) and counted:
            self._budget.printed(counted, len(text))  # it is not on its way

    def _send_folded(self, mesh: MeshOutput, stream: int, aggregator: log_lines.Aggregator) -> None:
        lines = aggregator.take(log_lines.clock(), mesh.with_rank).splitlines(keepends=True)
        self._send_lines(mesh, stream, lines, f"mesh {mesh.name}", mesh.counted)

    def set_option(self, mesh: MeshOutput, stream: bool, window: float) -> None:
        """Sets how output is shown. What was written until now is shown as it would have been."""
        self.read_now(mesh)
        self.show_gathered([mesh])
        mesh.stream, mesh.window, mesh.aggregators = stream or mesh.streams, window, {}

    def flush(self) -> None:
        for echo in self._echo.values():
            echo.flush()

    # --- one pipe

    def _read(self, output: ProcOutput, pipe: _Pipe) -> None:
        if self._echo[pipe.stream].full:
            self._echo_later()
            self._loop.pause(pipe.fd)
            return
        try:
            data = os.read(pipe.fd, _READ)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._take(output, pipe, data)
        else:
            self._close_pipe(pipe)

    def _close_pipe(self, pipe: _Pipe) -> None:
        if pipe.fd >= 0:
            self._loop.remove(pipe.fd)
            os.close(pipe.fd)
            pipe.fd = -1

    def _take(self, output: ProcOutput, pipe: _Pipe, data: bytes) -> None:
        mesh = output.mesh
        if output.file is not None:
            self.files.write(output.file, data)
        if not mesh.forward:
            echo = self._echo[pipe.stream]
            echo.write(data)
            if echo.pending:
                self._echo_later()
        elif not mesh.stream:
            text = pipe.text.decode(data)
            if text:
                self._show(mesh, Output(pipe.stream, text, _named(output)))
        self._take_lines(output, pipe, pipe.lines.feed(data))

    def _take_lines(self, output: ProcOutput, pipe: _Pipe, lines: list[str]) -> None:
        if pipe.stream == 2:
            output.tail.take(lines)
        if lines:
            output.kept.take(pipe.stream, lines, time.time())
        mesh = output.mesh
        if not lines or not mesh.forward or not mesh.stream:
            return
        if mesh.window:
            self._gather(mesh, pipe.stream, output.rank, lines)
            return
        origin = log_lines.origin(_host(), mesh.name, output.rank, mesh.with_rank)
        shown = [f"{origin}{line}\n" for line in lines]
        self._send_lines(mesh, pipe.stream, shown, _named(output), output.counted)

    def _gather(self, mesh: MeshOutput, stream: int, rank: int, lines: list[str]) -> None:
        """Folds lines into the window of their stream; the first of a window sets the clock."""
        aggregator = mesh.aggregators.setdefault(stream, log_lines.Aggregator(mesh.window))
        for line in lines:
            now = self._loop.now()
            fresh = aggregator.due(now) is None
            aggregator.add(rank, line, now)
            if fresh:
                self._loop.call_later(mesh.window, lambda: self._window_ends(mesh, stream, aggregator))
            self._window_ends(mesh, stream, aggregator)

    def _window_ends(self, mesh: MeshOutput, stream: int, aggregator: log_lines.Aggregator) -> None:
        """Shows what was gathered if it is time: a window shown early has begun anew, with its own clock."""
        due = aggregator.due(self._loop.now())
        if due is not None and due <= self._loop.now():
            self._send_folded(mesh, stream, aggregator)

    def _show(self, mesh: MeshOutput, output: Output) -> bool:
        """Sends it to the mesh's client. False if that takes nothing: then it is told later what it has missed."""
        client = mesh.client
        if client not in self._left_out and self._has_room(client):
            self._send(client, output)
            return True
        self._left_out.setdefault(client, LeftOut("the program does not read")).add(output.source, len(output.text))
        if self._note_timer is None:
            self._note_timer = self._loop.call_later(_NOTE_AGAIN, self._say_left_out)
        return False

    def _say_left_out(self) -> None:
        self._note_timer = None
        for client in [client for client in self._left_out if self._has_room(client)]:
            self._send(client, Output(2, self._left_out.pop(client).take()))
        if self._left_out:
            self._note_timer = self._loop.call_later(_NOTE_AGAIN, self._say_left_out)

    def _complain(self, text: str) -> None:
        """Complains to the clients whose processes write files; any thread."""
        self._loop.call_soon(lambda: self._tell_clients(f"monarch: {text} [host {socket.gethostname()}]\n"))

    def _tell_clients(self, text: str) -> None:
        for client in sorted({output.mesh.client for output in self._procs if output.file is not None}):
            self._send(client, Output(2, text))

    def _echo_later(self) -> None:
        """The terminal takes no more for now: tries again, and reads on from the processes then."""
        if self._echo_timer is None:
            self._echo_timer = self._loop.call_later(_AGAIN, self._echo_again)

    def _echo_again(self) -> None:
        self._echo_timer = None
        self.flush()
        if any(echo.pending for echo in self._echo.values()):
            self._echo_later()
        if not any(echo.full for echo in self._echo.values()):
            for output in self._procs:
                for pipe in output.pipes:
                    if pipe.fd >= 0:
                        self._loop.resume(pipe.fd)


# How much streamed output may be on its way to clients, until they say that they have printed it: characters of one process,
# and of all processes of a host. Beyond them whole lines are dropped and counted; a line in their place says how many.
PROCESS = 1 << 18
TOTAL = 1 << 22


class Budget:
    """A host's streamed output on its way to clients, and what was dropped. Pure. A source is a process, or the folded
    lines of a mesh, by a number of its own."""

    def __init__(self) -> None:
        self._sent: dict[int, int] = {}  # on its way, of each source
        self._total = 0
        self._lost: dict[int, tuple[int, int]] = {}  # lines and characters dropped of each source

    def admit(self, source: int, lines: Sequence[str], limit: int = PROCESS) -> list[str]:
        """Returns those of these lines that may be sent now, in order; the others are dropped. Lines end with a
        newline."""
        if source in self._lost:  # in order: first it is said that some are missing
            return self._drop(source, lines)
        room = min(limit - self._sent.get(source, 0), TOTAL - self._total)
        taken = 0
        for count, line in enumerate(lines):
            if taken + len(line) > room:
                self._send(source, taken)
                self._drop(source, lines[count:])
                return list(lines[:count])
            taken += len(line)
        self._send(source, taken)
        return list(lines)

    def _send(self, source: int, size: int) -> None:
        if size:
            self._sent[source] = self._sent.get(source, 0) + size
            self._total += size

    def _drop(self, source: int, lines: Sequence[str]) -> list[str]:
        count, size = self._lost.get(source, (0, 0))
        self._lost[source] = count + len(lines), size + sum(map(len, lines))
        return []

    def printed(self, source: int, size: int) -> list[int]:
        """The client has printed so much of a source. The sources of which it is now to be said what was dropped (`lost`):
        the client has caught up with half of what may be on its way."""
        size = min(size, self._sent.get(source, 0))
        self._total -= size
        left = self._sent.pop(source, 0) - size
        if left:
            self._sent[source] = left
        if self._total > TOTAL // 2:
            return []
        return [source for source in self._lost if self._sent.get(source, 0) <= PROCESS // 2]

    def lost(self, source: int) -> str:
        """Returns what was dropped of a source since this was asked last, for people; "" if nothing was."""
        count, size = self._lost.pop(source, (0, 0))
        if not count:
            return ""
        return f"[{count} lines, {size} characters were dropped: they came faster than the client prints them]"


# How Python's faulthandler begins; every process of a mesh has it on.
_CRASH = "Fatal Python error: "
# A line of it that names every extension module that is loaded, hundreds with torch, and explains nothing.
_NOISE = "Extension modules: "


class LastWords:
    """The end of the stderr of a process that ended, for its report: the last `most` lines. Pure.

    From a crash on it keeps as many from the last crash on, and those before it: what native code said as it gave up. The
    innermost frame of a stack comes first, so the end of a long one would be the wrong end.
    """

    __slots__ = ("_before", "_crash", "_lines", "_most")

    def __init__(self, most: int) -> None:
        self._most = most
        self._lines: deque[str] = deque(maxlen=most)
        self._before: list[str] = []
        self._crash: list[str] | None = None

    def take(self, lines: Iterable[str]) -> None:
        for line in lines:
            if line.startswith(_CRASH):
                self._before = list(self._lines)
                self._crash = []
            self._lines.append(line)
            if self._crash is not None and len(self._crash) < self._most and not line.startswith(_NOISE):
                self._crash.append(line)

    def shown(self, crashed: bool) -> list[str]:
        """`crashed`: a signal ended it. Otherwise a dump in its output was that of a process it had started.

        At most `most` lines. Of a crash, half of them may be those before it."""
        if not crashed or self._crash is None:
            return list(self._lines)
        earlier = min(len(self._before), max(self._most // 2, self._most - len(self._crash)))
        return self._before[len(self._before) - earlier :] + self._crash[: self._most - earlier]
