"""monarch query: SQL over what a job or a program has recorded."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from monarch._errors import NotFoundError
from monarch._linux import terminal
from monarch.tools import json_output
from monarch.tools.durations import duration
from monarch.tools.query_output import FORMATS, shown

if TYPE_CHECKING:
    from monarch.telemetry import QueryEngineClient

NAME = "query"
LINE = "SQL over what a job or program records (telemetry)"
TEXT = """\
Runs one SQL statement over the telemetry of this folder's job, or of a program of yours that runs on this machine and has
called monarch.telemetry.start(). It reads; what would write is refused. `SHOW TABLES` and `DESCRIBE actors` say what there
is; docs/telemetry.md has twenty queries. It starts and attaches nothing.

SQL comes from the argument, from --file, or from a pipe (-).

examples:
  monarch query "SELECT endpoint, count(*) AS n FROM messages GROUP BY endpoint ORDER BY n DESC"
  monarch query --file slow.sql --format jsonl
  echo "SHOW TABLES" | monarch query -
"""
_DEFAULT = 10.0
_LONGEST = 1 << 20  # characters of SQL that are read


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("sql", nargs="?", metavar="SQL", help="the statement; - reads it from stdin")
    parser.add_argument("--file", metavar="PATH", help="the file with the statement")
    parser.add_argument("--format", choices=FORMATS, default="table", help="how rows are printed (table)")
    parser.add_argument("--timeout", type=duration, default=_DEFAULT, metavar="TIME", help="such as 30s or 2m (10s)")
    parser.add_argument("--pid", type=int, metavar="PROGRAM", help="the program with this pid, not the folder's job")


def run(options: argparse.Namespace) -> int:
    sql = statement(options.sql, options.file)
    client = client_of(options.pid)
    from urllib.error import HTTPError, URLError

    try:
        reply = client.query(sql, timeout=options.timeout)
    except HTTPError as exc:
        if exc.code == 408:
            raise ValueError("query timed out; try increasing --timeout") from None
        raise ValueError(str(exc.reason)) from None
    except TimeoutError:
        raise ValueError("query timed out; try increasing --timeout") from None
    except URLError as exc:
        raise ValueError(f"telemetry at {client.url} does not answer: {exc.reason}") from None
    if options.json:
        from monarch.tools.documents import QueryRows

        rows = reply["rows"]
        return json_output.end(
            QueryRows(
                columns=list(reply.get("columns") or dict.fromkeys(name for row in rows for name in row)),
                rows=rows,
                truncated=bool(reply.get("truncated")),
                note=reply.get("note"),
                missing_hosts=list(reply.get("missing_hosts") or ()),
            )
        )
    text = shown(reply, options.format)
    if text:
        terminal.show(text)
    if reply.get("truncated"):
        terminal.note(reply.get("note") or "there are more rows: these are the first")
    if reply.get("missing_hosts"):
        terminal.note(f"rows of these hosts are missing: {', '.join(reply['missing_hosts'])}")
    return 0


def statement(given: str | None, path: str | None) -> str:
    """The SQL. ValueError when there is none, or there are two."""
    if given is not None and path is not None:
        raise ValueError("pass SQL or --file, not both")
    if path is not None:
        with open(path) as file:
            sql = file.read(_LONGEST)
    elif given is None or given == "-":
        if given is None and sys.stdin.isatty():
            raise ValueError("pass SQL, --file PATH, or pipe SQL on stdin")
        sql = sys.stdin.read(_LONGEST)
    else:
        sql = given
    if not sql.strip():
        raise ValueError("SQL query is empty")
    return sql


def client_of(pid: int | None) -> QueryEngineClient:
    """Returns the query client of the folder's job, if one runs; else of the program that records, if there is one.
    ValueError otherwise."""
    from monarch.tools.verbs.status_verb import running_job

    if pid is None and "MONARCH_PROGRAM" not in os.environ:
        try:
            job, _ = running_job()
        except ValueError:
            pass
        else:
            return job.telemetry_query_client()
    from monarch.admin.programs import choose, listed, running_programs
    from monarch.telemetry.starting import recorded_by

    if pid is not None or "MONARCH_PROGRAM" in os.environ:
        program = choose(pid)
        client = recorded_by(program.folder)
        if client is None:
            raise ValueError(
                f"the program with pid {program.pid} records nothing: it calls monarch.telemetry.start() to"
            )
        return client
    programs = running_programs()
    found = {program.pid: client for program in programs if (client := recorded_by(program.folder)) is not None}
    if not found:
        raise NotFoundError(
            "no active job was found in this context; run 'monarch apply' first. (Programs that call "
            "monarch.telemetry.start() can be asked as well: none runs on this machine.)"
        )
    if len(found) > 1:
        some = [program for program in programs if program.pid in found]
        raise ValueError(f"{len(found)} programs record; say which with --pid:\n{listed(some)}")
    return next(iter(found.values()))
