"""The actor that writes a mirror, one on each host for each sync."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Collection, Sequence

from monarch._linux import private_files
from monarch.actor import current_rank, endpoint
from monarch.actor.file_sync import (
    LOCK,
    ConfinedFolder,
    Manifest,
    Problem,
    Receiver,
    Root,
    Taken,
    answers,
    scan,
)
from monarch.remotemount import fuse_process
from monarch.remotemount.mount_point import MARKER, MOUNTED, OURS_ALREADY, SOURCE, MountPointState, point_of, state_of

_MADE, _FOUND = b"made", b"found"  # the directory: by us, or it was there, empty


class MirrorHost(Receiver):
    """Writes at the mount point `template`. What others have written there is neither seen nor touched: a list in the
    directory itself, `MARKER`, says what is ours."""

    rules = MOUNTED

    def __init__(self, template: str, run: str) -> None:
        super().__init__("", run)
        self.path = point_of(template, current_rank())
        self._idle = False

    @endpoint
    @answers
    def look(self, source: str, token: str, machine: str, clearing: bool) -> MountPointState | Problem:
        """Returns what stands there; `machine` is the client's. It decides whether there is something to write, or to
        clear."""
        mine = fuse_process.machine()
        state = state_of(self.path, source, token, mine == machine)
        self._idle = state != OURS_ALREADY if clearing else state == SOURCE
        return MountPointState(self.host, self.path, state, "", mine)

    @endpoint
    @answers
    def lock(self) -> Root | Taken | Problem:
        """A host that sees the client's own directory has nothing to write."""
        if self._idle:
            return Taken(self.host, self.path, self.run)
        private_files.make_folder(os.path.dirname(self.path), mine=False, closed=False)
        try:
            os.mkdir(self.path, 0o700)
            how = _MADE
        except FileExistsError:
            how = _FOUND
        locked = self.take_lock()
        if isinstance(locked, Root) and not os.path.exists(self._marker):
            self._note(how, [])
        return locked

    @endpoint
    @answers
    def note(self, paths: Sequence[str], more: bool) -> None:
        """Notes what of the directory is ours; `more`: beside what was. Before anything is written, and again after."""
        how, before = self._noted()
        wanted = {*paths, *before} if more else {*paths}
        if wanted != before:
            self._note(how, wanted)

    @endpoint
    @answers
    def clear(self) -> bool:
        """Removes all that is ours. False when others have files there, which stay, and so do the folders that hold them."""
        how, paths = self._noted()
        tree = ConfinedFolder(self.path, "")
        try:
            for path in sorted(paths, reverse=True):
                try:
                    tree.remove(path)
                except OSError as error:
                    if error.errno != errno.ENOTEMPTY:
                        raise
        finally:
            tree.close()
        left = [name for name in os.listdir(self.path) if not self.rules.exclude(name)]
        for name in (MARKER, LOCK):
            os.unlink(os.path.join(self.path, name))
        if how == _MADE and not left:
            os.rmdir(self.path)
        return not left

    def found(self, root: str) -> Manifest:
        _, ours = self._noted()
        return {path: entry for path, entry in scan(root, self.rules).items() if path in ours}

    # --- the list of what is ours

    @property
    def _marker(self) -> str:
        return os.path.join(self.path, MARKER)

    def _noted(self) -> tuple[bytes, set[str]]:
        with open(private_files.open_to_read(self._marker), "rb") as file:
            how, *paths = file.read().split(b"\0")
        return how, {os.fsdecode(path) for path in paths}

    def _note(self, how: bytes, paths: Collection[str]) -> None:
        data = b"\0".join([how, *(os.fsencode(path) for path in sorted(paths))])
        with contextlib.closing(ConfinedFolder(self.path, "")) as tree:
            tree.write(MARKER, data, 0o600, time.time_ns())
