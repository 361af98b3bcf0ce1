"""The fork server: a single-threaded process that has imported what programs will need, and forks procs in milliseconds.

To fork a batch it forks an intermediate, which forks the procs and exits, so that the procs become children of the agent (a
subreaper): the agent sees every exit status itself, and the death of a fork server harms no proc.
"""

from __future__ import annotations

import gc
import importlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterable, Sequence
from typing import Any

from monarch._mesh.start import device_slots, preloaded, threads
from monarch._mesh.start.forkserver_protocol import (
    ForkedProc,
    die_with,
    read_file,
    receive_packet,
    send_packet,
    wait_orphaned,
)
from monarch._wire import os_text

CHILD = "monarch._mesh.process.child"  # what a proc runs; it is above this module, so it is known by its name
_DEVICE = "monarch._devices.own_device"
# By every proc, sooner or later; what modules with actors import is above this one, too.
_WANTED = (CHILD, "monarch._runtime.direct", "monarch.actor")

_BACKGROUND = 5  # nice: a third of the others' weight, so that it comes to an end on a host that is busy too


def start(preload: list[str], close: list[int]) -> tuple[socket.socket, int]:
    """Forks the first fork server off this process, which must be single-threaded and still bare. Returns its socket, pid.

    The fork server closes the descriptors in `close`.
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
    raise AssertionError("a fork server never returns")


def main() -> None:
    """The first fork server in a fresh interpreter, in the place of one that was killed: argv is the descriptor of its
    socket and the agent's pid."""
    descriptor, agent = map(int, sys.argv[1:])
    os.set_inheritable(descriptor, False)
    _become(socket.socket(fileno=descriptor), [], agent)


def _become(sock: socket.socket, preload: list[str], agent: int, background: bool = False) -> None:
    """The life of a fork server; leaves through `sys.exit` in the fork server, and runs the proc in its forked children."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with(agent)
    try:
        send_packet(sock, ("serving", os.getpid()), [])
    except OSError:  # the agent has ended
        os._exit(1)
    ours = [*_WANTED, *((_DEVICE,) if device_slots.driver_here() else ())]
    gc.disable()  # imports leave next to no garbage, and looking for it takes a fifth of the time that torch takes
    if background:  # a thread has a priority of its own, and only root may raise one again
        importing = threading.Thread(target=_import, args=(ours, preload, True))
        importing.start()
        importing.join()
    else:
        _import(ours, preload)
    threads.look()
    gc.freeze()  # the children share these pages as long as no collection writes to them
    gc.enable()
    if background:
        send_packet(sock, ("ready",), [])
    child = _serve(sock, agent)
    if child is None:
        os._exit(0)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    preloaded.stay_at_exit()
    importlib.import_module(CHILD).run_forked(child, agent)
    preloaded.end()
    sys.exit(0)


def _import(ours: list[str], preload: list[str], background: bool = False) -> None:
    if background:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _BACKGROUND)
    with preloaded.noted():
        for name in ours:
            importlib.import_module(name)
        for name in preload:
            try:
                importlib.import_module(name)
            except ImportError as exc:
                if not background:  # else it is a guess
                    sys.stderr.write(f"monarch: the fork server could not preload {name}: {exc}\n")


def _serve(sock: socket.socket, agent: int) -> ForkedProc | None:
    """Forks on request until the agent is gone (None) or this is a new proc (what it is to run)."""
    while True:
        received = receive_packet(sock)
        if received is None:
            return None
        packet, fds = received
        gate: tuple[int, ...] = ()
        try:
            gate_read, gate_write = gate = os.pipe()
            pid = os.fork()
        except OSError as exc:  # there are too many processes just now
            _refuse(sock, packet, fds, exc)
            _close((*fds, *gate))
            continue
        if pid:
            _close((*fds, *gate))
            os.waitpid(pid, 0)
            continue
        # The intermediate. Its children learn that it has gone from the end of the gate pipe.
        intermediate = os.getpid()
        if packet[0] == "batch":
            child = _fork_batch(sock, packet[1], fds[0], (gate_read, gate_write))
        else:
            child = None
            try:
                pid = os.fork()
            except OSError as exc:
                _refuse(sock, packet, fds, exc)
                os._exit(1)
            if pid == 0:
                sock.close()
                os.close(gate_write)
                wait_orphaned(gate_read, intermediate)
                os.environ.clear()
                os.environ.update(os_text.decode(read_file(fds[1]), dict[str, str]))
                _become(socket.socket(fileno=fds[0]), packet[1], agent, packet[2])
        if child is None:
            os._exit(0)
        return child


def _refuse(sock: socket.socket, packet: Sequence[Any], fds: list[int], exc: OSError) -> None:
    """Answers what cannot be done."""
    if packet[0] == "batch":
        for _ in range(packet[1]):
            received = receive_packet(sock)
            if received is None:
                return
            (_, address, incarnation, *_rest), own = received
            _close(own)
            send_packet(sock, ("failed", address, incarnation, _failed(exc)), [])
    else:
        with socket.socket(fileno=os.dup(fds[0])) as other:
            send_packet(other, ("ended", _failed(exc)), [])


def _failed(exc: OSError) -> str:
    return f"fork failed: {exc.strerror} (limits: ulimit -u, ulimit -n, the control group's pids.max, memory)"


def _close(fds: Iterable[int]) -> None:
    for fd in fds:
        os.close(fd)


def _fork_batch(sock: socket.socket, count: int, spec_fd: int, gate: tuple[int, int]) -> ForkedProc | None:
    spec = read_file(spec_fd)
    failed = ""
    intermediate = os.getpid()
    for _ in range(count):
        received = receive_packet(sock)
        if received is None:
            return None
        (_, address, incarnation, names, bind), fds = received
        if not failed:
            try:
                pid = os.fork()
            except OSError as exc:
                failed = _failed(exc)
            else:
                if pid == 0:
                    sock.close()
                    os.close(gate[1])
                    named = dict(zip(names, fds, strict=True))
                    named["gate"] = gate[0]
                    return ForkedProc(address, incarnation, spec, named, bind, intermediate)
        for fd in fds:
            os.close(fd)
        what, said = ("failed", failed) if failed else ("forked", pid)
        send_packet(sock, (what, address, incarnation, said), [])
    return None
