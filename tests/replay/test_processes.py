"""Recording among real processes, and `monarch replay` in a shell."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import json_lines
from tests.support.tiers import full

pytestmark = pytest.mark.procs

PROGRAM = """\
import os, signal, sys
from monarch.actor import Actor, current_rank, endpoint, this_host


class Store(Actor):
    @endpoint
    def batch(self, step: int, rank: int) -> list[float]:
        return [rank + 1.0, 0.0 if (step, rank) == (2, 1) else 4.0]


class Trainer(Actor):
    def __init__(self, store: Store) -> None:
        self.store = store
        self.loss = 1.0

    @endpoint
    def step(self, step: int) -> float:
        batch = self.store.batch.call_one(step, current_rank().rank).get()
        self.loss = self.loss / batch[-1] * sum(batch)
        return self.loss

    @endpoint
    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    store = this_host().spawn_procs(per_host={"gpus": 1}).spawn("store", Store)
    trainers = this_host().spawn_procs(per_host={"gpus": 2}).spawn("trainers", Trainer, store)
    try:
        if sys.argv[1] == "die":
            trainers.step.call(0).get()
            trainers.slice(gpus=0).die.call().get()
        for step in range(5):
            trainers.step.call(step).get()
    except Exception as exc:
        print(type(exc).__name__)
"""


def _line(text: str) -> int:
    return next(number for number, line in enumerate(PROGRAM.splitlines(), 1) if text in line)


def _run(folder: Path, how: str) -> list[Path]:
    program = folder / "train.py"
    program.write_text(PROGRAM)
    environment = {"MONARCH_RECORD": "trainers", "MONARCH_RECORD_FOLDER": str(folder / "recordings")}
    _python(folder, str(program), how, **environment)
    files = sorted((folder / "recordings").iterdir())
    assert [path.name.split("-")[:2] for path in files] == [["trainers", "0"], ["trainers", "1"]]
    return files


def _python(folder: Path, *arguments: str, typed: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    import os

    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder, env=os.environ | environment, input=typed, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def _replay(file: Path, *options: str, typed: str = "") -> subprocess.CompletedProcess[str]:
    return _python(file.parent.parent, "-m", "monarch", "replay", str(file), *options, typed=typed)


def test_a_crash_comes_again_in_a_shell_with_pdb_at_its_line(tmp_path: Path) -> None:
    files = _run(tmp_path, "raise")
    done = _replay(files[1], "--until-failure")
    assert done.returncode == 1, done.stderr
    assert "message 3, step(), raised:" in done.stdout
    assert f'File "{tmp_path}/train.py", line {_line("self.loss / batch")}, in step' in done.stdout
    assert "ZeroDivisionError" in done.stdout
    done = _replay(files[1], "--pdb", typed="p batch\nq\n")
    assert "(Pdb) [2.0, 0.0]" in done.stdout
    fine = _replay(files[0])
    assert (fine.returncode, fine.stdout.splitlines()[-1]) == (
        0,
        "3 messages handled as then; the actor was stopped here",
    )


@full
def test_a_breakpoint_at_a_message(tmp_path: Path) -> None:
    files = _run(tmp_path, "raise")
    done = _replay(files[0], "--at", "2", typed="p step, self.loss\nc\n")
    assert "message 2: step()" in done.stdout
    assert "(Pdb) (1, 1.25)" in done.stdout
    assert done.returncode == 0


@full
def test_the_recording_of_a_killed_process_has_all_that_it_had_seen(tmp_path: Path) -> None:
    files = _run(tmp_path, "die")
    done = _replay(files[0], "--at", "2", typed="q\n")
    assert "message 2: die()" in done.stdout
    assert f"train.py({_line('os.kill')})die()" in done.stdout
    assert done.stdout.endswith("1 message handled as then; pdb was left\n")
    assert done.returncode == 0


@full
def test_a_correction_is_tried_on_the_recording(tmp_path: Path) -> None:
    files = _run(tmp_path, "raise")
    program = tmp_path / "train.py"
    program.write_text(PROGRAM.replace("self.loss / batch[-1]", "self.loss / max(batch[-1], 1.0)"))
    done = _replay(files[1])
    [told] = json_lines.read(_replay(files[1], "--json").stdout, 1)
    assert "ZeroDivisionError" in told.failure and told.divergence is None
    [told] = json_lines.read(_replay(files[1], "--json", "--class", "train.Trainer").stdout, 3)
    assert (told.divergence.message, told.divergence.method) == (3, "step")
    assert f"not as then: {program} has changed" in done.stdout
    assert "its class is of __main__, and runs as it was recorded" in done.stdout
    assert done.returncode == 1
    done = _replay(files[1], "--class", "train.Trainer")
    assert done.returncode == 3
    assert "at message 3 (step): then message 3 raised ZeroDivisionError: float division by zero, now" in done.stdout
    done = _replay(files[1], "--class", "train.Nothing")
    assert done.returncode == 1
    assert done.stderr.startswith("monarch replay: there is no class train.Nothing here: module 'train' has no")


def test_wrong_usage_is_said(tmp_path: Path) -> None:
    done = _python(tmp_path, "-m", "monarch", "replay", "nothing.monarchrec")
    assert done.returncode == 66
    assert done.stderr == f"monarch replay: [Errno 2] No such file or directory: '{tmp_path}/nothing.monarchrec'\n"
    assert _python(tmp_path, "-m", "monarch", "replay", "x", "--at", "0").returncode == 2
