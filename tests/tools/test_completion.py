"""Words that the shell completes: in memory, and as a shell asks for them."""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from monarch.tools import cli, completers
from tests.support.hostile import NAME
from tests.support.patience import TIMEOUT
from tests.support.scripts import Scripts
from tests.support.tiers import full

PROGRAM = """
import sys
from monarch.actor import Actor, endpoint, this_host

class Learner(Actor):
    @endpoint
    def ready(self) -> None: ...

for name, count in (("trainers", 3), ("others", 5)):
    procs = this_host().spawn_procs({"gpus": count}, name=name)
    procs.spawn(f"{name}_actors", Learner).ready.call().get()
sys.stdout.write("ready\\n")
sys.stdout.flush()
sys.stdin.read()
"""
PROJECT = """
[jobs.laptop]
class = "ProcessJob"
meshes = { trainers = 2, generators = 1 }
[jobs.cluster]
class = "SlurmJob"
meshes = { big = 16 }
add-mesh = [{ name = "spare" }]
"""


@pytest.mark.parametrize(
    ("typed", "words"), [("", ["0", "2", "10", "11"]), ("1", ["10", "11"]), ("0,1", ["0,10", "0,11"]), ("0-3,", None)]
)
def test_the_last_of_several_ranks_is_completed(typed: str, words: list[str] | None) -> None:
    places = [("trainers", rank) for rank in (11, 0, 2, 10)] + [("others", 7)]
    complete = completers._ranks_of(lambda given: places)
    found = complete(typed, argparse.Namespace(mesh="trainers"))
    assert found == (words if words is not None else ["0-3,0", "0-3,2", "0-3,10", "0-3,11"])
    assert "7" in complete("", argparse.Namespace())


def test_a_look_that_does_not_end_is_not_waited_for() -> None:
    over = threading.Event()

    def look() -> completers.Words:
        over.wait(TIMEOUT)
        return ["late"]

    try:
        assert completers.within(0.01, look) == []
    finally:
        over.set()


def test_what_a_look_imports_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long a busy machine takes for it, so that there is something left to look in."""
    events: list[str] = []

    class Thread(threading.Thread):
        def start(self) -> None:
            events.append("begun")
            super().start()

    monkeypatch.setattr(threading, "Thread", Thread)
    monkeypatch.setattr(importlib, "import_module", events.append)
    assert completers.within(TIMEOUT, lambda: ["word"], "a.module") == ["word"]
    assert events == ["a.module", "begun"]


def test_each_names_the_module_that_takes_long() -> None:
    for completer, module in completers._COMPLETERS.values():
        assert importlib.util.find_spec(module) is not None, completer


def test_a_look_that_fails_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    def fails(error: BaseException) -> Callable[[], completers.Words]:
        def look() -> completers.Words:
            raise error

        return look

    assert completers.within(TIMEOUT, fails(ValueError("on purpose"))) == []
    assert completers.within(TIMEOUT, fails(SystemExit(3))) == []
    assert capfd.readouterr() == ("", "")


def test_words_are_few_and_such_as_a_shell_can_show() -> None:
    assert completers.within(TIMEOUT, lambda: [NAME, "", "a\nb", "x" * 300, "good"]) == ["good"]
    assert completers.within(TIMEOUT, lambda: {NAME: "", "1": "one"}) == {"1": "one"}
    assert len(completers.within(TIMEOUT, lambda: list(map(str, range(4096))))) == completers.MOST


def test_every_argument_that_names_something_is_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logging.disable", lambda: None)
    parser = cli.get_parser()
    completers.attach(parser)
    unused = set(completers._COMPLETERS)
    for verb, inner in completers._verbs(parser):
        for action in inner._actions:
            names = {*action.option_strings, action.dest}
            unused -= {(of, name) for of in ("", verb) for name in names}
            if names & {"--pid", "--mesh", "--rank", "--job"}:
                assert hasattr(action, "completer"), (verb, names)
    assert unused == set()


JOBS = """
import monarch.job
from monarch.job import SlurmJob
job = SlurmJob({"trainers": 4})
other: object = monarch.job.ProcessJob({"trainers": 2})
meshes = dict(trainers=4)
print("never run")
if True:
    inner = SlurmJob({})
