"""A helper process: started once, ended with its owner."""

from __future__ import annotations

import errno
import logging
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from monarch._linux import companion, private_files
from monarch._linux.companion import Companion, CompanionFailed
from tests.support.patience import TIMEOUT
from tests.support.processes import Watch, stopped

pytestmark = pytest.mark.procs
MODULE = "tests._linux.helper_program"


@pytest.fixture
def folder() -> Iterator[str]:
    """One with a short path: a socket's is bounded."""
    with tempfile.TemporaryDirectory(prefix="mc") as path:
        yield os.path.join(path, "helper")


@pytest.fixture
def helper(folder: str) -> Iterator[Companion]:
    made = Companion(folder)
    made.start(MODULE, companion.environment(), owned=True)
    yield made
    if made.process is not None:
        made.process.kill()
        made.process.wait()


def pid_at(helper: Companion) -> int:
    with helper.connect(TIMEOUT) as connection:
        connection.sendall(b"?")
        return int(connection.recv(100))


def test_it_runs_in_a_folder_of_this_user_alone(helper: Companion) -> None:
    assert helper.process is not None and pid_at(helper) == helper.process.pid
    assert Path(helper.folder).stat().st_mode & 0o777 == 0o700
    assert Path(helper.folder, "log").stat().st_mode & 0o777 == 0o600
    helper.process.kill()
    helper.process.wait()
    assert not helper.answers()


