"""Programs written as libraries are, run as their users run them. All of them, and what they take beside other
implementations: `make test-programs`."""

from __future__ import annotations

import sys

import pytest

from tests import programs
from tests.programs import __main__ as runner
from tests.support.tiers import full

QUICK = ["lighthouse.py", "router.py", "services.py"]  # the others import torch in each of their processes


@full
@pytest.mark.procs
@pytest.mark.parametrize("name", QUICK)
def test_a_program_ends_with_all_its_checks(name: str) -> None:
    done = runner.checked(runner.run(runner.command(sys.executable, name), ours=True))
    assert done.problem == "", done.stdout


def test_every_file_is_found() -> None:
    """The runner has all of them, and the page of the documentation names each."""
    assert set(QUICK) <= set(runner.PROGRAMS)
    assert "notebook.ipynb" in runner.PROGRAMS and not {"__init__.py", "test_programs.py"} & set(runner.PROGRAMS)
    page = (runner.ROOT / "docs/coming-from/upstream.md").read_text()
    assert [name for name in runner.PROGRAMS if f"`{name}`" not in page] == []
    assert programs.__doc__


def test_a_problem_is_told_in_its_own_words() -> None:
    stderr = "Traceback (most recent call last):\n  at\nValueError: of a program\n\nsomething at its end\n"
    assert runner.problem_in(stderr, 1) == "ValueError: of a program"
    assert runner.problem_in("only words\n", 1) == "only words" and runner.problem_in("", 3) == "status 3"


def test_a_program_that_stops_half_way_has_not_held() -> None:
    assert "did not come to its end" in runner.checked(runner.Ran(1.0, "begun\n", "")).problem
    assert str(runner.checked(runner.Ran(1.0, "begun\nok\n", ""))) == "1.0 s"


def test_a_name_that_fits_none_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        runner.main(["nothing-like-it"])
    assert "no program has one of these in its name: nothing-like-it" in capsys.readouterr().err


def test_of_several_rounds_the_middle_one_counts_and_a_failure_more(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = [
        (runner.Ran(ours, "", ""), runner.Ran(1.0, "", theirs))
        for ours, theirs in [(3.0, ""), (1.0, "broken"), (2.0, "")]
    ]
    rounds = iter(ran)
    monkeypatch.setattr(runner, "pair", lambda name: next(rounds))
    ours, theirs = runner.pairs("any", 3)
    assert ours.seconds == 2.0 and theirs is not None and theirs.problem == "broken"
