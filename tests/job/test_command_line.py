"""The verbs of `monarch` that are about jobs: the real command, real processes."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from monarch.tools.verbs import exec_verb
from monarch.tools.verbs.current_job import environment, point
from tests.support.command_line import TIMEOUT, CommandLine
from tests.support.processes import Watch
from tests.support.terminal import Terminal
from tests.support.tiers import full

# --- pure


@pytest.mark.parametrize("text", ["", "a", "=b", "a=x", "a=1,", "a=-1"])
def test_what_is_no_place(text: str) -> None:
    with pytest.raises(ValueError, match="a place is DIM=N,DIM=N"):
        point(text)


def test_places_and_variables() -> None:
    assert point("hosts=1,gpu=0") == {"hosts": 1, "gpu": 0}
    assert environment(["A=b=c", "D="]) == {"A": "b=c", "D": ""}


def command(*words: str) -> tuple[list[str], bytes | None]:
    parser = argparse.ArgumentParser()
    exec_verb.arguments(parser)
    return exec_verb.command_of(parser.parse_args(words))


def test_the_command_of_exec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert command("--all", "ls", "--all") == (["ls", "--all"], None)
    assert command("--", "-x", "--") == (["-x", "--"], None)
    assert command("-e", "A=b", "-m", "pytest", "-x", "--kill") == (["-m", "pytest", "-x", "--kill"], None)
    assert command("-m", "pytest", "--", "-x") == (["-m", "pytest", "-x"], None)
    script = tmp_path / "s.sh"
    script.write_bytes(b"echo $1 \xff")
    assert command("--script", str(script), "a") == ([str(script), "a"], b"echo $1 \xff")
    monkeypatch.setattr(exec_verb, "_MOST_SCRIPT", 8)
    with pytest.raises(ValueError, match="has more than"):
        command("--script", str(script))
    with pytest.raises(ValueError, match="no command"):
        command("--all")
    with pytest.raises(ValueError, match="name of a module"):
        command("-m")


def test_where_outputs_go() -> None:
    assert exec_verb.output_place(None, "1a") == ("/tmp/monarch_exec_1a", "/tmp/monarch_exec_1a/ on each worker")
    place = exec_verb.output_place(("/data/out", "/home/me/out"), "1a")
    assert place == ("/data/out/exec_outputs/1a", "/home/me/out/, in exec_outputs/1a/ of each host")


# --- the command


@pytest.mark.procs
def test_the_life_of_a_job(monarch: CommandLine) -> None:
    said = monarch("exec", "true", status=66).stderr
    assert "no job is set in context 'default'" in said and "monarch apply MODULE.ATTRIBUTE" in said
    assert re.fullmatch(r"Job is ready \(\d+s\)\n", monarch("apply", "jobs.job").stdout)
    done = monarch("exec", "echo first of $MONARCH_SIZE_hosts; echo err >&2; exit 5", status=5)
    assert done.stdout == "first of 2\n" and done.stderr.endswith("err\n")
    said = monarch("exec", "--mesh", "nope", "true", status=66).stderr
    assert said.endswith("monarch exec: Mesh 'nope' not found. Available: ['trainers']\n")

    done = monarch("exec", "--all", 'echo out; exit "$MONARCH_RANK_hosts"', status=1)
    found = re.fullmatch(r"Output → (/tmp/monarch_exec_[0-9a-f]{8})/ on each worker\n", done.stdout)
    assert found is not None
    assert sorted(path.read_text() for path in Path(found[1]).glob("*/stdout.txt")) == ["out\n", "out\n"]
    modes = {oct(path.stat().st_mode & 0o777) for path in Path(found[1]).glob("**/*") if path.is_file()}
    assert (oct(Path(found[1]).stat().st_mode & 0o777), modes) == ("0o700", {"0o600"})

    assert monarch("kill").stdout == "Killed job\n"
    assert not Path(found[1]).exists()
    assert "no job runs in context 'default'" in monarch("kill", status=66).stderr


@full
@pytest.mark.procs
def test_ctrl_c_ends_the_command(monarch: CommandLine, watch: type[Watch]) -> None:
    monarch("apply", "jobs.job")
    running = monarch.start("exec", "--all", "--stream", "echo $$; exec sleep 1000")
    assert running.stdout is not None
    left = watch([int(running.stdout.readline().split()[-1]) for _ in range(2)])
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=TIMEOUT)
    assert (running.returncode, out) == (130, "") and "Traceback" not in err
    assert left.survivors(TIMEOUT) == {}
    monarch("exec", "true")  # the job is still there


WORK = """
import threading
from jobs import job
from monarch.actor import Actor, endpoint

