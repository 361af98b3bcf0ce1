"""The actor that holds a FUSE mount, one on each host."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from typing import Any

from monarch.actor import Actor, current_rank, endpoint
from monarch.remotemount import fuse_process
from monarch.remotemount.fuse_messages import Content, Message, SetTree, TreeEntry, Want
from monarch.remotemount.mount_point import MOUNTED_ALREADY, OTHER_MOUNT, MountPointState, point_of, state_of

# What a host is sent of a file: content, block, bytes (many of them as a PickleBuffer, which comes as a buffer), errno.
Delivery = tuple[int, int, Any, int]


class MountHost(Actor):
    """Mounts at `template`. `source` is the MountSource that reads the files; `name` that of the mount."""

    _is_system_actor = True

    def __init__(self, template: str, name: str, source: Any) -> None:
        self._point = point_of(template, current_rank())
        self._name = name
        self._source = source
        self._process: fuse_process.FuseProcess | None = None
        self._idle = False
        self._mounted = False
        self._trees = 0

    @endpoint
    def look(self, source: str, token: str, machine: str) -> MountPointState:
        """Returns what stands at the mount point, a dead mount aside, which is taken away. `machine` is the client's."""
        mine = fuse_process.machine()
        fuse_process.clear_stale(self._point)
        mounted = fuse_process.mounted_at(self._point)
        if mounted is not None and mounted.startswith("monarch:"):
            state = MOUNTED_ALREADY if mounted == self._name else OTHER_MOUNT
        else:
            state = state_of(self._point, source, token, mine == machine)
        host = f"{socket.gethostname()} (rank {current_rank().rank})"
        return MountPointState(host, self._point, state, fuse_process.obstacle(), mine)

    @endpoint
    def leave_out(self, ranks: Sequence[int]) -> None:
        """These hosts have nothing to mount: another one does it for them, or the files are there."""
        self._idle = current_rank().rank in ranks

    @endpoint
    def start(self) -> None:
        """The process that will serve the mount; it mounts when it has the tree."""
        if not self._idle:
            self._process = fuse_process.FuseProcess(self._point, "tree", self._name, self._received)

    @endpoint
    def mounted(self) -> str:
        """Waits for the mount. Why there is none; "" when it is there."""
        if self._process is None:
            return ""
        try:
            self._process.mounted()
        except fuse_process.MountFailed as exc:
            self._process = None
            return str(exc)
        self._mounted = True
        return ""

    @endpoint
    def deliver(self, blocks: Sequence[Delivery]) -> None:
        for content, block, data, error in blocks:
            self._send(Content(content, block, data, error))

    @endpoint
    def tree(self, entries: Sequence[TreeEntry], last: bool) -> None:
        """Takes the tree in parts; after the last one everybody sees it."""
        if self._process is None:
            return
        self._trees += last
        self._send(SetTree(list(entries), last, self._trees))
        if self._mounted and last:
            self._process.settle(self._trees)

    @endpoint
    def unmount(self) -> str:
        """Unmounts; returns why the mount is in use, "" when it is gone."""
        if self._process is None:
            return ""
        busy = self._process.unmount()
        if not busy:
            self._process = None
        return busy and f"{self._point}: busy: {busy}"

    def __cleanup__(self, exc: Exception | None) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.abandon()

    def _send(self, message: Message) -> None:
        if self._process is not None:
            try:
                self._process.send(message)
            except OSError:  # it was unmounted by hand
                pass

    def _received(self, message: Message) -> None:
        if isinstance(message, Want):
            self._source.want.broadcast(message.content, message.block)


def name_of(source: str) -> str:
    """Returns what /proc/mounts shows of a mount of `source`."""
    return f"monarch:{socket.gethostname()}:{os.fsencode(source).hex()[:80]}"
