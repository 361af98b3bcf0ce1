"""A program that stands at breakpoints, and people who talk to it."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from typing import Any

import msgspec

from monarch.admin.debugging import STREAM, Visit
from tests.debugger.program import FIRST_STOP, STOPS_AT_THE_CALL
from tests.support.patience import TIMEOUT
from tests.support.tiers import full

PDB = "(Pdb) "


def test_byte_for_byte(running: Any) -> None:
    """By a plain client, as nc is one."""
    running.call("add 1")
    talk = running.connect()
    assert talk.until("monarch_dbg> ") == (
        "\n\n************************ MONARCH DEBUGGER ************************\n"
        "Enter 'help' for a list of commands.\n"
        "Enter 'list' to show all active breakpoints.\n\n"
        "monarch_dbg> "
    )
    assert talk("") == "monarch_dbg> "
    listed = until_listed(talk, "worker", 2)  # one of them may be on its way
    assert "| Actor Name   |   Rank | Coords      | Hostname" in listed
    assert "| worker       |      0 | {'gpus': 0} |" in listed
    assert "| __main__.add |         " in listed
    host = listed.splitlines()[3].split("|")[4].strip()
    assert talk("nonsense").startswith("Error parsing input: ")
    assert talk("attach worker 7") == (
        "Error processing command: No debug session for rank 7 for actor worker\nmonarch_dbg> "
    )
    assert talk("a other 7") == "Error processing command: No debug sessions for actor other\nmonarch_dbg> "
    attached = talk("attach worker 1", PDB)
    assert attached.startswith(f"Attached to debug session for worker 1 ({host})\n> ")
    assert re.search(rf"program\.py\(\d+\)add\(\)\n-> {re.escape(FIRST_STOP)}\n\(Pdb\) $", attached)
    assert talk("p total, self.value", PDB) == "(6, 5)\n(Pdb) "
    assert talk("detach") == (
        f"Detaching from debug session for worker 1 ({host})\nDetached from debug session for worker 1 ({host})\n"
        "monarch_dbg> "
    )
    again = talk("attach worker 1", PDB)
    assert again == (
        f"Attached to debug session for worker 1 ({host})\n<last pdb output for worker 1 follows>\n(6, 5)\n(Pdb) "
    )
    assert talk("c").endswith(f"Detached from debug session for worker 1 ({host})\nmonarch_dbg> ")
    assert talk("cast worker ranks(gpus=0) c") == "monarch_dbg> "
    assert running.line() == "answer 212 212"
    assert talk("list").count("\n") == 4, "the sessions end with their endpoints"
    talk.sock.sendall(b"quit\n")
    assert talk.ended() == "Quitting debug session...\n"


def test_pdb(running: Any) -> None:
    running.call("by_pdb 1")
    talk = running.talk()
    until_listed(talk, "worker", 2)
    assert "by pdb\n> " in talk("a worker 0", PDB)
    assert talk("w", PDB).count("\n") == 2, "the runtime below is not shown"
    assert "number = 1" not in talk("l", PDB)
    assert talk("!number = 10", PDB) == PDB
    assert "10" in talk("print(number)", PDB)
    assert "cannot be run again" in talk("restart", PDB)
    assert "*interactive*" in talk("interact", ">>> ")
    assert talk("number * 4", ">>> ") == "40\n>>> "
    assert talk("exit()", PDB).endswith(PDB)
    assert "Breakpoint 1" in talk("b double", PDB)
    assert talk("clear", PDB) == PDB, "asks nobody"
    assert "There are no breakpoints" in talk("b", PDB) or talk("b", PDB) == PDB
    talk("detach")
    talk("continue")
    assert running.line() == "answer 11 2"
    talk.close()


def until_listed(talk: Any, actor: str, count: int) -> str:
    limit = time.monotonic() + TIMEOUT
    while (listed := talk("list")).count(f"| {actor} ") != count:
        assert time.monotonic() < limit, listed
    return str(listed)


def test_an_exception_after_a_breakpoint_is_looked_at(running: Any) -> None:
    running.call("fail 3")
    talk = running.talk()
    until_listed(talk, "worker", 2)
    talk("continue")
    raised = talk("a worker 0", PDB)
    while "ValueError" not in raised:  # it was still on its way
        raised = talk.until(PDB)
    assert talk("p hidden", PDB) == "6\n(Pdb) "
    talk("q")
    talk("cast worker ranks(1) q")
    said = running.line()
    assert said.startswith("error ")
    assert "ValueError: number 6" in said
    talk.close()


def test_async_endpoints(running: Any) -> None:
    running.call("wait 4")
    talk = running.talk()
    until_listed(talk, "looped", 2)
    talk("a looped 0", PDB)
    if STOPS_AT_THE_CALL:
        assert "await asyncio.sleep(0)" in talk("n", PDB)
    assert "number += 1" in talk("n", PDB)
    assert "return number" in talk("n", PDB)
    talk("c")
    talk("c")
    assert running.line() == "answer 5 5"
    running.call("both 4")
    until_listed(talk, "looped", 2)
    talk("c")
    assert running.line() == "answer 4 4"
    talk.close()


def test_a_new_connection_takes_over(running: Any) -> None:
    running.call("add 2")
    first = running.talk()
    until_listed(first, "worker", 2)
    first("a worker 0", PDB)
    second = running.talk()
    assert "Another connection has taken the place of this one." in first.ended()
    assert "<last pdb output" in second("a worker 0", PDB)
    second("detach")
    second("c")
    assert running.line() == "answer 214 214"
    second.close()


def test_whoever_is_gone_while_attached_lets_it_go_on(running: Any) -> None:
    running.call("add 3")
    talk = running.talk()
    until_listed(talk, "worker", 2)
    talk("a worker 0", PDB)
    talk.close()
    other = running.talk()
    until_listed(other, "worker", 1)
    other.close()
    third = running.talk()
    until_listed(third, "worker", 1)
    third("c")
    assert running.line() == "answer 216 216"
    third.close()


def test_exceptions_stop_when_asked(running: Any) -> None:
    def ask(on: bool) -> dict[str, Any]:
        sock = running.program.stream(STREAM, msgspec.msgpack.encode(Visit("exceptions", on=on)))
        with sock, sock.makefile() as file:
            answer: dict[str, Any] = msgspec.json.decode(file.readline())
            return answer

    assert ask(True)["processes"] >= 3
    running.call("raises 3")
    talk = running.talk()
    until_listed(talk, "worker", 2)
    assert "KeyError: 4\n> " in talk("a worker 0", PDB)
    assert talk("p local", PDB) == "4\n(Pdb) "
    talk("c")
    talk("c")
    assert "KeyError: 4" in running.line()
    assert ask(False)["processes"] >= 3
    running.call("raises 3")
    assert "KeyError: 4" in running.line()
    talk.close()


@full
def test_short_commands(running: Any) -> None:
    def debug(*words: str, status: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "monarch", "debug", "--pid", str(running.process.pid), *words],
            env=running.environment, capture_output=True, text=True, timeout=TIMEOUT, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == status, done
        return done.stdout + done.stderr

    assert "| Actor Name   |" in debug("list")
    running.call("add 4")
    until_listed(lambda _: debug("list"), "worker", 2)
    attached = debug("attach", "worker", "0")
    assert "Attached to debug session for worker 0" in attached
    assert "Detached from debug session for worker 0" in attached
    assert "Quitting debug session..." in attached
    assert debug("continue") == "2 go on\n"
    assert running.line() == "answer 218 218"
    assert "attach takes ACTOR RANK" in debug("attach", "worker", status=2)
    assert "takes nothing behind it" in debug("list", "worker", "1", status=2)


@full
def test_a_killed_rank(own: Any) -> None:
    own.call("add 1")
    talk = own.talk()
    until_listed(talk, "worker", 2)
    talk("a worker 1", PDB)
    subprocess.run(["kill", "-9", str(own.pids[1])], check=True)
    said = talk.until("monarch_dbg> ")
    assert f"(its process, pid {own.pids[1]}, has ended)" in said
    assert "Detached from debug session for worker 1" in said
    talk("c")
    assert own.line().startswith("error ")
    talk.close()


@full
def test_a_killed_program(own: Any, watch: Any) -> None:
    """Its ranks end with it, also those that stand at a breakpoint."""
    own.call("add 1")
    talk = own.talk()
    until_listed(talk, "worker", 2)
    talk("a worker 1", PDB)
    ranks = watch(own.pids)
    own.process.send_signal(signal.SIGKILL)
    talk.ended()
    assert ranks.survivors(TIMEOUT) == {}