class Worker(Actor):
    @endpoint
    def train(self) -> None:
        threading.Event().wait()

work = job.state().trainers.spawn_procs({"gpus": 1}, name="work").spawn("workers", Worker)
waiting = work.train.call()
print("working", flush=True)
waiting.get()
"""


@full
@pytest.mark.procs
def test_status_and_logs_of_what_another_program_does(monarch: CommandLine) -> None:
    assert "no job runs" in monarch("status", status=66).stderr
    monarch("apply", "jobs.job")
    (monarch.folder / "work.py").write_text(WORK)
    program = monarch.start("work.py", program=[sys.executable])
    try:
        assert program.stdout is not None and program.stdout.readline() == "working\n"
        page = monarch("status").stdout
        while page.count("workers.train() of rank") < 2:  # its processes have just begun
            page = monarch("status").stdout
        assert page.startswith("context 'default': ProcessJob, 2 hosts, 2 processes\ntrainers[0]  ")
        assert "\ntrainers[1]  " in page
        assert page.count("  pid ") == 2 and "workers.train() of rank 1 for " in page and "DOES NOT ANSWER" not in page
    finally:
        program.kill()
        program.communicate(timeout=TIMEOUT)
    logs = monarch("logs").stdout
    assert logs.count("serving as host ipc://") == 2 and "==> trainers_0: " in logs
    assert monarch("logs", "--paths", "trainers_1").stdout.count("==>") == 1
    assert "has no logs here of this name" in monarch("logs", "nope", status=66).stderr
    os.kill(monarch.worker_pid("trainers_0"), signal.SIGKILL)
    assert "lost connection to worker processes (trainers_0)" in monarch("status", status=1).stderr


@full
@pytest.mark.procs
def test_contexts(monarch: CommandLine) -> None:
    assert monarch("context", "ls").stdout == "No contexts.\n"
    monarch("apply", "jobs.job")
    assert monarch("context", "create", "two").stdout == "Created context 'two'\n"
    assert monarch("context", "ls").stdout == "  default\n* two\n"
    assert "there is a context 'two' already" in monarch("context", "create", "two", status=1).stderr
    monarch("apply", "jobs.local")
    assert monarch("exec", "echo here").stdout == "here\n"
    assert monarch("context", "use", "default").stdout == "Switched to context 'default'\n"
    assert "Connecting to cached job" in monarch("exec", "true").stderr
    assert monarch("context", "rm", "two").stdout == "Removed context 'two'\n"
    assert monarch("kill", "default").stdout == "Killed context 'default'\n"
    monarch("exec", "--kill", "true")  # starts it again, for as long as that takes
    assert "no job runs" in monarch("kill", status=66).stderr


@full
@pytest.mark.procs
def test_a_job_of_the_projects_file(monarch: CommandLine) -> None:
    (monarch.folder / "monarch.toml").write_text('[jobs.two]\nclass = "ProcessJob"\nmeshes = { a = 1, b = 1 }\n')
    done = monarch("exec", "--all", "--stream", "--kill", "echo hello")
    assert sorted(done.stdout.splitlines()) == ["hello", "hello"]
    assert list(monarch.folder.glob(".monarch/*/state.pkl")) == []
    monarch("exec", "true")
    assert monarch("kill").stdout == "Killed job\n"  # the same one, without a name
    assert "no job runs" in monarch("kill", status=66).stderr


@full
@pytest.mark.procs
def test_outputs_are_gathered(monarch: CommandLine) -> None:
    folder = monarch.folder
    (folder / "gathering.py").write_text(
        f"""
from monarch.job import ProcessJob

