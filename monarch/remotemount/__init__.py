"""A directory of the client on every host: `remotemount`, which is the function, here and in the module of that name.

    mount = remotemount(hosts, "/home/me/project")
    mount.open()

place          where a mount goes on a host, and what stands there already (pure but for looking)
mirror         real files, as the client runs it
mirror_host    the actor that writes them
versions       which content a file of the tree has, as numbers (pure)
tree           a directory tree as a file system asks for it (pure)
source         the actor of the client that reads files for FUSE mounts
mount_host     the actor on each host that holds a FUSE mount
fuse_process   a process that serves one FUSE mount, and what it says to its owner
fuse_program   that process's own side
remotemount    the handler that programs hold
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from monarch.remotemount.remotemount import MountHandler
    from monarch.remotemount.remotemount import remotemount as remotemount


class _Package(ModuleType):
    """A package with a function that has the name of the module it is in. It is imported on use: a process that serves
    a mount does without."""

    @property
    def remotemount(self) -> Callable[..., MountHandler]:
        """Returns the function."""
        from monarch.remotemount.remotemount import remotemount

        return remotemount

    @remotemount.setter
    def remotemount(self, module: ModuleType) -> None:
        """Leaves the name as it is: the import of the module would take it."""


sys.modules[__name__].__class__ = _Package
