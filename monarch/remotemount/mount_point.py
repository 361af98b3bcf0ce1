"""The place of a mount on a host, and whether it may go there."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

from monarch.actor import HostMesh
from monarch.actor.file_sync import OURS, Rules

MODES = ("auto", "fuse", "mirror")

# Contents of the source that are never brought: the jobs' own folder, what we write ourselves, other file systems.
MARKER = ".monarch-mirror"  # in a directory of ours on a host: what we have written there
MOUNTED = Rules(frozenset({".monarch", MARKER}), one_file_system=True)
TOKEN = OURS + "seen."  # begins the name of a file that the source has for a moment

FREE = "free"  # nothing there, or an empty directory
OURS_ALREADY = "ours"  # an earlier mirror
SOURCE = "source"  # the client's own directory: a shared file system, or the same machine
TAKEN = "taken"  # others have files there
INSIDE = "inside"  # it lies inside the source
AROUND = "around"  # the source lies inside it
NOT_A_FOLDER = "not a folder"
MOUNTED_ALREADY = "mounted"  # another program holds a mount there, of the same source
OTHER_MOUNT = "other mount"  # and of another source


def check_asked(function: str, hosts: HostMesh, mode: str) -> None:
    """Raises ValueError for a mode that there is not, TypeError for what is no mesh of hosts."""
    if not isinstance(hosts, HostMesh):
        raise TypeError(f"{function} takes a mesh of hosts, such as this_host() or job.state() gives, got {hosts!r}")
    if mode not in MODES:
        raise ValueError(f"mode {mode!r} is none of {', '.join(MODES)}")


class MountPointState(NamedTuple):
    """The state of a host's directory at the place of a mount."""

    host: str
    path: str
    state: str
    obstacle: str  # why FUSE cannot be used there; "" when it can
    machine: str  # equal for hosts that see the same mounts


def subdirectory(coordinates: Mapping[str, int]) -> str:
    """The name of one host among those of a mesh, as in `a_1_b_2`. "" in a mesh without dimensions."""
    return "_".join(f"{label}_{coordinate}" for label, coordinate in coordinates.items())


def point_of(template: str, coordinates: Mapping[str, int]) -> str:
    """The path on one host: `$SUBDIR` is its name in the mesh."""
    return os.path.normpath(template.replace("$SUBDIR", subdirectory(coordinates)))


def state_of(path: str, source: str, token: str, here: bool) -> str:
    """Returns what stands at `path` on this machine. `here`: the client's `source` is on it as well, at that path.
    `token`: of a file in the source, which shows it elsewhere too; "" when it could not be made."""
    real = os.path.realpath(path)
    if here:
        ours = os.path.realpath(source)
        if real == ours:
            return SOURCE
        if _below(real, ours):
            return INSIDE
        if _below(ours, real):
            return AROUND
    if token:
        if os.path.exists(os.path.join(real, token)):
            return SOURCE
        folder = real
        while folder != os.path.dirname(folder):
            folder = os.path.dirname(folder)
            if os.path.exists(os.path.join(folder, token)):
                return INSIDE
        if os.path.exists(os.path.join(source, token)) and _below(os.path.realpath(source), real):
            return AROUND
    try:
        names = os.listdir(real)
    except FileNotFoundError:
        return FREE
    except NotADirectoryError:
        return NOT_A_FOLDER
    if not names:
        return FREE
    return OURS_ALREADY if MARKER in names else TAKEN


def _below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def refusal(look: MountPointState, source: str, fuse: bool) -> str:
    """Returns why nothing can be mounted there; "" when it can."""
    match look.state:
        case "inside":
            why = f"lies inside the source {source}, which would then contain itself"
        case "around":
            why = f"contains the source {source}, which would be hidden by the mount"
        case "not a folder":
            why = "is not a directory"
        case "other mount":
            why = "is in use by a mount of another source"
        case "taken" if not fuse:
            why = "has files in it that no mount has brought, and they would be mixed with those of the source"
        case _:
            return ""
    return f"{look.path} on {look.host} {why}: name another mntpoint, one that is empty or does not exist yet"
