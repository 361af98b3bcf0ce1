"""Folders for files of a user, and the conda environment of this process."""

from __future__ import annotations

import os
from pathlib import Path

from monarch._linux import private_files
from monarch.tools.utils import conda

__all__ = ["MONARCH_HOME", "conda"]


def MONARCH_HOME(*sub: str) -> Path:
    """Returns a folder in $MONARCH_HOME, or in ~/.monarch, made with mode 0700 where it is not there.

    PermissionError for a folder that others may write to.
    """
    home = os.environ.get("MONARCH_HOME")
    folder = Path(home) if home else Path.home() / ".monarch"
    folder = folder.joinpath(*sub)
    private_files.make_folder(folder)
    return folder
