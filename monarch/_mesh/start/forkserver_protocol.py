"""Messages between a host agent and its fork servers, and to a forked process.

They talk over a sequenced-packet socket; packets are msgpack and carry descriptors.

    agent -> fork server    ("batch", n) + spec        then n times ("proc", address, incarnation, ...) + its descriptors
                            ("forkserver", preload, in the background) + socket of the new one, and a file with
                            its environment, which may be larger than a packet
    fork server -> agent    ("serving", pid), first of all
                            ("ready",), of one that has imported in the background: it forks at once from now on
                            ("forked", address, incarnation, pid)   ("failed", address, incarnation, why)
                            ("ended", why), of one that could not be started
"""

from __future__ import annotations

import os
import signal
import socket
import time
from typing import Any

from monarch._wire import os_text

_PACKET = 64 * 1024
_FDS = 8
_BETWEEN = 0.0005  # seconds between two looks whether a process has been orphaned

# A library reads these when it is loaded: a fork server that loaded it under other values cannot serve.
_READ_AT_LOAD = (
    "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "BLIS_", "NUMEXPR_", "VECLIB_", "TORCH", "PYTORCH_", "ATEN_", "LD_",
    "PYTHON", "MALLOC_", "GLIBC_TUNABLES", "CUDA_MODULE_", "CUDA_DEVICE_ORDER", "HSA_", "KINETO_",
)  # fmt: skip


class ForkedProc:
    """The way back of a new proc: what it was forked for, its descriptors by name, and the intermediate that forked it."""

    def __init__(
        self, address: str, incarnation: int, spec: bytes, fds: dict[str, int], bind: dict[str, str], intermediate: int
    ):
        self.address = address
        self.incarnation = incarnation
        self.spec = spec
        self.fds = fds
        self.bind = bind
        self.intermediate = intermediate


def load_time_env(env: dict[str, str]) -> dict[str, str]:
    """The part of an environment that a fork server must have been started with."""
    return {key: value for key, value in env.items() if key.startswith(_READ_AT_LOAD)}


def send_packet(sock: socket.socket, packet: Any, fds: list[int]) -> None:
    socket.send_fds(sock, [os_text.encode(packet)], fds)


def receive_packet(sock: socket.socket) -> tuple[Any, list[int]] | None:
    """(packet, descriptors); None when the other end is gone."""
    data, fds, _flags, _address = socket.recv_fds(sock, _PACKET, _FDS)
    return (os_text.decode(data, Any), fds) if data else None


def read_file(file: int) -> bytes:
    """Reads a file in memory that came with a packet, and closes it here; others may be reading it."""
    content = os.pread(file, os.fstat(file).st_size, 0)
    os.close(file)
    return content


def wait_orphaned(gate: int, intermediate: int) -> None:
    """Waits until the intermediate is gone, so that the agent is the parent."""
    os.read(gate, 1)
    os.close(gate)
    while os.getppid() == intermediate:  # it closes its files before it is gone, and may need a processor for that
        time.sleep(_BETWEEN)


def die_with(parent: int) -> None:
    """SIGKILL for this process when its parent process `parent` ends; at once if it already has."""
    import ctypes

    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
