"""The last resort: a process that cannot answer writes its stacks when it is signalled. Real processes."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from monarch._mesh.inspection import fault_dump, fault_signal
from monarch._mesh.inspection.fault_signal import FILE, CannotSignal, Signalled, ask_by_signal, read_note, status_of
from monarch._mesh.inspection.stack_records import ThreadStack
from tests.support.patience import TIMEOUT
from tests.support.processes import stopped
from tests.support.tiers import first_of

pytestmark = pytest.mark.procs

SWITCHES = "voluntary_ctxt_switches"
BEGIN = """
import os, select, sys, threading, time
from monarch._mesh.inspection import fault_signal
from monarch.config import configure
{before}
def io():
    if {beats}:
        while True:
            time.sleep(0.001)
    select.epoll().poll()
thread = threading.Thread(target=io, daemon=True)
thread.start()
fault_signal.listen(sys.argv[1], "unix:/run/x/p.0", thread.native_id)
{after}
print("ready", flush=True)
{then}
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)


@pytest.fixture
def program(folder: Path) -> Iterator[Any]:
    started: list[subprocess.Popen[str]] = []

    def start(
        then: str = "sys.stdin.read()", before: str = "", after: str = "", beats: bool = False
    ) -> subprocess.Popen[str]:
        source = BEGIN.format(before=before, after=after, then=then, beats=beats)
        process = subprocess.Popen(
            [sys.executable, "-c", source, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


def dump(folder: Path) -> list[ThreadStack] | None:
    """None while nothing holds the interpreter lock."""
    dumps, silent = ask_by_signal(str(folder), ["p.0"], TIMEOUT)
    if silent:
        assert "nothing shows that native code holds" in silent["p.0"] or "does not ask for" in silent["p.0"]
        return None
    return fault_dump.parse(dumps["p.0"][1])


def settle(process: subprocess.Popen[str]) -> None:
    """Returns when all its threads have waited for a while: nobody changes frames."""
    same, before = 0, None
    while same < 20:
        now = [
            (status_of(process.pid, int(thread)).get("State"), status_of(process.pid, int(thread)).get(SWITCHES))
            for thread in os.listdir(f"/proc/{process.pid}/task")
        ]
        same = same + 1 if now == before and all(state == "S (sleeping)" for state, _ in now) else 0
        before = now
        time.sleep(0.005)
        assert process.poll() is None


def signalled(process: subprocess.Popen[str], folder: Path) -> None:
    """The signal itself, without asking whether it may be sent; returns when it has been answered."""
    note = read_note((folder / f"p.0{FILE}").read_text())
    file = folder / f"p.0{FILE}"
    before = file.stat().st_size
    settle(process)
    assert ctypes.CDLL(None).tgkill(process.pid, note.thread, note.number) == 0
    while file.stat().st_size == before:
        assert process.poll() is None
    settle(process)


def why_not(folder: Path) -> str:
    with pytest.raises(CannotSignal) as refused:
        Signalled(str(folder), "p.0").dump(TIMEOUT)
    return str(refused.value)


def test_native_code_that_holds_the_interpreter(program: Any, folder: Path) -> None:
    """Its caller is shown, and it goes on afterwards as if nothing had been: `read` is restarted."""
    then = """
import ctypes
def stuck():
    room = ctypes.create_string_buffer(8)
    print(ctypes.PyDLL(None, use_errno=True).read(0, room, 8), room.value, flush=True)
stuck()
"""
    process = program(then, beats=True)
    while not any(stack.frames[-1].function == "stuck" for stack in dump(folder) or ()):
        assert process.poll() is None
    process.stdin.write("abc")
    process.stdin.flush()
    assert process.stdout.readline() == "3 b'abc'\n"


WAITS = {
    "read": "os.read(0, 1)",
    "epoll": "e = select.epoll(); e.register(0, select.EPOLLIN); assert e.poll(60)",
    "lock": "threading.Thread(target=lambda: (os.read(0, 1), e.set())).start(); assert e.wait(60)",
    "subprocess": "import subprocess; assert subprocess.run(['head', '-c', '1'], stdout=subprocess.DEVNULL).returncode == 0",
}


@pytest.mark.parametrize("how", first_of(WAITS))
def test_a_program_that_waits_is_not_harmed(program: Any, folder: Path, how: str) -> None:
    process = program(WAITS[how] + "\nprint('unharmed', flush=True)", after="e = threading.Event()")
    for _ in range(3):
        signalled(process, folder)
    process.stdin.write("x")
    process.stdin.flush()
    assert process.stdout.readline() == "unharmed\n"
    process.stdin.close()
    assert process.wait(TIMEOUT) == 0


def test_a_process_that_is_only_busy_is_not_signalled(program: Any, folder: Path) -> None:
    """Its threads run Python code: to follow their frames meanwhile would crash it."""
    work = """
def work(depth=0):
    return depth if depth > 50 else work(depth + 1)
def loop():
    [work() for _ in iter(stop.is_set, True)]
threads = [threading.Thread(target=loop) for _ in range(3)]
[t.start() for t in threads]
sys.stdin.read()
stop.set()
[t.join() for t in threads]
print("unharmed", flush=True)
"""
    process = program(work, after="stop = threading.Event()", beats=True)
    for _ in range(5):
        assert dump(folder) is None
    process.stdin.close()
    assert process.stdout.readline() == "unharmed\n"


def test_who_has_not_begun_to_listen_is_never_signalled(folder: Path) -> None:
    assert "has not begun to listen" in why_not(folder)
    assert fault_signal.pid_of(str(folder), "p.0") == 0


def test_a_stopped_process_is_named_and_not_waited_for(program: Any, folder: Path) -> None:
    with stopped(program().pid):
        assert "it is stopped (SIGSTOP or Ctrl-Z)" in why_not(folder)


def test_one_that_has_ended(program: Any, folder: Path) -> None:
    process = program("")
    process.wait(TIMEOUT)
    assert why_not(folder) == "it has ended"


def test_a_program_that_uses_the_signal_itself_keeps_it(program: Any, folder: Path) -> None:
    program(before="import signal; signal.signal(50, lambda *_: print('mine', flush=True))")
    assert why_not(folder) == "the program uses signal 50 itself; the setting stack_signal names another"


@pytest.mark.parametrize(("setting", "why"), [(0, "the setting stack_signal is 0"), (9, "Invalid argument")])
def test_a_setting_that_means_none(program: Any, folder: Path, setting: int, why: str) -> None:
    program(before=f"configure(stack_signal={setting})")
    assert why in why_not(folder)


def test_another_signal(program: Any, folder: Path) -> None:
    process = program(before="configure(stack_signal=41)")
    assert read_note((folder / f"p.0{FILE}").read_text()).number == 41
    signalled(process, folder)


def test_a_handler_that_was_taken_away_is_noticed(program: Any, folder: Path) -> None:
    """The signal would end the process."""
    process = program(after="import signal; signal.signal(50, signal.SIG_DFL)")
    assert why_not(folder) == "it does not handle signal 50 any more"
    assert process.poll() is None


def test_a_descriptor_that_is_not_the_file_any_more_is_noticed(program: Any, folder: Path) -> None:
    """Refuses it: what is written would go into a file of the program."""
    after = "os.closerange(3, 64); mine = [open(sys.argv[1] + '/mine', 'w') for _ in range(20)]"
    program(after=after)
    assert why_not(folder) == "the descriptor that it would write to is not open any more"
    assert (folder / "mine").read_bytes() == b""


@pytest.mark.parametrize("text", ["", "1", "x 50 3 4", "1 2", "1 2 x y", "1 50 3"])
def test_a_note_that_is_none(folder: Path, text: str) -> None:
    (folder / f"p.0{FILE}").write_text(text)
    assert "its note cannot be read" in why_not(folder)


def test_the_files_are_the_users_alone_and_go_with_the_process(program: Any, folder: Path) -> None:
    program()
    assert fault_signal.listening(str(folder)) == ["p.0"]
    assert (folder / f"p.0{FILE}").stat().st_mode & 0o777 == 0o600
    fault_signal.forget(str(folder), "p.0")
    assert list(folder.iterdir()) == []
    assert fault_signal.listening(str(folder / "nowhere")) == []


def test_nothing_keeps_a_process_from_starting(folder: Path) -> None:
    fault_signal.listen(str(folder / "nowhere"), "unix:/run/x/p.0", 0)
    assert list(folder.iterdir()) == []


def test_the_state_of_a_process_that_is_not_there() -> None:
    assert fault_signal.status_of(2**22 + 1) == {}
    assert fault_signal.status_of(os.getpid())["State"][0] in "RS"
    assert signal.SIGRTMIN < 50 < signal.SIGRTMAX