def test_of_several_that_start_one_runs(folder: str) -> None:
    helpers = [Companion(folder) for _ in range(3)]
    threads = [
        threading.Thread(target=one.start, args=(MODULE, companion.environment()), kwargs={"owned": True})
        for one in helpers
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pids = {pid_at(one) for one in helpers}
    processes = [one.process for one in helpers if one.process is not None]
    assert len(pids) == 1 and len(processes) == 3
    for process in processes:
        if process.pid not in pids:
            assert process.wait(TIMEOUT) == 0
    for process in processes:
        process.kill()
        process.wait()


def test_one_that_does_not_come_up_says_why(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CompanionFailed, match="it was told to fail"):
        Companion(folder).start(MODULE, companion.environment(), owned=True, stdin=b"fail")
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(FileNotFoundError):
        Companion(folder).start(MODULE, companion.environment(), owned=True)


def test_one_that_reads_nothing_holds_nobody_up(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits for nobody: what it is to read waits in a file in memory, however large: no pipe is full."""
    monkeypatch.setattr(companion, "READY", 0.1)
    monkeypatch.setattr(companion, "ENDS", 0.1)
    made = Companion(folder)
    with pytest.raises(CompanionFailed, match="nothing"):
        made.start(MODULE, companion.environment(DEAF="1"), owned=True, stdin=bytes(1 << 20))
    assert made.process is not None
    made.process.kill()
    made.process.wait()


def test_the_log_of_one_that_runs_is_not_emptied_by_who_comes_later(helper: Companion) -> None:
    log = Path(helper.folder, "log")
    log.write_text("said before\n")
    later = Companion(helper.folder)
    later.start(MODULE, companion.environment(), owned=True)
    assert later.process is not None and later.process.wait(TIMEOUT) == 0
    assert log.read_text().startswith("said before\n")
    with pytest.raises(CompanionFailed) as caught:  # it says what is its own
        Companion(helper.folder + "-2").start(MODULE, companion.environment(), owned=True, stdin=b"fail")
    assert str(caught.value) == "it was told to fail"


def test_a_folder_that_is_a_link_is_not_used(folder: str, tmp_path: Path) -> None:
    os.symlink(tmp_path, folder)
    with pytest.raises(private_files.UntrustedFileError):
        Companion(folder).start(MODULE, companion.environment(), owned=True)
    assert list(tmp_path.iterdir()) == []


def test_a_stopped_one_is_ended(helper: Companion, monkeypatch: pytest.MonkeyPatch) -> None:
    assert helper.process is not None
    monkeypatch.setattr(companion, "ENDS", 0.1)
    os.kill(helper.process.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, helper.process.pid, os.WSTOPPED | os.WNOWAIT)
    helper.end()
    assert helper.process.returncode == -signal.SIGTERM


def test_a_stopped_one_that_hears_nothing_is_killed() -> None:
    program = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); signal.pause()"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline()
        pidfd = os.pidfd_open(process.pid)
        companion.end_process(pidfd, 0.1)
        companion.end_process(pidfd, 0.1)  # it has ended
        os.close(pidfd)
        assert process.wait(TIMEOUT) == -signal.SIGKILL


OWNER = f"""
import os, sys
from monarch._linux import companion
helper = companion.Companion(sys.argv[1])
helper.start({MODULE!r}, companion.environment(), owned=True)
print(helper.process.pid, flush=True)
sys.stdin.readline()
os.execv("/bin/sleep", ["sleep", "1000"])
"""


@pytest.mark.parametrize("how", ["killed", "exec"])
@pytest.mark.parametrize("stop", [False, True], ids=["running", "stopped"])
def test_it_ends_with_its_owner_and_when_that_becomes_another_program(folder: str, how: str, stop: bool) -> None:
    """The kernel lets a stopped one go on when its owner's thread ends."""
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as owner:
        assert owner.stdin is not None and owner.stdout is not None
        pid = int(owner.stdout.readline())
        watch = Watch([pid])
        if stop:
            os.kill(pid, signal.SIGSTOP)
        if how == "killed":
            owner.kill()
        else:
            owner.stdin.write(b"\n")
            owner.stdin.flush()
        assert watch.survivors(TIMEOUT) == {}
        assert how == "killed" or owner.poll() is None
        owner.kill()


def test_a_program_with_many_descriptors_has_one(folder: str) -> None:
    """select() takes no number from 1,024 on."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 1200:
        pytest.skip("this machine allows fewer descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1200), hard))
    held = [os.open("/dev/null", os.O_RDONLY) for _ in range(1050)]
    try:
        made = Companion(folder)
        made.start(MODULE, companion.environment(), owned=True)
        assert made.process is not None
        pidfd = os.pidfd_open(made.process.pid)
        companion.end_process(pidfd, TIMEOUT)
        os.close(pidfd)
        assert made.process.wait(TIMEOUT) == -signal.SIGTERM
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_forked_child_does_not_end_its_parents(helper: Companion, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(companion, "ENDS", 0.1)
    pid = pid_at(helper)
    child = os.fork()
    if not child:
        try:
            helper.end()
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert helper.process is not None and helper.process.poll() is None and pid_at(helper) == pid


def test_it_goes_on_when_it_is_stopped_and_continued(helper: Companion) -> None:
    pid = pid_at(helper)
    with stopped(pid):
        pass
    assert pid_at(helper) == pid


def test_one_whose_owner_has_ended_meanwhile_does_not_begin() -> None:
    with pytest.raises(ProcessLookupError):
        companion.CompanionOwner(os.getpid(), threading.get_native_id())  # no parent of this process


def test_a_process_that_is_out_of_descriptors_accepts_again_when_it_has_some() -> None:
    served: list[int] = []
    ours, theirs = socket.socketpair()

    class Listening:
        answers = iter([OSError(errno.EMFILE, "Too many open files"), (theirs, ""), OSError(errno.EINVAL, "closed")])

        def accept(self) -> tuple[socket.socket, str]:
            answer = next(self.answers)
            if isinstance(answer, OSError):
                raise answer
            return answer

    done = threading.Event()

    def talk(connection: socket.socket) -> None:
        served.append(connection.fileno())
        done.set()

    with ours, theirs:
        ours.sendall(b"?")
        companion.serve(Listening(), "a socket", 1, talk)  # type: ignore[arg-type]
        assert done.wait(TIMEOUT) and served == [theirs.fileno()]


def test_where_no_thread_is_left_one_connection_is_refused_and_the_next_is_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pairs = [socket.socketpair() for _ in range(2)]
    pairs[1][0].sendall(b"?")
    begin, full = threading.Thread.start, [RuntimeError("can't start new thread")]

    def start(thread: threading.Thread) -> None:
        if full:
            raise full.pop()
        begin(thread)

    class Listening:
        answers: Iterator[socket.socket | OSError] = iter([*(theirs for _, theirs in pairs), OSError(errno.EINVAL, "")])

        def accept(self) -> tuple[socket.socket, str]:
            answer = next(self.answers)
            if isinstance(answer, OSError):
                raise answer
            return answer, ""

    def talk(connection: socket.socket) -> None:
        with connection:
            connection.recv(1)
            connection.sendall(b"served")

    monkeypatch.setattr(threading.Thread, "start", start)
    companion.serve(Listening(), "a socket", 1, talk)  # type: ignore[arg-type]
    assert [ours.recv(10) for ours, _ in pairs] == [b"", b"served"]
    for ours, _ in pairs:
        ours.close()


def test_its_log_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = """
from monarch._linux import companion
import logging
companion.LOG_LIMIT, companion._LOG_KEPT = 10_000, 1_000
companion.log_to_stderr()
for number in range(1000):
    logging.info(f"line {number} of many that are said")
"""
    log = private_files.open_log(tmp_path / "log")
    subprocess.run([sys.executable, "-c", program], stderr=log, check=True)
    os.close(log)
    text = (tmp_path / "log").read_text()
    assert len(text) < 11_000 and text.endswith("line 999 of many that are said\n")
    assert all(line.endswith("of many that are said") for line in text.splitlines())


def test_lines_of_one_kind_are_few_and_the_others_are_counted(tmp_path: Path) -> None:
    """A hundred thousand times what strangers cause, and what matters is still there."""
    program = """
import time
from monarch._linux import companion
import logging
now = 0.0
time.monotonic = lambda: now
companion.log_to_stderr()
logging.info("it matters")
for number in range(100_000):
    logging.warning("refused: %s", number)
now = 10.0
logging.info("the end")
"""
    log = private_files.open_log(tmp_path / "log")
    subprocess.run([sys.executable, "-c", program], stderr=log, check=True)
    os.close(log)
    lines = [line.split(" ", 2)[2] for line in (tmp_path / "log").read_text().splitlines()]
    refused = [f"refused: {number}" for number in range(5)]
    assert lines == ["it matters", *refused, "99995 more lines like this: refused: %s", "the end"]


def test_kinds_of_lines_are_forgotten_when_there_are_many() -> None:
    limit = companion.LineLimit()
    for number in range(6 * 3):
        limit.admits(f"kind {number % 3}", 1.0)
    for number in range(companion._KINDS):
        assert limit.admits(f"other {number}", 2.0)[0]
    assert len(limit._kinds) == companion._KINDS
    assert limit.admits("other 0", 12.0) == (True, [])


def test_the_oldest_that_says_nothing_gives_way(folder: str) -> None:
    """More than a helper takes, who say nothing and stay: whoever says something is served."""
    talked: list[bytes] = []

    def talk(connection: socket.socket) -> None:
        with connection:
            while said := connection.recv(10):
                talked.append(said)
                connection.sendall(said)

    os.mkdir(folder, 0o700)
    ready, writing = os.pipe()
    with companion.listen(folder, writing) as listening:
        threading.Thread(target=companion.serve, args=(listening, "a socket", 4, talk), daemon=True).start()
        kept = Companion(folder).connect(TIMEOUT)
        kept.sendall(b"kept")
        assert kept.recv(10) == b"kept"
        idle = [Companion(folder).connect(TIMEOUT) for _ in range(100)]
        for number in range(97):  # as many as there is no room for
            assert idle[number].recv(10) == b""
        for each in (*idle[97:], kept):
            each.sendall(b"here")
            assert each.recv(10) == b"here"
        with Companion(folder).connect(TIMEOUT) as more:  # all that are there have said something
            assert more.recv(10) == b""
        for each in (*idle, kept):
            each.close()
        listening.shutdown(socket.SHUT_RDWR)
    os.close(ready)


def test_a_record_of_any_length_is_cut(tmp_path: Path) -> None:
    program = """
from monarch._linux import companion
import logging
companion.log_to_stderr()
logging.info("%s", "x" * 100_000_000)
logging.info("the next")
"""
    log = private_files.open_log(tmp_path / "log")
    subprocess.run([sys.executable, "-c", program], stderr=log, check=True)
    os.close(log)
    first, second = (tmp_path / "log").read_text().splitlines()
    assert len(first) < 70_000 and first.endswith(" characters]") and "[and 99,934,4" in first
    assert second.endswith("the next")


def test_threads_say_in_the_log_what_they_raise(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    monkeypatch.setattr(logging, "basicConfig", lambda **_: None)
    companion.log_to_stderr()
    thread = threading.Thread(target=lambda: 1 / 0, name="divides")
    thread.start()
    thread.join()
    assert "in thread divides" in caplog.text and "ZeroDivisionError" in caplog.text
