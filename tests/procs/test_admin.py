"""A real program, looked at by `monarch tui` and over HTTP."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from monarch.admin.references import encoded
from tests.support.patience import TIMEOUT
from tests.support.scripts import Scripts
from tests.support.terminal import Terminal
from tests.support.tiers import full

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
    import os, sys, time
    import monarch.actor
    from monarch.actor import Actor, SupervisionError, endpoint, this_host

    class Worker(Actor):
        @endpoint
        def pid(self) -> int:
            return os.getpid()

        @endpoint
        def sleep(self) -> None:
            time.sleep(1000)

        @endpoint
        def die(self) -> None:
            print("the last line", file=sys.stderr, flush=True)
            os._exit(7)

    monarch.actor.unhandled_fault_hook = lambda failure: None
    workers = this_host().spawn_procs({"gpus": 3}, name="trainers").spawn("worker", Worker)
    pids = workers.pid.call().get().values()
    try:
        workers.slice(gpus=2).die.call_one().get()
    except SupervisionError:
        pass
    call = workers.slice(gpus=1).sleep.call_one()
    #admin
    print(*pids, flush=True)
    sys.stdin.read()
    os._exit(0)
"""


class Running:
    """A program and how it is looked at: as a user with a shell would."""

    def __init__(self, process: subprocess.Popen[str], env: dict[str, str]) -> None:
        self.process = process
        self.env = env
        self.said: list[str] = []
        assert process.stdout is not None
        for line in process.stdout:
            self.said.append(line.rstrip())
            if line[0].isdigit():
                break
        self.pids = [int(pid) for pid in self.said[-1].split()]

    def tui(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "monarch", "tui", *arguments]
        return subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=TIMEOUT, check=False)

    @property
    def url(self) -> str:
        return next(line.split()[-1] for line in self.said if line.startswith("Mesh admin server listening on"))


def start(scripts: Scripts, admin: str = "") -> Running:
    source = PROGRAM.replace("#admin", admin)
    process = scripts.start(source)
    return Running(process, os.environ | {"MONARCH_RUNTIME_DIR": str(scripts.runtime)})


@pytest.fixture
def running(scripts: Scripts) -> Iterator[Running]:
    yield start(scripts)


def test_ranks_and_tree_without_a_terminal(running: Running) -> None:
    done = running.tui("--once")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"monarch  pid {running.process.pid}  up ")
    assert lines[1].startswith("! rank 2 of worker"), done.stdout
    (dead,) = [line for line in lines if "trainers[2]" in line]
    assert "failed" in dead and "exit status 7:" in dead
    (alive,) = [line for line in lines if line[2:].startswith("trainers[1]")]
    assert "processing" in alive and "sleep" in alive and ".py:" in alive and "%" in alive
    done = running.tui("--once", "--tree")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].endswith("(3 procs)")
    assert any("worker[0]" in line for line in lines)
    (dead,) = [line for line in lines if "trainers-2<" in line]
    assert "process_ended" in dead and "exit status 7" in dead


@full
def test_diagnosing_a_program_with_a_dead_rank(running: Running) -> None:
    done = running.tui("--diagnose", "--pid", str(running.process.pid))
    report = json.loads(done.stdout)
    assert done.returncode == 1 and report["summary"]["healthy"] is False
    assert report["summary"]["failed"] == 1
    (wrong,) = [check for check in report["checks"] if "Fail" in check["outcome"]]
    assert "the last line" in wrong["outcome"]["Fail"]["error"]


@full
def test_wrong_use(running: Running) -> None:
    done = running.tui()
    assert done.returncode == 1
    assert done.stderr.startswith("This TUI requires a real terminal.") and "--once" in done.stderr
    for arguments, status, said in (
        (["--refresh-ms", "5"], 1, "--refresh-ms is 100 or more"),
        (["--once", "--diagnose"], 1, "two ways to look"),
        (["--once", "--addr", "h", "--pid", "1"], 1, "name two programs"),
        (["--once", "--plaintext"], 1, "there is none"),
        (["--once", "--pid", "1"], 66, "no program with pid 1 runs"),
    ):
        done = running.tui(*arguments)
        assert done.returncode == status and said in done.stderr, done


