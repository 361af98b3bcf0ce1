"""monarch logs: what the processes of a program, or the hosts of a job, have written; and how much they log."""

from __future__ import annotations

import argparse
import itertools
import os
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from monarch._errors import NotFoundError
from monarch._linux import private_files
from monarch._linux.terminal import note, show
from monarch._text import one_line
from monarch.job.log_file import end_of
from monarch.tools import exit_codes, json_output
from monarch.tools.log_output import LogOutput
from monarch.tools.verbs.status_verb import running_job

if TYPE_CHECKING:
    import re

    from monarch.admin.output import OutputPage, OutputRequest
    from monarch.admin.programs import Program

NAME = "logs"
LINE = "what the ranks of a program, or the hosts of a job, have written; and the level at which they log"
TEXT = """\
Without options: the end of the logs of a job's hosts, of all of them or of those named: worker programs, and what a scheduler
collects. Logs that lie on other machines are not reached from here; `monarch exec` reads them there.

With --rank, --mesh, --since, --level or --pid, or where no job runs: the last lines of the processes of a program that runs
on this machine as this user. The agents of its hosts, wherever these are, keep 2,000 lines a process, also for a while after
its end. A process whose stdout goes straight to the program's terminal has its stderr there only; enable_file_capture, or
enable_log_forwarding, has both kept.

--level sets the level of a logger in the processes that run, the root logger or --logger.

-f goes on with what is written, of a program that runs, else of the job.

examples:
  monarch logs
  monarch logs -n 200 trainers_0
  monarch logs -f --rank 3
  monarch logs --mesh trainers --rank 0-7 --grep 'loss|nan' --since 10m
  monarch logs --level DEBUG --mesh trainers --rank 3
"""
_LINES = 20
_PIECE = 1 << 20  # bytes of a file read at a time
_LOOK = 0.5  # seconds between two looks of --follow
_HOSTS_AGAIN = 20  # looks until it is asked again which hosts there are


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="logs of a job whose name has this in it (default: all)"
    )
    parser.add_argument("-n", "--lines", type=int, default=_LINES, metavar="N", help=f"the last N lines ({_LINES})")
    parser.add_argument("--paths", action="store_true", help="only say where the files are")
    parser.add_argument(
        "-f", "--follow", action="store_true", help="go on with what they write, until the program ends"
    )
    parser.add_argument("--rank", action="append", default=[], metavar="N,N-N", help="of these ranks (default: all)")
    parser.add_argument("--mesh", metavar="NAME", help="of the processes of this mesh")
    parser.add_argument("--grep", metavar="RE", help="only lines in which this regular expression is found")
    parser.add_argument("--since", metavar="TIME", help="not older than 10m, 2h, 14:05 or 2026-01-31 14:05")
    parser.add_argument("--level", metavar="LEVEL", help="set the level: DEBUG, INFO, WARNING, ERROR or a number")
    parser.add_argument("--logger", metavar="NAME", help="of --level: this logger (default: the root logger)")
    parser.add_argument("--pid", type=int, metavar="PID", help="of the program, where several run")


def run(options: argparse.Namespace) -> int:
    if options.logger is not None and options.level is None:
        options.parser.error("--logger goes with --level")
    of_program = (options.rank, options.mesh, options.since, options.level, options.pid)
    if any(of_program):
        if options.names:
            options.parser.error("NAME is of a job's logs; the processes of a program are chosen by --mesh and --rank")
        return _of_program(options)
    if options.names:
        return _of_job(options)
    from monarch.admin.programs import running_programs

    if (options.follow or options.grep) and running_programs():
        return _of_program(options)
    try:
        return _of_job(options)
    except NotFoundError:
        if not running_programs():
            raise
        return _of_program(options)


# --- a job


def _of_job(options: argparse.Namespace) -> int:
    job, name = running_job()
    files = job._log_files()
    if options.names:
        files = {key: path for key, path in files.items() if any(wanted in key for wanted in options.names)}
    if not files:
        raise NotFoundError(f"{name} has no logs here{' of this name' if options.names else ''}")
    from monarch.tools import log_lines

    pattern = log_lines.expression(options.grep or "")
    out = LogOutput(options.json)
    read = {key: Followed(path) for key, path in files.items()}
    for key, path in files.items():
        lines, why = [], ""
        if not options.paths:
            try:
                lines = last_lines(path, options.lines).split("\n")[:-1]
            except OSError as error:
                why = error.strerror or str(error)
        out.file(key, path, why)
        out.file_lines(key, [line for line in lines if pattern.search(line)], False)
    while options.follow:
        time.sleep(_LOOK)
        for key, file in read.items():
            out.file_lines(key, [line for line in file.lines() if pattern.search(line)], True)
    return out.end()


