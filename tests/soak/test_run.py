"""Tests of what a run takes for a hang, and how facts of real processes come together."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import Any

import pytest

from tests.soak.history import Born, Done, Sent, Struck
from tests.soak.message_log import MessageLog
from tests.soak.processes import FileHistory
from tests.soak.program import CALL_ONE, CLIENT, WORK, Program
from tests.soak.run import _Runner


class LateFuture:
    """Becomes ready when the wait for it has just ended."""

    def __init__(self) -> None:
        self.waits = 0

    def get(self, timeout: float | None = None) -> int:
        self.waits += 1
        if self.waits == 1:
            raise TimeoutError("no result")
        return 7

    def __repr__(self) -> str:
        return "<Future ready>"


def test_a_future_that_becomes_ready_when_the_wait_ends_is_no_timeout() -> None:
    runner = _Runner(Program(0, ()), 60.0, None, MessageLog(), None)
    assert runner._wait(LateFuture(), "it") == 7


def test_facts_of_several_processes_have_one_order_and_ours_stay_what_they_are(tmp_path: Any) -> None:
    history = FileHistory(str(tmp_path / "history"), ours=True)
    elsewhere = pickle.loads(pickle.dumps(history))
    struck, sent = Struck("kill"), Sent(CLIENT, CLIENT, 1, "m0", (0,), CALL_ONE, WORK)
    history.note(struck)
    elsewhere.note(Born(("m0", 0), 0))
    with history.sending(sent):
        elsewhere.note(Born(("m0", 1), 0))
    elsewhere.note(Born(("m0", 2), 0))
    history.note(Done(struck))
    facts = history.facts()
    assert [type(fact) for fact in facts] == [Struck, Born, Sent, Born, Born, Done]
    assert [fact.at for fact in facts] == [0, 1, 2, 3, 4, 5]
    assert facts[0] is struck and facts[5].struck is struck
    assert sent.left == 4
    assert history.wait_for(lambda facts: len(facts) == 6, 0)
    history.close()
    elsewhere._fd = -1


@pytest.mark.slow
def test_a_program_in_real_processes_keeps_every_promise() -> None:
    command = [sys.executable, "-m", "tests.soak", "2", "--processes"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
