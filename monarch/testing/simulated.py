"""The parts that an InProcessCluster puts in place of operating-system processes and of the agent that reaps them.

A SimulatedProc is a Proc whose end can be staged; the SimulatedAgent speaks the host agent's part of the
protocol, one for each host. All work on the cluster's I/O loop, and every method here is called there.
"""

from __future__ import annotations

import itertools
import os
import platform
from collections.abc import Callable, Iterable, Sequence
from signal import SIGKILL, SIGSTOP, SIGTERM
from typing import Any

import msgspec

from monarch._mesh.agent.base_host_agent import BaseHostAgent
from monarch._mesh.agent.effects import Effect, Start
from monarch._mesh.agent.routes import HostLink, InboundLink
from monarch._mesh.process.mesh_layer import MeshLayer
from monarch._runtime.future import All
from monarch._runtime.instance import Delivery, Instance, Leave
from monarch._runtime.loop import Loop
from monarch._runtime.proc import Proc
from monarch._wire import frame as frames
from monarch._wire import message
from monarch._wire.address import agent_at, agent_of
from monarch._wire.frame import Frame
from monarch._wire.message import (
    VALUE,
    VERSION,
    Answer,
    Attach,
    AttachedHost,
    Bounced,
    Failure,
    Flush,
    Flushed,
    Hello,
    LinkHello,
    LogOption,
    ProcEnded,
    StopProc,
)
from monarch._wire.peer import PeerEnded
from monarch._wire.transport.base import Connection
from monarch.config import settings
from monarch.testing.hosts import Reach, SimulatedLinks
from monarch.testing.network import InprocTransport, Network, Rule

_CROWD = 64  # actors of a process, and processes of a host, from which those that have ended are dropped


class ProcKilled(SystemExit):
    """Raised in the threads of a simulated process that was killed, wherever they use the runtime next.

    Derived from SystemExit so that `except Exception` does not keep them alive and no traceback is printed.
    """


class SimulatedProc(Proc):
    """A process of the cluster, whose host agent listens at `at`, or on the host of its own address. Calls `on_exit(code)`
    once it has stopped in the ordinary way."""

    def __init__(
        self, network: Network, address: str, loop: Loop, pid: int, incarnation: int = 0, at: str = ""
    ) -> None:
        super().__init__(address, loop)
        self.pid = pid
        self.incarnation = incarnation
        self.instances: list[Instance] = []  # every actor that is here, and some that were
        self._crowded = _CROWD
        self.on_exit: Callable[[int], None] = lambda code: None
        self.killed: ProcEnded | None = None
        self._stopping = False
        self.inproc = InprocTransport(network, address, loop, self, self.limits)
        self.transport = self.inproc
        MeshLayer(self)
        self.receivers[StopProc] = lambda connection, stop, frame: self._on_stop(stop)
        self.inproc.listen()
        agent = self.inproc.dial(agent_at(at) if at else agent_of(address))
        agent.remote = agent_of(address)  # its host may go by several names
        agent.send(frames.encode(message.encode(Hello(VERSION, address, pid, incarnation))))
        self.processes.use_agent(agent)

    def add_actor(self, instance: Instance) -> None:
        self.instances.append(instance)
        if len(self.instances) > self._crowded:
            self.instances = [other for other in self.instances if not other.ended.ready]
            self._crowded = max(_CROWD, 2 * len(self.instances))
        super().add_actor(instance)

    @property
    def over(self) -> bool:
        """It has ended, and nothing in it goes on."""
        return self.closed is not None and all(instance.ended.ready for instance in self.instances)

    def check_open(self, address: str) -> None:
        if self.killed is not None:
            raise PeerEnded(address, self.killed)
        super().check_open(address)

    # --- ordinary ends

    def _on_stop(self, stop: StopProc) -> None:
        if stop.incarnation in (None, self.incarnation):
            self.stop(stop.reason)

    def stop(self, reason: str) -> None:
        """Stops the actors, then ends with code 0; what hangs is left behind after its timeouts."""
        if self._stopping or self.killed is not None:
            return
        self._stopping = True
        ends = [self.mesh.residents.stop(actor, reason) for actor in list(self.actors.values())]
        patience = settings.stop_actor_timeout() + settings.cleanup_timeout()
        late = self.loop.call_later(patience, self._exit)

        def stopped() -> None:
            late.cancel()
            self.loop.call_soon(self._exit)

        All(ends).on_ready(stopped)
        if not ends:
            stopped()

    def _exit(self) -> None:
        if self.closed is not None:
            return
        self.leave(RuntimeError("this process is ending"))
        if any(not instance.ended.ready for instance in self.instances):
            # Those that hang, and those whose spawn came too late: they end with their process.
            self.kill(ProcEnded(self.address, self.pid, 0, True, [], "", self.incarnation))
        self.on_exit(0)

    def leave(self, error: BaseException) -> None:
        """Closes every connection and answers those who wait here; `error` is for later users."""
        self.disconnect(error)
        self.inproc.sever("this process is closing")

    # --- death

    def kill(self, ended: ProcEnded) -> None:
        """Nothing is sent or received any more; the threads of its actors end without cleanup, at the latest
        when they next use the runtime."""
        self.killed = ended
        self.closed = ProcKilled(f"the simulated process {self.address} was killed")
        self.inproc.close()
        self.inproc.sever("the process was killed")
        for peer in list(self._peers.values()):
            peer.end(ended)
        for instance in self.instances:
            if not instance.ended.ready:
                _abandon(instance)
        for entry in list(self.ports._entries.values()):
            entry.give_up(self.closed)
        self.backpressure.release_all()


