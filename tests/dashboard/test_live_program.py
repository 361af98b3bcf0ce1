"""Tests of what the dashboard makes of a program's answers."""

from __future__ import annotations

import pytest

from monarch._mesh.inspection.stack_records import ProcessStacks, StackFrame, ThreadStack
from monarch.dashboard.pages.live_program import folded, name_of


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("/usr/bin/python3 -u /home/me/train.py --lr 1", "train.py"),
        ("python -m my.trainer --x", "my.trainer"),
        ("python -c import", "python"),
        ("torch-thing", "torch-thing"),
        ("python 'unbalanced", "python"),
        ("", "program"),
    ],
)
def test_what_people_call_a_program(command: str, name: str) -> None:
    assert name_of(command) == name


def test_threads_are_compared_within_their_mesh() -> None:
    frames = [StackFrame("train.py", 88, "Trainer.step")]
    threads = [
        ThreadStack("actor", 1, frames, actor="trainers", key="k", rank=5, endpoint="step"),
        ThreadStack("MainThread", 2, [], idle=True),
    ]
    first, second = folded(ProcessStacks("a/u.5", "a", 7, "workers", 5, threads))
    assert (first.where, first.group, first.thread) == ("trainers 5", "trainers", "step()")
    assert first.frames == [("Trainer.step", "train.py", 88)]
    assert (second.group, second.idle) == ("processes of workers", True)
    (third,) = folded(ProcessStacks("a/client", "a", 7, "", 0, [ThreadStack("MainThread", 2, frames)]))
    assert third.group == "client"
    (watches,) = folded(ProcessStacks("a/client", "a", 7, "", 0, [ThreadStack("monarch-observer", 3, frames)]))
    assert watches.idle  # of the runtime
