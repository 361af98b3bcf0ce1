"""The program of a child process: becomes a Proc, serves until it is told to stop, then ends as any program does.

`python -m monarch._mesh.bootstrap` is the same for processes that were executed instead of forked.
"""

from __future__ import annotations

import asyncio  # noqa: F401  these imports, and those below, are here so that forked procs have them already
import contextlib
import faulthandler
import inspect  # noqa: F401
import logging
import multiprocessing
import os
import random
import signal
import socket
import sys
import threading
import traceback  # noqa: F401
import types

import cloudpickle  # noqa: F401
import msgspec

from monarch._mesh.actors import breakpoints
from monarch._mesh.failures import main_thread  # noqa: F401  of monarch.actor, which the program's modules import
from monarch._mesh.inspection import fault_signal, recording
from monarch._mesh.output import log_prefix
from monarch._mesh.process import exporting, local_trace
from monarch._mesh.process.mesh_layer import MeshLayer
from monarch._mesh.start import device_slots, threads
from monarch._mesh.start.forkserver_protocol import ForkedProc, die_with, wait_orphaned
from monarch._mesh.start.launch import apply_affinity, threads_of
from monarch._mesh.start.leftovers import RUN
from monarch._runtime import async_driver, log_thread, payloads, standard_streams  # noqa: F401
from monarch._runtime.context import here, set_home
from monarch._runtime.future import All
from monarch._runtime.internal_errors import end_process
from monarch._runtime.loop import Loop
from monarch._runtime.proc import Proc
from monarch._wire import frame as frames
from monarch._wire import message, os_text
from monarch._wire.address import AGENT, agent_of, name_of, split_proc_name
from monarch._wire.message import Hello, LaunchSpec, StopProc
from monarch._wire.transport import unix
from monarch.config import settings

message.decode  # noqa: B018  made here, for the same reason
msgspec.msgpack.Decoder(LaunchSpec)  # what decodes one is made with the first that is wanted
_AGENT_GONE = 3  # exit status when the host agent went away under us


class Served:
    """A process of ours at work: waits in the main thread, works on others. `incarnation`: how many were at its address
    before. `agent`: the pid of its host agent."""

    def __init__(self, address: str, incarnation: int, spec: LaunchSpec, listening: socket.socket, agent: int) -> None:
        self._stop = threading.Lock()
        self._stop.acquire()
        self._reason = ""
        loop = Loop()
        loop.ended_unasked = end_process
        proc = self.proc = Proc(address, loop)
        proc.incarnation = incarnation
        proc.agent_pid = agent
        proc.client = spec.client
        proc.reached_at = spec.reached_at or proc.host
        transport = unix.UnixTransport(spec.folder, loop, proc, proc.limits)
        proc.use_unix(transport)
        layer = MeshLayer(proc)
        layer.executable = spec.executable
        layer.name = spec.name
        if spec.gated:
            layer.residents.close_gate()
        proc.receivers[StopProc] = lambda connection, stop, frame: self._on_stop(stop)
        layer.when_agent_lost = _agent_lost
        set_home(proc)
        transport.listen(listening)
        connection = transport.connect(unix.dial(f"{spec.folder}/{AGENT}"), agent_of(address))
        connection.send(frames.encode(message.encode(Hello(message.VERSION, address, proc.pid, incarnation))))
        connection.start()
        proc.processes.use_agent(connection)
        recording.begin_if_asked(proc)
        local_trace.begin_if_asked(proc)
        self._folder = spec.folder

    def _on_stop(self, stop: StopProc) -> None:
        if stop.incarnation in (None, self.proc.incarnation):
            self.stop(stop.reason)

    def stop(self, reason: str) -> None:
        if not self._reason:
            self._reason = reason or "stopped"
            self._stop.release()

    def serve(self) -> None:
        """Until told to stop; then every actor's cleanup runs, and the process ends as interpreters do."""
        proc = self.proc
        proc.loop.start()
        exporting.begin_if_asked(proc)
        fault_signal.listen(self._folder, proc.address, proc.loop.native_id)
        self._stop.acquire()
        actors = list(proc.actors.values())
        ends = [proc.mesh.residents.stop(actor, self._reason) for actor in actors]
        All(ends).wait(settings.stop_actor_timeout() + settings.cleanup_timeout())
        recording.finish()
        local_trace.finish()
        log_thread.flush(1.0)
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError):
                pass
        proc.mesh.when_agent_lost = lambda reason: None
        proc.close(RuntimeError(f"this process is ending: {self._reason}"))


def _agent_lost(reason: str) -> None:
    """Nobody owns us any more. No cleanup: what it would talk to is gone as well."""
    os._exit(_AGENT_GONE)


