"""Tests of whose a thing is: a forked child has it as well, and may not end it."""

from __future__ import annotations

import atexit
import os
import pickle
from collections.abc import Callable

import pytest

from monarch._errors import ForkedClientError
from monarch._linux import maker
from monarch._linux.maker import Maker


def in_child(work: Callable[[], object]) -> int:
    """The status of a forked child: 0 if `work` gives something true."""
    child = os.fork()
    if not child:
        status = 2
        try:
            status = 0 if work() else 1
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_forked_child_is_not_the_maker_and_who_unpickles_is() -> None:
    made = Maker()

    def work() -> bool:
        with pytest.raises(
            ForkedClientError, match=rf"the mount at /m belongs to process {made.pid}, .*Do so there, or"
        ):
            made.check("the mount at /m")
        return not made.is_here and pickle.loads(pickle.dumps(made)).is_here

    assert made.is_here and in_child(work) == 0
    made.check("the mount at /m")


def test_what_is_to_be_done_at_exit_a_forked_child_leaves_to_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    registered: list[Callable[[], object]] = []
    done: list[int] = []
    monkeypatch.setattr(atexit, "register", registered.append)
    maker.at_exit(lambda: done.append(1))
    (run,) = registered
    assert in_child(lambda: [run(), done == []][1]) == 0
    run()
    assert done == [1]
