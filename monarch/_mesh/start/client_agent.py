"""The host agent of a client: its folder and its process, started before the client itself is there."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, NamedTuple

from monarch._mesh.start import agent_process, transports
from monarch._mesh.start.agent_process import AgentOptions
from monarch._mesh.start.preload import preloads
from monarch._mesh.start.run_directory import RunDirectory, make_directory

if TYPE_CHECKING:
    import subprocess


class ClientAgent(NamedTuple):
    """`socket` leads to it; it ends with that. `prefix`: of the address where it listens, "" when it does not."""

    directory: RunDirectory
    process: subprocess.Popen[bytes]
    socket: socket.socket
    prefix: str

    def abandon(self) -> None:
        """Ends the agent, which may not have begun yet: there will be no client."""
        self.socket.close()
        self.process.kill()
        self.process.wait()
        self.directory.remove()


def start_agent() -> ClientAgent:
    directory = make_directory()
    try:
        return ClientAgent(directory, *agent_process.start(_options(directory.path), directory.lock, preloads()))
    except BaseException:
        directory.remove()
        raise


def _options(directory: str) -> AgentOptions:
    """Returns what the agent of this machine is to do, after `enable_transport` and `attach`."""
    options = AgentOptions(directory, transports.listens_at(), gateway=transports.gateway())
    given = transports.gateway_credentials()
    if given is not None:
        options.credentials = given
    elif options.listen:
        from monarch._mesh.start.credentials import own_credentials  # for the few programs that need it

        options.credentials = own_credentials()
    return options
