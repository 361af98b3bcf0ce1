"""An editor attaches to a rank: a conversation in the Debug Adapter Protocol, through `monarch debug --dap`."""

from __future__ import annotations

import importlib.util
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from monarch.debugger import editor_rank
from tests.support.patience import TIMEOUT
from tests.support.tiers import full

pytest.importorskip("debugpy")
pytestmark = full
SOURCE = Path(__file__).with_name("program.py")
LINE = next(number for number, line in enumerate(SOURCE.read_text().splitlines(), 1) if "an editor stops here" in line)
STARTS = "type(__import__('os').execv).__name__"  # a function of pydevd where it debugs what the process starts


class Editor:
    def __init__(self, port: int) -> None:
        self._sock = socket.create_connection(("127.0.0.1", port), TIMEOUT)
        self._file = self._sock.makefile("rwb")
        self._number = 0

    def ask(self, command: str, **arguments: Any) -> Any:
        """The body of the answer."""
        self.send(command, **arguments)
        answer = self.until(lambda message: message.get("command") == command and message["type"] == "response")
        assert answer["success"], answer
        return answer.get("body")

    def send(self, command: str, **arguments: Any) -> None:
        self._number += 1
        message = {"seq": self._number, "type": "request", "command": command, "arguments": arguments}
        body = json.dumps(message).encode()
        self._file.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        self._file.flush()

    def until(self, wanted: Callable[[Any], bool]) -> Any:
        while True:
            length = 0
            while (line := self._file.readline()) not in (b"\r\n", b""):
                name, _, value = line.partition(b":")
                length = int(value) if name.lower() == b"content-length" else length
            assert length, "it ended"
            message = json.loads(self._file.read(length))
            if wanted(message):
                return message

    def attach(self, line: int) -> None:
        self.ask("initialize", adapterID="debugpy", pathFormat="path", linesStartAt1=True, columnsStartAt1=True)
        self.send("attach", justMyCode=False)
        self.until(lambda message: message.get("event") == "initialized")
        self.breakpoints(line)
        self.ask("configurationDone")

    def breakpoints(self, *lines: int) -> None:
        self.ask("setBreakpoints", source={"path": str(SOURCE)}, breakpoints=[{"line": line} for line in lines])

    def close(self) -> None:
        self._file.close()
        self._sock.close()


class Calls:
    """Calls an endpoint again and again: debugpy begins to trace at some time after it has said that all is set up."""

    def __init__(self, running: Any, what: str) -> None:
        self.answers: list[str] = []
        self._running = running
        self._what = what
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._call, daemon=True)
        self._thread.start()

    def _call(self) -> None:
        while not self._enough.is_set():
            self._running.call(self._what)
            self.answers.append(self._running.line())

    def end(self) -> set[str]:
        """Returns what they answered."""
        self._enough.set()
        self._thread.join(TIMEOUT)
        assert not self._thread.is_alive()
        return set(self.answers)


class Port:
    """`monarch debug --dap 1`."""

    def __init__(self, running: Any) -> None:
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "monarch", "debug", "--pid", str(running.process.pid)),
                *("--dap", "1", "--mesh", "worker", "--port", "0"),
            ],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=running.environment,
        )  # fmt: skip
        assert self.process.stdout is not None
        self.said = ""
        while not self.said.endswith("Ctrl-C ends this.\n"):
            line = self.process.stdout.readline()
            assert line, self.said
            self.said += line

    def close(self) -> None:
        self.process.kill()
        self.process.wait(TIMEOUT)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def port(running: Any) -> Iterator[Port]:
    made = Port(running)
    yield made
    made.close()


def test_an_editor(running: Any, port: Port) -> None:
    entry = json.loads(port.said[port.said.index("{") : port.said.rindex("}") + 1])
    assert entry["type"] == "debugpy"
    assert entry["pathMappings"][0]["remoteRoot"] == str(SOURCE.parent)
    number = entry["connect"]["port"]
    for value in (7, 8):  # it leaves, and comes again
        editor = Editor(number)
        editor.attach(LINE)
        calls = Calls(running, f"plain {value}")
        stopped = editor.until(lambda message: message.get("event") == "stopped")["body"]
        assert stopped["reason"] == "breakpoint"
        frame = editor.ask("stackTrace", threadId=stopped["threadId"])["stackFrames"][0]
        assert (frame["name"], frame["line"]) == ("plain", LINE)
        scope = editor.ask("scopes", frameId=frame["id"])["scopes"][0]
        found = editor.ask("variables", variablesReference=scope["variablesReference"])["variables"]
        assert ("seen", str(3 * value)) in [(one["name"], one["value"]) for one in found]
        # What the rank starts is not debugged: it would connect to a port that anybody may have by then.
        assert "builtin" in editor.ask("evaluate", expression=STARTS, frameId=frame["id"])["result"]
        editor.breakpoints()
        editor.ask("continue", threadId=stopped["threadId"])
        assert calls.end() == {f"answer {3 * value} {3 * value}"}
        editor.ask("disconnect", terminateDebuggee=False)
        editor.close()
    # Afterwards breakpoint() is the debugger's own again.
    running.call("add 1")
    talk = running.talk()
    limit = time.monotonic() + TIMEOUT
    while talk("list").count("| worker ") != 2:
        assert time.monotonic() < limit
    talk("continue")
    assert running.line() == "answer 212 212"


def test_an_editor_that_is_killed_lets_the_rank_go_on(running: Any, port: Port) -> None:
    found = re.search(r"127\.0\.0\.1:(\d+)", port.said)
    assert found is not None
    editor = Editor(int(found[1]))
    editor.attach(LINE)
    calls = Calls(running, "plain 5")
    editor.until(lambda message: message.get("event") == "stopped")
    port.process.send_signal(signal.SIGKILL)
    assert calls.end() == {"answer 15 15"}
    editor.close()


def test_a_breakpoint_while_debugpy_is_loaded_is_not_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """pydevd's first hook connects to port 5678 of this machine, where a stranger may listen."""
    came: list[object] = []
    monkeypatch.setattr(sys, "breakpointhook", lambda: came.append("ours"))

    def configure(**asked: object) -> None:
        sys.breakpointhook = lambda: came.append("theirs")
        breakpoint()  # noqa: T100  as another thread does
        came.append(asked)

    monkeypatch.setitem(sys.modules, "debugpy", SimpleNamespace(configure=configure))
    editor_rank._loaded()
    breakpoint()  # noqa: T100
    assert came == ["ours", {"subProcess": False}, "ours"]


def test_mistakes(running: Any) -> None:
    def debug(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "monarch", "debug", "--pid", str(running.process.pid), *words],
            env=running.environment, capture_output=True, text=True, timeout=TIMEOUT, check=False,
        )  # fmt: skip
        assert done.returncode, done
        return done.stderr

    assert "no mesh 'other', but looped, pair, worker" in debug("--dap", "0", "--mesh", "other")
    assert "there is no rank 5: the mesh has 2" in debug("--dap", "5", "--mesh", "pair")


def test_a_rank_without_debugpy_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RuntimeError, match=r"pip install 'pymonarch\[debug\]'"):
        editor_rank.check(None, b"")  # type: ignore[arg-type]
