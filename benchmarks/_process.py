"""One workload in one process: started, timed out, its result read, and everything it started gone before
the next.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

RESULT_PREFIX = "BENCH-RESULT "
TAG = "MONARCH_BENCH_RUN"
GRACE_S = 3.0


@dataclass(frozen=True)
class Outcome:
    """`samples` by key when the workload printed its result, else empty and `failure` says why.
    `left_behind` counts processes still alive `GRACE_S` seconds after the contender's own process had ended
    (they are killed).
    """

    samples: Mapping[str, Sequence[float]] = field(default_factory=dict)
    failure: str = ""
    left_behind: int = 0


def run_workload(command: Sequence[str], env: Mapping[str, str], cwd: Path, timeout_s: float) -> Outcome:
    """Runs `command` in a session of its own and returns what it printed after RESULT_PREFIX.

    Its output goes to a file, not a pipe: a forgotten grandchild cannot keep us waiting for the end of a
    pipe.
    """
    tag = f"{TAG}={uuid.uuid4().hex}"
    scratch = Path(tempfile.mkdtemp(prefix="mb-"))
    # RAY_TMPDIR: Ray puts its sockets there; the name is short because a Unix-socket path holds 107 bytes.
    full = {**env, TAG: tag.partition("=")[2], "RAY_TMPDIR": str(scratch)}
    try:
        with open(scratch / "output", "w+b") as output:
            child = subprocess.Popen(
                command,
                cwd=cwd,
                env=full,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            timed_out = False
            try:
                child.wait(timeout_s)
            except subprocess.TimeoutExpired:
                timed_out = True
            finally:
                left = _end(child, tag.encode(), at_once=child.returncode is None)
            output.seek(0)
            text = output.read().decode(errors="replace")
        return _outcome(text, child.returncode, timed_out, timeout_s, left)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _outcome(text: str, status: int, timed_out: bool, timeout_s: float, left: int) -> Outcome:
    lines = text.splitlines()
    results = [line for line in lines if line.startswith(RESULT_PREFIX)]
    if results:
        return Outcome(json.loads(results[-1].removeprefix(RESULT_PREFIX)), left_behind=left)
    if timed_out:
        return Outcome(failure=f"no result after {timeout_s:g} s", left_behind=left)
    said = [line.strip() for line in lines if "Error" in line] or [line.strip() for line in lines if line.strip()]
    return Outcome(failure=f"exit status {status}: {said[-1][:300] if said else 'said nothing'}", left_behind=left)


def _end(child: subprocess.Popen[bytes], tag: bytes, at_once: bool) -> int:
    """Waits until all processes of the run are gone, kills what stays, and returns how many that were.
    With `at_once` (the run is already lost) nothing is waited for and nothing counted."""
    deadline = time.monotonic() + (0 if at_once else GRACE_S)
    while (alive := _alive(child.pid, tag)) and time.monotonic() < deadline:
        time.sleep(0.02)
    for _ in range(50):  # killing one may let another be born: look again until none is left
        if not (now := _alive(child.pid, tag)):
            break
        for pid in now:
            _kill(pid)
        child.poll()  # reap our own, or it would count as alive
        time.sleep(0.02)
    child.wait()
    return 0 if at_once else len(alive)


def _alive(session: int, tag: bytes) -> list[int]:
    """Processes of the run: those in its session, and those whose environment has the run's tag (a session
    of their own does not hide them, and neither does a new parent).
    """
    pids = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and _belongs(entry, session, tag):
            pids.append(int(entry.name))
    return pids


def _belongs(entry: Path, session: int, tag: bytes) -> bool:
    try:
        fields = (entry / "stat").read_bytes().rpartition(b")")[2].split()
        if fields[0] == b"Z":
            return False
        return int(fields[3]) == session or tag in (entry / "environ").read_bytes().split(b"\0")
    except (OSError, IndexError):
        return False  # it ended while we looked


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
