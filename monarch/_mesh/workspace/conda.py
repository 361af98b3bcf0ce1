"""A conda environment, as it has to be at another path.

Files of an environment hold its path: scripts in their first line, text files in their words, compiled files in strings
that end with a NUL. conda notes in `conda-meta/*.json` which of the files of a package do, and whether they are text (its
`prefix_placeholder` and `file_mode`); what pip installs is not among them: of that, scripts and `.pth` files hold it.
"""

from __future__ import annotations

import io
import json
import os
import re
from typing import Any

from monarch._errors import WorkspaceError
from monarch._mesh.workspace.manifest import FILE, LARGE, Manifest
from monarch._mesh.workspace.sender import SourceFolder

TEXT, BINARY = "text", "binary"
_LARGEST = 1 << 30  # bytes of a file that holds the path: it is changed in memory


def relocate(data: bytes, old: bytes, new: bytes, mode: str) -> bytes:
    """`data` with the path `new` where it held `old`; a longer name that begins the same is another path. Pure.

    BINARY keeps the length: a string that became shorter is filled up with NULs behind it. ValueError when `new` is longer.
    """
    path = re.escape(old) + rb"(?![\w.-])"
    if mode == TEXT:
        return re.sub(path, lambda _match: new, data)

    if len(new) > len(old):
        raise ValueError(f"there is room for {len(old)} bytes, and {new!r} has {len(new)}")

    def string(match: re.Match[bytes]) -> bytes:
        text, count = re.subn(path, lambda _match: new, match[0])
        return text + b"\0" * (count * (len(old) - len(new)))

    return re.sub(path + rb"[^\0]*", string, data)


def active_prefix() -> str:
    """The active conda environment of this process. ValueError when there is none."""
    prefix = os.environ.get("CONDA_PREFIX", "")
    if not os.path.isdir(os.path.join(prefix, "conda-meta")):
        raise ValueError(
            f"conda=True, but no conda environment is active here (CONDA_PREFIX is {prefix!r}, and there is no "
            "conda-meta in it): activate one, or leave conda out"
        )
    return os.path.normpath(prefix)


def holders(prefix: str, manifest: Manifest) -> dict[str, str]:
    """Files below `prefix` that hold its path -> TEXT or BINARY."""
    found = {}
    for path in manifest:
        if path.startswith("conda-meta/") and path.endswith(".json"):
            found.update(_noted(os.path.join(prefix, path)))
        elif path.endswith(".pth") or (path.startswith("bin/") and _is_script(prefix, path, manifest)):
            found[path] = TEXT
    return {path: mode for path, mode in found.items() if path in manifest and manifest[path].kind == FILE}


def _noted(file: str) -> dict[str, str]:
    """Returns what conda noted of one package."""
    try:
        with open(file, encoding="utf-8") as opened:
            paths = json.load(opened)["paths_data"]["paths"]
        return {
            entry["_path"]: BINARY if entry.get("file_mode") == BINARY else TEXT
            for entry in paths
            if entry.get("prefix_placeholder")
        }
    except (KeyError, TypeError, AttributeError):  # an older form, without such notes
        return {}
    except (OSError, ValueError) as error:
        raise WorkspaceError(f"cannot read {file} of the conda environment: {error}") from error


def _is_script(prefix: str, path: str, manifest: Manifest) -> bool:
    if manifest[path].kind != FILE or manifest[path].size > LARGE:
        return False
    try:
        with open(os.path.join(prefix, path), "rb") as file:
            return file.read(2) == b"#!"
    except OSError:
        return False


class Relocated(SourceFolder):
    """The environment at `root`, read as it has to be at `target`. WorkspaceError when it cannot be there."""

    def __init__(self, root: str, manifest: Manifest, target: str) -> None:
        super().__init__(root, dict(manifest))
        self._target = os.path.normpath(target)
        self._holders = holders(root, manifest) if self._target != root else {}
        for path, mode in self._holders.items():
            if manifest[path].size > _LARGEST:
                raise WorkspaceError(
                    f"{os.path.join(root, path)} holds the path of its environment and is over {_LARGEST} bytes"
                )
            if mode == BINARY and len(os.fsencode(self._target)) > len(os.fsencode(root)):
                raise WorkspaceError(
                    f"the conda environment {root} cannot be at {self._target}: {path} has room for a path of "
                    f"{len(os.fsencode(root))} bytes only; give the environment on the hosts a path that is no longer"
                )
            if mode == TEXT:
                with self.open(path) as file:
                    self.manifest[path] = manifest[path]._replace(size=len(file.read()))

    def open(self, path: str) -> Any:
        file = super().open(path)
        if path not in self._holders:
            return file
        with file:
            data = file.readall()
        return io.BytesIO(relocate(data, os.fsencode(self.root), os.fsencode(self._target), self._holders[path]))
