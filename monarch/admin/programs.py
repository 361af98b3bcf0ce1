"""The programs of this user that run on this machine, as other programs see them: through their admin sockets."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence

import msgspec

from monarch._errors import NotFoundError
from monarch._linux import local_socket, private_files, procfs
from monarch._mesh.inspection import admin_messages
from monarch._mesh.inspection.admin_messages import AskAll, AskAnswers, Refused, Request, Response, StreamRequest
from monarch._mesh.inspection.survey_answers import SurveyAnswers
from monarch._mesh.start.run_directory import user_folders
from monarch._text import one_line

_GRACE = 5.0  # seconds that an answer may take beyond the time that was given for it
_PID = 20  # bytes of the file with a program's pid
_HELPER = "-m monarch.job.mounts.sidecar_program "  # it holds a job's mounts, and is the client of its hosts for that
_PROGRAM = "MONARCH_PROGRAM"  # the run folder of the program that is meant, where there are several


class ProgramGone(ConnectionError):
    """The program has ended, or ends just now."""


class Program:
    """One that runs. `pid`, `started` (seconds since the epoch), `command` (its command line), `folder` (of its run).
    `contained`: it runs in another container, which shares the folder of runs: `pid` is its number there."""

    def __init__(self, folder: str, pid: int, started: float, command: str, contained: bool = False) -> None:
        self.folder = folder
        self.pid = pid
        self.started = started
        self.command = command
        self.contained = contained

    def __repr__(self) -> str:
        return f"<Program {self.pid}: {self.command}>"

    def ask(
        self,
        question: str,
        argument: bytes = b"",
        *,
        timeout: float = 5.0,
        only: Sequence[str] | None = None,
        agents: bool = False,
    ) -> SurveyAnswers:
        """Asks all its processes, or the addresses `only`; those that have not answered after `timeout` seconds are `silent`.

        ProgramGone when it has ended; TimeoutError when its client itself gives no sign of life; ValueError for what the
        program refuses.
        """
        request = AskAll(question, argument, timeout, None if only is None else list(only), agents)
        with self._connect(timeout + _GRACE) as sock:
            return self._given(self._exchange(sock, request))

    def stream(self, name: str, argument: bytes = b"") -> socket.socket:
        """A connected socket that blocks, for a conversation with the program's part of that name."""
        sock = self._connect(_GRACE)
        try:
            response = self._exchange(sock, StreamRequest(name, argument))
            if isinstance(response, Refused):
                raise ValueError(response.why)
            sock.settimeout(None)
        except BaseException:
            sock.close()
            raise
        return sock

    def _given(self, response: Response) -> SurveyAnswers:
        if isinstance(response, AskAnswers):
            return response.answers
        raise ValueError(response.why if isinstance(response, Refused) else "this is no answer")

    def _connect(self, timeout: float) -> socket.socket:
        try:
            return local_socket.connect(os.path.join(self.folder, admin_messages.NAME), timeout)
        except (FileNotFoundError, ConnectionRefusedError):
            raise ProgramGone(f"the program (pid {self.pid}) has ended") from None
        except TimeoutError:
            raise self._stuck(timeout) from None

    def _exchange(self, sock: socket.socket, request: Request) -> Response:
        try:
            sock.sendall(admin_messages.packed(request))
            response: Response = msgspec.msgpack.decode(
                local_socket.receive(sock, admin_messages.LARGEST_ANSWER), type=Response
            )
            return response
        except TimeoutError:
            raise self._stuck(sock.gettimeout() or 0.0) from None
        except ConnectionError:
            raise ProgramGone(f"the program (pid {self.pid}) has ended") from None

    def _stuck(self, timeout: float) -> TimeoutError:
        return TimeoutError(
            f"the program (pid {self.pid}) did not answer within {timeout:g} s: its client is stopped, or native code holds "
            f"its interpreter lock"
        )


def running_programs() -> list[Program]:
    """Returns this user's programs on this machine whose clients run, newest first; none of our own helpers, and none in
    folders of other settings of `runtime_dir`."""
    found = []
    try:
        parents = user_folders()
    except OSError:  # no program could make its folder there either
        return []
    for parent in parents:
        try:
            names = os.listdir(parent)
        except OSError:
            continue
        at = (program_at(os.path.join(parent, name)) for name in names)
        found += [program for program in at if program is not None and _HELPER not in program.command]
    return sorted(found, key=lambda program: program.started, reverse=True)


def program_at(folder: str) -> Program | None:
    """The program of that run folder; None when none runs there, or when somebody else can have made what is there."""
    path = os.path.join(folder, admin_messages.NAME)
    contained = False
    try:
        pid = int(private_files.read(os.path.join(folder, "pid"), _PID, root=False))
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:  # a killed one leaves its folder
            sock.setblocking(False)
            sock.connect(path)
            contained = local_socket.peer_of(sock)[0] == 0  # it has no number here
    except BlockingIOError:  # it lives, and is too busy to take anybody
        pass
    except (OSError, ValueError):
        return None
    command = "a program of another container" if contained else procfs.command_line(pid)
    return Program(folder, pid, _started(folder), command, contained)


def _started(folder: str) -> float:
    try:
        return os.stat(os.path.join(folder, "pid")).st_mtime
    except OSError:
        return time.time()


def choose(pid: int | None = None) -> Program:
    """The program with that pid; without one, the one whose run folder MONARCH_PROGRAM names, or the only one there is, or
    the only one that runs in the folder in which this process is. Those of other containers are nobody's choice but by pid,
    or where there is no other. When there is none, or several, ValueError says what there is and how to choose; NotFoundError
    when there is none."""
    folder = os.environ.get(_PROGRAM, "")
    if pid is None and folder:
        program = program_at(folder)
        if program is None:
            raise NotFoundError(f"{_PROGRAM} is {folder}, and no program runs there")
        return program
    programs = running_programs()
    if not programs:
        raise NotFoundError(
            "no program of yours that uses monarch runs on this machine: start one (python my_script.py), or a job (monarch "
            "apply)"
        )
    if pid is not None:
        programs = [program for program in programs if program.pid == pid] or _none_with(pid, programs)
    there = [program for program in programs if not program.contained] or programs
    here = [program for program in there if procfs.working_directory(program.pid) == os.getcwd()]
    if len(there) > 1 and len(here) != 1:
        raise ValueError(
            f"{len(programs)} programs run; say which with --pid, or look from the folder in which only that one "
            f"runs:\n{listed(programs)}"
        )
    return here[0] if len(there) > 1 else there[0]


def _none_with(pid: int, programs: Sequence[Program]) -> list[Program]:
    raise NotFoundError(f"no program with pid {pid} runs; there are:\n{listed(programs)}")


def listed(programs: Sequence[Program]) -> str:
    """Returns a line for each."""
    now = time.time()
    return "\n".join(
        f"  {program.pid:>7}  {max(0.0, now - program.started):>7.0f} s  {one_line(program.command)}"
        for program in programs
    )
