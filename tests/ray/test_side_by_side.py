"""The programs of docs/coming-from/ray.md, those for Ray and ours, print the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.examples.running import ROOT, run_program

pytestmark = pytest.mark.ray

PROGRAMS = ROOT / "docs/coming-from/programs"
NAMES = sorted(path.stem.removeprefix("ray_") for path in PROGRAMS.glob("ray_*.py"))


@pytest.mark.parametrize("name", NAMES)
def test_both_print_the_same(
    name: str, environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    theirs = run_program(PROGRAMS / f"ray_{name}.py", cwd=tmp_path).stdout
    assert theirs
    assert run_program(PROGRAMS / f"monarch_{name}.py", cwd=tmp_path).stdout == theirs