def _abandon(instance: Instance) -> None:
    instance.owned.clear()
    instance.behaviour = _Abandoned(instance.behaviour)
    with instance._lock:
        instance.stopping = True
        instance.mailbox.messages.clear()
    instance.mailbox.put_control(Leave("the process was killed"))


class _Abandoned:
    """The behaviour of an actor in a killed process: its thread comes to its end, and no more of its code
    runs."""

    def __init__(self, behaviour: Any) -> None:
        self.is_async = behaviour.is_async
        self._behaviour = behaviour

    def construct(self) -> None:
        return None

    def restarted(self) -> Any:
        return None

    def handle(self, delivery: Delivery) -> None:
        return None

    async def handle_async(self, delivery: Delivery) -> None:
        return None

    def supervise(self, failure: Any) -> Any:
        return None

    def undeliverable(self, bounced: Bounced) -> Any:
        return None

    def cleanup(self, cause: Exception | None) -> Any:
        return None

    async def cancel_tasks(self) -> None:
        await self._behaviour.cancel_tasks()

    def describe_failure(self, exc: BaseException, in_cleanup: bool = False) -> Failure:
        return Failure("the process was killed", stopped=True)

    def describe_stop(self, reason: str) -> Failure:
        return Failure("the process was killed", stopped=True)

    def describe_stale(self, overtaken: bool = False) -> Failure:
        return Failure("the process was killed", stopped=True)


