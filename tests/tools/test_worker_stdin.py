"""`monarch worker --stdin`: what it reads, what it prints, and when it ends."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from monarch.actor import attach_to_workers
from monarch.job.worker_launch import WorkerLaunch
from monarch.tools import cli
from monarch.tools.worker_stdin import Orders, read_orders
from tests.support.patience import TIMEOUT

pytestmark = pytest.mark.procs

SECRET = "5ec3e7" * 11


def test_it_reads_what_a_launch_says() -> None:
    launch = WorkerLaunch(SECRET, 60.0, {"ca": "/ca.pem"})
    stdin = io.BytesIO(launch.stdin() + b"more")
    assert read_orders(stdin) == Orders(SECRET, 60.0, {"ca": "/ca.pem"}, False)
    assert stdin.read() == b"more"
    assert read_orders(io.BytesIO(launch.stdin(outlive=True))).outlive
    assert read_orders(io.BytesIO(b'{"secret": "x", "of a later version": 1}\n')) == Orders("x")


@pytest.mark.parametrize(
    "line", [b"", b"\n", SECRET.encode(), b'{"lease": 1}\n', b'{"secret": 5}\n', b'["' + b"x" * (2 << 20)]
)
def test_what_is_no_order_is_refused_without_repeating_it(line: bytes) -> None:
    with pytest.raises(ValueError, match="--stdin reads one line of JSON") as refused:
        read_orders(io.BytesIO(line))
    assert SECRET not in str(refused.value)


def test_other_ways_to_say_the_same_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["worker", "--address", "tcp://*:1", "--stdin", "--secret-file", "x"])
    assert "--stdin says what --secret-file would say" in capsys.readouterr().err


class Started:
    """A worker that has said that it listens."""

    def __init__(self, folder: str, *, outlive: bool) -> None:
        self.address = f"ipc://{folder}/w"
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-m", "monarch", "worker", "--address", self.address, "--stdin"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | {"MONARCH_RUNTIME_DIR": folder},
            start_new_session=True,
        )
        self.stdin: IO[bytes] = self.process.stdin  # type: ignore[assignment]
        self.stdin.write(WorkerLaunch(SECRET).stdin(outlive=outlive))
        self.stdin.flush()
        assert self.process.stdout is not None
        self.told: dict[str, Any] = json.loads(self.process.stdout.readline())


@pytest.fixture
def start() -> Iterator[Any]:
    with tempfile.TemporaryDirectory(prefix="mws") as folder:
        made: list[Started] = []

        def started(*, outlive: bool) -> Started:
            made.append(Started(folder, outlive=outlive))
            return made[-1]

        yield started
        for worker in made:
            with worker.process:  # closes its pipes and waits
                worker.process.kill()


def test_it_listens_and_ends_with_its_stdin(start: Any) -> None:
    worker = start(outlive=False)
    assert worker.told == {"listening": worker.address, "pid": worker.process.pid}
    assert attach_to_workers(workers=[worker.address], secret=SECRET).initialized.get(TIMEOUT) is True
    out, err = worker.process.communicate(timeout=TIMEOUT)  # which closes its stdin
    assert (worker.process.returncode, out) == (0, b"")
    assert b"whoever started it has gone: this host ends" in err
    assert SECRET.encode() not in err


def test_it_outlives_its_stdin_when_told_to(start: Any) -> None:
    worker = start(outlive=True)
    worker.stdin.write(b"\n")
    worker.stdin.close()
    hosts = attach_to_workers(workers=[worker.address], secret=SECRET)
    assert hosts.initialized.get(TIMEOUT) is True
    hosts.shutdown().get(TIMEOUT)
    assert worker.process.wait(TIMEOUT) == 0


def test_it_ends_with_its_stdin_before_it_was_let_go(start: Any) -> None:
    worker = start(outlive=True)
    worker.stdin.close()
    assert worker.process.wait(TIMEOUT) == 0


def test_ctrl_c_ends_it(start: Any) -> None:
    worker = start(outlive=False)
    worker.process.send_signal(signal.SIGINT)
    assert worker.process.wait(TIMEOUT) == 130


def test_an_address_that_is_taken_is_told(start: Any) -> None:
    worker = start(outlive=False)
    ran = subprocess.run(
        [sys.executable, "-m", "monarch", "worker", "--address", worker.address, "--stdin"],
        input=WorkerLaunch(SECRET).stdin(),
        capture_output=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert ran.returncode == 1
    assert b"monarch worker: " in ran.stderr and Path(worker.address.removeprefix("ipc://")).name.encode() in ran.stderr
