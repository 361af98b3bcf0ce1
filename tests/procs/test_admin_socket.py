"""A program that runs, asked from outside through its admin socket."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
import textwrap
from collections.abc import Iterator

import msgspec
import pytest

from monarch._linux import local_socket
from monarch._mesh.inspection import admin_messages, admin_socket
from monarch._mesh.inspection.wait_graph import Report
from monarch.admin.programs import Program, ProgramGone, choose, program_at, running_programs
from tests.support.patience import TIMEOUT
from tests.support.processes import descendants, stopped
from tests.support.tiers import full

PROGRAM = """
    import sys, time
    from monarch.actor import Actor, endpoint, this_host

    class Sleeper(Actor):
        @endpoint
        def ready(self) -> None: ...

        @endpoint
        def sleep(self) -> None:
            time.sleep(1000)

    sleepers = this_host().spawn_procs({"gpus": 2}).spawn("sleepers", Sleeper)
    sleepers.ready.call().get()
    calls = sleepers.sleep.call()
    from monarch._runtime.context import here
    print(here().address, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def running(tmp_path: object) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PROGRAM)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        try:
            process.send_signal(signal.SIGCONT)
            process.communicate(timeout=TIMEOUT)  # its end of file ends it
        finally:
            process.kill()
            process.wait()


@pytest.fixture
def program(running: subprocess.Popen[str]) -> Program:
    assert running.stdout is not None
    address = running.stdout.readline().strip()
    found = program_at(address.removeprefix("unix:").removesuffix("/client"))
    assert found is not None
    return found


def test_what_its_processes_do(running: subprocess.Popen[str], program: Program) -> None:
    assert program.pid == running.pid
    assert "-c" in program.command
    running_endpoints: list[str] = []
    while running_endpoints != ["sleep", "sleep"]:  # they have been called, and begin when their threads get to it
        assert running.poll() is None
        answers = program.ask("waits", timeout=TIMEOUT)
        assert answers.silent == {}
        assert len(answers.replies) == 3
        reports = [msgspec.msgpack.decode(body, type=Report) for body in answers.replies.values()]
        running_endpoints = [handler.endpoint for report in reports for handler in report.handlers]


@full
def test_some_of_its_processes(program: Program) -> None:
    client = f"unix:{program.folder}/client"
    answers = program.ask("waits", only=[client, "nowhere", "unix:/elsewhere/client"], timeout=TIMEOUT)
    assert list(answers.replies) == [client]
    assert answers.silent == dict.fromkeys(["nowhere", "unix:/elsewhere/client"], "it is on no host of this program")


def test_it_is_found_among_those_that_run(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    assert program.folder in [found.folder for found in running_programs()]
    assert choose(program.pid).folder == program.folder
    monkeypatch.setenv("MONARCH_PROGRAM", program.folder)
    assert choose().pid == program.pid


def door(program: Program) -> str:
    return f"{program.folder}/{admin_messages.NAME}"


@full
def test_what_is_refused_leaves_the_program_as_it_was(program: Program) -> None:
    with pytest.raises(ValueError, match="there is no stream 'nothing' here"):
        program.stream("nothing")
    deep = b"\x91" * 50_000
    for data in (
        struct.pack("!I", 3) + b"\xc1\xc1\xc1",
        struct.pack("!I", len(deep)) + deep,
        struct.pack("!I", admin_socket.LARGEST_REQUEST + 1),
    ):
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(TIMEOUT)
            sock.connect(f"{program.folder}/{admin_messages.NAME}")
            sock.sendall(data)
            refused = b""
            while part := sock.recv(1000):
                refused += part
        assert b"no request" in refused or b"at most" in refused
    assert program.ask("waits", timeout=TIMEOUT).silent == {}


@full
def test_those_who_ask_nothing_give_way(program: Program) -> None:
    with contextlib.ExitStack() as stack:
        idle = [stack.enter_context(local_socket.connect(door(program), TIMEOUT)) for _ in range(100)]
        for asking in (program, program):
            assert asking.ask("waits", timeout=TIMEOUT).silent == {}
        assert idle[0].recv(1) == b""
        idle[-1].sendall(admin_messages.packed(admin_messages.AskAll("waits")))
        assert idle[-1].recv(1)


@full
def test_only_so_many_are_answered_at_a_time(program: Program) -> None:
    """Makes room at once when one of them has gone."""
    with contextlib.ExitStack() as stack:
        asked = admin_messages.packed(admin_messages.AskAll("waits", timeout=1000.0))
        waiting = [
            stack.enter_context(local_socket.connect(door(program), TIMEOUT)) for _ in range(admin_socket.CONNECTIONS)
        ]
        for pid in descendants(program.pid):
            stack.enter_context(stopped(pid))
        for each in waiting:
            each.sendall(asked)
        with pytest.raises(ValueError, match=f"{admin_socket.CONNECTIONS} connections are open here already"):
            program.ask("waits", timeout=TIMEOUT)
        waiting[7].close()
        assert program.ask("waits", timeout=0.1).silent


@full
def test_a_time_that_is_no_number_is_none(program: Program) -> None:
    with local_socket.connect(door(program), TIMEOUT) as connection:
        connection.sendall(admin_messages.packed(admin_messages.AskAll("waits", timeout=float("nan"))))
        answer = msgspec.msgpack.decode(local_socket.receive(connection, 1 << 20), type=admin_messages.Response)
        assert isinstance(answer, admin_messages.AskAnswers)
    assert program.ask("waits", timeout=TIMEOUT).silent == {}


@full
def test_one_that_is_stopped_is_not_waited_for_for_ever(
    running: subprocess.Popen[str], program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("monarch.admin.programs._GRACE", 0.1)
    running.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, running.pid, os.WSTOPPED | os.WNOWAIT)  # until then it may answer
    with pytest.raises(TimeoutError, match=f"the program \\(pid {program.pid}\\) did not answer within 0.2 s"):
        program.ask("waits", timeout=0.1)
    running.send_signal(signal.SIGCONT)
    assert program.ask("waits", timeout=TIMEOUT).silent == {}


@full
def test_one_that_has_ended(running: subprocess.Popen[str], program: Program) -> None:
    running.communicate(timeout=TIMEOUT)
    with pytest.raises(ProgramGone, match=f"the program \\(pid {program.pid}\\) has ended"):
        program.ask("waits")
    assert program_at(program.folder) is None
    assert not os.path.exists(program.folder)
    with pytest.raises(ValueError, match=f"no program with pid {program.pid} runs|no program of yours"):
        choose(program.pid)
