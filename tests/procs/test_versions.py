"""Hosts with another Python are refused when they greet, before anything that one of them has pickled reaches the other."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from monarch.actor import attach_to_workers
from tests.support.hosts import LOOP, ROOT, TIMEOUT, TRUST, Hosts
from tests.support.tiers import full

pytestmark = pytest.mark.procs

# A start-up file of the interpreter, which makes the host say that it runs another version.
FORGED = """
from monarch._wire import software
software.ours = lambda: software.Software("cpython 3.99.1", "/elsewhere/python", {"pymonarch": "0.0.9"})
"""

OTHER = "MONARCH_TEST_OTHER_PYTHON"  # an interpreter of another minor version, with msgspec and cloudpickle


def refusal(address: str) -> str:
    """Returns what attaching to that worker raises; nothing may run there."""
    mesh = attach_to_workers(workers=[address], ca=TRUST)
    with pytest.raises(RuntimeError, match="attach failed") as caught:
        mesh.initialized.get(TIMEOUT)
    return str(caught.value)


def this_python() -> str:
    return f"{sys.implementation.name} {'.'.join(map(str, sys.version_info[:3]))} ({sys.executable}; pymonarch "


@full
def test_a_worker_that_says_another_version(hosts: Hosts, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(FORGED)
    worker = hosts.start(env={"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"})
    why = refusal(worker.address)
    assert f"{worker.address} runs cpython 3.99.1 (/elsewhere/python; pymonarch 0.0.9)" in why
    assert this_python() in why
    assert "Give all hosts and the client the same (cpython " in why


@pytest.mark.skipif(OTHER not in os.environ, reason=f"{OTHER} names no interpreter")
def test_a_worker_with_another_interpreter(hosts: Hosts, tmp_path: Path) -> None:
    address = f"ipc://{hosts.folder}/other"
    worker = subprocess.Popen(
        [os.environ[OTHER], "-c", LOOP, address],
        env=os.environ | {"PYTHONPATH": str(ROOT), "MONARCH_RUNTIME_DIR": str(tmp_path)},
    )
    try:
        why = refusal(address)
    finally:
        worker.kill()
        worker.wait()
    assert this_python() in why and f"({os.environ[OTHER]}; pymonarch " in why
