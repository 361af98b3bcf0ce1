"""The client of a process while it runs: its Proc, its root actor, its I/O thread, and the host agent that it has.

Imported while that agent begins. So what the API leaves for later is imported here too: it costs no time, and when it is
needed there may be no descriptor left to read a file with.
"""

from __future__ import annotations

import inspect  # noqa: F401
import os
import random  # noqa: F401

from monarch._errors import ClientClosedError
from monarch._mesh import plugins
from monarch._mesh.actors import map_results  # noqa: F401
from monarch._mesh.failures.main_thread import faults
from monarch._mesh.inspection import fault_signal
from monarch._mesh.inspection.admin_socket import LocalAdminSocket
from monarch._mesh.output.printer import Printer
from monarch._mesh.process import exporting, local_trace, named_actors
from monarch._mesh.process.mesh_layer import MeshLayer
from monarch._mesh.start import leftovers
from monarch._mesh.start.client_agent import ClientAgent
from monarch._mesh.start.launch_spec import launch_spec
from monarch._mesh.start.preload import preloads
from monarch._runtime import log_thread
from monarch._runtime.context import set_root
from monarch._runtime.future import Slot
from monarch._runtime.instance import Instance
from monarch._runtime.internal_errors import REPORTER
from monarch._runtime.loop import Loop
from monarch._runtime.proc import Proc
from monarch._wire import message, os_text
from monarch._wire.address import agent_at, agent_of, host_of
from monarch._wire.ids import new_id
from monarch._wire.message import Failure, Preload, Shutdown, encode_extent
from monarch._wire.peer import PeerEnded
from monarch._wire.transport import unix
from monarch.config import settings

message.decode  # noqa: B018  made now, not when the first message comes
ROOT = "root"
_LOOKS = 2.0  # seconds between two looks whether the I/O thread can still be woken
_AGENT_ENDS = 0.5  # seconds until the end of an agent that has closed its connection is known


class Client:
    """The client of this process: its Proc, its root actor, and the host agent that was started for it."""

    def __init__(self, started: ClientAgent) -> None:
        self.agent = started.process
        self.directory = started.directory.path
        self._run_directory = started.directory
        loop = Loop()
        loop.ended_unasked = self._on_loop_ended
        host = started.prefix or f"unix:{self.directory}"
        proc = self.proc = Proc(f"{host}/client", loop)
        transport = unix.UnixTransport(self.directory, loop, proc, proc.limits)
        proc.agent_pid = started.process.pid
        proc.use_unix(transport)
        listening = unix.listen(os.path.join(self.directory, "client"))
        self.layer = MeshLayer(proc)
        self.layer.owners.fault = faults.report
        # Actors know their senders by it, and those of two programs may send to one actor.
        root = Instance(proc, key=f"client-{new_id()}", name=ROOT, rank=0, view=encode_extent((), ()))
        proc.root_name = root.unique
        named_actors.serve(proc)
        set_root(root)
        self.layer.when_agent_lost = self._on_agent_lost
        self.printer = Printer(proc)
        self.printer.far_agents = self._far_agents
        transport.listen(listening)
        self.admin_socket = LocalAdminSocket(proc, self.directory)
        connection = transport.connect(started.socket, agent_at(host))
        proc.processes.use_agent(connection)
        connection.start()
        loop.start()
        fault_signal.listen(self.directory, proc.address, loop.native_id)
        self._look_at_loop()
        faults.start()
        exporting.begin_if_asked(proc, say=True)
        local_trace.begin_if_asked(proc)

    @property
    def lock(self) -> int:
        """The descriptor that keeps the client's folder."""
        return self._run_directory.lock

    def warm_up(self) -> None:
        """Lets the agent import what processes will need (torch) while the program goes on to ask for them."""
        if preloads():
            spec = launch_spec("", {}, "", gated=False)
            self.proc.post(agent_of(self.proc.address), Preload(), os_text.encode(spec))

    # --- failures

    def _on_agent_lost(self, reason: str) -> None:
        """The host agent is gone, and with it every process it started."""
        if self.proc.closed is None:
            self._give_up(f"the host agent (pid {self.agent.pid}) {self._how_agent_ended()}, and its processes with it")

    def _look_at_loop(self) -> None:
        """Now and then the loop has something to do, so that it is noticed when it cannot."""
        if self.proc.closed is None:
            self.proc.loop.call_rarely(_LOOKS, self._look_at_loop)

    def _on_loop_ended(self, exc: BaseException) -> None:
        """Nothing that comes would be read any more. The program goes on; its processes do not."""
        REPORTER.report("the I/O thread, which has ended", exc)
        self.agent.terminate()
        if self.proc.closed is None:
            self._give_up(f"the I/O thread of this program has ended unasked ({type(exc).__name__}: {exc})")

    def _give_up(self, detail: str) -> None:
        """No process can be reached any more: all that wait are told."""
        proc = self.proc
        error = ClientClosedError(f"{detail}; this client cannot go on")
        hosts = {host_of(address) for address, _ in proc.processes.known()} | {proc.host}
        for mesh in list(self.layer.owned.procs.values()):
            hosts.update(mesh.spec.hosts)

        def lose() -> None:
            for host in sorted(hosts):  # the others cannot be reached without it
                try:
                    proc.host_ended(host, detail)
                except Exception as exc:  # who waits is told all the same, below
                    REPORTER.report("the way to the end of this client", exc)
            proc.closed = error
            proc.ports.close_all(Failure(str(error)))

        self.layer.owners.lose_everything(str(error), lose)
        self._run_directory.remove()

    def _how_agent_ended(self) -> str:
        import subprocess

        try:
            code = leftovers.reap(self.agent, self.directory, _AGENT_ENDS)
        except subprocess.TimeoutExpired:
            return "closed its connection"
        return f"was killed by signal {-code}" if code < 0 else f"ended with status {code}"

    # --- the end

    def _far_agents(self) -> list[str]:
        """Returns the agents of other hosts with processes of ours, whose output may be streamed to us."""
        hosts = {host for owned in list(self.layer.owned.procs.values()) for host in owned.spec.hosts}
        return [agent_at(host) for host in hosts if host != self.proc.host]

    def shutdown(self, timeout: float) -> None:
        """Ends every process, the agent and the I/O thread."""
        proc = self.proc
        heard_all = Slot()
        self.layer.when_agent_lost = lambda reason: heard_all.set()
        self.layer.owners.tell_unobserved()
        faults.drain(1.0)
        self.admin_socket.close()
        proc.mesh.closing("the client is shutting down")
        for actor in list(proc.actors.values()):
            proc.mesh.residents.stop(actor, "the client is shutting down")
        for actor in list(proc.actors.values()):
            actor.ended.wait(min(timeout, settings.cleanup_timeout()))
        try:
            if self.printer.used or self._far_agents():
                self.printer.flush(1.0)
            proc.post(agent_of(proc.address), Shutdown(timeout))
        except (PeerEnded, OSError, RuntimeError):
            pass
        import subprocess

        try:
            leftovers.reap(self.agent, self.directory, timeout + 3.0)
        except subprocess.TimeoutExpired:
            self.agent.kill()
            leftovers.reap(self.agent, self.directory)
        if proc.closed is None:  # the last words of the processes are read and printed
            heard_all.wait(1.0)
            self.printer.wait_printed(1.0)
        if proc.closed is None:
            plugins.client_ending()
        local_trace.finish()
        proc.close(
            ClientClosedError(
                "shutdown_context() ran in this process: the client is closed and cannot be started again"
            )
        )
        log_thread.flush(1.0)
        faults.stop(1.0)
        self._run_directory.remove()
