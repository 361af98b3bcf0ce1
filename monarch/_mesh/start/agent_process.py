"""Starting a host agent, and what it is told before it does anything: one message each way over an inherited socket.

Nothing of it stands on a command line or in the environment: secrets and keys are among it. On its command line is what it
needs before it can read that: which modules its first processes will need.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    import subprocess

_LIMIT = 16 * 1024 * 1024
_ANSWER = 30.0  # seconds that an agent may take to say where it listens


class Credentials(msgspec.Struct, frozen=True):
    """The proof of agents that they belong to a job. `ca`, `certificate`, `private_key`: PEM; all or none of them."""

    secret: bytes = b""
    ca: bytes = b""
    certificate: bytes = b""
    private_key: bytes = b""

    def __repr__(self) -> str:
        return f"<Credentials {'with' if self.secret else 'without'} secret, {'with' if self.ca else 'without'} TLS>"


class AgentOptions(msgspec.Struct):
    """`listen`: where other hosts connect to (see `host_address`), "" nowhere. `worker`: it serves any client that
    attaches, and the socket is only watched for its end; else the client that started it is at the other end.
    `gateway`: see `routes`. `lease`: see `lease.Lease`."""

    directory: str
    listen: str = ""
    worker: bool = False
    gateway: str = ""
    credentials: Credentials = Credentials()
    lease: float = 0.0


class AgentStarted(msgspec.Struct):
    """The agent's answer when it was to listen: the prefix of its address, or why it cannot."""

    prefix: str = ""
    error: str = ""


def write(sock: socket.socket, struct_: msgspec.Struct) -> None:
    from monarch._linux import local_socket  # when a client starts, as below

    local_socket.send(sock, msgspec.msgpack.encode(struct_))


def read_options(sock: socket.socket) -> AgentOptions:
    """Reads the options, in the agent."""
    return msgspec.msgpack.decode(_read(sock), type=AgentOptions)


def read_started(sock: socket.socket) -> AgentStarted:
    """Waits for the agent's answer. TimeoutError, ConnectionError when none comes."""
    sock.settimeout(_ANSWER)
    try:
        return msgspec.msgpack.decode(_read(sock), type=AgentStarted)
    finally:
        sock.settimeout(None)


def _read(sock: socket.socket) -> bytearray:
    """ConnectionError when the other end has ended, or says what is not a message."""
    from monarch._linux import local_socket

    try:
        return local_socket.receive(sock, _LIMIT)
    except local_socket.PeerClosedError:
        raise ConnectionError("the process at the other end has ended") from None
    except ValueError:
        raise ConnectionError("the process at the other end is not one of ours") from None


def start(
    options: AgentOptions, lock: int, preload: Sequence[str] = ()
) -> tuple[subprocess.Popen[bytes], socket.socket, str]:
    """Starts a host agent as a child in a session of its own; returns it, our end of its socket, and the prefix of the
    address where it listens ("" when it was not to). It ends with the socket. `lock`: of its folder, see `run_directory`.
    `preload`: modules that its first processes will need. OSError when it cannot listen."""
    import subprocess  # slow to import; used when a client starts

    from monarch._mesh.start import leftovers

    listening = _inherited(options.listen)
    inherited = [*listening, lock]
    ours, theirs = socket.socketpair()
    try:
        write(ours, options)
        # The agent imports the package from where this process has it, whatever the working directory holds.
        root = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))
        code = f"import sys; sys.path.insert(0, {root!r}); from monarch._mesh.agent.main import main; main()"
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # -X, -W, -O: as multiprocessing does
        agent = subprocess.Popen(
            [sys.executable, *flags, "-P", "-c", code, ",".join(preload), *map(str, (theirs.fileno(), *inherited))],
            env={**inheritable(os.environ), leftovers.RUN: options.directory},
            stdin=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(), *inherited),
            start_new_session=True,
        )
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    if not options.listen:
        return agent, ours, ""
    try:
        said = read_started(ours)
    except OSError as exc:
        said = AgentStarted(error=f"its host agent did not start: {exc}")
    if said.error:
        ours.close()
        agent.wait()
        known = said.error.startswith("cannot listen at ")
        raise OSError(said.error if known else f"cannot listen at {options.listen!r}: {said.error}")
    for fd in listening:  # the agent has it: were it open here too, clients would wait for ever when the agent ends
        os.close(fd)
    return agent, ours, said.prefix


def inheritable(env: Mapping[str, str]) -> dict[str, str]:
    """Returns what other processes get of this one's environment: not the secret, which whatever they start would have
    as well."""
    return {name: value for name, value in env.items() if name != "MONARCH_SECRET"}


def _inherited(listen: str) -> list[int]:
    """The descriptor in an address such as tcp://host:fd7. OSError when it is not open."""
    if ":fd" not in listen:
        return []
    from monarch._wire import host_address  # slow to import, and a client does without

    bind = host_address.parse(listen).bind
    if not isinstance(bind, host_address.Inherited):
        return []
    try:
        os.fstat(bind.fd)
    except OSError as exc:
        raise OSError(f"cannot listen at {listen!r}: descriptor {bind.fd} is not open in this process") from exc
    return [bind.fd]
