"""The secret of a job: who has it may attach to its hosts, and so run code there."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from monarch._linux import private_files
from monarch.job.worker_launch import new_secret


def write_secret(path: str | os.PathLike[str], *, force: bool = False) -> Path:
    """A new secret in a new file of mode 0600. FileExistsError if there is one, unless `force`: then it is replaced, and
    the old secret is of no use any more."""
    file = Path(path)
    try:
        private_files.write(file, f"{new_secret()}\n".encode(), replace=force)
    except FileExistsError:
        raise FileExistsError(
            f"{file} is already there; --force replaces it, after which hosts and clients with the old secret are refused"
        ) from None
    return file


def print_secret(descriptor: int = 1) -> None:
    """Writes a new secret to standard output. A file that it goes to is made private first, as those who read it ask."""
    found = os.fstat(descriptor)
    if stat.S_ISREG(found.st_mode) and stat.S_IMODE(found.st_mode) & 0o077:
        os.fchmod(descriptor, 0o600)
    os.write(descriptor, f"{new_secret()}\n".encode())
