"""The command line, for the tests of jobs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command_line import CommandLine, command_line


@pytest.fixture
def monarch(tmp_path: Path) -> Iterator[CommandLine]:
    """`monarch` in the test's folder; what it left running ends with the test."""
    with command_line(tmp_path) as line:
        yield line
