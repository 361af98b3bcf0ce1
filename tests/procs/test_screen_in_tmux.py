"""`monarch tui` in a real terminal, which tmux has: what is in sight at each size, its keys, its colours."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.support.patience import TIMEOUT
from tests.support.tiers import full

pytestmark = [
    full,
    pytest.mark.procs,
    pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is the terminal"),
]

PROGRAM = """
import sys
import monarch.metrics
from monarch.actor import Actor, debug_controller, endpoint, this_host

class Trainer(Actor):
    @endpoint
    def ready(self):
        for step in range(20):
            monarch.metrics.log(step=step, loss=1 / (step + 1))

    @endpoint
    def train(self):
        breakpoint()

if __name__ == "__main__":
    monarch.metrics.keep("runs")
    trainers = this_host().spawn_procs({"gpus": 2}, name="trainers").spawn("trainers", Trainer)
    trainers.ready.call().get()
    stopped = trainers.slice(gpus=1).train.call()
    debug_controller().wait_pending_session.call_one().get(300)
    print("ready", flush=True)
    sys.stdin.read()
"""
COLOUR = re.compile(r"\x1b\[(?:\d+;)*(?:[349][0-7]|10[0-7]|[34]8)[;m]")  # of SGR; 39 and 49 are the terminal's own


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[subprocess.Popen[str]]:
    folder = tmp_path_factory.mktemp("program")
    (folder / "train.py").write_text(PROGRAM)
    environment = os.environ | {
        "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
        "MONARCH_DEBUG_SERVER_PORT": "0",
    }
    process = subprocess.Popen(
        [sys.executable, "train.py"],
        cwd=folder,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


_numbers = itertools.count()  # a server that is killed goes a moment later


class Screen:
    """A tmux of its own in which `monarch tui` runs."""

    def __init__(self, pid: int, width: int, height: int, env: Mapping[str, str]) -> None:
        self._tmux = ["tmux", "-L", f"monarch-tui-{os.getpid()}-{next(_numbers)}", "-f", "/dev/null"]
        self._env = {name: text for name, text in os.environ.items() if name != "NO_COLOR"} | dict(env)
        command = f"{sys.executable} -m monarch tui --pid {pid}"
        self._do("new-session", "-d", "-x", str(width), "-y", str(height), command)

    def _do(self, *args: str) -> str:
        found = subprocess.run([*self._tmux, *args], env=self._env, check=True, capture_output=True, timeout=TIMEOUT)
        return found.stdout.decode()

    def press(self, *keys: str) -> None:
        self._do("send-keys", *keys)

    def shown(self, *options: str) -> str:
        return self._do("capture-pane", "-p", *options)

    def until(self, text: str) -> str:
        """Returns what is shown once that is in it: tmux tells nobody, so it is asked."""
        deadline = time.monotonic() + TIMEOUT
        while text not in (found := self.shown()):
            assert time.monotonic() < deadline, f"{text!r} is not shown, but:\n{found}"
        return found

    def end(self) -> None:
        subprocess.run([*self._tmux, "kill-server"], env=self._env, check=False, capture_output=True)


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 50)])
def test_its_keys(running: subprocess.Popen[str], size: tuple[int, int]) -> None:
    screen = Screen(running.pid, *size, {})
    try:
        screen.until("trainers[1]")
        shown = screen.until("m metrics  b debug")
        assert "GPU" not in shown, "no rank uses one here"
        screen.press("m")
        screen.until("trainers · loss  0.05 at step 19")
        assert "⠉" in screen.shown() or "⠤" in screen.shown()
        screen.press("q")
        screen.press("b")
        screen.until("the client is your own program")
        screen.press("q")
        screen.press("G", "b")  # rank 1 of the mesh, and rank 0 of what was called
        screen.until("Attached to debug session for trainers 0")
        screen.until("(Pdb)")
        screen.press("C-d")
        screen.until("Detached from debug session")
        screen.press("C-d")
        screen.until("? help")
        assert COLOUR.search(screen.shown("-e"))
    finally:
        screen.end()


def test_no_color_is_none(running: subprocess.Popen[str]) -> None:
    screen = Screen(running.pid, 80, 24, {"NO_COLOR": "1"})
    try:
        for key, text in (("j", "trainers[1]"), ("m", "at step 19"), ("q", "? help"), ("t", "q quit")):
            screen.press(key)
            screen.until(text)
            found = screen.shown("-e")
            assert "\x1b[" in found and not COLOUR.search(found), found
    finally:
        screen.end()
