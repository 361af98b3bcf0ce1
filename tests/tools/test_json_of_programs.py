"""--json of verbs that look at a job or a program that runs: what they really print is what docs/reference/json.md has."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from monarch.tools import documents
from tests.support import json_lines
from tests.support.command_line import CommandLine, command_line
from tests.support.tiers import full

pytestmark = [full, pytest.mark.procs]


@pytest.fixture
def monarch(tmp_path: Path) -> Iterator[CommandLine]:
    with command_line(tmp_path) as line:
        yield line


def told(monarch: CommandLine, *words: str, status: int = 0) -> list[Any]:
    return json_lines.read(monarch(*words, status=status).stdout, status)


def test_a_job(monarch: CommandLine) -> None:
    with open(monarch.folder / "jobs.py", "a") as file:
        file.write("print('noise')\n")
    [ready] = told(monarch, "apply", "--json", "jobs.job")
    assert ready.meshes == {"trainers": 2}

    words = "echo out; echo err >&2; exit $MONARCH_RANK_hosts"
    *lines, ended = told(monarch, "exec", "--json", "--all", "--stream", words, status=1)
    assert ended == documents.ExecEnded(exit_status=1, output=None)
    said = {(one.rank, one.stream, one.text) for one in lines if isinstance(one, documents.ExecOutput)}
    assert said == {(rank, *line) for rank in (0, 1) for line in (("stdout", "out"), ("stderr", "err"))}
    statuses = {one.rank: one.status for one in lines if isinstance(one, documents.ExecProcess)}
    assert statuses == {0: 0, 1: 1} and {one.mesh for one in lines} == {"trainers"}
    *_, ended = told(monarch, "exec", "--json", "--all", "echo", "hi")
    assert len(list(Path(ended.output).glob("*/stdout.txt"))) == 2
    [failed] = told(monarch, "exec", "--json", "--mesh", "nope", "true", status=66)
    assert failed.kind == "not_found"

    [found] = told(monarch, "status", "--json", "--timeout", "60")
    assert found.program is None and found.job.endswith("ProcessJob")
    assert sorted(found.places.values()) == ["trainers[0]", "trainers[1]"] and len(found.hosts) == 2
    *lines, ended = told(monarch, "logs", "--json")
    assert {one.log for one in lines} == {"trainers_0", "trainers_1"} and ended.exit_status == 0
    [listed] = told(monarch, "context", "--json", "ls")
    assert listed.contexts == ["default"]
    assert told(monarch, "kill", "--json") == [documents.JobEnded(context="default")]


def test_run(monarch: CommandLine) -> None:
    (monarch.folder / "rank.py").write_text("import os, sys\nprint('rank', os.environ['RANK'])\nsys.exit(3)\n")
    *lines, ended = told(monarch, "run", "--json", "--nproc-per-node", "1", "rank.py", status=3)
    assert ended == documents.RanksEnded(exit_status=3)
    assert documents.RunOutput(rank=0, stream="stdout", text="rank 0") in lines
    assert lines[-1] == documents.RunRank(rank=0, status=3)


PROGRAM = """
import sys, threading
from monarch.actor import Actor, endpoint, this_host

class Worker(Actor):
    @endpoint
    def work(self) -> None:
        print("working", file=sys.stderr, flush=True)

    @endpoint
    def hold(self) -> None:
        threading.Event().wait()

procs = this_host().spawn_procs({"gpus": 2}, name="procs")
workers = procs.spawn("workers", Worker)
workers.work.call().get()
held = workers.hold.call()
print("ready", flush=True)
held.get()
"""


def test_a_program(scripts: Any, tmp_path: Path) -> None:
    program = scripts.start(PROGRAM, env={"MONARCH_PRELOAD": "none"}, limit=600)
    assert program.stdout.readline() == "ready\n"

    def told(*words: str) -> list[Any]:
        done = subprocess.run(
            [sys.executable, "-m", "monarch", *words],
            env=os.environ | {"MONARCH_RUNTIME_DIR": str(scripts.runtime)},
            cwd=tmp_path, capture_output=True, text=True, timeout=90, check=False,
        )  # fmt: skip
        assert program.poll() is None
        return json_lines.read(done.stdout, done.returncode)

    def until(right: Callable[[Any], bool], *words: str) -> Any:
        """The last document, once it is right: on a busy machine an answer comes late, and output too."""
        while isinstance(found := told(*words)[-1], documents.CommandFailed) or not right(found):
            assert not isinstance(found, documents.CommandFailed) or found.kind == "timed_out", found
        return found

    patient = ["--timeout", "60"]
    found = until(lambda found: len(found.endpoints) == 2 and found.waits, "status", "--json", *patient)
    assert found.program.pid == program.pid and found.job is None and found.exit_status == 0
    assert {one.mesh for one in found.hosts[0].processes} == {"procs"} and found.waits[0].target == "workers.hold"
    [found] = told("stacks", "--json", "1", "--locals", *patient)
    assert [one.rank for one in found.processes] == [1] and "self" in found.processes[0].threads[0].frames[0].locals
    [found] = told("doctor", "--json", "--apart", "0.1", *patient)
    assert found.looked_at == 3
    said = ["logs", "--json", "--rank", "0-1", "--grep", "^working$"]  # not what is said of endpoints that run for long
    until(lambda found: found.lines == 2, *said)
    *lines, ended = told(*said)
    assert {(one.mesh, one.rank, one.stream, one.text) for one in lines} == {
        ("procs", rank, "stderr", "working") for rank in (0, 1)
    }
    assert ended.partial and ended.exit_status == 0
    *files, ended = told("logs", "--json", "--paths", "--pid", str(program.pid))
    assert [(one.log, one.file) for one in files] == [("procs 0", None), ("procs 1", None)]
    found = until(lambda found: found.processes == 1, "logs", "--json", "--level", "DEBUG", "--rank", "1")
    assert (found.level, found.exit_status) == (10, 0)
    [found] = told("debug", "--json", "list")
    assert found.stopped == []
    [found] = told("debug", "--json", "--on-exception")
    assert found.text.startswith("exceptions stop in ")
    [found] = told("tui", "--json", "--once")
    assert isinstance(found, documents.TreeFound)
    [found] = told("tui", "--json", "--diagnose")
    assert isinstance(found, documents.ChecksDone) and found.checks
    [found] = told("profile", "--json", "--flame", "100ms", "-o", "flame.txt")
    assert (found.file, found.kind) == ("flame.txt", "flame") and (tmp_path / "flame.txt").exists()