"""


def test_jobs_of_modules_are_read_and_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cluster.py").write_text(JOBS)
    (tmp_path / "broken.py").write_text("job = SlurmJob(")
    (tmp_path / "large.py").write_text("#" * completers._LARGEST + "\njob = SlurmJob()")
    (tmp_path / "not-a-name.py").write_text(JOBS)

    def complete(typed: str) -> completers.Words:
        return completers._jobs_of_modules(typed, argparse.Namespace())

    both = {"cluster.job": "SlurmJob", "cluster.other": "ProcessJob"}
    assert complete("") == complete("clu") == complete("cluster.") == both
    assert complete("cluster.j") == {"cluster.job": "SlurmJob"}
    assert complete("other") == {}
    assert completers._jobs("", argparse.Namespace()) == both
    (tmp_path / "cluster.py").chmod(0o666)  # of a file that others may write nothing is told
    assert complete("") == {}


# --- as a shell asks


class Shell:
    """A shell in which somebody presses Tab."""

    def __init__(self, folder: Path, runtime: Path) -> None:
        self._folder = folder
        self._env = {**os.environ, "MONARCH_RUNTIME_DIR": str(runtime), "_ARGCOMPLETE": "1", "_ARGCOMPLETE_IFS": "\n"}
        self._env.pop("MONARCH_JOB", None)

    def complete(self, typed: str) -> list[str]:
        asked = {"COMP_LINE": typed, "COMP_POINT": str(len(typed))}
        done = subprocess.run(
            ["bash", "-c", f"exec {sys.executable} -m monarch 8>&1 9>&2"],
            env=self._env | asked, cwd=self._folder, capture_output=True, text=True, timeout=TIMEOUT, check=False,
        )  # fmt: skip
        assert done.stderr == ""
        return [word for word in done.stdout.split() if not word.startswith("-")]

    def completes(self, typed: str, words: list[str]) -> bool:
        """Asks again where the machine was too busy to find them in time."""
        return any(self.complete(typed) == words for _ in range(20))


@pytest.fixture(scope="module")
def of_program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Shell, int]]:
    pytest.importorskip("argcomplete", reason="needs the package argcomplete")
    folder = tmp_path_factory.mktemp("completion")
    runtime = tmp_path_factory.mktemp("r")
    scripts = Scripts(folder, runtime)
    try:
        program = scripts.start(PROGRAM)
        assert program.stdout is not None and program.stdout.readline() == "ready\n"
        yield Shell(folder, runtime), program.pid
    finally:
        scripts.close()


@full
@pytest.mark.procs
def test_pids_ranks_and_meshes_of_a_program(of_program: tuple[Shell, int]) -> None:
    shell, pid = of_program
    assert shell.completes("monarch logs --pid ", [str(pid)])
    assert shell.completes("monarch tui --pid ", [str(pid)])
    assert shell.completes("monarch logs --mesh ", ["others", "trainers"])
    assert shell.completes("monarch logs --mesh tr", ["trainers"])
    assert shell.completes("monarch logs --rank ", ["0", "1", "2", "3", "4"])
    assert shell.completes(f"monarch logs --pid {pid} --mesh trainers --rank 0,", ["0,0", "0,1", "0,2"])
    assert shell.completes("monarch stacks --mesh ", ["others", "others_actors", "trainers", "trainers_actors"])
    assert shell.completes("monarch stacks --mesh trainers_actors ", ["0", "1", "2"])
    assert shell.complete("monarch logs --pid 1 --mesh ") == []


@full
def test_jobs_and_their_meshes(tmp_path: Path) -> None:
    pytest.importorskip("argcomplete", reason="needs the package argcomplete")
    (tmp_path / "monarch.toml").write_text(PROJECT)
    shell = Shell(tmp_path, tmp_path)
    assert shell.completes("monarch run --job ", ["laptop", "cluster"])
    assert shell.completes("monarch run --job cluster --mesh ", ["big", "spare"])
    assert shell.completes("monarch exec --mesh ", ["trainers", "generators", "big", "spare"])
    (tmp_path / "monarch.toml").write_text("[jobs")
    assert shell.complete("monarch run --job ") == []
