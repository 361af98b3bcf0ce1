"""Documents that `--json` prints: docs/reference/json.md is made from them.

`schema` names a document and its version, as in `monarch.status/1`. A field may be added to a version; one that goes, or
comes to mean something else, makes the next version. The last line of every verb is a Document, which has the exit status
of the command; lines before it are StreamLines, which have none.

    python -m monarch.tools.documents          prints all of them as one JSON Schema
"""

from __future__ import annotations

import functools
import inspect
import json
import operator
from typing import Any, Literal

import msgspec

from monarch._linux import terminal
from monarch.admin.stacks import Finding
from monarch.admin.status import FailureNote, HostUsage, RunningHandler, StatusTable, WaitEdge
from monarch.telemetry.curves import Curve


class StreamLine(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema"):
    """A line of JSON that others follow."""


class Document(StreamLine, frozen=True, kw_only=True, tag_field="schema"):
    """The last line of JSON of a verb. `exit_status`: that of the command."""

    exit_status: int = 0


class CommandFailed(Document, frozen=True, kw_only=True, tag="monarch.error/1"):
    """The reason for which the command could not do it. `kind`: the word of the exit status; `type`: the class of the
    exception; `message`: what people read on stderr. `verb`: "" where none could be read."""

    verb: str
    kind: str
    type: str
    message: str


class ProgramFound(msgspec.Struct, frozen=True):
    """A program that runs on this machine. `started`: seconds since the epoch."""

    pid: int
    command: str
    started: float


# --- to begin with


class DemoStep(StreamLine, frozen=True, kw_only=True, tag="monarch.demo.step/1"):
    """A piece of the program, and what came of it."""

    code: str
    said: str


class DemoDone(Document, frozen=True, kw_only=True, tag="monarch.demo/1"):
    """The demonstration is over, after `seconds`. `source`: the program, where `--source` has asked for it."""

    source: str | None
    seconds: float


class ProjectMade(Document, frozen=True, kw_only=True, tag="monarch.init/1"):
    """The files of a new project, in `folder`."""

    folder: str
    files: list[str]


# --- hosts by hand


class WorkerEnded(Document, frozen=True, kw_only=True, tag="monarch.worker/1"):
    """A host that has been served, at `address`, until it was shut down or its lease was over."""

    address: str


class NewSecret(Document, frozen=True, kw_only=True, tag="monarch.secret/1"):
    """A new secret: the file that has it, or itself."""

    file: str | None
    secret: str | None


class NewCertificates(Document, frozen=True, kw_only=True, tag="monarch.certs/1"):
    """The files of a job's new certificates, and the machines that they name."""

    ca: str
    ca_key: str
    certificate: str
    private_key: str
    names: list[str]
    days: int


# --- jobs


class JobReady(Document, frozen=True, kw_only=True, tag="monarch.apply/1"):
    """A job whose hosts answer. `meshes`: how many hosts each has; `seconds`: how long it took."""

    job: str
    meshes: dict[str, int]
    seconds: float


class ExecOutput(StreamLine, frozen=True, kw_only=True, tag="monarch.exec.output/1"):
    """A line that a process wrote, without its end; bytes that are no UTF-8 are U+FFFD. `place`: of the
    process in its mesh, by dimension."""

    mesh: str
    rank: int
    place: dict[str, int]
    stream: Literal["stdout", "stderr"]
    text: str


class ExecProcess(StreamLine, frozen=True, kw_only=True, tag="monarch.exec.process/1"):
    """The end of one process. `status`: 128 + n when signal n ended it, 127 for no such program."""

    mesh: str
    rank: int
    place: dict[str, int]
    status: int


class ExecEnded(Document, frozen=True, kw_only=True, tag="monarch.exec/1"):
    """The end of the command: `exit_status` is the largest of its processes. `output`: the folder on each host where output
    is that was not printed."""

    output: str | None


class RunOutput(StreamLine, frozen=True, kw_only=True, tag="monarch.run.output/1"):
    """A line that a rank wrote, without its end; bytes that are no UTF-8 are U+FFFD."""

    rank: int
    stream: Literal["stdout", "stderr"]
    text: str


class RunRank(StreamLine, frozen=True, kw_only=True, tag="monarch.run.rank/1"):
    """The end of one rank, in an attempt. `status`: 128 + n when signal n ended it."""

    rank: int
    status: int


class RanksEnded(Document, frozen=True, kw_only=True, tag="monarch.run/1"):
    """The end of the run: `exit_status` is 0, or that of the rank that failed first. Why it failed is on stderr."""


class JobEnded(Document, frozen=True, kw_only=True, tag="monarch.kill/1"):
    """A job whose hosts were given back. `context`: whose it was."""

    context: str


class ContextList(Document, frozen=True, kw_only=True, tag="monarch.context/1"):
    """The contexts of the folder, after what was asked for. `active`: the one that the other verbs are about."""

    active: str
    contexts: list[str]


# --- looking into a program that runs


class StatusFound(Document, frozen=True, kw_only=True, tag="monarch.status/1"):
    """The state of a program, or of a job's hosts. `program`: None for a job, which `job` names; `places`: what the job calls
    each host, by its address. `unreachable`, `silent`: hosts and processes that did not answer, and why. `endpoints` run now,
    longest first; `waits` are for answers; `failures` were not handled by a restart. `findings`: what the doctor finds wrong,
    a line each, where something has taken 5 s; `tables`: what parts of it tell of themselves, as services do."""

    program: ProgramFound | None
    job: str | None
    places: dict[str, str]
    hosts: list[HostUsage]
    unreachable: dict[str, str]
    endpoints: list[RunningHandler]
    waits: list[WaitEdge]
    silent: dict[str, str]
    failures: list[FailureNote]
    findings: list[str] = []
    tables: list[StatusTable] = []


class ProgramList(Document, frozen=True, kw_only=True, tag="monarch.status.programs/1"):
    """The programs that run, where there are several and none was named: --pid chooses one."""

    programs: list[ProgramFound]


class FrameShown(msgspec.Struct, frozen=True):
    """A call that has not returned. `locals`: its variables as text, with --locals."""

    file: str
    line: int
    function: str
    locals: dict[str, str] = {}


class ThreadShown(msgspec.Struct, frozen=True):
    """A thread, or a suspended task of an actor: `frames`, outermost first, `left_out` outside of them; the actor with its
    mesh (`key`) and `rank`; `endpoint`, running for `seconds`; `idle`: it waits for messages; `state`: as the system has it;
    `gil`: it holds the interpreter lock."""

    thread: str
    native_id: int
    frames: list[FrameShown]
    actor: str
    key: str
    rank: int
    endpoint: str
    seconds: float
    task: str
    idle: bool
    state: str
    left_out: int
    gil: bool


class ProcessShown(msgspec.Struct, frozen=True):
    """The threads of a process of a mesh ("": the client). `how`: told by itself, by signal, or by py-spy, and `why`."""

    address: str
    host: str
    pid: int
    mesh: str
    rank: int
    threads: list[ThreadShown]
    how: str
    why: str
    left_out: int


class StacksFound(Document, frozen=True, kw_only=True, tag="monarch.stacks/1"):
    """The stacks of processes; `silent`: why those of others could not be had; `summary`: a line a mesh;
    `findings`: what the doctor finds wrong, a line each, where an endpoint has run for 5 s. With --watch, one such line every
    two seconds."""

    processes: list[ProcessShown]
    silent: dict[str, str]
    summary: list[str]
    findings: list[str] = []


class Examined(Document, frozen=True, kw_only=True, tag="monarch.doctor/1"):
    """The findings of what keeps a program from going on, the likeliest cause first; `notes`: what takes long, and may be
    right; `looked_at`: how many processes answered. The exit status is 1 if there are findings."""

    findings: list[Finding]
    notes: list[str]
    looked_at: int


class Breakpoint(msgspec.Struct, frozen=True):
    """An endpoint that stands at a breakpoint."""

    actor_name: str
    rank: int
    coords: dict[str, int]
    hostname: str
    function: str
    lineno: int


class EditorPort(StreamLine, frozen=True, kw_only=True, tag="monarch.debug.editor/1"):
    """The port of 127.0.0.1 at which an editor debugs a rank, with --dap, until Ctrl-C. `text`: as people read it."""

    port: int
    text: str


class BreakpointList(Document, frozen=True, kw_only=True, tag="monarch.debug/1"):
    """The answer of the debugger: `text` as people read it. `stopped`: what stands at breakpoints, after `list` of a program
    of this machine."""

    text: str
    stopped: list[Breakpoint] | None = None


class QueryRows(Document, frozen=True, kw_only=True, tag="monarch.query/1"):
    """The rows of a query, `columns` in their order. `truncated`: there are more, as `note` says; `missing_hosts`: those
    whose rows are not among them."""

    columns: list[str]
    rows: list[dict[str, Any]]
    truncated: bool = False
    note: str | None = None
    missing_hosts: list[str] = []


class RunCurves(msgspec.Struct, frozen=True):
    """The curves of a run that was kept; `name` is "" for the program that runs."""

    name: str
    curves: list[Curve]


class MetricCurvesFound(Document, frozen=True, kw_only=True, tag="monarch.metrics/1"):
    """The curves of what a program, or each of several runs, has logged, folded over ranks. `left_out`: values of curves
    that were too many."""

    runs: list[RunCurves]
    left_out: int = 0


class ProfileWritten(Document, frozen=True, kw_only=True, tag="monarch.profile/1"):
    """The file that has the profile, of `seconds`."""

    file: str
    kind: Literal["trace", "flame"]
    seconds: float


class LeftRecording(msgspec.Struct, frozen=True):
    """The point at which a replay has left its recording: the message, from 1; what the actor did then and does now, at
    which line."""

    message: int
    method: str
    then: str
    now: str
    where: str


class Replayed(Document, frozen=True, kw_only=True, tag="monarch.replay/1"):
    """The outcome of a replay: messages handled, what ended it, the text of what the last one raised."""

    messages: int
    ended: str
    failure: str
    divergence: LeftRecording | None
    notes: list[str]


class TreeFound(Document, frozen=True, kw_only=True, tag="monarch.tui.tree/1"):
    """The nodes of the tree, with --once, as the admin server's pages have them (docs/admin.md)."""

    nodes: list[dict[str, Any]]


class ChecksDone(Document, frozen=True, kw_only=True, tag="monarch.tui/1"):
    """Answers of all nodes, with --diagnose: each of `checks` has label, reference, note, phase and outcome."""

    checks: list[dict[str, Any]]
    findings: list[Finding]
    timed_out: bool
    summary: dict[str, Any]


class DashboardOpen(Document, frozen=True, kw_only=True, tag="monarch.dashboard/1"):
    """The address of the dashboard. `pid`: of the program."""

    url: str
    pid: int
    notes: list[str]


class LogLine(StreamLine, frozen=True, kw_only=True, tag="monarch.logs.line/1"):
    """A line of a process of a program. `at`: seconds since the epoch, on its host."""

    mesh: str
    rank: int
    number: int
    at: float
    stream: Literal["stdout", "stderr"]
    text: str


class LogMissed(StreamLine, frozen=True, kw_only=True, tag="monarch.logs.missed/1"):
    """Lines that came faster than -f reads them."""

    mesh: str
    rank: int
    lines: int


class LogFile(StreamLine, frozen=True, kw_only=True, tag="monarch.logs.file/1"):
    """A file of logs: of a job, or of a rank, with --paths. `file`: None where there is none; `why`: it cannot be read."""

    log: str
    file: str | None
    why: str = ""


class LogFileLine(StreamLine, frozen=True, kw_only=True, tag="monarch.logs.file_line/1"):
    """A line of one of a job's logs."""

    log: str
    text: str


class LogsEnd(Document, frozen=True, kw_only=True, tag="monarch.logs/1"):
    """The end of the logs. `lines`: how many were shown; `partial`: stdout of some process went to the program's terminal."""

    lines: int
    partial: bool = False


class LevelSet(Document, frozen=True, kw_only=True, tag="monarch.logs.level/1"):
    """The level of a logger ("": the root logger) in so many processes; `silent`: in which not, and why."""

    logger: str
    level: int
    processes: int
    silent: dict[str, str]


class CompletionScript(Document, frozen=True, kw_only=True, tag="monarch.completion/1"):
    """The script that the shell has to run."""

    shell: str
    script: str


def all_documents() -> dict[str, type[StreamLine]]:
    """Returns the class of every document, by its `schema`."""
    found = [one for one in globals().values() if inspect.isclass(one) and issubclass(one, StreamLine)]
    return {str(one.__struct_config__.tag): one for one in found if one not in (StreamLine, Document)}


def any_document() -> Any:
    """Returns the type of a line, whichever document it is, for `msgspec.json.decode`."""
    return functools.reduce(operator.or_, all_documents().values())


if __name__ == "__main__":
    terminal.show(json.dumps(msgspec.json.schema(any_document()), indent=1))
