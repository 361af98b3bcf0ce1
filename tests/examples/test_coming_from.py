"""The programs side by side in docs/coming-from: pages show them as they are, and each pair prints the same.

Those for Ray run in tests/ray. Those for Dask run with the interpreter that MONARCH_TEST_DASK names, or with this one if
it has `distributed`.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.examples.running import ROOT, TIMEOUT, environment, run_program
from tests.support.command_line import command_line
from tests.support.page_programs import renewed, shown
from tests.support.printed import promises
from tests.support.tiers import full

FOLDER = ROOT / "docs/coming-from"
PROGRAMS = FOLDER / "programs"
PAGES = sorted(FOLDER.glob("*.md"))

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="the programs need torch")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_shows_programs_as_they_are(page: Path) -> None:
    assert page.read_text() == renewed(page), f"python -m tests.support.page_programs {page.relative_to(ROOT)}"


def test_every_program_is_on_a_page() -> None:
    on_pages = {file for page in PAGES for file, _ in shown(page)}
    assert on_pages == set(PROGRAMS.glob("*.py"))


# --- torchrun


def launched(launcher: list[str], folder: Path, *words: str) -> str:
    """Returns what a torchrun script printed under `launcher`."""
    with command_line(folder) as line:
        done = subprocess.run(
            [sys.executable, "-m", *launcher, "--nproc-per-node", "2", *words],
            cwd=folder,
            # torch shares a store over restarts unless told not to, and ranks may then read what was written before
            env=line.environment | {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
            capture_output=True,
            text=True,
            timeout=3 * TIMEOUT,  # two attempts, each of which imports torch in all ranks
            check=False,
        )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


TORCHRUN = ["torch.distributed.run", "--standalone"]
OURS = ["monarch", "run"]
ELASTIC = ["--max-restarts", "3", str(PROGRAMS / "torchrun_elastic.py")]


def folders(tmp_path: Path) -> list[Path]:
    made = [tmp_path / name for name in ("theirs", "ours")]
    for folder in made:
        folder.mkdir()
    return made


def promised(name: str) -> list[str]:
    """Returns what an actor program says it prints; that it does is checked with its page."""
    return [promise.text for promise in promises((PROGRAMS / name).read_text())]


@pytest.mark.slow  # of each, a torch is imported in every rank; tests/job/test_monarch_run.py has the same in small
@needs_torch
@pytest.mark.procs
def test_a_torchrun_script_prints_the_same_under_both(tmp_path: Path) -> None:
    theirs, ours = folders(tmp_path)
    script = str(PROGRAMS / "torchrun_ddp.py")
    printed = launched(TORCHRUN, theirs, script)
    assert printed.splitlines() == promised("monarch_ddp.py")[-1:]
    assert launched(OURS, ours, script) == printed


@pytest.mark.slow  # of each, a torch is imported in every rank; tests/job/test_monarch_run.py has the same in small
@needs_torch
@pytest.mark.procs
def test_a_rank_that_dies_is_survived_under_both(tmp_path: Path) -> None:
    theirs, ours = folders(tmp_path)
    printed = launched(TORCHRUN, theirs, *ELASTIC)
    assert printed.splitlines() == promised("monarch_elastic.py")[-1:]
    assert launched(OURS, ours, *ELASTIC) == printed


# --- Dask


def dask() -> str:
    """An interpreter that has it, or ""."""
    here = sys.executable if importlib.util.find_spec("distributed") else ""
    return os.environ.get("MONARCH_TEST_DASK", here)


@full
@pytest.mark.procs
@pytest.mark.skipif(not dask(), reason="needs Dask: MONARCH_TEST_DASK names an interpreter that has `distributed`")
@pytest.mark.parametrize("name", sorted(path.stem.removeprefix("dask_") for path in PROGRAMS.glob("dask_*.py")))
def test_dask_and_ours_print_the_same(name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [dask(), str(PROGRAMS / f"dask_{name}.py")],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert run_program(PROGRAMS / f"monarch_{name}.py", cwd=tmp_path).stdout == done.stdout
