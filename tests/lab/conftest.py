"""The labs, one for a session of tests. Tests marked `lab` are skipped, with the reason, where there can be none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.lab import slurm, ssh
from tests.lab.site import LabError, until
from tests.lab.slurm import SlurmLab
from tests.lab.ssh import SshLab

LEAVING = 60.0  # seconds for what was told to end to be gone, on a busy machine


@pytest.fixture(scope="session")
def _slurm_lab() -> Iterator[SlurmLab]:
    if reason := slurm.why_not():
        pytest.skip(f"the Slurm lab: {reason}")
    with SlurmLab() as lab:
        yield lab


@pytest.fixture
def slurm_lab(_slurm_lab: SlurmLab, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmLab]:
    """Four idle nodes; this process's commands reach them. What a test leaves in the queue or on a node fails it."""
    for name, value in _slurm_lab.variables.items():
        monkeypatch.setenv(name, value)
    yield _slurm_lab
    left = _left(lambda: [_slurm_lab.queue(), _slurm_lab.processes()])
    _slurm_lab.reset()
    assert left == [[], {}]


@pytest.fixture(scope="session")
def _ssh_lab() -> Iterator[SshLab]:
    if reason := ssh.why_not():
        pytest.skip(f"the SSH lab: {reason}")
    with SshLab() as lab:
        yield lab


@pytest.fixture
def ssh_lab(_ssh_lab: SshLab, monkeypatch: pytest.MonkeyPatch) -> Iterator[SshLab]:
    """Three hosts, which this process's `ssh` reaches. What a test leaves on a host fails it."""
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    for name, value in _ssh_lab.variables.items():
        monkeypatch.setenv(name, value)
    yield _ssh_lab
    left = _left(lambda: [_ssh_lab.processes()])
    _ssh_lab.reset()
    assert left == [{}]


def _left(look: Callable[[], list[Any]]) -> list[Any]:
    """Returns what a test has left. What has been told to end gets the time for it."""
    left: list[Any] = []

    def gone() -> bool:
        left[:] = look()
        return not any(left)

    try:
        until(gone, "the end of everything", LEAVING)
    except LabError:
        pass
    return left
