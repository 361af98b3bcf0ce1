"""Folders that other users of the machine can enter."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """Of this user, and nobody else may write in it; those of pytest cannot be entered by others."""
    folder = Path(tempfile.mkdtemp(dir="/tmp", prefix="linux-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)
