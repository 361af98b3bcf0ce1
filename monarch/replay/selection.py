"""The selection of actors to be recorded, and where: the setting `record`, asked at each spawn by the spawning process."""

from __future__ import annotations

import contextlib
import fnmatch
import logging
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from monarch import config
from monarch._runtime.log_thread import log
from monarch.config import settings

_log = logging.getLogger("monarch")
_said: set[str] = set()  # folders and wishes that were told of, each once


def recording_folder(name: str, cls: str, rank: int) -> str:
    """Returns the folder that the recording of such an actor goes to; "" when it is not to be recorded."""
    wanted = settings.record()
    if wanted and wanted not in _said:
        _said.add(wanted)
        try:
            check(wanted)
        except ValueError as exc:
            log(_log, logging.WARNING, "setting record: %s", exc)
    if not wanted or not any(matches(pattern, name, cls, rank) for pattern in wanted.split(",")):
        return ""
    folder = os.path.abspath(settings.record_folder() or default_folder())
    if folder not in _said:
        _said.add(folder)
        text = "what actors receive is recorded in %s, on the hosts where they run (setting record is %r)"
        log(_log, logging.WARNING, text, folder, wanted)
    return folder


def matches(pattern: str, name: str, cls: str, rank: int) -> bool:
    """`trainers`, `Trainer`, `train.Trainer`, `train*`, `trainers[3]`, `trainers[0-7]`; `all` is every actor."""
    pattern = pattern.strip()
    if pattern.endswith("]") and "[" in pattern:
        pattern, _, ranks = pattern[:-1].rpartition("[")
        first, dash, last = ranks.partition("-")
        try:
            if not int(first) <= rank <= (int(last) if dash else int(first)):
                return False
        except ValueError:
            return False
    if pattern == "all":
        return True
    return any(fnmatch.fnmatchcase(text, pattern) for text in (name, cls, cls.rpartition(".")[2]))


def check(wanted: str) -> None:
    """Checks the setting; ValueError for what names nothing."""
    for pattern in wanted.split(","):
        bare = pattern.strip()
        ranks = bare[:-1].rpartition("[")[2] if bare.endswith("]") and "[" in bare else "0"
        if not bare or not all(part.isdigit() for part in ranks.split("-", 1)):
            raise ValueError(
                f"{pattern!r} names no actors to record: give the name of a mesh or a class, with ranks or without "
                f"(trainers, Trainer, trainers[3], trainers[0-7], all), several separated by commas"
            )


def default_folder() -> str:
    """Returns a folder of this user alone: recordings hold all that an actor was sent."""
    return os.path.join(tempfile.gettempdir(), f"monarch-recordings-{os.getuid()}")


@contextlib.contextmanager
def recording(
    actors: str | type | Any, *, folder: str | os.PathLike[str] | None = None, most: int | None = None
) -> Iterator[Path]:
    """Records the actors that are spawned in the block, by this process and by what it spawns meanwhile.

        with monarch.replay.recording("trainers", folder="recordings"):
            trainers = procs.spawn("trainers", Trainer)

    `actors`: the name of a mesh, a class, or several as `record` takes them ("trainers[3],Loader"). `folder`: on the host of
    each actor; a folder of the user alone under the temporary one if not given. `most`: bytes a recording; at the bound it
    stops and says so (setting `record_bytes`). Gives the folder. A recording goes on after the block, until its actor ends.
    ValueError for what names no actors.
    """
    wanted = f"{actors.__module__}.{actors.__qualname__}" if isinstance(actors, type) else str(actors)
    check(wanted)
    place = Path(folder).absolute() if folder is not None else Path(default_folder())
    values: dict[str, Any] = {"record": wanted, "record_folder": str(place)}
    if most is not None:
        values["record_bytes"] = most
    with config.configured(**values):
        yield place
