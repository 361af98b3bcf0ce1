"""shell: a real shell on a real terminal."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import this_host, this_proc
from monarch.job.commands import terminal_actor
from monarch.job.commands.interactive_shell import shell
from monarch.job.commands.terminal_actor import ShellLaunch, TerminalActor
from tests.support.hosts import Hosts
from tests.support.patience import TIMEOUT
from tests.support.processes import Watch
from tests.support.terminal import Terminal
from tests.support.tiers import full

pytestmark = [
    pytest.mark.procs,
    pytest.mark.skipif(shutil.which("setsid") is None, reason="setsid (util-linux) gives the program its terminal"),
]
HUNG_UP = {129, 137}  # which of them, with a machine that is slow
PROMPT = r"[$#] $"  # the machine has its own

PROGRAM = """
import sys
from monarch.actor import this_host
from monarch.job.commands.interactive_shell import shell

status = shell(this_host(), env={"GREETING": "hello", "SHELL": "/bin/bash"})
print("status", status, flush=True)
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    root = str(Path(__file__).resolve().parents[2])
    (tmp_path / "home").mkdir()  # no start-up files of the user's
    return {**os.environ, "HOME": str(tmp_path / "home"), "TERM": "dumb", "PYTHONPATH": root, "SHELL": "/bin/bash"}


@pytest.fixture
def program(tmp_path: Path) -> str:
    (tmp_path / "program.py").write_text(PROGRAM)
    return str(tmp_path / "program.py")


@pytest.fixture
def terminal(program: str, environment: dict[str, str], tmp_path: Path) -> Iterator[Terminal]:
    opened = Terminal([sys.executable, program], environment, str(tmp_path))
    yield opened
    opened.close()


def test_a_session(terminal: Terminal, tmp_path: Path) -> None:
    before = terminal.attributes()
    terminal.until(PROMPT)
    terminal.type("PS1='$ '; echo $GREETING from $PWD; tty; stty size\n")
    terminal.until(f"^hello from {tmp_path}$")
    terminal.until("^/dev/pts/[0-9]+$")
    terminal.until("^24 80$")
    # The window's size follows.
    terminal.type("trap 'echo now $(stty size)' WINCH; echo waits\n")
    terminal.until("^waits$")
    terminal.resize(40, 100)
    terminal.type("\n")
    terminal.until("now 40 100")
    # Ctrl-C is the shell's.
    terminal.type("bash -c 'echo begun; exec sleep 1000'\n")
    terminal.until("^begun$")
    terminal.type("\x03")
    terminal.until(PROMPT)
    terminal.type("echo after $?\n")
    terminal.until("^after 130$")
    terminal.type("exit 7\n")
    terminal.until("^status 7$")
    assert terminal.process.wait(TIMEOUT) == 0
    assert terminal.attributes() == before


@full
def test_a_shell_that_is_killed_says_its_signal(terminal: Terminal) -> None:
    terminal.until(PROMPT)
    terminal.type("kill -9 $$\n")
    terminal.until("^status 137$")


@full
def test_what_runs_in_it_ends_with_the_client(terminal: Terminal, watch: type[Watch]) -> None:
    terminal.until(PROMPT)
    terminal.type("bash -c 'echo pid $$; exec sleep 1000'\n")
    left = watch([int(terminal.until(r"^pid \d+$").split()[1])])
    terminal.process.kill()
    assert left.survivors(TIMEOUT) == {}


@full
def test_without_a_terminal_the_end_of_stdin_ends_it(program: str, environment: dict[str, str], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, program],
        input="echo from a pipe > copy\nexit 3\n",
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=True,
    )
    assert done.stdout.endswith("status 3\n") and (tmp_path / "copy").read_text() == "from a pipe\n"
    done = subprocess.run(
        [sys.executable, program],
        check=True,
        input="",
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert done.stdout.endswith("status 0\n"), done


@full
def test_input_that_ends_while_a_command_runs_hangs_up_on_it(
    program: str, environment: dict[str, str], tmp_path: Path, watch: type[Watch]
) -> None:
    done = subprocess.run(
        [sys.executable, program],
        input="bash -c 'echo $$ > pid; exec sleep 1000'\nexit 0\n",
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=True,
    )
    assert int(done.stdout.split()[-1]) in HUNG_UP, done
    assert watch([int((tmp_path / "pid").read_text())]).survivors(TIMEOUT) == {}


@full
@pytest.mark.parametrize(
    ("command", "statuses"),
    [
        ("bash -c 'echo pid $$; read line'", {1}),  # takes the first Ctrl-D, the shell the next
        ("bash -c 'echo pid $$; exec sleep 1000'", HUNG_UP),
        ("bash -c 'trap \"\" HUP; echo pid $$; exec sleep 1000'", HUNG_UP),
        ("bash -c 'trap \"\" HUP TERM; echo pid $$; while :; do sleep 1; done'", HUNG_UP),
        ("trap '' HUP; bash -c 'echo pid $$; exec sleep 1000'", {137}),
    ],
)
def test_the_end_of_input_ends_what_runs(
    command: str, statuses: set[int], monkeypatch: pytest.MonkeyPatch, watch: type[Watch]
) -> None:
    monkeypatch.setattr(terminal_actor, "_AGAIN", 0.1)
    monkeypatch.setattr(terminal_actor, "_ENDS", 1 if statuses & HUNG_UP else 10 * TIMEOUT)
    monkeypatch.setattr(terminal_actor, "_PATIENCE", 0.1)
    actor: Any = this_proc().spawn("terminal", TerminalActor)
    actor.start.call_one(ShellLaunch({"SHELL": "/bin/bash", "TERM": "dumb"}, None, "/", 24, 80)).get(TIMEOUT)
    actor.type.call_one(f"{command}\n".encode()).get(TIMEOUT)
    shown = b""
    while not (begun := re.search(rb"\npid (\d+)\r", shown)):
        shown += b"".join(actor.read.call_one().get(TIMEOUT))
    running = watch([int(begun[1])])
    actor.end_input.broadcast()
    found: Any = None
    while not isinstance(found, int):
        found = actor.read.call_one().get(TIMEOUT)[-1]
    assert found in statuses
    assert running.survivors(TIMEOUT) == {}
    actor.stop().get(TIMEOUT)


@full
def test_one_host_only(hosts: Hosts) -> None:
    with pytest.raises(ValueError, match=r"singleton HostMesh, and this one has 2 hosts: slice it"):
        shell(hosts.attach(hosts.start(), hosts.start()))


def test_a_folder_that_is_not_there() -> None:
    with pytest.raises(FileNotFoundError, match="/no/such/folder"):
        shell(this_host(), workdir="/no/such/folder")
