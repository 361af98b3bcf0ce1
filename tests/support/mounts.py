"""Source trees for tests of mounts, and what the kernel has mounted."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import time
from pathlib import Path

from monarch.job import DEFAULT_JOB_PATH, job_load
from monarch.remotemount.file_tree import BLOCK
from tests.support.patience import TIMEOUT

LARGE = BLOCK + 12345


def make_source(root: Path) -> Path:
    """One of everything."""
    for folder in ("pkg/deep", "empty", ".monarch", ".git"):
        (root / folder).mkdir(parents=True)
    (root / "pkg" / "module.py").write_text("x = 1\n")
    (root / "run").write_text("#!/bin/sh\n")
    (root / "run").chmod(0o750)
    (root / "none").write_bytes(b"")
    (root / "large").write_bytes(os.urandom(LARGE))
    (root / "link").symlink_to("pkg/module.py")
    (root / "dangling").symlink_to("/nonexistent/place")
    (root / ".monarch" / "state").write_text("never brought")
    (root / ".git" / "HEAD").write_text("brought")
    (root / "na\udcffme").write_text("a name that is no text")
    return root


def contents(root: Path) -> dict[str, object]:
    """path -> what it is: the bytes, mode and time of a file, the target of a link. Ours and `.monarch` are left out."""
    found: dict[str, object] = {}
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name != ".monarch"]
        for name in [*folders, *files]:
            path = Path(folder) / name
            at = str(path.relative_to(root))
            if path.is_symlink():
                found[at] = os.readlink(path)
            elif path.is_dir():
                found[at] = "folder"
            elif not name.startswith(".monarch-"):
                status = path.stat()
                found[at] = (path.read_bytes(), status.st_mode & 0o777, status.st_mtime_ns)
    return found


def mounts_below(folder: Path) -> list[str]:
    """The mount points below it, now."""
    with open("/proc/self/mountinfo") as file:
        return [line.split()[4] for line in file if line.split()[4].startswith(f"{folder}/")]


def wait_until_nothing_is_mounted(folder: Path) -> None:
    """The kernel tells of each change of the list of mounts."""
    deadline = time.monotonic() + TIMEOUT
    with open("/proc/self/mountinfo") as file:
        changes = select.poll()
        changes.register(file, select.POLLERR | select.POLLPRI)
        while mounts_below(folder):
            assert time.monotonic() < deadline, mounts_below(folder)
            changes.poll(1000)


def clear(folder: Path) -> None:
    """After a test, however it ended: kills the job that is kept in the folder, and takes away what is mounted below it."""
    kept = folder / DEFAULT_JOB_PATH
    if kept.exists():
        with contextlib.suppress(Exception):
            job_load(kept).kill()
    for point in sorted(mounts_below(folder), reverse=True):
        subprocess.run(["umount", "-l", "--", point], check=True, capture_output=True)
