"""The command that a host of a job has to run, and what it has to be told in secret."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

SECRET = "MONARCH_SECRET"
LEASE = "MONARCH_WORKER_LEASE"
OF_RANKS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
# The options of TLS, and the variables that stand in for those that are not given.
TLS = {"ca": "MONARCH_TLS_CA", "certificate": "MONARCH_TLS_CERT", "private_key": "MONARCH_TLS_KEY"}


class WorkerLaunch(msgspec.Struct, frozen=True):
    """The start of the workers of one allocation.

    `secret`: the allocation's own; who has it may run code on its hosts. `lease`: seconds after which a worker without a
    client ends, None for never. `tls`: paths of PEM files on every host, by `ca`, `certificate` and `private_key`; empty for
    plain TCP.
    """

    secret: str
    lease: float | None = None
    tls: Mapping[str, str] = {}

    @property
    def scheme(self) -> str:
        """Returns what the workers' addresses begin with: `tls` or `tcp`."""
        return "tls" if self.tls else "tcp"

    def environment(self) -> dict[str, str]:
        """Variables that tell a worker all of this. For environments that nobody else can read."""
        told = {SECRET: self.secret, **{TLS[name]: path for name, path in self.tls.items()}}
        if self.lease is not None:
            told[LEASE] = f"{self.lease:.3f}s"
        return told

    def stdin(self, outlive: bool = False) -> bytes:
        """The same as the line that `monarch worker --stdin` reads. Unless it is to `outlive` its stdin, the worker ends
        at the end of that."""
        told = {"secret": self.secret, "lease": self.lease, "tls": dict(self.tls), "outlive": outlive}
        return msgspec.json.encode(told) + b"\n"

    def command(self, python: str, address: str) -> list[str]:
        """The words that start a worker; no secret is among them. With -P nothing is imported from the working directory, in
        which others may write."""
        return [python, "-u", "-P", "-m", "monarch", "worker", "--address", address]


def new_secret() -> str:
    """Returns 256 random bits as text."""
    return secrets.token_hex(32)


def own_tls() -> dict[str, str]:
    """Returns the files of TLS that this process was given, by option; {} without TLS."""
    return {option: os.environ[name] for option, name in TLS.items() if os.environ.get(name)}


def start_beside(
    launch: WorkerLaunch, address: str, *, stdout: Any, stderr: Any = None, pass_fds: Sequence[int] = ()
) -> subprocess.Popen[bytes]:
    """Starts a worker on this machine that ends with this process: it reads its orders from a pipe, and ends when that
    does."""
    # Ranks of torchrun have variables that are about themselves, and so do what they start: those of a host have none.
    environment = {key: value for key, value in os.environ.items() if key not in OF_RANKS}
    process = subprocess.Popen(
        [*launch.command(sys.executable, address), "--stdin"],
        stdin=subprocess.PIPE,
        stdout=stdout,
        stderr=stderr,
        env=environment,
        pass_fds=pass_fds,
        start_new_session=True,
    )
    assert process.stdin is not None
    process.stdin.write(launch.stdin())
    process.stdin.flush()
    return process
