"""Programs and notebooks run as a user would run them: by a fresh interpreter, on this checkout, in their own folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
TIMEOUT = 120


def environment() -> dict[str, str]:
    path = os.pathsep.join(p for p in (str(ROOT), os.environ.get("PYTHONPATH", "")) if p)
    return os.environ | {"PYTHONPATH": path}


def run_program(script: Path, *arguments: str, cwd: Path, timeout: float = TIMEOUT) -> subprocess.CompletedProcess[str]:
    """What it printed; fails when it does not end well."""
    done = subprocess.run(
        [sys.executable, str(script), *arguments],
        cwd=cwd,
        env=environment() | {"OMP_NUM_THREADS": "1"},  # or the threads of each process are said on stderr
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, f"{script.name} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


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
