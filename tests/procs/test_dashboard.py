"""The dashboard of a program that runs: opened from outside, with a dead rank and stuck ones, and when it is killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import httpx
import pytest

from monarch.admin.programs import Program, program_at
from monarch.dashboard.pages.api import Unavailable
from monarch.dashboard.pages.live_program import LiveProgram
from tests.support import json_lines
from tests.support.patience import TIMEOUT
from tests.support.tiers import full

PROGRAM = """
    import os, sys, time
    from monarch.actor import Actor, current_rank, endpoint, this_host

    class Trainer(Actor):
        @endpoint
        def ready(self) -> None: ...

        @endpoint
        def step(self) -> None:
            if current_rank().rank == 1:
                os._exit(3)
            time.sleep(1000)

    trainers = this_host().spawn_procs({"gpus": 3}, name="workers").spawn("trainers", Trainer)
    trainers.ready.call().get()
    from monarch._runtime.context import here
    print(here().address, flush=True)
    sys.stdin.readline()
    calls = trainers.step.call()
    try:
        calls.get()
    except Exception as error:
        print("told", flush=True)
    sys.stdin.read()
"""


class Running(NamedTuple):
    process: subprocess.Popen[str]
    program: Program

    def go_on(self) -> None:
        """Lets it call `step`; it has been told of the dead rank then."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "told\n"


@pytest.fixture
def running() -> Iterator[Running]:
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PROGRAM)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        program = program_at(address.removeprefix("unix:").removesuffix("/client"))
        assert program is not None
        yield Running(process, program)
    finally:
        process.kill()
        process.communicate(timeout=TIMEOUT)


def until(found: Callable[[], Any]) -> Any:
    """Returns what `found` gives as soon as it is true."""
    deadline, pause = time.monotonic() + TIMEOUT, threading.Event()
    while not (value := found()):
        assert time.monotonic() < deadline, "it does not come about"
        pause.wait(0.1)
    return value


@full
def test_a_program_is_looked_at_from_outside(running: Running) -> None:
    command = [sys.executable, "-m", "monarch", "dashboard", "--port", "0"]
    environment = os.environ | {"MONARCH_PROGRAM": running.program.folder}
    said = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, env=environment, check=True)
    assert said.stdout.startswith("Monarch Dashboard: http://localhost:")
    url = said.stdout.partition(": ")[2].strip()
    command.append("--json")
    again = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, env=environment, check=True)
    [told] = json_lines.read(again.stdout, 0)
    assert (told.url, told.pid) == (url, running.program.pid)
    with httpx.Client(base_url=url, timeout=TIMEOUT, trust_env=False) as client:

        def get(path: str) -> Any:
            return client.get(f"/api/{path}").json()

        until(lambda: get("summary")["actor_counts"]["total"] == 4)  # who was there before is known
        running.go_on()
        (failed,) = until(lambda: get("summary")["errors"]["failed_actors"])
        assert failed["rank"] == 1
        grid = until(lambda: next((mesh for mesh in get("topology")["meshes"] if mesh["cells"] == "pfp"), None))
        assert grid["name"] in ("trainers", "workers")
        cell = get(f"meshes/{grid['id']}/ranks/0")["actors"][0]
        assert cell["running"]["endpoint"] == "step"

        def seen_in_the_graph() -> bool:
            nodes = get("dag?hide_system=true")["nodes"]
            return sum(node["tier"] == "actor" and node["status"] == "processing" for node in nodes) == 2

        until(seen_in_the_graph)
        until(lambda: "trainers" in {stack["name"] for stack in get("stacks")["busy"]["children"]})

        def seen_in_its_stacks() -> bool:
            threads = get(f"actors/{cell['id']}/stacks").get("threads", [])
            return any(frame[0].endswith("step") for thread in threads for frame in thread["frames"])

        until(seen_in_its_stacks)
        process = cell["full_name"].partition(".")[2]

        def seen_in_its_dump() -> bool:
            dump = client.post("/api/pyspy/capture", json={"proc_ref": process}).json().get("Ok", {"stack_traces": []})
            return any(frame["name"].endswith("step") for trace in dump["stack_traces"] for frame in trace["frames"])

        until(seen_in_its_dump)
        of_dead = client.get(f"/api/actors/{failed['actor_id']}/stacks")
        assert of_dead.status_code == 503 or of_dead.json()["threads"] == []
        assert client.get("/", headers={"host": "evil.example"}).status_code == 403
        assert (
            client.post("/api/sql", json={"sql": "SELECT 1"}, headers={"origin": "http://evil.example"}).status_code
            == 403
        )
        trace = client.post("/api/profile", json={"seconds": 1}).json()["id"]
        made = until(lambda: next((each for each in get("profiles") if each["state"] != "recording"), None))
        assert (made["id"], made["state"], made["problem"]) == (trace, "ready", "")
        assert client.get(f"/api/profiles/{trace}").content
        running.process.kill()

        def refused() -> bool:
            try:
                client.get("/api/health")
            except httpx.TransportError:
                return True
            return False

        until(refused)  # it ends with the program


@full
def test_a_program_that_cannot_be_recorded_says_why(running: Running) -> None:
    with running.program.stream("dashboard", json.dumps({"host": "256.1.1.1", "port": 0}).encode()) as sock:
        sock.settimeout(TIMEOUT)
        answer = json.loads(sock.makefile().read())
    assert "cannot be served" in answer["error"] or "could not be opened" in answer["error"]


def test_a_program_that_has_ended(running: Running) -> None:
    living = LiveProgram(running.program, None)  # type: ignore[arg-type]
    running.process.kill()
    running.process.wait()
    assert living.about()["pid"] == running.process.pid
    for ask in (living.payloads, living.stacks):
        with pytest.raises((RuntimeError, ConnectionError, Unavailable), match="has ended"):
            ask()
