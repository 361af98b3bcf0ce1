"""Tests of where breakpoints stop, where they do not, and what happens when nobody could be asked."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from typing import Any

import pytest

from tests.debugger.program import STOPS_AT_THE_CALL
from tests.support.patience import TIMEOUT
from tests.support.tiers import full

pytestmark = full
ACTOR = """
import sys, threading
from monarch.actor import Actor, debug_controller, endpoint, this_host, this_proc

class Worker(Actor):
    @endpoint
    def work(self):
        x = 3
        breakpoint()
        return x

    @endpoint
    def aside(self):
        thread = threading.Thread(target=stop)
        thread.start()
        thread.join()
        return "went on"

def stop():
    breakpoint()
"""


def run(scripts: Any, source: str, typed: str = "", **env: str) -> tuple[str, str]:
    """Returns what a program prints, to stdout and stderr."""
    process = scripts.start(ACTOR + source, env={"MONARCH_DEBUG_SERVER_PORT": "0", **env})
    out, err = process.communicate(typed, timeout=TIMEOUT)
    assert process.returncode == 0, err
    return out, err


def test_the_program_itself_stops_in_pythons_own_debugger(scripts: Any) -> None:
    """Also where it has an actor, which stops in ours; a breakpoint of a thread of no actor is passed over, and that is
    said."""
    out, err = run(
        scripts,
        """
def main():
    worker = this_proc().spawn("worker", Worker)
    future = worker.work.call_one()
    controller = debug_controller()
    controller.wait_pending_session.call_one().get(300)
    for one in controller.list.call_one(print_output=True).get(300):
        print(one.actor_name, one.rank, one.coords, one.function)
    here = 7
    breakpoint()
    print("behind")
    controller.debugger_session_end.call_one(1).get(300)
    print(future.get(300))
    far = this_host().spawn_procs().spawn("far", Worker)
    print(far.aside.call_one().get(300))
main()
""",
        "p here * 6\nw\nc\n",
    )
    assert "| worker       |      0 | {}       |" in out
    assert "worker 0 {} __main__.work\n" in out
    assert "(Pdb) 42\n" in out
    assert ("main()\n-> breakpoint()" if STOPS_AT_THE_CALL else 'main()\n-> print("behind")') in out
    assert out.endswith("behind\n3\nwent on\n")
    assert "is passed over: its thread belongs to no actor" in err


def test_switched_off(scripts: Any) -> None:
    out, _ = run(
        scripts, "print(this_host().spawn_procs().spawn('a', Worker).work.call_one().get(300))", PYTHONBREAKPOINT="0"
    )
    assert out == "3\n"


FAILS = """
worker = this_host().spawn_procs().spawn("worker", Worker)
for _ in range(2):
    try:
        worker.work.call_one().get(300)
    except Exception as error:
        print(str(error).splitlines()[-1])
"""


def test_a_listener_that_cannot_be_had_fails_the_call(scripts: Any) -> None:
    out, _ = run(scripts, FAILS, MONARCH_DEBUG_SERVER_PROTOCOL="carrier-pigeon")
    said = "nobody can be asked at this breakpoint: NotImplementedError: Network protocol carrier-pigeon not yet supported."
    assert [said in line for line in out.splitlines()] == [True, True]
    out, _ = run(scripts, FAILS, MONARCH_DEBUG_SERVER_HOST="192.0.2.1")
    assert "the debugger cannot listen on 192.0.2.1: Cannot assign requested address (MONARCH_DEBUG_SERVER_HOST)" in out


GOES_ON = """
worker = this_host().spawn_procs().spawn("worker", Worker)
future = worker.work.call_one()
controller = debug_controller()
controller.wait_pending_session.call_one().get(300)
print("stands", flush=True)
sys.stdin.readline()
controller.debugger_session_end.call_one(1).get(300)
print(future.get(300))
"""


def test_a_port_that_is_taken(scripts: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        _, err = run(scripts, GOES_ON, "\n", MONARCH_DEBUG_SERVER_PORT=str(port))
    assert f"port {port} of localhost (MONARCH_DEBUG_SERVER_PORT) is taken: the debugger listens on port " in err


def test_beyond_loopback_a_token_is_asked_for(scripts: Any) -> None:
    process = scripts.start(
        ACTOR + GOES_ON, env={"MONARCH_DEBUG_SERVER_PORT": "0", "MONARCH_DEBUG_SERVER_HOST": "0.0.0.0"}
    )
    assert process.stdout.readline() == "stands\n"
    line = next(line for line in process.stderr if "token" in line)
    found = re.search(r"listens on \S+:(\d+); .* token (\S+)$", line)
    assert found is not None
    port, token = int(found[1]), found[2]

    def first(word: str) -> str:
        with socket.create_connection(("127.0.0.1", port)) as sock:
            sock.settimeout(TIMEOUT)
            sock.sendall(f"{word}\nquit\n".encode())
            return b"".join(iter(lambda: sock.recv(65536), b"")).decode()

    assert first("guess") == "refused: the first line is the token that the program has printed\n"
    assert first(token).endswith("monarch_dbg> Quitting debug session...\n")
    out, _ = process.communicate("\n", timeout=TIMEOUT)
    assert out == "3\n"


def test_an_exception_waits_for_nobody_for_ever(scripts: Any) -> None:
    out, err = run(
        scripts,
        """
