"""The local directories that a job's hosts are to have."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

Directory = str | os.PathLike[str]


class Workspace:
    """An argument of `HostMesh.sync_workspace`: `dirs` maps local directories to their places below `$WORKSPACE_DIR` on
    the hosts; those of a list keep their names. TypeError for anything else."""

    def __init__(self, dirs: Mapping[Directory, str] | Sequence[Directory] | None = None) -> None:
        if isinstance(dirs, str):
            raise TypeError(f"dirs is a dict or a list of directories, got the text {dirs!r}")
        if dirs is None:
            self.dirs: dict[Path, str] = {}
        elif isinstance(dirs, Mapping):
            self.dirs = {Path(local): str(there) for local, there in dirs.items()}
        else:
            self.dirs = {Path(local): Path(local).resolve().name for local in dirs}

    def __repr__(self) -> str:
        return f"Workspace({ {str(local): there for local, there in self.dirs.items()} })"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Workspace) and self.dirs == other.dirs

    __hash__ = None  # type: ignore[assignment]  # its directories may change