job = ProcessJob({{"trainers": 2}})
job.gather_mount("{folder}/there/$SUBDIR", "{folder}/here", mode="mirror")
"""
    )
    for rank in range(2):
        (folder / "there" / f"hosts_{rank}").mkdir(parents=True)
    monarch("apply", "gathering.job")
    done = monarch("exec", "--all", "echo from $MONARCH_RANK_hosts")
    found = re.search(rf"Output → {folder}/here/, in (exec_outputs/\w+)/ of each host", done.stdout)
    assert found is not None, done.stdout
    monarch("exec", "true")  # a mirror is brought up to date by whoever uses the job
    outputs = {path.read_text() for path in (folder / "here").rglob(f"{found[1]}/**/stdout.txt")}
    assert outputs == {"from 0\n", "from 1\n"}


@pytest.fixture
def terminal(monarch: CommandLine) -> Iterator[Terminal]:
    monarch("apply", "jobs.job")
    env = monarch.environment | {"TERM": "dumb", "SHELL": "/bin/bash", "HOME": str(monarch.folder)}
    opened = Terminal([*monarch.command, "shell", "--point", "hosts=1", "-e", "A=b"], env, str(monarch.folder))
    yield opened
    opened.close()


@full
@pytest.mark.procs
@pytest.mark.skipif(shutil.which("setsid") is None, reason="setsid (util-linux) gives the program its terminal")
def test_a_shell_on_a_host(terminal: Terminal) -> None:
    terminal.until(r"[$#] $")
    terminal.type("echo $A-$PWD; exit 3\n")
    terminal.until(r"^b-/")
    while (status := terminal.process.poll()) is None:
        terminal.read()
    assert status == 3


@full
@pytest.mark.procs
@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is a terminal with a window that can be resized")
def test_a_shell_in_tmux(monarch: CommandLine) -> None:
    monarch("apply", "jobs.job")
    tmux = ["tmux", "-L", f"monarch-{os.getpid()}", "-f", "/dev/null"]
    env = monarch.environment | {"SHELL": "/bin/bash", "HOME": str(monarch.folder), "PS1": "$ "}
    done = monarch.folder / "done"
    shell = f"{' '.join(monarch.command)} shell; echo $? > {done}; tmux -L monarch-{os.getpid()} wait-for -S over"
    try:
        subprocess.run(
            [*tmux, "new-session", "-d", "-x", "90", "-y", "30", shell], env=env, cwd=monarch.folder, check=True
        )
        keys = f"stty size > {monarch.folder}/size; exit 6"
        subprocess.run([*tmux, "send-keys", keys, "Enter"], env=env, check=True, timeout=TIMEOUT)
        subprocess.run([*tmux, "wait-for", "over"], env=env, check=False, timeout=TIMEOUT)
    finally:
        subprocess.run([*tmux, "kill-server"], env=env, check=False, capture_output=True)
    assert done.read_text() == "6\n" and (monarch.folder / "size").read_text() == "30 90\n"


def test_completion(tmp_path: Path) -> None:
    pytest.importorskip("argcomplete", reason="needs the package argcomplete")
    line = f"{sys.executable} -m monarch"
    script = subprocess.run(
        [*line.split(), "completion", "bash"], capture_output=True, text=True, timeout=TIMEOUT, check=True
    ).stdout
    assert "complete " in script and "monarch" in script
    (tmp_path / ".monarch" / "mine").mkdir(parents=True)

    def complete(typed: str) -> list[str]:
        env = {
            **os.environ,
            "_ARGCOMPLETE": "1",
            "_ARGCOMPLETE_IFS": "\n",
            "COMP_LINE": typed,
            "COMP_POINT": str(len(typed)),
        }
        done = subprocess.run(
            ["bash", "-c", f"{line} 8>&1 9>&2 >/dev/null 2>&1"],
            env=env, cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT, check=False,
        )  # fmt: skip
        return done.stdout.split()

    assert complete("monarch stat") == ["status"]
    assert complete("monarch run --nproc-per") == ["--nproc-per-node"]
    assert complete("monarch kill m") == ["mine"]


def test_completion_without_its_package(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['argcomplete'] = None; from monarch.tools.cli import main; main(['completion', 'zsh'])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=TIMEOUT, check=True)
    assert "pip install 'pymonarch[completion]'" in done.stderr
