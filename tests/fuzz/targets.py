"""Targets of attacks, and what must be so afterwards."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from tests.support.processes import descendants

WARM = 60  # rounds before what the process holds is measured
LOOK = 100  # rounds between two looks at its log
GROWTH = 160 << 20  # bytes of memory that may come
DESCRIPTORS, THREADS, PROCESSES = 16, 48, 8  # that may: of pools
SETTLES = 60.0  # seconds for connections to be closed
_TRACE = "Traceback (most recent call last)"


class FuzzedProgram(NamedTuple):
    """A program that runs. `ports`: of its URLs, by name."""

    pid: int
    observer: int
    folder: str
    log: Path  # its stdout and stderr
    observer_log: Path
    ports: dict[str, int]


class Target(NamedTuple):
    """A door. `attack` is one round; it raises AssertionError for an answer that may not be. `serves` asks what its owner
    asks, and raises when he is not answered."""

    pid: int
    log: Path
    attack: Callable[[random.Random], None]
    serves: Callable[[], object]


class Held(NamedTuple):
    """Things that a process holds. `processes`: those that it has started, and theirs."""

    memory: int
    descriptors: int
    threads: int
    processes: int


def held(pid: int) -> Held:
    memory = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return Held(memory, len(os.listdir(f"/proc/{pid}/fd")), len(os.listdir(f"/proc/{pid}/task")), len(descendants(pid)))


@contextmanager
def running_program() -> Iterator[FuzzedProgram]:
    """One of its own, which has ended afterwards."""
    with tempfile.TemporaryDirectory(prefix="mf") as folder:
        log = Path(folder, "log")
        environment = {**os.environ, "MONARCH_RUNTIME_DIR": folder, "MONARCH_DEBUG_SERVER_PORT": "0"}
        with log.open("wb") as file, subprocess.Popen(
            [sys.executable, "-m", "tests.fuzz.program"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, env=environment,
        ) as process:  # fmt: skip
            assert process.stdin is not None and process.stdout is not None
            try:
                said: dict[str, Any] = {}
                while not said:
                    line = process.stdout.readline()
                    assert line, f"the program has ended: {log.read_text()}"
                    said = json.loads(line) if line.startswith(b"{") else {}
                threading.Thread(target=_drain, args=(process.stdout, log), daemon=True).start()
                yield FuzzedProgram(
                    said["pid"],
                    said["observer"],
                    said["folder"],
                    log,
                    Path(said["folder"], said["observer_in"], "log"),
                    {name: urlsplit(url).port or 0 for name, url in said["urls"].items()},
                )
            finally:
                process.stdin.close()
                try:
                    process.wait(60)
                except subprocess.TimeoutExpired:
                    process.kill()


def _drain(output: Any, log: Path) -> None:
    with log.open("ab") as file:
        for line in output:
            file.write(line)


def run(name: str, target: Target, seed: int, rounds: int | None, until: float) -> int:
    """Attacks `rounds` times, or until that time of time.monotonic(). Returns how often. AssertionError says what is wrong,
    and with which seed."""
    before: Held | None = None
    done = 0
    try:
        while done < WARM or (done < rounds if rounds is not None else time.monotonic() < until):
            target.attack(random.Random(f"{seed}:{done}"))
            done += 1
            if done % LOOK == 0:
                check_log(target)
            if done == WARM:
                target.serves()
                before = settled(target.pid, None)
        assert before is not None
        target.serves()
        check_log(target)
        after = settled(target.pid, before)
    except Exception as exc:
        raise AssertionError(f"{name}, seed {seed}, round {done}: {type(exc).__name__}: {exc}") from exc
    print(f"{name}: {done:,} rounds, seed {seed}; before {before}, after {after}", flush=True)
    return done


def check_log(target: Target) -> None:
    text = target.log.read_text(errors="replace")
    assert _TRACE not in text, f"a traceback in its log: {text[text.index(_TRACE) :][:3000]}"


def settled(pid: int, before: Held | None) -> Held:
    """Returns what it holds, as soon as that is not much more than before; without that, as soon as it stays as it is."""
    deadline, last = time.monotonic() + SETTLES, held(pid)
    while True:
        threading.Event().wait(0.5)
        now = held(pid)
        if before is None:
            if now.descriptors >= last.descriptors or time.monotonic() > deadline:
                return now
        elif (
            now.memory - before.memory <= GROWTH
            and now.descriptors - before.descriptors <= DESCRIPTORS
            and now.threads - before.threads <= THREADS
            and now.processes - before.processes <= PROCESSES
        ):
            return now
        assert time.monotonic() < deadline, f"it held {before}, and holds {now}"
        last = now
