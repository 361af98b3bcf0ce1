"""`monarch logs` of a program that runs, as its user types it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.patience import TIMEOUT
from tests.support.tiers import full

pytestmark = full
PROGRAM = """
import logging, sys
from monarch.actor import Actor, current_rank, endpoint, this_host

class Talker(Actor):
    @endpoint
    def say(self, text: str) -> None:
        print(text, current_rank().rank, flush=True)
        logging.getLogger().debug("debug %s", text)
        logging.getLogger().warning("warning %s", text)

def tell(word):  # print writes twice, and another thread prints what the processes write
    sys.stdout.write(word + "\\n")
    sys.stdout.flush()

procs = this_host().spawn_procs({"gpus": 3}, name="talkers")
talkers = procs.spawn("talkers", Talker)
talkers.say.call("hello").get()
tell("ready")
for line in sys.stdin:
    word = line.strip()
    if word == "level":
        procs.set_log_level("DEBUG").get()
    else:
        talkers.say.call(word).get()
    tell("done")
"""


class Program:
    def __init__(self, process: subprocess.Popen[str], environment: dict[str, str]) -> None:
        self.process = process
        self.environment = environment
        assert process.stdout is not None
        for line in process.stdout:
            if line == "ready\n":
                return
        raise AssertionError("it did not start")

    def say(self, text: str) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{text}\n")
        self.process.stdin.flush()
        lines: list[str] = []
        for line in self.process.stdout:
            if line == "done\n":
                return
            lines.append(line)
        raise AssertionError(f"it has ended: {lines}")

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "monarch", "logs", "--pid", str(self.process.pid), *words]

    def logs(self, *words: str, status: int = 0) -> str:
        done = subprocess.run(
            self.command(*words), env=self.environment, capture_output=True, text=True, timeout=TIMEOUT, check=False
        )
        assert done.returncode == status, done
        return done.stdout if not status else done.stderr


@pytest.fixture
def program(scripts: Any, tmp_path: Path) -> Iterator[Program]:
    files = tmp_path / "logs"
    env = {"HYPERACTOR_MESH_ENABLE_FILE_CAPTURE": "1", "MONARCH_LOG_DIR": str(files), "MONARCH_PRELOAD": "none"}
    process = scripts.start(PROGRAM, env=env)
    yield Program(process, os.environ | env | {"MONARCH_RUNTIME_DIR": str(scripts.runtime)})


def test_logs(program: Program, tmp_path: Path) -> None:
    assert set(program.logs("--grep", "^hello").splitlines()) == {f"[talkers {rank}] hello {rank}" for rank in range(3)}
    program.say("again")
    # The last two: stdout and stderr come through pipes of their own, in either order.
    assert "[talkers 1] again 1" in program.logs("--rank", "1", "--mesh", "talkers", "-n", "2").splitlines()
    assert "again 2" not in program.logs("--rank", "0-1")
    assert "hello 0" in program.logs("--since", "1h")
    assert "has no such processes" in program.logs("--rank", "7", status=66)
    assert "expected a time such as 10m" in program.logs("--since", "yesterday", status=1)
    paths = dict(line.split(": ") for line in program.logs("--paths").splitlines())
    file = Path(paths["talkers 2"])
    assert file.parent.parent == tmp_path / "logs"
    assert file.read_text().startswith("hello 2\n")
    assert file.stat().st_mode & 0o777 == 0o600
    # Levels.
    assert "debug" not in program.logs()
    assert "in 1 processes" in program.logs("--level", "debug", "--rank", "1")
    program.say("third")
    assert [line.split()[1] for line in program.logs("--grep", "debug third").splitlines()] == ["1]"]
    program.say("level")
    program.say("fourth")
    assert len(program.logs("--grep", "debug fourth").splitlines()) == 3
    assert "Invalid logging level: 'LOUD'" in program.logs("--level", "LOUD", status=1)


def test_follow(program: Program) -> None:
    following = subprocess.Popen(
        program.command("-f", "--rank", "2", "--grep", "news"),
        env=program.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    program.say("news")
    assert following.stdout is not None
    lines = {following.stdout.readline() for _ in range(2)}  # stdout and stderr, in either order
    assert "[talkers 2] news 2\n" in lines and any(line.endswith("warning news\n") for line in lines), lines
    program.process.kill()
    out, err = following.communicate(timeout=TIMEOUT)
    assert "(the program has ended)" in err, (out, err)
    assert following.returncode == 0
