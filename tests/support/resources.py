"""The resources that this process holds."""

from __future__ import annotations

import os
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from tests.support.patience import GRACE


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def open_kinds() -> Counter[str]:
    """Returns what is open, by kind: sockets and pipes are alike, files have names."""
    kinds: Counter[str] = Counter()
    for fd in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the folder itself, and what a thread has closed meanwhile
            kinds[os.readlink(f"/proc/self/fd/{fd}").partition(":[")[0]] += 1
    return kinds


def left_open(before: Counter[str]) -> Counter[str]:
    """Returns what is open beside that, and stays so: other threads close what has ended, and open some for a moment."""
    deadline = time.monotonic() + GRACE
    while (left := open_kinds() - before) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left
