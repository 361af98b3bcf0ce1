"""The programs of docs/coming-from/ray.md, those for Ray and ours, print the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.examples.running import ROOT, run_program

pytestmark = pytest.mark.ray

PROGRAMS = ROOT / "docs/coming-from/programs"
NAMES = sorted(path.stem.removeprefix("ray_") for path in PROGRAMS.glob("ray_*.py"))
# What Ray prints of its own processes begins with their names: "(raylet) ...".
OF_RAY = re.compile(r"(\x1b\[\d+m)?\(\w+")


def printed(program: str, folder: Path) -> list[str]:
    lines = run_program(PROGRAMS / program, cwd=folder).stdout.splitlines()
    return [line for line in lines if not OF_RAY.match(line)]


@pytest.mark.parametrize("name", NAMES)
def test_both_print_the_same(
    name: str, environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "service":
        pytest.importorskip("fastapi", reason="needs ray[serve]")  # which brings it
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    theirs = printed(f"ray_{name}.py", tmp_path)
    assert theirs
    assert printed(f"monarch_{name}.py", tmp_path) == theirs