class Followed:
    """A file's new lines. A file that is made anew is read from its beginning."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._place = self._size()
        self._rest = ""

    def _size(self) -> int:
        try:
            return os.stat(self._path).st_size
        except OSError:  # it is not there yet
            return 0

    def lines(self) -> list[str]:
        size = self._size()
        if size < self._place:
            self._place, self._rest = 0, ""
        if size == self._place:
            return []
        try:
            with os.fdopen(private_files.open_regular(self._path), "rb") as file:
                file.seek(self._place)
                data = file.read(_PIECE)
        except OSError:
            return []
        self._place += len(data)
        *lines, self._rest = (self._rest + data.decode(errors="replace")).split("\n")
        if len(self._rest) >= _PIECE:  # a line without an end is shown in pieces
            lines.append(self._rest)
            self._rest = ""
        return lines


def last_lines(path: str | os.PathLike[str], count: int) -> str:
    """At most the last 4 MiB are looked at."""
    lines = end_of(path, 4 << 20).splitlines(keepends=True)
    text = "".join(lines[-count:]) if count > 0 else ""
    return text if not text or text.endswith("\n") else f"{text}\n"


# --- a program


def _of_program(options: argparse.Namespace) -> int:
    from monarch.admin.output import OutputRequest, read
    from monarch.admin.programs import choose
    from monarch.tools import log_lines

    ranks = log_lines.ranks(options.rank)
    pattern = log_lines.expression(options.grep) if options.grep else None
    since = log_lines.since(options.since, time.time()) if options.since else None
    program = choose(options.pid)
    if options.level is not None:
        return _set_level(program, options, ranks)
    agents, told = read(program, OutputRequest(options.mesh, ranks, since=since))
    if not told and not options.follow:
        raise NotFoundError(_nothing(program, options))
    out = LogOutput(options.json)
    if options.paths:
        out.paths(told)
        return out.end()
    lines = log_lines.merged(told, pattern)
    if since is None:
        lines = lines[-options.lines :] if options.lines > 0 else []
    out.lines(lines)
    _say_half(told)
    if options.follow:
        _follow(out, program, agents, OutputRequest(options.mesh, ranks, log_lines.cursors(told)), pattern)
    return out.end(any(not one.whole for one in told))


def _follow(
    out: LogOutput, program: Program, agents: list[str], wanted: OutputRequest, pattern: re.Pattern[str] | None
) -> None:
    """Prints lines until the program ends."""
    from msgspec.structs import replace

    from monarch.admin.output import read
    from monarch.admin.programs import ProgramGone
    from monarch.tools import log_lines

    try:
        for look in itertools.count(1):
            time.sleep(_LOOK)
            agents, told = read(program, wanted, agents if look % _HOSTS_AGAIN else None)
            for one in told:
                out.missed(one)
            out.lines(log_lines.merged(told, pattern))
            wanted = replace(wanted, after={**wanted.after, **log_lines.cursors(told)})
    except ProgramGone:
        note("(the program has ended)")


def _nothing(program: Program, options: argparse.Namespace) -> str:
    if options.mesh or options.rank:
        return f"the program (pid {program.pid}) has no such processes: `monarch logs --pid {program.pid}` shows all"
    return f"the program (pid {program.pid}) has no processes"


def _say_half(told: Iterable[OutputPage]) -> None:
    if any(not one.whole for one in told):
        note(
            "(only what was written to stderr: stdout goes straight to the program's terminal. "
            "configure(enable_file_capture=True), or HYPERACTOR_MESH_ENABLE_FILE_CAPTURE=1, has both kept)"
        )


def _set_level(program: Program, options: argparse.Namespace, ranks: list[int] | None) -> int:
    from monarch.admin.output import OutputRequest, level_of, read, set_level

    text = options.level
    level = level_of(int(text) if text.isdecimal() else text)
    _, told = read(program, OutputRequest(options.mesh, ranks, lines=0))
    addresses = sorted({one.address for one in told if not one.ended})
    if not addresses:
        raise NotFoundError(_nothing(program, options))
    count, silent = set_level(program, addresses, level, options.logger or "")
    for address, why in silent.items():
        note(one_line(f"{address}: {why}"))
    status = exit_codes.FAILED if silent else exit_codes.DONE
    if options.json:
        from monarch.tools.documents import LevelSet

        name = options.logger or ""
        return json_output.end(LevelSet(exit_status=status, logger=name, level=level, processes=count, silent=silent))
    show(f"the level of {options.logger or 'the root logger'} is {text} in {count} processes")
    return status