@full
def test_a_rank_that_is_stopped_is_told_and_the_others_are_there(running: Running) -> None:
    os.kill(running.pids[0], signal.SIGSTOP)
    try:
        done = running.tui("--once", "--tree")
    finally:
        os.kill(running.pids[0], signal.SIGCONT)
    (stopped,) = [line for line in done.stdout.splitlines() if "trainers-0<" in line]
    assert "[error] gateway_timeout" in stopped
    assert "worker[1]" in done.stdout


@full
def test_the_screen_in_a_terminal_while_the_program_ends(running: Running) -> None:
    command = [sys.executable, "-m", "monarch", "tui", "--refresh-ms", "100"]
    terminal = Terminal(command, running.env | {"TERM": "xterm-256color", "NO_COLOR": ""})
    try:
        terminal.until(r"trainers\[0\]")
        terminal.until(r"help")
        terminal.type("G")
        terminal.until(r"trainers\[2\]")
        running.process.kill()
        terminal.until(r"ERROR: the program")
        terminal.type("q")
        assert terminal.process.wait(TIMEOUT) == 0
    finally:
        terminal.close()


# --- over HTTP


def get(url: str) -> Any:
    """Proxies are for other sites."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=TIMEOUT) as response:
        return json.loads(response.read())


@full
def test_the_admin_server_of_a_program(scripts: Scripts) -> None:
    running = start(scripts, "import monarch.admin; monarch.admin.start('127.0.0.1:0')")
    nodes = get(f"{running.url}/v1/nodes")["nodes"]
    kinds = [next(iter(node["properties"])) for node in nodes]
    assert kinds.count("Proc") == 3 and kinds.count("Error") == 1
    worker = next(node for node in nodes if node["identity"].startswith("worker<") and "trainers-1" in node["identity"])
    end = time.monotonic() + TIMEOUT
    while worker["properties"]["Actor"]["status"] != "processing":  # the call is on its way
        assert time.monotonic() < end
        worker = get(f"{running.url}/v1/{encoded(worker['identity'])}")
    stacks = get(f"{running.url}/v1/pyspy/{encoded(worker['identity'])}")["Ok"]
    assert stacks["pid"] == running.pids[1]
    assert any(frame["name"].endswith("sleep") for trace in stacks["stack_traces"] for frame in trace["frames"])
    assert len(get(f"{running.url}/v1/config/{encoded(worker['identity'])}")) > 50
    done = running.tui("--once", "--addr", running.url)
    assert done.returncode == 0 and "trainers[1]" in done.stdout
    done = running.tui("--once", "--addr", running.url.removeprefix("http://"))
    assert done.returncode == 1 and "does not speak TLS" in done.stderr and "--plaintext" in done.stderr


@full
def test_a_port_that_is_taken_is_replaced_and_said(scripts: Scripts) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        running = start(scripts, f"import monarch.admin; monarch.admin.start('127.0.0.1:{port}')")
        assert running.url != f"http://localhost:{port}"
        assert get(f"{running.url}/v1/root")["identity"] == "root"


@full
def test_beyond_this_machine_a_token_is_asked_for(scripts: Scripts) -> None:
    running = start(scripts, "import monarch.admin; monarch.admin.start('0.0.0.0:0')")
    base, _, token = running.url.partition("/?token=")
    port = base.rpartition(":")[2]
    with pytest.raises(urllib.error.HTTPError) as refused:
        get(f"http://127.0.0.1:{port}/v1/root")
    refused.value.close()
    assert refused.value.code == 401 and token
    done = running.tui("--once", "--addr", f"http://127.0.0.1:{port}/?token={token}")
    assert done.returncode == 0 and "trainers[0]" in done.stdout
    running.env["MONARCH_ADMIN_TOKEN"] = token
    done = running.tui("--once", "--addr", f"http://127.0.0.1:{port}")
    assert done.returncode == 0 and "trainers[0]" in done.stdout
    running.env["MONARCH_ADMIN_TOKEN"] = "wrong"
    done = running.tui("--once", "--addr", f"http://127.0.0.1:{port}")
    assert done.returncode == 1 and "401" in done.stderr
