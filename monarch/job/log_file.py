"""The end of a log that others write."""

from __future__ import annotations

import os

from monarch._linux import private_files


def end_of(path: str | os.PathLike[str], most: int) -> str:
    """At most the last `most` bytes, as text. OSError when it cannot be read, or is no file: a FIFO holds nobody up."""
    with os.fdopen(private_files.open_regular(path), "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - most))
        return file.read().decode(errors="replace")