class Fails(Actor):
    @endpoint
    def fail(self):
        raise ValueError("as usual")

try:
    this_host().spawn_procs().spawn("fails", Fails).fail.call_one().get(300)
except Exception as error:
    print(str(error).splitlines()[-1])
""",
        MONARCH_DEBUG_ON_EXCEPTION="1",
        MONARCH_DEBUG_EXCEPTION_TIMEOUT="100ms",
    )
    assert out == "ValueError: as usual\n"
    assert "rank 0 of fails" in err
    assert "raised ValueError at __main__.fail:" in err


def test_a_mesh_that_is_stopped_ends_its_endpoints_at_breakpoints(scripts: Any) -> None:
    out, _ = run(
        scripts,
        """
procs = this_host().spawn_procs({"gpus": 2})
worker = procs.spawn("worker", Worker)
future = worker.work.call()
controller = debug_controller()
controller.wait_pending_session.call_one().get(300)
worker.stop().get(300)
print(controller.list.call_one(print_output=False).get(300))
""",
        HYPERACTOR_STOP_ACTOR_TIMEOUT="1h",  # nothing waits until this is over
    )
    assert out == "[]\n"


def test_a_constructor(scripts: Any) -> None:
    out, _ = run(
        scripts,
        """
class Starts(Actor):
    def __init__(self):
        breakpoint()
        self.value = 1
    @endpoint
    def get(self):
        return self.value

starts = this_host().spawn_procs().spawn("starts", Starts)
controller = debug_controller()
controller.wait_pending_session.call_one().get(300)
print(controller.list.call_one(print_output=False).get(300)[0].function)
from monarch.debugger.controller import here_in_client
here = here_in_client()
here.loop.call_soon_threadsafe(here.continue_all)
print(starts.get.call_one().get(300))
print(controller.list.call_one(print_output=False).get(300))
""",
    )
    assert out == "__main__.__init__\n1\n[]\n"


def test_source_that_only_the_client_has(scripts: Any) -> None:
    """Shows the source of a notebook's cell: its text comes from the client."""
    out, _ = run(
        scripts,
        """
import linecache
text = '''
class Cell(Actor):
    @endpoint
    def run(self):
        breakpoint()
        return "the end of the cell"
'''
linecache.cache["<cell 1>"] = len(text), None, text.splitlines(keepends=True), "<cell 1>"
exec(compile(text, "<cell 1>", "exec"))
future = this_host().spawn_procs().spawn("cell", Cell).run.call_one()
controller = debug_controller()
controller.wait_pending_session.call_one().get(300)
from monarch.debugger.controller import here_in_client
sessions = here_in_client()._sessions
while "(Pdb) " not in (shown := "".join(sessions.find("cell", 0)._output)):
    pass
print(shown)
controller.debugger_session_end.call_one(1).get(300)
print(future.get(300))
""",
    )
    stop = "(5)run()\n-> breakpoint()" if STOPS_AT_THE_CALL else '(6)run()\n-> return "the end of the cell"'
    assert f"> <cell 1>{stop}\n(Pdb)" in out
    assert out.endswith("\nthe end of the cell\n")


def test_many_at_once(scripts: Any) -> None:
    """In four processes with fifty actors each."""
    out, _ = run(
        scripts,
        """
procs = this_host().spawn_procs({"gpus": 4})
workers = [procs.spawn(f"worker{number}", Worker) for number in range(50)]
futures = [worker.work.call() for worker in workers]
controller = debug_controller()
while len(controller.list.call_one(print_output=False).get(300)) < 200:
    pass
from monarch.debugger.controller import here_in_client
here = here_in_client()
here.loop.call_soon_threadsafe(here.continue_all)
print(sum(value for future in futures for _, value in future.get(300).items()))
print(controller.list.call_one(print_output=False).get(300))
""",
    )
    assert out == "600\n[]\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_is_refused(scripts: Any) -> None:
    process = scripts.start(ACTOR + GOES_ON, env={"MONARCH_DEBUG_SERVER_PORT": "0"})
    assert process.stdout.readline() == "stands\n"
    found = re.search(r"nc localhost (\d+)", next(line for line in process.stderr if "nc localhost" in line))
    assert found is not None
    stranger = (
        "import os, socket, sys; os.setuid(65534); sock = socket.socket(); "
        "sock.connect(('127.0.0.1', int(sys.argv[1]))); print(sock.recv(1000).decode(), end='')"
    )
    done = subprocess.run(
        [sys.executable, "-c", stranger, found[1]], capture_output=True, text=True, timeout=TIMEOUT, check=True
    )
    assert done.stdout == "refused: this debugger is another user's\n"
    out, _ = process.communicate("\n", timeout=TIMEOUT)
    assert out == "3\n"
