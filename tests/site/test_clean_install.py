"""Tests of what `make dist` says about a wheel and an sdist that are not as they should be."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.clean_install import IN_SDIST, IN_WHEEL, ROOT, Wrong, check_sdist, check_wheel, first_program, main

INFO = "pymonarch-0.1.0.dist-info/METADATA"


@pytest.mark.parametrize(
    ("names", "wrong"),
    [
        ([*IN_WHEEL, INFO], ""),
        ([*IN_WHEEL, INFO, "tests/test_x.py"], "more than the package"),
        ([*IN_WHEEL[1:], INFO], "lacks monarch/py.typed"),
        ([*IN_WHEEL, INFO, "monarch/x.cpython-311.pyc"], "belongs to this machine"),
    ],
)
def test_a_wheel(names: list[str], wrong: str) -> None:
    if not wrong:
        return check_wheel(names)
    with pytest.raises(Wrong, match=wrong):
        check_wheel(names)


@pytest.mark.parametrize(
    ("more", "less", "wrong"),
    [
        ([], [], ""),
        ([], ["docs/conf.py"], "lacks docs/conf.py"),
        (["docs/_site/index.html"], [], "holds docs/_site"),
        (["benchmarks/output.py"], [], ""),
    ],
)
def test_an_sdist(more: list[str], less: list[str], wrong: str) -> None:
    names = [f"pymonarch-0.1.0/{name}" for name in [*IN_SDIST, *more] if name not in less]
    if not wrong:
        return check_sdist(names)
    with pytest.raises(Wrong, match=wrong):
        check_sdist(names)


def test_the_first_program_keeps_its_lines() -> None:
    page = (ROOT / "README.md").read_text()
    text = first_program(page)
    assert text.startswith("\n")
    for number, line in enumerate(text.splitlines()):
        assert line in ("", page.splitlines()[number])
    assert "procs.stop().get()\n" in text and "```" not in text


def test_without_a_distribution(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(tmp_path) == 1
    assert "expected 1: run `make dist`" in capsys.readouterr().err
