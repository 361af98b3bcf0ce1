"""The conda environment of this process."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["active_env_dir", "active_env_name"]


def active_env_dir() -> str | None:
    """Returns $CONDA_PREFIX; None outside of conda."""
    return os.environ.get("CONDA_PREFIX") or None


def active_env_name() -> str | None:
    """Returns the last part of $CONDA_PREFIX; None outside of conda."""
    folder = active_env_dir()
    return None if folder is None else Path(folder).name
