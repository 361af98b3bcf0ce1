"""The fork server: a single-threaded process that has imported what programs will need, and forks procs in milliseconds.

Agent and zygote talk over a sequenced-packet socket; packets are msgpack and carry descriptors. To fork a batch the
zygote forks an intermediate, which forks the procs and exits, so that the procs become children of the agent (a subreaper):
the agent sees every exit status itself, and the death of a zygote harms no proc.

    agent -> zygote    ("batch", n) + spec        then n times ("proc", address, incarnation, ...) + its descriptors
                       ("zygote", preload, env) + socket of the new one
    zygote -> agent    ("forked", address, incarnation, pid)   ("failed", address, incarnation, why)
"""

from __future__ import annotations

import gc
import importlib
import os
import signal
import socket
import sys
from typing import Any

import msgspec

_PACKET = 64 * 1024
_FDS = 8

# A library reads these when it is loaded: a zygote that loaded it under other values cannot serve.
_READ_AT_LOAD = (
    "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "BLIS_", "NUMEXPR_", "VECLIB_", "TORCH", "PYTORCH_", "ATEN_", "LD_",
    "PYTHON", "MALLOC_", "GLIBC_TUNABLES", "CUDA_MODULE_", "CUDA_DEVICE_ORDER", "HSA_", "KINETO_",
)  # fmt: skip


class ForkedProc:
    """In a new proc: what it was forked for, and its descriptors by name."""

    def __init__(self, address: str, incarnation: int, spec: bytes, fds: dict[str, int], bind: dict[str, str]):
        self.address = address
        self.incarnation = incarnation
        self.spec = spec
        self.fds = fds
        self.bind = bind


def load_time_env(env: dict[str, str]) -> dict[str, str]:
    """The part of an environment that a zygote must have been started with."""
    return {key: value for key, value in env.items() if key.startswith(_READ_AT_LOAD)}


def send_packet(sock: socket.socket, packet: Any, fds: list[int]) -> None:
    socket.send_fds(sock, [msgspec.msgpack.encode(packet)], fds)


def receive_packet(sock: socket.socket) -> tuple[Any, list[int]] | None:
    """(packet, descriptors); None when the other end is gone."""
    data, fds, _flags, _address = socket.recv_fds(sock, _PACKET, _FDS)
    return (msgspec.msgpack.decode(data), fds) if data else None


def start(preload: list[str], close: list[int]) -> tuple[socket.socket, int]:
    """Forks the first zygote off this process, which must be single-threaded and still bare. Returns its socket, pid.

    The zygote closes the descriptors in `close`.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    parent = os.getpid()
    pid = os.fork()
    if pid:
        theirs.close()
        return ours, pid
    ours.close()
    for fd in close:
        os.close(fd)
    _become(theirs, preload, parent)
    raise AssertionError("a zygote never returns")


def _become(sock: socket.socket, preload: list[str], agent: int) -> None:
    """The life of a zygote; leaves through `sys.exit` in the zygote, and runs the proc in its forked children."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with(agent)
    for name in ("monarch._mesh.process.child", *preload):
        try:
            importlib.import_module(name)
        except ImportError as exc:
            sys.stderr.write(f"monarch: the fork server could not preload {name}: {exc}\n")
    gc.collect()
    gc.freeze()  # the children share these pages as long as no collection writes to them
    child = _serve(sock, agent)
    if child is None:
        os._exit(0)
    from monarch._mesh.process.child import run_forked

    signal.signal(signal.SIGINT, signal.default_int_handler)
    run_forked(child, agent)


def _serve(sock: socket.socket, agent: int) -> ForkedProc | None:
    """Forks on request until the agent is gone (None) or this is a new proc (what it is to run)."""
    while True:
        received = receive_packet(sock)
        if received is None:
            return None
        packet, fds = received
        gate_read, gate_write = os.pipe()
        pid = os.fork()
        if pid:
            for fd in (*fds, gate_read, gate_write):
                os.close(fd)
            os.waitpid(pid, 0)
            continue
        # The intermediate. Its children learn that it has gone from the end of the gate pipe.
        if packet[0] == "batch":
            child = _fork_batch(sock, packet[1], fds[0], (gate_read, gate_write))
        else:
            child = None
            if os.fork() == 0:
                sock.close()
                os.close(gate_write)
                wait_orphaned(gate_read, agent)
                os.environ.clear()
                os.environ.update(packet[2])
                _become(socket.socket(fileno=fds[0]), packet[1], agent)
        if child is None:
            os._exit(0)
        return child


def _fork_batch(sock: socket.socket, count: int, spec_fd: int, gate: tuple[int, int]) -> ForkedProc | None:
    spec = os.pread(spec_fd, os.fstat(spec_fd).st_size, 0)
    os.close(spec_fd)
    failed = ""
    for _ in range(count):
        received = receive_packet(sock)
        if received is None:
            return None
        (_, address, incarnation, names, bind), fds = received
        if not failed:
            try:
                pid = os.fork()
            except OSError as exc:
                failed = f"fork failed: {exc.strerror} (limits: ulimit -u, the control group's pids.max, memory)"
            else:
                if pid == 0:
                    sock.close()
                    os.close(gate[1])
                    named = dict(zip(names, fds, strict=True))
                    named["gate"] = gate[0]
                    return ForkedProc(address, incarnation, spec, named, bind)
        for fd in fds:
            os.close(fd)
        what, said = ("failed", failed) if failed else ("forked", pid)
        send_packet(sock, (what, address, incarnation, said), [])
    return None


def wait_orphaned(gate: int, agent: int) -> None:
    """Waits until the intermediate is gone and the agent is the parent."""
    os.read(gate, 1)
    os.close(gate)
    for _ in range(100_000):
        if os.getppid() == agent:
            break
        os.sched_yield()


def die_with(parent: int) -> None:
    """SIGKILL for this process when its parent process `parent` ends; at once if it already has."""
    import ctypes

    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
