"""The mounts of a job, and those of each of its meshes. Pure."""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec


class RemoteMount(msgspec.Struct, frozen=True):
    """A directory of the client on hosts, as `remote_mount` was told."""

    source: str
    mntpoint: str
    meshes: tuple[str, ...] | None  # None: all
    python_exe: str | None  # on the hosts
    mode: str


class GatheredMount(msgspec.Struct, frozen=True):
    """A directory of hosts at the client, as `gather_mount` was told."""

    remote: str
    local: str
    meshes: tuple[str, ...] | None
    mode: str


class MountOrder(msgspec.Struct, frozen=True):
    """One mount of one mesh. `here` and `there` are paths of the client and of the hosts."""

    kind: str  # "remote" or "gather"
    mesh: str
    here: str
    there: str
    mode: str

    @property
    def place(self) -> tuple[str, str, str]:
        """Two orders for one place cannot be at a time."""
        return self.kind, self.mesh, self.there if self.kind == "remote" else self.here


def orders(remote: Sequence[RemoteMount], gathered: Sequence[GatheredMount], meshes: Sequence[str]) -> list[MountOrder]:
    """Returns what to mount in a job with these meshes. ValueError for a mesh that it does not have, and for two at one
    place."""
    found = []
    for mount in remote:
        found += [
            MountOrder("remote", mesh, mount.source, mount.mntpoint, mount.mode)
            for mesh in _chosen(mount.meshes, meshes)
        ]
    for view in gathered:
        chosen = _chosen(view.meshes, meshes)
        for mesh in chosen:
            local = os.path.join(view.local, mesh) if len(chosen) > 1 else view.local
            found.append(MountOrder("gather", mesh, local, view.remote, view.mode))
    places = [order.place for order in found]
    for kind, mesh, path in places:
        if places.count((kind, mesh, path)) > 1:
            raise ValueError(f"two mounts of mesh {mesh!r} would be at {path}: give each a place of its own")
    return found


def executables(remote: Sequence[RemoteMount], meshes: Sequence[str]) -> dict[str, str]:
    """mesh -> the interpreter of its processes, for those of which a mount brings one; the last one declared wins."""
    return {mesh: mount.python_exe for mount in remote if mount.python_exe for mesh in _chosen(mount.meshes, meshes)}


def _chosen(wanted: tuple[str, ...] | None, meshes: Sequence[str]) -> list[str]:
    if wanted is None:
        return list(meshes)
    unknown = [mesh for mesh in wanted if mesh not in meshes]
    if unknown:
        raise ValueError(f"a mount is for mesh {unknown[0]!r}, and the job's meshes are {', '.join(meshes)}")
    return list(wanted)


def remote_mount(
    source: str, mntpoint: str | None, meshes: Sequence[str] | None, python_exe: str | None, mode: str
) -> RemoteMount:
    """Checked. ValueError for an interpreter that the source does not have, and what else cannot be."""
    here = os.path.abspath(os.path.expanduser(os.fspath(source)))
    there = here if mntpoint is None else os.fspath(mntpoint)
    _check(there, "mntpoint", mode)
    executable = None
    if python_exe is not None:
        if not os.path.exists(os.path.join(here, python_exe)):
            raise ValueError(
                f"python_exe {python_exe!r} does not exist in {here}: name the interpreter of the environment that hosts are "
                "to use, or None for the one their workers run"
            )
        if os.path.isabs(python_exe) or os.path.normpath(python_exe).startswith(".."):
            raise ValueError(f"python_exe {python_exe!r} does not lie in {here}, so the mount does not bring it")
        if "$SUBDIR" in there:
            raise ValueError(
                "python_exe is one path for all hosts of a mesh, and $SUBDIR in mntpoint gives each its own: leave one out"
            )
        executable = os.path.join(there, python_exe)
    return RemoteMount(here, there, _names(meshes), executable, mode)


def gathered_mount(remote: str, local: str, meshes: Sequence[str] | None, mode: str) -> GatheredMount:
    """Checked. ValueError for what cannot be."""
    _check(os.fspath(remote), "remote_mount_point", mode)
    return GatheredMount(os.fspath(remote), os.path.abspath(os.path.expanduser(os.fspath(local))), _names(meshes), mode)


def _check(there: str, name: str, mode: str) -> None:
    if not os.path.isabs(there):
        raise ValueError(f"{name} {there!r} is not absolute: hosts do not know this program's folder")
    if mode not in ("auto", "fuse", "mirror"):
        raise ValueError(f"mode {mode!r} is none of auto, fuse, mirror")


def _names(meshes: Sequence[str] | None) -> tuple[str, ...] | None:
    if isinstance(meshes, str):
        raise TypeError(f"meshes is a sequence of names, got {meshes!r}")
    return None if meshes is None else tuple(meshes)