def run_forked(child: ForkedProc, agent: int) -> None:
    """Runs a proc in a process that was just forked, until it is to end."""
    spec = os_text.decode(child.spec, LaunchSpec)
    os.setpgid(0, 0)
    gate = child.fds.pop("gate")
    os.environ.clear()
    os.environ.update(spec.env)
    os.environ[RUN] = spec.folder  # what it starts can be told from others
    sys.path[:] = spec.path
    sys.modules["__main__"] = types.ModuleType("__main__")
    _reseed()
    listening = _take_descriptors(child.fds, child.address)
    _take_over(spec, child.bind, child.address)
    served = Served(child.address, child.incarnation, spec, listening, agent)
    # Before an actor runs: what asks for its parent, or to die with it, means the agent.
    wait_orphaned(gate, child.intermediate)
    if settings.mesh_bootstrap_enable_pdeathsig():
        die_with(agent)
    served.serve()


def _take_descriptors(fds: dict[str, int], address: str) -> socket.socket:
    for name, number in (("stdout", 1), ("stderr", 2)):
        if name in fds:
            os.dup2(fds[name], number)
            os.close(fds[name])
    return socket.socket(fileno=fds["listen"])


def _take_over(spec: LaunchSpec, bind: dict[str, str], address: str) -> None:
    try:
        os.chdir(spec.cwd)
    except OSError as exc:
        sys.stderr.write(f"monarch: cannot enter the client's directory {spec.cwd!r}: {exc.strerror}\n")
    standard_streams.secure()
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    if not faulthandler.is_enabled():  # PYTHONFAULTHANDLER
        with contextlib.suppress(OSError, RuntimeError, ValueError):  # no stderr
            faulthandler.enable(2, all_threads=False)  # a crash shows its stack in the last lines, and no other threads
    if bind:
        apply_affinity(bind)
    count = threads_of(spec, bind)
    if count:
        threads.take(count)
    settings.restore(msgspec.msgpack.decode(spec.config))
    _take_device(spec, address)
    sys.setswitchinterval(settings.switch_interval())
    logging.getLogger().setLevel(logging.INFO)
    log_prefix.install()
    breakpoints.install()
    for stream in (sys.stdout, sys.stderr):
        try:  # one write a line, under PYTHONUNBUFFERED too: lines of several processes must not mix
            stream.reconfigure(line_buffering=True, write_through=False)  # type: ignore[union-attr]
        except AttributeError:
            pass
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    try:  # forking a process with threads is a trap; programs may still choose another way themselves
        multiprocessing.set_start_method("forkserver")
    except (RuntimeError, ValueError):
        pass


def _take_device(spec: LaunchSpec, address: str) -> None:
    """On a host that may have devices: which one this process uses."""
    named, slots = split_proc_name(name_of(address)), spec.devices
    if named is None or slots is None:
        return
    from monarch._devices import own_device

    place = named[1] - slots.rank
    device_slots.changed(
        own_device.begin(
            own_device.Assignment(spec.name, place, slots.processes, slots.first, slots.rank, tuple(slots.others)),
            lambda: here().actor_threads.add("device", own_device.enter),
        )
    )


def _reseed() -> None:
    """Forked siblings must not share random states (`random` itself is reseeded by Python)."""
    random.seed()
    numpy_random = sys.modules.get("numpy.random")  # numpy itself loads it, and seeds it, when it is first used
    if numpy_random is not None:
        numpy_random.seed()
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.seed()


def main() -> None:
    """The process was executed: everything it needs to know is in the descriptors named by the environment."""
    standard_streams.secure()
    try:
        given = os.environ.pop("MONARCH_LAUNCH")
    except KeyError:
        sys.exit("monarch: this module starts a process of a mesh and is run by a host agent, not by hand")
    spec_fd, listen_fd, agent, place, incarnation, address = given.split(",", 5)
    with open(int(spec_fd), "rb") as file:
        spec = os_text.decode(file.read(), LaunchSpec)
    bind = spec.binds[int(place)] if spec.binds else {}
    listening = socket.socket(fileno=int(listen_fd))
    listening.set_inheritable(False)
    if spec.cwd in spec.path and spec.cwd not in sys.path:
        sys.path.insert(0 if spec.path[0] == spec.cwd else len(sys.path), spec.cwd)
    _take_over(spec, bind, address)
    # Behind a wrapper the agent is not the parent; then only the connection to the agent tells of its end.
    if os.getppid() == int(agent) and settings.mesh_bootstrap_enable_pdeathsig():
        die_with(int(agent))
    Served(address, int(incarnation), spec, listening, int(agent)).serve()
