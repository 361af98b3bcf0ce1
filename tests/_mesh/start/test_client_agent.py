"""Tests of the host agent that begins before its client is there."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from monarch._mesh.start.client_agent import start_agent
from monarch.config import configured

pytestmark = pytest.mark.full


def test_an_agent_whose_client_does_not_come_ends_at_once_in_silence(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with configured(runtime_dir=str(tmp_path)):
        agent = start_agent()
        agent.abandon()
    assert agent.process.returncode == -signal.SIGKILL
    assert not os.path.exists(agent.directory.path)
    assert capfd.readouterr().err == ""
