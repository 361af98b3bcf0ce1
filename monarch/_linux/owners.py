"""Owners of files: what the number of a user means here, and who serves a file system."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

OVERFLOW = 65534  # whose files those of users without a number in this user namespace seem to be
_EVERYBODY = 2**32 - 1  # users that there can be


def can_be_told() -> bool:
    """True if what has this user's number is this user's. Not where others seem to have it: who has no number in this user
    namespace."""
    return os.geteuid() != OVERFLOW or sum(count for _, count in _numbers()) >= _EVERYBODY


def named(uid: int) -> str:
    """Returns words for a user."""
    if uid == OVERFLOW and not is_mapped(uid):
        return f"user {uid}, that is somebody who has no number in this user namespace"
    return f"user {uid}"


def is_mapped(uid: int) -> bool:
    """True if a user of this number can be in this user namespace."""
    return any(first <= uid < first + count for first, count in _numbers())


def _numbers() -> list[tuple[int, int]]:
    """Returns the ranges of users that this user namespace has, as (first, how many)."""
    try:
        with open("/proc/self/uid_map", encoding="ascii") as file:
            return [(int(first), int(count)) for first, _, count in map(str.split, file)]
    except (OSError, ValueError):
        return [(0, _EVERYBODY)]


def is_own_group(gid: int) -> bool:
    """True for the group that is there for this user alone: the one of his name, with no other member."""
    import grp  # slow where names come over the network: asked only where a group may write
    import pwd

    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    return user.pw_gid == gid and group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}


def mount_of(file: int) -> str:
    """Returns the number of the mount that a descriptor is of; "" where the kernel does not tell."""
    with open(f"/proc/self/fdinfo/{file}") as about:
        found = re.search(r"^mnt_id:\s*(\d+)$", about.read(), re.MULTILINE)
    return found[1] if found is not None else ""


def serving_user(mount: str, mountinfo: Iterable[str]) -> int:
    """Returns the user whose program serves a mounted file system (FUSE), 0 for those of the kernel, from what
    /proc/PID/mountinfo says. What is mounted no more may have been anybody's."""
    for line in mountinfo:
        about, _, system = line.partition(" - ")
        if about.split(" ", 1)[0] == mount:
            kind, _, options = system.split(" ", 2)
            user = re.search(r"(?:^|,)user_id=(\d+)", options)
            return int(user[1]) if kind.startswith("fuse") and user is not None else 0
    return OVERFLOW
