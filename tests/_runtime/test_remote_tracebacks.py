"""The text of what an endpoint raised: frames of the program, ours folded away, and lines that only the caller has."""

from __future__ import annotations

import linecache
import traceback
from collections.abc import Iterator
from typing import Any

import pytest

import monarch
from monarch._errors import format_remote, with_local_source
from monarch._runtime.remote_errors import formatted
from monarch.actor import Actor, ActorError, endpoint, this_proc
from monarch.config import configured
from monarch.testing import InProcessCluster
from tests.support.patience import TIMEOUT

OURS = f"{monarch.__path__[0]}/_runtime/somewhere.py"
NOTE = "of monarch itself folded away: setting show_internal_frames]"


def raised(*files: str) -> BaseException:
    """An exception that went through a function of each of these files, the outermost first."""

    def inner() -> None:
        raise ValueError("as asked")

    call = inner
    for file in reversed(files):
        names: dict[str, Any] = {"inner": call}
        exec(compile("def outer():\n    inner()\n", file, "exec"), names)
        call = names["outer"]
    try:
        call()
    except ValueError as exc:
        exc.__traceback__ = exc.__traceback__.tb_next if exc.__traceback__ else None  # without this function
        return exc
    raise AssertionError


@pytest.mark.parametrize(
    ("files", "shown", "folded"),
    [
        ([OURS, "/user.py"], ["/user.py"], 0),  # what called the endpoint is in every traceback, and not worth a word
        ([OURS, "/user.py", OURS, OURS, "/library.py"], ["/user.py", "/library.py"], 2),
        (["/user.py", OURS], ["/user.py"], 1),
        (["/user.py"], ["/user.py"], 0),
    ],
)
def test_frames_of_ours_are_folded(files: list[str], shown: list[str], folded: int) -> None:
    exc = raised(*files)
    text = format_remote(exc)
    assert [
        line.split('"')[1] for line in text.splitlines() if line.startswith('  File "/') and __file__ not in line
    ] == shown
    assert (f"  [{folded} frame(s) {NOTE}" in text) == bool(folded)
    assert text.rstrip().endswith("ValueError: as asked")
    whole = format_remote(exc, show_internal=True)
    assert whole.count(OURS) == files.count(OURS) and NOTE not in whole


def test_a_traceback_of_ours_alone_is_kept() -> None:
    exc = raised(OURS, OURS)
    assert exc.__traceback__ is not None and exc.__traceback__.tb_next is not None
    exc.__traceback__.tb_next.tb_next = None
    assert format_remote(exc).count(OURS) == 2


def test_causes_and_groups_are_folded_too() -> None:
    try:
        raise RuntimeError("above") from raised("/user.py", OURS)
    except RuntimeError as caught:
        text = format_remote(caught)
    assert OURS not in text and "[1 frame(s)" in text and "ValueError: as asked" in text
    assert OURS not in format_remote(ExceptionGroup("all", [raised("/user.py", OURS)]))


def test_a_setting_shows_them() -> None:
    exc = raised("/user.py", OURS)
    assert OURS not in formatted(exc)
    with configured(show_internal_frames=True):
        assert OURS in formatted(exc)


class Outer(Actor):
    @endpoint
    def ask(self, inner: Any) -> None:
        inner.fail.call_one().get(TIMEOUT)


class Inner(Actor):
    @endpoint
    def fail(self) -> None:
        raise ValueError("as asked")


def test_of_a_call_within_a_call_only_lines_of_the_program_are_shown() -> None:
    with InProcessCluster():
        outer, inner = this_proc().spawn("outer", Outer), this_proc().spawn("inner", Inner)
        with pytest.raises(ActorError) as caught:
            outer.ask.call_one(inner).get(TIMEOUT)
    text = str(caught.value)
    assert f"{monarch.__path__[0]}/" not in text and NOTE in text
    assert "inner.fail.call_one().get(TIMEOUT)" in text and 'raise ValueError("as asked")' in text


@pytest.fixture
def cell() -> Iterator[str]:
    """A cell of a notebook, whose source only the client has."""
    name = "/tmp/ipykernel_1/17.py"
    source = "def step():\n    return 1 / 0\n"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    yield name
    del linecache.cache[name]


def test_lines_of_cells_are_filled_in_where_the_notebook_is(cell: str) -> None:
    bare = f'Traceback (most recent call last):\n  File "{cell}", line 2, in step\nZeroDivisionError: division by zero'
    filled = with_local_source(bare)
    assert filled.splitlines()[1:3] == [f'  File "{cell}", line 2, in step', "    return 1 / 0"]
    assert with_local_source(filled) == filled  # and only where they are missing
    unknown = bare.replace(cell, "/tmp/ipykernel_1/18.py")
    assert with_local_source(unknown) == unknown


@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_text_that_two_threads_make_at_once_is_made_again(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """Python 3.11 raises SystemError then: AST constructor recursion depth mismatch."""
    made, left = traceback.TracebackException.format, iter(range(times))

    def format(self: Any, **options: Any) -> Any:
        if next(left, None) is not None:
            raise SystemError("AST constructor recursion depth mismatch")
        return made(self, **options)

    monkeypatch.setattr(traceback.TracebackException, "format", format)
    text = format_remote(raised("program.py"))
    assert ("as asked" in text) == (times < 3)
    assert ("cannot be shown: that raised SystemError" in text) == (times == 3)
