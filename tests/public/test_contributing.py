"""Tests that what CONTRIBUTING.md says of its examples is so; that what it names exists is checked in
`tests/test_house.py`."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_examples_are_what_it_says() -> None:
    for file, part in {
        "monarch/config/settings.py": "deadlock_after = seconds(",
        "monarch/_mesh/failures/watchdog.py": "settings.deadlock_after()",
        "monarch/_wire/message.py": "class Flush(",
        "monarch/_mesh/agent/host_agent.py": "self.receivers[Flush] =",
        "monarch/testing/simulated.py": "self.receivers[Flush] =",
        "monarch/_wire/host_address.py": "class Ipc:",
        "monarch/_wire/transport/base.py": "class StreamSocket(Protocol):",
        "monarch/rdma/backends/__init__.py": "class Backend(Protocol):",
        "monarch/rdma/paths.py": "BACKENDS: tuple[Backend, ...] = (",
    }.items():
        assert part in (ROOT / file).read_text(), file
