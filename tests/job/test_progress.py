"""Tests of what people see of a job that begins, and of a run that fails, whatever schedulers and ranks say."""

from __future__ import annotations

import io
import os
import pty
import re
import sys

import pytest

import monarch
from monarch.job.progress import LiveLine, job_logger
from monarch.job.torchrun import failures
from monarch.job.torchrun.failures import RankFailure
from monarch.job.torchrun.run import _TorchrunRun
from tests.support.hostile import NAME, fit


def test_the_live_line_stays_one_line_of_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, its = pty.openpty()
    with open(its, "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        line = LiveLine(f"job {NAME}")
        for why in ("pending", NAME, "x" * 1000, "中" * 1000):
            line.show(why)
        line.end()
        shown = b""
        while shown.count(b"\x1b[K") < 5:
            shown += os.read(ours, 1 << 16)
    os.close(ours)
    drawn = shown.decode().split("\r\x1b[K")
    assert len(drawn) == 6
    assert drawn[0] == drawn[-1] == ""
    assert all(fit(text) and "\n" not in text for text in drawn)


def test_the_setting_makes_it_silent(capsys: pytest.CaptureFixture[str]) -> None:
    LiveLine("job").show("pending")
    # "[actor=<root>] " is before it where a client runs
    assert capsys.readouterr().err.endswith("job: pending (0 s)\n")
    with monarch.configured(show_progress=False):
        line = LiveLine("job")
        line.show("pending")
        line.end()
    assert capsys.readouterr().err == ""


def test_without_a_terminal_it_is_a_line_of_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    job_logger().info("%s: %s", "job", NAME)
    assert fit(capsys.readouterr().err)


def test_what_ranks_said_when_they_failed_is_written_out() -> None:
    out = io.StringIO()
    run = object.__new__(_TorchrunRun)
    run._out = out
    said = f"Traceback (most recent call last):\nValueError: {NAME}\n".encode()
    failed = [RankFailure(0, 0, NAME, 12, 1, 0, 0.0, said), RankFailure(1, 1, NAME, 13, 1, 0, 1.0, b"", lost=NAME)]
    run._say(failures.told(NAME, failed, [2], 0, 1))
    assert fit(out.getvalue())
    assert len(out.getvalue().splitlines()) == 4 + len(NAME.splitlines())
    assert re.match(r"monarch run: \\x1b\[2J", out.getvalue())
