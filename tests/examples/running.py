"""Programs and notebooks run as a user would run them: by a fresh interpreter, on this checkout, in their own folder."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.warm_interpreter import WarmInterpreter

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
TIMEOUT = 300

_WITH_TORCH = WarmInterpreter()


def left_behind(folder: Path, before: set[Path], arguments: Sequence[str] = ()) -> list[str]:
    """Returns what a program has left in its folder and a checkout would show as untracked, but for what its arguments name.
    A program that leaves nothing else finds its folder as it was when it is run again."""
    words = [Path(word) for word in arguments if word and not word.startswith("-")]
    new = set(folder.iterdir()) - before
    left = sorted(path.name + "/" * path.is_dir() for path in new if not any(is_named(path, word) for word in words))
    asked = "".join(f"{name}\n" for name in left)
    told = subprocess.run(
        ["git", "check-ignore", "--no-index", "--stdin"],
        cwd=ROOT,
        input=asked,
        capture_output=True,
        text=True,
        check=False,
    )
    if told.returncode > 1:  # no checkout, so nobody's to be kept clean
        return []
    ignored = set(told.stdout.splitlines())
    return [name for name in left if name not in ignored]


def is_named(path: Path, word: Path) -> bool:
    """Tells whether an argument names a file, or a folder that it is in; `trace.json` also names `trace_1.json`."""
    numbered = word.suffix != "" and path.suffix == word.suffix and path.stem.startswith(f"{word.stem}_")
    return path.name in (word.parts[0], word.name) or numbered


def environment() -> dict[str, str]:
    path = os.pathsep.join(p for p in (str(ROOT), os.environ.get("PYTHONPATH", "")) if p)
    return os.environ | {"PYTHONPATH": path}


def run_program(script: Path, *arguments: str, cwd: Path, timeout: float = TIMEOUT) -> subprocess.CompletedProcess[str]:
    """Returns what it printed; fails when it does not end well. An example leaves nothing that git does not ignore."""
    before = set(cwd.iterdir())
    env = environment() | {"OMP_NUM_THREADS": "1"}  # or the threads of each process are said on stderr
    command = [str(script), *arguments]
    if "torch" in script.read_text():
        done = _WITH_TORCH.run(command, cwd=cwd, env=env, timeout=timeout)
    else:
        done = subprocess.run(
            [sys.executable, *command], cwd=cwd, env=env, capture_output=True, text=True, timeout=timeout, check=False
        )
    assert done.returncode == 0, f"{script.name} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    if EXAMPLES in script.parents:
        left = left_behind(cwd, before, arguments)
        assert left == [], f"{script.name} has left {left}"
    return done


def run_commands(commands: Sequence[str], cwd: Path) -> list[str]:
    """Returns what each wrote to stdout and stderr, in one shell. `python` and `monarch` are those of the tests."""
    if not commands:
        return []
    names = cwd.parent / "bin"
    names.mkdir()
    for name, command in {"python": [sys.executable], "monarch": [sys.executable, "-m", "monarch"]}.items():
        (names / name).write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
        (names / name).chmod(0o755)
    outputs = [cwd.parent / f"output_{number}" for number in range(len(commands))]
    script = "".join(
        f"{{ {command}\n}} >{shlex.quote(str(output))} 2>&1 </dev/null\n"
        for command, output in zip(commands, outputs, strict=True)
    )
    path = os.pathsep.join([str(names), os.environ.get("PATH", "")])
    shell = subprocess.Popen(
        ["bash", "-c", script],
        cwd=cwd,
        env=environment() | {"PATH": path, "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )
    try:
        shell.wait(TIMEOUT + 30 * len(commands))  # each starts an interpreter, and often several with torch
    finally:
        if shell.poll() is None:
            os.killpg(shell.pid, signal.SIGKILL)
            shell.wait()
    return [output.read_text() for output in outputs]


def read_notebook(name: str) -> Any:
    nbformat = pytest.importorskip("nbformat", reason="the notebook tests need nbformat")
    sheet = nbformat.read(EXAMPLES / name, as_version=4)
    nbformat.validate(sheet)
    return sheet


def run_notebook(name: str, cwd: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Any]]:
    """The streams that each of its code cells wrote, by the cell's id."""
    nbclient = pytest.importorskip("nbclient", reason="the notebook tests need nbclient and ipykernel")
    pytest.importorskip("ipykernel", reason="the notebook tests need nbclient and ipykernel")
    monkeypatch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # or the threads of each process are said on stderr
    sheet = read_notebook(name)
    client = nbclient.NotebookClient(
        sheet, timeout=TIMEOUT, kernel_name="python3", resources={"metadata": {"path": str(cwd)}}
    )
    client.execute()
    return {
        cell.id: [output for output in cell.outputs if output.output_type == "stream"]
        for cell in sheet.cells
        if cell.cell_type == "code"
    }
