"""The number of threads that the numeric libraries of a process take: its share of the host's processors.

By itself each library takes as many as there are processors, in each process, and threads that outnumber processors spend
their time waiting for each other. So each process of a mesh gets, as OMP_NUM_THREADS, the processors that this control group
may use, divided by the processes of ours on this host when the mesh is started, its own included. It keeps that: processes
that come later get less, those that run lose nothing. One bound to processors (`proc_bind`) shares these with the
processes of its mesh that have the same ones.

Where the program or the environment sets one of VARIABLES, nothing is changed.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from monarch._runtime.log_thread import log
from monarch._runtime.loop import FirstStep

VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_SET = VARIABLES[0]  # the others follow it

_given = ""  # what this process was given


def is_said(env: Collection[str]) -> bool:
    """True if the environment already says how many threads libraries take."""
    return any(name in env for name in VARIABLES)


def inherited(env: Mapping[str, str]) -> dict[str, str]:
    """Returns what children inherit of an environment: all but a share, which was for this process."""
    if _given and env.get(_SET) == _given:
        return {name: value for name, value in env.items() if name != _SET}
    return dict(env)


def share(processors: int, processes: int) -> int:
    return max(1, processors // max(1, processes))


def share_of_bound(processors: int, binds: Sequence[Mapping[str, str]], bind: Mapping[str, str]) -> int:
    """The share of a process that is bound to so many processors, as those of its mesh that are bound as it is."""
    return share(processors, sum(other == bind for other in binds))


def with_share(env: dict[str, str], count: int) -> dict[str, str]:
    """The environment of a process that gets this share (0: none)."""
    return env if not count or is_said(env) else {**env, _SET: str(count)}


def processors(root: str | os.PathLike[str] = "/") -> int:
    """Returns the processors that this process may use: by its affinity, and by the limit of its control group."""
    limit = quota(root)
    own = len(os.sched_getaffinity(0))
    return own if limit is None else max(1, min(own, int(limit)))


def quota(root: str | os.PathLike[str] = "/") -> float | None:
    """Processors' worth of time that the control groups around this process leave it; None without a limit."""
    groups = os.path.join(root, "sys/fs/cgroup")
    found = []
    for line in _read(os.path.join(root, "proc/self/cgroup")).splitlines():
        number, names, path = [*line.split(":", 2), "", ""][:3]
        if number == "0" and not names:
            base = groups
        elif "cpu" in names.split(","):
            base = os.path.join(groups, "cpu")
        else:
            continue
        folder = os.path.join(base, path.strip("/")).rstrip("/")
        found.append(_limit_of(folder))
        while folder != base:
            folder = os.path.dirname(folder)
            found.append(_limit_of(folder))
    limits = [limit for limit in found if limit is not None]
    return min(limits) if limits else None


def _limit_of(group: str) -> float | None:
    fields = _read(os.path.join(group, "cpu.max")).split() or [_read(os.path.join(group, "cpu.cfs_quota_us")).strip()]
    period = fields[1] if len(fields) > 1 else _read(os.path.join(group, "cpu.cfs_period_us")).strip()
    try:
        time, each = int(fields[0]), int(period)
    except ValueError:  # "max", or no such file
        return None
    return time / each if time > 0 and each > 0 else None


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""


def is_surprising(count: int, processors: int, processes: int) -> bool:
    """Returns whether a share is smaller than that of a mesh of so many processes on a host that has the processors to
    itself: others of ours run there."""
    return count < share(processors, processes)


def say(count: int, processes: int) -> bool:
    """Says which share the processes of a mesh got, so many on a host, if the program uses torch and might expect more.
    Returns whether it did."""
    if "torch" not in sys.modules or not is_surprising(count, processors(), processes):
        return False
    log(
        logging.getLogger("monarch"),
        logging.WARNING,
        "torch computes with %d thread(s) in each new process, its share of the processors; OMP_NUM_THREADS sets another "
        "number",
        count,
    )
    return True


# --- in the process


def take(count: int) -> None:
    """This process has a share of `count` threads. Libraries that it has from its fork server are told, others read it."""
    global _given
    if not is_said(os.environ):
        os.environ[_SET] = str(count)
        if "torch" in sys.modules:
            torch = sys.modules["torch"]
            torch.set_num_threads(count)
            # A thread to come has OpenMP's number of the fork server until torch looks at its own, which small products of
            # matrices do not do: they would wait for each other's threads, for a hundred times as long as they take.
            FirstStep.take = torch.get_num_threads
        if "numpy" in sys.modules:
            _tell_openblas(count)
    if os.environ.get(_SET) == str(count):
        _given = str(count)


_openblas: list[Callable[[int], Any]] | None = None  # None: nobody has looked


def look() -> None:
    """Looks, in a fork server, so that its processes need not: finds out how libraries that it has imported are told."""
    global _openblas
    _openblas = _setters_of_openblas() if "numpy" in sys.modules else None


def _tell_openblas(count: int) -> None:
    for set_threads in _setters_of_openblas() if _openblas is None else _openblas:
        set_threads(count)


def _setters_of_openblas() -> list[Callable[[int], Any]]:
    """numpy has no function for it."""
    import ctypes

    found = []
    with open("/proc/self/maps") as file:
        paths = {line.split(maxsplit=5)[5].strip() for line in file if "openblas" in line}
    for path in paths:
        try:
            library = ctypes.CDLL(path)
        except OSError:
            continue
        for prefix in ("", "scipy_"):
            for suffix in ("", "64_", "_64"):
                set_threads = getattr(library, f"{prefix}openblas_set_num_threads{suffix}", None)
                if set_threads is not None:
                    found.append(set_threads)
    return found
