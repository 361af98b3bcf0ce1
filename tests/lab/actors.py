"""Actors of the labs' tests, and how they are run."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

from monarch.actor import Actor, HostMesh, current_rank, endpoint
from tests.support.patience import TIMEOUT


class Node(Actor):
    """Says where it is."""

    @endpoint
    def name(self) -> str:
        return socket.gethostname()

    @endpoint
    def variable(self, name: str) -> str | None:
        return os.environ.get(name)

    @endpoint
    def wait_for_ever(self, folder: str) -> None:
        """Leaves a file as a sign that it has begun."""
        Path(folder, f"begun-{current_rank().rank}").touch()
        threading.Event().wait()


def spawn(hosts: HostMesh) -> Node:
    """One on each host."""
    return hosts.spawn_procs().spawn("nodes", Node)


def names(hosts: HostMesh) -> list[str]:
    """The host names, by rank."""
    return list(spawn(hosts).name.call().get(TIMEOUT).values())
