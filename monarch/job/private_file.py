"""Files that have their mode from the moment they exist."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def write(path: Path, content: bytes, mode: int = 0o600, *, replace: bool = False) -> None:
    """A new file with `mode` from its first moment. FileExistsError if one is there, unless it is to be replaced."""
    # Never into an existing file: its mode may be wider, and somebody may hold it open.
    target = path.with_name(f".{path.name}.{secrets.token_hex(4)}") if replace else path
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        if replace:
            os.replace(target, path)
    except BaseException:
        os.unlink(target)
        raise
