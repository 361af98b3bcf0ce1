"""Output of `monarch logs`: lines for people, or JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from monarch._linux.terminal import show, show_coloured
from monarch._text import one_line
from monarch.tools import json_output, log_lines

if TYPE_CHECKING:
    from monarch.admin.output import Line, OutputPage


class LogOutput:
    """The output of one command, as it is read. It counts lines."""

    def __init__(self, as_json: bool) -> None:
        self._json = as_json
        self._count = 0

    def file(self, log: str, path: str, why: str) -> None:
        """Shows a file of a job, and why it cannot be read, if so."""
        if self._json:
            from monarch.tools.documents import LogFile

            json_output.show(LogFile(log=log, file=path, why=why))
            return
        show(f"==> {one_line(log)}: {one_line(path)} <==")
        if why:
            show(f"({why})")

    def file_lines(self, log: str, lines: Sequence[str], named: bool) -> None:
        """Shows lines of one. `named`: lines of others are between them."""
        self._count += len(lines)
        if self._json:
            from monarch.tools.documents import LogFileLine

            for line in lines:
                json_output.show(LogFileLine(log=log, text=line))
            return
        prefix = f"[{one_line(log)}] " if named else ""
        show_coloured("".join(f"{prefix}{line}\n" for line in lines), end="")

    def paths(self, told: Iterable[OutputPage]) -> None:
        """Shows where the output of ranks is."""
        for one in told:
            log = f"{one.mesh} {one.rank}"
            if self._json:
                from monarch.tools.documents import LogFile

                json_output.show(LogFile(log=log, file=one.file or None))
            else:
                show(one_line(f"{log}: {one.file or '(no file: enable_file_capture)'}"))

    def lines(self, pairs: Sequence[tuple[OutputPage, Line]]) -> None:
        """Shows lines of ranks."""
        self._count += len(pairs)
        if not self._json:
            show_coloured("".join(f"{log_lines.shown(one, line)}\n" for one, line in pairs), end="")
            return
        from monarch.tools.documents import LogLine

        for one, line in pairs:
            stream = json_output.stream_name(line.stream)
            json_output.show(
                LogLine(mesh=one.mesh, rank=one.rank, number=line.number, at=line.at, stream=stream, text=line.text)
            )

    def missed(self, one: OutputPage) -> None:
        """Tells of lines that cannot be shown any more."""
        if not one.missed:
            return
        if self._json:
            from monarch.tools.documents import LogMissed

            json_output.show(LogMissed(mesh=one.mesh, rank=one.rank, lines=one.missed))
        else:
            show(f"[{one_line(one.mesh)} {one.rank}] ({one.missed} lines came faster than they are read here)")

    def end(self, partial: bool = False) -> int:
        """Ends it, and returns the exit status. `partial`: of some process there is stderr only."""
        if not self._json:
            return 0
        from monarch.tools.documents import LogsEnd

        return json_output.end(LogsEnd(lines=self._count, partial=partial))
