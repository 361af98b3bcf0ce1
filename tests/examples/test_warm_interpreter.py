"""A program of the warm interpreter finds what one of a fresh interpreter finds, and ends as it does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.tiers import full
from tests.support.warm_interpreter import WarmInterpreter

PROGRAM = """
import atexit, os, sys

import __main__
atexit.register(print, "last", file=sys.stderr)
print(__name__, __main__.__file__ == __file__ == sys.argv[0], sys.argv[1:], os.getcwd(), os.environ["WORD"])
print(sys.path[0])
print(os.getsid(0) == os.getpid(), sys.stdin.read() == "", [name for name in sys.modules if name.startswith("monarch")])

def annotated(x: int) -> None: ...

print(annotated.__annotations__["x"] is int)
exec(sys.argv[1])
"""


@full
@pytest.mark.procs
@pytest.mark.parametrize(
    ("last", "status"),
    [("", 0), ("sys.exit(3)", 3), ("raise ValueError('wrong')", 1), ("os.kill(os.getpid(), 9)", -9)],
    ids=["ends", "exits", "raises", "is killed"],
)
def test_it_is_as_a_fresh_one(tmp_path: Path, last: str, status: int) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    command, env = [str(script), last], os.environ | {"WORD": "given"}
    fresh = subprocess.run(
        [sys.executable, *command], cwd=tmp_path, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        start_new_session=True, check=False,
    )  # fmt: skip
    warm = _WARM.run(command, cwd=tmp_path, env=env, timeout=60)
    assert (warm.returncode, warm.stdout, warm.stderr) == (fresh.returncode, fresh.stdout, fresh.stderr)
    assert warm.returncode == status


@full
@pytest.mark.procs
def test_one_that_does_not_end_is_ended(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text("import threading\nthreading.Event().wait()\n")
    with pytest.raises(subprocess.TimeoutExpired):
        _WARM.run([str(script)], cwd=tmp_path, env=dict(os.environ), timeout=0.5)
    script.write_text("print('next')\n")
    assert _WARM.run([str(script)], cwd=tmp_path, env=dict(os.environ), timeout=60).stdout == "next\n"


_WARM = WarmInterpreter()
