"""The hosts of a server, as asked for and as known: what older launch scripts pass around."""

from __future__ import annotations

import dataclasses
import enum

__all__ = ["DEFAULT_REMOTE_ALLOCATOR_PORT", "JobState", "MeshSpec", "ServerSpec", "mesh_spec_from_str"]

DEFAULT_REMOTE_ALLOCATOR_PORT = 26600


class JobState(enum.Enum):
    """The state of a server: how far it has come."""

    PENDING = "pending"
    RUNNING = "running"
    ENDED = "ended"


@dataclasses.dataclass
class MeshSpec:
    """One mesh of hosts: its name, how many, of which kind (`gpu.large`, a partition, ...), and, once it runs, their
    names."""

    name: str
    num_hosts: int
    host_type: str = ""
    transport: str = "tcp"
    port: int = DEFAULT_REMOTE_ALLOCATOR_PORT
    hostnames: list[str] = dataclasses.field(default_factory=list)
    state: JobState = JobState.PENDING

    def server_addrs(self, transport: str | None = None, port: int | None = None) -> list[str]:
        """The addresses of its workers, by rank, for `attach_to_workers`."""
        return [f"{transport or self.transport}://{host}:{port or self.port}" for host in self.hostnames]


@dataclasses.dataclass
class ServerSpec:
    """The meshes of one server."""

    name: str
    scheduler: str
    state: JobState = JobState.PENDING
    meshes: list[MeshSpec] = dataclasses.field(default_factory=list)

    @property
    def is_running(self) -> bool:
        """True if all its hosts are there."""
        return self.state is JobState.RUNNING

    def get_mesh_spec(self, mesh_name: str) -> MeshSpec:
        """ValueError, which lists the meshes, when there is none of this name."""
        for mesh in self.meshes:
            if mesh.name == mesh_name:
                return mesh
        known = ", ".join(mesh.name for mesh in self.meshes) or "none"
        raise ValueError(f"Mesh {mesh_name!r} not found in job: {self.name}. Available: {known}")


def mesh_spec_from_str(mesh_spec_str: str) -> MeshSpec:
    """`name:hosts:host_type`, as in "trainers:4:gpu.large". ValueError for anything else."""
    parts = mesh_spec_str.split(":")
    if len(parts) != 3 or not parts[0] or not parts[2]:
        raise ValueError(f"a mesh is NAME:NUMBER_OF_HOSTS:HOST_TYPE, as in trainers:4:gpu.large; got {mesh_spec_str!r}")
    name, count, host_type = parts
    if not count.isdecimal() or int(count) < 1:
        raise ValueError(f"the number of hosts of a mesh is 1 or more, got {count!r} in {mesh_spec_str!r}")
    return MeshSpec(name, int(count), host_type)