class SimulatedAgent(BaseHostAgent):
    """Starts, watches, stops and kills simulated processes. `on_done()` is called once none is left: after a shutdown, or
    when the agent was killed. A `worker` is of a further host and leaves the network then."""

    def __init__(
        self,
        network: Network,
        host: str,
        loop: Loop,
        on_done: Callable[[], Any],
        reach: Reach | None = None,
        worker: bool = False,
    ) -> None:
        super().__init__(host, loop)
        self.on_done = on_done
        self.dead = False
        self.living: dict[str, SimulatedProc] = {}  # by address
        self.procs: list[SimulatedProc] = []  # all that are, and some that were
        self._crowded = _CROWD
        self._by_pid: dict[int, SimulatedProc] = {}
        self._frozen: dict[str, _Freeze] = {}
        self._pids = itertools.count(2)
        self._network = network
        self._home = host  # where it listens, whatever it goes by
        self._reach = reach or Reach()
        self._worker = worker
        self._links = SimulatedLinks(network, host, loop, self._reach)
        limits = (settings.outgoing_queue_bytes(), settings.codec_max_frame_length())
        self._inproc = InprocTransport(network, agent_at(host), loop, _Door(self), lambda: limits)
        self._inproc.listen()
        self.receivers[Flush] = lambda connection, flush, frame: self.send(connection, Flushed(flush.token))
        self.receivers[LogOption] = lambda connection, option, frame: self.send(
            connection, Answer(option.port, option.rank, VALUE)
        )
        self.receivers[Attach] = lambda connection, attach, frame: self._on_attach(connection, attach)

    # --- other hosts

    def begin_link(self, host: str) -> HostLink:
        return self._links.dial(host, self.routes)

    def take_link(self, hello: LinkHello) -> HostLink:
        return self._links.take(hello, self.routes)

    def host_lost(self, host: str, why: str) -> None:
        if not self.dead:
            super().host_lost(host, why)

    def _on_attach(self, connection: Connection, attach: Attach) -> None:
        """The settings are those of this interpreter anyway, and the environment is not simulated."""
        self.take_moves(connection, attach)
        facts = AttachedHost(self.host, os.getpid(), platform.python_version(), self.routes.agent)
        self.send(connection, Answer(attach.port, attach.rank, VALUE), msgspec.msgpack.encode(facts))

    def leave(self, reason: str) -> None:
        """Says goodbye to the other hosts; nobody reaches this one any more."""
        self.routes.close(reason)
        self._inproc.close()

    # --- starting

    def prepare(self, starts: Sequence[Start]) -> None:
        spec, now = starts[0].spec, self.loop.now()
        if spec.executable or any(command is not None for command in spec.commands or ()):
            why = "an InProcessCluster runs no commands and no other interpreters: use real processes"
            self.act(self.roster.refused(now, starts, why))
        else:
            self.act(self.roster.prepared(now, starts))

    def launch(self, starts: Sequence[Start]) -> None:
        for start in starts:
            proc = SimulatedProc(
                self._network, start.address, self.loop, next(self._pids), start.incarnation, self._home
            )
            proc.client = start.spec.client
            proc.reached_at = self.routes.at(proc.host)
            proc.mesh.name = start.spec.name
            if start.spec.gated:
                proc.mesh.residents.close_gate()
            proc.on_exit = lambda code, pid=proc.pid: self._exited(pid, code)  # type: ignore[misc]
            self.procs.append(proc)
            if len(self.procs) > self._crowded:
                self.procs = [other for other in self.procs if not other.over]
                self._crowded = max(_CROWD, 2 * len(self.procs))
            self.living[start.address] = self._by_pid[proc.pid] = proc
            self.act(self.roster.pid_known(self.loop.now(), *start.key, proc.pid))

    # --- ending

    def _exited(self, pid: int, code: int) -> None:
        self.act(self.roster.exited(self.loop.now(), pid, code))

    def send_signal(self, pid: int, number: int) -> None:
        proc = self._by_pid.get(pid)
        if proc is None:
            return
        freeze = self._frozen.get(proc.address)
        if freeze is not None and number != SIGKILL:
            freeze.pending = number  # until it continues
        else:
            self._kill(proc, -number)

    def kill(self, address: str, code: int) -> None:
        """ValueError when no process lives there."""
        self._kill(self._living(address), code)

    def kill_all(self) -> None:
        for proc in list(self.living.values()):
            self._kill(proc, -SIGTERM)

    def _living(self, address: str) -> SimulatedProc:
        proc = self.living.get(address)
        if proc is None:
            raise ValueError(f"no simulated process lives at {address}: it has ended, or belongs to another cluster")
        return proc

    def _kill(self, proc: SimulatedProc, code: int) -> None:
        if proc.address in self._frozen:  # what its threads seem to have sent since was never sent
            self._network.cut(proc.address)
        proc.kill(ProcEnded(proc.address, proc.pid, code, False, [], "", proc.incarnation))
        self._exited(proc.pid, code)

    def release(self, ended: ProcEnded) -> None:
        proc = self._by_pid.pop(ended.pid, None)
        if proc is not None:
            del self.living[ended.address]
            self._thaw(ended.address)

    def mesh_ended(self, mesh: str) -> None:
        return None

    def finish(self) -> None:
        if self._worker:
            self.leave("it was shut down")
        self.on_done()

    # --- death

    def act(self, effects: Iterable[Effect]) -> None:
        if not self.dead:
            super().act(effects)

    def die(self, power: bool) -> None:
        """The agent is killed, and its processes with it. With `power`, connections break; without, its machine has lost it:
        nobody hears anything any more."""
        self.dead = True
        for key in list(self._timers):
            self._disarm(key)
        if not power:
            self._reach.darken(self._home)
            for address in (agent_at(self._home), *self.living):
                self._network.vanish(address)
        for proc in self.living.values():
            why = "was killed with its host agent" if power else "its machine has lost power"
            proc.kill(ProcEnded(proc.address, proc.pid, -SIGKILL, False, [], why, proc.incarnation))
            self._thaw(proc.address)
        self.living.clear()
        self._by_pid.clear()
        self._inproc.close()
        self._inproc.sever("the agent was killed")
        self._links.abandon()
        self.on_done()

    # --- stopped as a shell stops a job

    def freeze(self, address: str) -> None:
        """ValueError when no process lives there. One that is frozen stays so."""
        proc = self._living(address)
        if address not in self._frozen:
            rules = [self._network.hold(source=address), self._network.hold(target=address)]
            self._frozen[address] = _Freeze(rules)
            self.act(self.roster.stopped(self.loop.now(), proc.pid, SIGSTOP))

    def unfreeze(self, address: str) -> None:
        """ValueError when no process lives there. One that is not frozen runs on."""
        proc = self._living(address)
        freeze = self._thaw(address)
        if freeze is not None:
            self.act(self.roster.continued(self.loop.now(), proc.pid))
            if freeze.pending:
                self.send_signal(proc.pid, freeze.pending)

    def _thaw(self, address: str) -> _Freeze | None:
        freeze = self._frozen.pop(address, None)
        for rule in freeze.rules if freeze is not None else ():
            rule.end()
        return freeze


class _Door:
    """The other end of a connection to an agent: a process of its host, or the agent of another, for a link."""

    def __init__(self, agent: SimulatedAgent) -> None:
        self._agent = agent
        self._entrances: dict[Any, InboundLink] = {}  # by connection

    def connection_received(self, connection: Any, received: list[Frame]) -> None:
        if self._agent.dead:
            return
        entrance = self._entrances.get(connection)
        if entrance is None and not connection.remote and type(message.decode(received[0].head)) is LinkHello:
            entrance = self._entrances[connection] = self._agent.routes.entrance()
        (entrance or self._agent).connection_received(connection, received)

    def connection_lost(self, connection: Any, reason: str) -> None:
        handler = self._entrances.pop(connection, None) or self._agent
        if not self._agent.dead:
            handler.connection_lost(connection, reason)


class _Freeze:
    """The rules that hold a process's frames, and the signal that it gets when they end."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.rules = rules
        self.pending = 0
