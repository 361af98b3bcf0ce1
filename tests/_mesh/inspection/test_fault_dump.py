"""Tests that what Python's faulthandler writes, in the forms of several versions, becomes stacks."""

from __future__ import annotations

import faulthandler
import os
import tempfile
import threading

import monarch
from monarch._mesh.inspection import agent_stacks, fault_dump
from monarch._mesh.inspection.stack_records import StackFrame

OURS = os.path.dirname(monarch.__file__)
ACTOR = f"""\
  File "/srv/data.py", line 31 in load
  File "/srv/train.py", line 88 in step
  File "{OURS}/_mesh/actors/behaviour.py", line 210 in handle
  File "{OURS}/_runtime/driver.py", line 55 in run
  File "{threading.__file__}", line 982 in run
"""
IDLE = f"""\
  File "{OURS}/_runtime/mailbox.py", line 55 in wait
  File "{OURS}/_runtime/driver.py", line 55 in run
"""
MAIN = f"""\
  File "{OURS}/_mesh/process/child.py", line 93 in serve
  File "<string>", line 1 in <module>
"""


def test_the_innermost_frame_comes_last() -> None:
    (stack,) = fault_dump.parse(f"Thread 0x00007f2c8b7fe640 (most recent call first):\n{ACTOR}")
    assert stack.frames == [StackFrame("/srv/train.py", 88, "step"), StackFrame("/srv/data.py", 31, "load")]
    assert (stack.thread, stack.actor, stack.endpoint, stack.idle) == (
        "thread 0x7f2c8b7fe640",
        "an actor",
        "step",
        False,
    )


def test_threads_of_the_runtime_are_left_out_unless_asked_for() -> None:
    text = f"Thread 0x01 (most recent call first):\n{ACTOR}\nCurrent thread 0x02 (most recent call first):\n{MAIN}"
    assert [stack.thread for stack in fault_dump.parse(text)] == ["thread 0x1"]
    both = fault_dump.parse(text, all_threads=True)
    assert [len(stack.frames) for stack in both] == [5, 2]


def test_an_actor_that_does_nothing_is_idle() -> None:
    (stack,) = fault_dump.parse(f"Thread 0x0a (most recent call first):\n{IDLE}")
    assert (stack.idle, stack.frames, stack.endpoint) == (True, [], "")


def test_threads_have_names_in_newer_versions() -> None:
    (stack,) = fault_dump.parse(f"Thread 0x0a [monarch-actor-d] (most recent call first):\n{ACTOR}")
    assert stack.thread == "monarch-actor-d"


def test_a_dump_that_is_not_written_yet_or_is_cut() -> None:
    whole = f'Thread 0x0a (most recent call first):\n  File "/srv/a.py", line ??? in <module>\n  ...\n\n{ACTOR[:-40]}'
    (stack,) = fault_dump.parse(whole)
    assert stack.left_out == 1
    assert StackFrame("/srv/a.py", 0, "<module>") in stack.frames
    for end in range(len(whole)):
        fault_dump.parse(whole[:end])


def test_what_is_no_dump_has_no_threads() -> None:
    assert fault_dump.parse("") == fault_dump.parse("Segmentation fault\n\x00\xff") == fault_dump.parse(ACTOR) == []
    assert fault_dump.parse("Thread 0x01 (most recent call first):\n  <no Python frame>\n") == []


def test_of_two_dumps_the_last_one_counts() -> None:
    """Two have asked at the same time."""
    first = 'Thread 0x01 (most recent call first):\n  File "/srv/a.py", line 1 in f\n\n'
    (stack,) = fault_dump.parse(first + first.replace("line 1", "line 2"))
    assert stack.frames == [StackFrame("/srv/a.py", 2, "f")]


def test_what_this_python_writes_is_understood() -> None:
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        stacks = fault_dump.parse(file.read())
    assert any(stack.frames[-1].function == "test_what_this_python_writes_is_understood" for stack in stacks)


# --- py-spy


def native(*frames: tuple[str, str, int]) -> dict[str, object]:
    return {
        "thread_id": 1,
        "thread_name": None,
        "os_thread_id": 77,
        "owns_gil": True,
        "frames": [{"name": name, "filename": file, "module": "m", "line": line} for name, file, line in frames],
    }


def test_native_frames_are_shown_from_the_program_on() -> None:
    (stack,) = agent_stacks.parse_native(
        [
            native(
                ("nanosleep", "/usr/lib/libc.so.6", 0),
                ("step", "/srv/train.py", 88),
                ("handle", f"{OURS}/_mesh/actors/behaviour.py", 210),
                ("run", f"{OURS}/_runtime/driver.py", 55),
                ("clone", "/usr/lib/libc.so.6", 0),
            )
        ]
    )
    assert [frame.function for frame in stack.frames] == ["step", "nanosleep"]
    assert (stack.native_id, stack.gil, stack.actor, stack.endpoint) == (77, True, "an actor", "step")


def test_threads_in_which_the_program_is_not_are_left_out() -> None:
    threads = [native(("poll", "libc.so", 0), ("run", f"{OURS}/_runtime/loop.py", 3))]
    assert agent_stacks.parse_native(threads) == []
    assert len(agent_stacks.parse_native(threads, all_threads=True)) == 1
