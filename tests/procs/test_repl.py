"""An interactive interpreter on a terminal: classes from the prompt, calls, Ctrl-C, failures while it waits for a line."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.patience import TIMEOUT
from tests.support.processes import Watch, descendants
from tests.support.terminal import Terminal
from tests.support.tiers import first_of

pytestmark = [
    pytest.mark.procs,
    pytest.mark.skipif(shutil.which("setsid") is None, reason="setsid (util-linux) gives the program its terminal"),
]
ROOT = Path(__file__).resolve().parents[2]

CLASS = """\
import os
import time
from monarch.actor import Actor, endpoint, this_host
class Counter(Actor):
    def __init__(self): self.n = 0
    @endpoint
    def add(self, k: int) -> int: self.n += k; return self.n
    @endpoint
    def slow(self) -> None: time.sleep(600)
    @endpoint
    def die(self) -> None: os._exit(3)

counters = this_host().spawn_procs({"gpus": 2}).spawn("counters", Counter)
"""


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Any]:
    opened: list[Terminal] = []

    def start(how: str) -> Terminal:
        program = tmp_path / "program.py"
        program.write_text(CLASS)
        command = [sys.executable, "-q", *(["-i", str(program)] if how == "script" else [])]
        # The prompt that 3.13 draws moves the cursor about; the basic one is that of all versions.
        env = {**os.environ, "TERM": "dumb", "PYTHON_BASIC_REPL": "1", "PYTHONPATH": str(ROOT)}
        opened.append(Terminal(command, env))
        opened[-1].until(r">>> $")
        if how == "prompt":
            opened[-1].type(CLASS)
        return opened[-1]

    yield start
    for one in opened:
        one.close()


@pytest.mark.parametrize(("how", "end"), first_of([("prompt", "exit()\n"), ("prompt", "\x04"), ("script", "\x04")]))
def test_a_session(terminal: Any, how: str, end: str) -> None:
    repl = terminal(how)
    repl.type("print('sum', sum(counters.add.call(2).get().values()))\n")
    repl.until(r"^sum 4$")

    repl.type("print('be' + 'gun'); counters.slice(gpus=0).slow.call_one().get()\n")
    repl.until(r"^begun$")
    repl.type("\x03")
    # Without the rest where it came before the program waited.
    repl.until(r"^KeyboardInterrupt(: while it waited for a result from counters\.slow\(\), rank\(s\) 0)?$")
    repl.type("print('sum', counters.slice(gpus=1).add.call_one(1).get())\n")
    repl.until(r"^sum 3$")

    repl.type("counters.slice(gpus=1).die.broadcast()\n")  # it fails while the prompt waits for a line
    repl.until(r"exited with non-zero code 3")
    repl.until(r"UnhandledFaultError")
    repl.type("\nprint('goes' + ' on', 1 + 1)\n")
    repl.until(r"^goes on 2\n>>> $")  # an end of input that is typed before the prompt is lost in the terminal

    left = Watch(descendants(repl.process.pid))
    repl.type(end)
    # From 3.14 on Python itself ends so, however long ago a Ctrl-C came at its prompt.
    status = -signal.SIGINT if sys.version_info >= (3, 14) else 0
    assert repl.process.wait(TIMEOUT) == status
    assert left.survivors(10) == {}
