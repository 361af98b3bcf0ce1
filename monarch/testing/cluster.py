"""Hosts and their processes, simulated inside this operating-system process, for tests of actors.

The trunk is the real one: every simulated process is a Proc with its own actors (each on its own thread),
ports and mesh layer, and messages between them are encoded, framed, ordered and decoded as ever. Simulated
are what is below, the network, and what is beside: the host agents that start and reap processes. All of
them share one I/O loop.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from monarch._linux.locks import Condition
from monarch._mesh.actors.actor import Actor
from monarch._mesh.failures.ledger import MeshFailure
from monarch._mesh.failures.replace_policy import ReplacePolicy
from monarch._mesh.meshes.actor_mesh import ActorMesh
from monarch._mesh.meshes.attach import AttachedHosts
from monarch._mesh.meshes.host_mesh import HostMesh, host_mesh_of
from monarch._mesh.meshes.proc_mesh import ProcMesh
from monarch._mesh.process import context as contexts
from monarch._mesh.process import named_actors
from monarch._mesh.start.agent_process import Credentials
from monarch._runtime.context import current, forget_root, home, set_home, set_root
from monarch._runtime.future import All, Slot
from monarch._runtime.instance import Delivery, Instance
from monarch._runtime.loop import Loop
from monarch._runtime.proc import Proc
from monarch._shape.region import Shape
from monarch._shape.slice import NDSlice
from monarch._wire import message
from monarch._wire.address import AGENT, CLIENT, agent_at, host_of
from monarch._wire.ids import new_id
from monarch._wire.message import Envelope, Shutdown, encode_extent
from monarch.config import settings
from monarch.testing import local
from monarch.testing.clock import VirtualClock
from monarch.testing.hosts import NetworkPartition, Prefixes, Reach
from monarch.testing.network import DeliveredFrame, Network
from monarch.testing.simulated import SimulatedAgent, SimulatedProc

Mesh = ProcMesh | ActorMesh[Any] | Actor  # for type checkers, what `spawn` returns is its class

_TURN = 30.0  # real seconds until an I/O loop that does not turn is an error
_SIGKILL = 9
_CLIENT_PID = 1
_BROADCASTS = 2.0  # real seconds at most in which actors may finish, at the end, what nobody waits for
_HANDLED_KEPT = 1_000  # failures that calls told the test of; older ones are forgotten


class UnsupervisedFailure(AssertionError):
    """A failure reached the cluster's root client, and the test did not take it with `next_failure`."""


class Expectation:
    """A frame that is to be delivered: see `InProcessCluster.expect`."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._seen = threading.Event()

    def met(self) -> None:
        self._seen.set()

    def wait(self, timeout: float = 30.0) -> None:
        """Returns once it was delivered; TimeoutError after `timeout` real seconds."""
        if not self._seen.wait(timeout):
            raise TimeoutError(f"no {self._kind} was delivered within {timeout:g} s")


class InProcessCluster:
    """Runs actors on simulated processes. In its block the ordinary API works on them, in every thread:

        with InProcessCluster():
            procs = this_host().spawn_procs(per_host={"gpus": 4})
            counters = procs.spawn("counters", Counter)
            assert counters.add.call(1).get().item(gpus=0) == 1

    `hosts` further hosts are beside that of the client: `cluster.hosts` is their mesh, and a process on one is reached over
    a link between the agents of both. `spares` more take the places of those that die (`hosts.replace(failed=True)`, or by
    the ReplacePolicy `replace`); their indices follow those of the mesh. With `gateway`, the index of one, the client's agent
    has a link to that one only and reaches the others through it (as after `attach`). The client's host has no address, as
    usual: it dials.

    `clock` governs the runtime's timers; `seed` the network's chances. Entering starts no process, only one
    thread. Blocks may be nested; the innermost is the one in use. Settings (`monarch.configured`) that
    processes read when they start count from the spawn on.

    Leaving lets actors finish their broadcasts, for 2 s at most, stops them all, running each `__cleanup__`, and puts back
    what was there before. It raises
    UnsupervisedFailure for failures that reached the root client and that no `next_failure` took,
    TimeoutError for actors that do not stop within `patience` real seconds, naming them, and RuntimeError for
    errors inside the runtime; none of them when the block raised already.

    What differs from real processes: all share one interpreter, so module globals are shared as well,
    `os.getpid()` is the same everywhere and a killed process leaves behind threads that are busy in user
    code. `env=`, `proc_bind` and the output of processes are not simulated; commands and other interpreters
    are refused. A plain thread started in an actor counts as the root client.

    For tests of the runtime itself: `proc` is the client's process, `root` its actor and `agent` the agent of its host.
    """

    def __init__(
        self,
        *,
        clock: VirtualClock | None = None,
        seed: int = 0,
        patience: float = 10.0,
        hosts: int = 0,
        gateway: int | None = None,
        spares: int = 0,
        replace: ReplacePolicy | None = None,
    ) -> None:
        if spares < 0 or (spares and not hosts):
            raise ValueError(f"spares must be 0 or more, and need hosts whose places they take, got {spares!r}")
        if hosts < 0 or (gateway is not None and not 0 <= gateway < hosts):
            raise ValueError(f"hosts must be 0 or more, gateway the index of one, got {hosts!r} and {gateway!r}")
        self.clock = clock
        self.network = Network(seed)
        self._host = f"inproc:{new_id()}"
        self._workers = [f"{self._host}.h{index}" for index in range(hosts + spares)]
        self._spares = self._workers[hosts:]
        self._replace = replace
        self._gateway = "" if gateway is None else self._workers[gateway]
        self._reach = Reach()
        self._patience = patience
        self._failures: list[MeshFailure] = []
        self._handled: deque[MeshFailure] = deque(maxlen=_HANDLED_KEPT)
        self._failed = Condition()
        self._errors: list[BaseException] = []
        self._before: Proc | None = None
        self._state = "not entered"

    def __repr__(self) -> str:
        return f"<InProcessCluster {self._host} ({self._state})>"

    # --- the block

    def __enter__(self) -> InProcessCluster:
        if self._state != "not entered":
            raise RuntimeError(f"an InProcessCluster is entered once, and this one is {self._state}: make a new one")
        if current.get() is not None:
            raise RuntimeError("an InProcessCluster is for tests and cannot be entered by an actor")
        clock = self.clock
        now = time.monotonic if clock is None else clock.now
        loop = self._loop = Loop("monarch-simulated-io", now, virtual=clock is not None)
        loop.on_error = self._errors.append
        self._done = {host: Slot() for host in (self._host, *self._workers)}
        self._agents = {host: self._make_agent(host, loop) for host in self._done}
        self.agent = self._agents[self._host]
        self.agent.routes.gateway = self._gateway
        proc = self.proc = SimulatedProc(self.network, f"{self._host}/client", loop, _CLIENT_PID)
        proc.mesh.owners.fault = self._on_failure
        proc.mesh.owners.handled = self._on_handled
        self.root = Instance(proc, key="client", name="root", rank=0, view=encode_extent((), ()))
        proc.root_name = self.root.unique
        named_actors.serve(proc)
        set_root(self.root)
        self._before = home()
        set_home(proc)
        loop.start()
        if clock is not None:
            clock.attach(loop)
        self._state = "in use"
        if self._workers:
            self._attach()
        return self

    def _make_agent(self, host: str, loop: Loop) -> SimulatedAgent:
        done = self._done[host]
        return SimulatedAgent(self.network, host, loop, lambda: done.set(None), self._reach, worker=host != self._host)

    def _attach(self) -> None:
        hosts = Prefixes(self._workers[: len(self._workers) - len(self._spares)])
        session = AttachedHosts(hosts, Credentials(), {}, self._spares, self._replace)
        self._hosts = HostMesh(hosts, Shape(["hosts"], NDSlice.new_row_major([len(hosts)])), session=session)
        session.begin()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._finish_broadcasts()
        self._state = "closed"
        stuck = self._end()
        if error is not None:
            return
        if self._errors:
            raise RuntimeError(f"{len(self._errors)} error(s) inside the runtime: see the cause") from self._errors[0]
        if stuck:
            raise TimeoutError("these actors did not stop, and their threads are left behind:\n  " + "\n  ".join(stuck))
        self._raise_failures()

    def _finish_broadcasts(self) -> None:
        """Lets actors handle what nobody waits for, so that what fails there fails the test."""
        deadline = time.monotonic() + min(_BROADCASTS, self._patience)
        quiet = 0
        while quiet < 2 and time.monotonic() < deadline:  # the first look may be before what the second one sees
            self.settle()
            living = [self.proc, *(proc for proc in self._all_procs() if proc.killed is None)]
            if any(_has_broadcasts(actor) for proc in living for actor in list(proc.actors.values())):
                quiet = 0
                time.sleep(0.001)
            else:
                quiet += 1

    def _end(self) -> list[str]:
        """Stops everything; says which actors did not."""
        deadline = time.monotonic() + self._patience
        proc = self.proc
        try:
            self.network.calm()
            self._reach.heal()
            proc.mesh.owners.tell_unobserved()
            proc.mesh.closing("the cluster is closing")
            own = [proc.mesh.residents.stop(actor, "the cluster is closing") for actor in list(proc.actors.values())]
            All(own).wait(self._patience)
            grace = settings.process_exit_timeout()
            for host in self._workers:  # also those that no message reaches
                self._on_loop(lambda agent=self._agents[host]: agent.shutdown(grace))  # type: ignore[misc]
            proc.post(agent_at(self._host), Shutdown(grace))
            All(list(self._done.values())).wait(max(0.0, deadline - time.monotonic()))
            living = [proc, *(other for other in self._all_procs() if other.killed is None)]
            instances = [instance for other in living for instance in other.instances]
            stuck = [_doing(instance) for instance in instances if not instance.ended.ready]
            for agent in self._agents.values():
                self._on_loop(agent.kill_all)
                self._on_loop(lambda agent=agent: agent.leave("the cluster is closing"))  # type: ignore[misc]
            self._on_loop(lambda: proc.leave(RuntimeError("this InProcessCluster was left, and its meshes are gone")))
            _join([instance for instance in instances if instance.ended.ready], deadline)
        finally:
            self._put_back()
        return stuck

    def _put_back(self) -> None:
        if self.clock is not None:
            self.clock.detach(self._loop)
        self._loop.stop()
        self._loop.join(_TURN)
        set_home(self._before)
        if not isinstance(self._before, SimulatedProc):
            local.forget_sent()
        forget_root(self.proc)
        contexts._clients.pop(id(self.root), None)

    # --- what tests use

    def this_host(self) -> HostMesh:
        """The simulated host; what `monarch.actor.this_host()` returns inside the block."""
        self._check()
        return host_mesh_of(self._host)

    def kill(self, mesh: Mesh, rank: int | None = None, *, code: int = -_SIGKILL) -> None:
        """Ends every process under `mesh` (that of its `rank` only), as if by SIGKILL; returns when it is
        dead.

        Connections break after what was sent; no `__cleanup__` runs; its watchers are told that
        it ended with `code` (a signal negated, or an exit status). Threads of its actors that wait in the
        runtime end at once, others when they next use it. ValueError when a process is not alive, or `rank`
        is none of the mesh's.
        """
        self._each(mesh, rank, lambda address: self._agent_of(address).kill(address, code))

    def stop_process(self, mesh: Mesh, rank: int | None = None) -> None:
        """Stops every process under `mesh` (that of its `rank` only) as SIGSTOP does; returns when its owner and
        its watchers have been sent word that it is suspected.

        Nothing reaches it or comes from it, frames under way included, until `continue_process`. It is killed
        once it was stopped for the setting `suspect_timeout`. One that is stopped stays so. Its threads run on,
        for they are the test's own; if it is killed, what they have sent since is lost. ValueError as for `kill`.
        """
        self._each(mesh, rank, lambda address: self._agent_of(address).freeze(address))

    def continue_process(self, mesh: Mesh, rank: int | None = None) -> None:
        """Lets processes run again as SIGCONT does: what was held back is delivered, in order, and a signal it
        got meanwhile takes effect. One that was not stopped runs on. ValueError as for `kill`."""
        self._each(mesh, rank, lambda address: self._agent_of(address).unfreeze(address))

    def address_of(self, mesh: Mesh | str, rank: int = 0, *, host: int | str = CLIENT) -> str:
        """Returns, for the rules of `network`, the address of the process under rank `rank` of `mesh`, of the
        "client", or of the "agent" of `host` (the index of a further one, or "client"). Between hosts, frames go from
        agent to agent."""
        if isinstance(mesh, str):
            if mesh not in (CLIENT, AGENT):
                raise ValueError(f"expected a mesh, 'client' or 'agent', got {mesh!r}")
            return f"{self._prefix(host) if mesh == AGENT else self._host}/{mesh}"
        return _addresses(mesh)[rank]

    # --- several hosts

    @property
    def hosts(self) -> HostMesh:
        """The further hosts, `{"hosts": n}`, as `attach_to_workers` would give them. RuntimeError when there are none."""
        self._check()
        if not self._workers:
            raise RuntimeError("this cluster has the client's host only: InProcessCluster(hosts=3) has three more")
        return self._hosts

    def cut_hosts(self, a: int | str, b: int | str) -> int:
        """Breaks the connections of the links between two hosts (indices, or "client"); returns how many. Frames under way
        are lost, which the links make good when they have dialled anew: at once or, after a connection that was young, a
        little later (`clock`)."""
        self._check()
        return self.network.cut(agent_at(self._prefix(a)), agent_at(self._prefix(b)))

    def part_hosts(self, a: int | str, b: int | str) -> NetworkPartition:
        """Cuts as `cut_hosts` does, and they cannot connect until the NetworkPartition ends; `network.calm` does not
        end it. From the setting `channel_reconnect_timeout` on each counts as dead for the other."""
        self._check()
        partition = self._reach.part(self._prefix(a), self._prefix(b))
        self.cut_hosts(a, b)
        return partition

    def kill_host(self, index: int) -> None:
        """Takes the power from that host: its agent and processes are gone, and nobody is told. Others notice the
        silence after three times `server_heartbeat_interval`, and give the host up when `channel_reconnect_timeout` is
        over as well. Threads end as after `kill`. ValueError for one that is dead already or was shut down."""
        self._kill_agent(index, False)

    def kill_agent(self, index: int) -> None:
        """Kills the agent as by SIGKILL, and its processes end with it. Others see the connections break and then
        nobody listen there, which for those who dial it is its end. Otherwise as `kill_host`."""
        self._kill_agent(index, True)

    def start_host(self, index: int) -> None:
        """A worker listens again at the address of a host that has ended: another one, which runs nothing yet. ValueError for
        one that has not ended."""
        self._check()
        host = self._prefix(index)
        if host == self._host or not self._done[host].ready:
            raise ValueError(f"host {index} has not ended")

        def start() -> None:
            self._reach.light(host)
            self._done[host] = Slot()
            self._agents[host] = self._make_agent(host, self._loop)

        self._on_loop(start)

    def worker(self, index: int) -> str:
        """The address of that host or spare, for `hosts.replace(workers=[...])`."""
        return self._prefix(index)

    def _kill_agent(self, index: int, power: bool) -> None:
        self._check()
        host = self._prefix(index)
        if host == self._host:
            raise ValueError("the client's host cannot be killed: the test runs there")
        if self._done[host].ready:
            raise ValueError(f"host {index} has ended already")
        self._on_loop(lambda: self._agents[host].die(power))

    def _prefix(self, host: int | str) -> str:
        if host == CLIENT:
            return self._host
        if not isinstance(host, int) or not 0 <= host < len(self._workers):
            raise ValueError(f"expected 'client' or the index of one of the {len(self._workers)} hosts, got {host!r}")
        return self._workers[host]

    def _agent_of(self, address: str) -> SimulatedAgent:
        agent = self._agents.get(self.agent.routes.at(host_of(address)))
        if agent is None:
            raise ValueError(f"no simulated process lives at {address}: it belongs to another cluster")
        return agent

    def _all_procs(self) -> list[SimulatedProc]:
        return [proc for agent in self._agents.values() for proc in agent.procs]

    # --- what tests use, of one host and of several

    def settle(self) -> None:
        """Waits until every frame sent so far, and those sent on its account by the I/O loop, are delivered.

        Not for what rules hold back or delay, nor for what actors do with their messages.
        """
        self._check()
        while True:
            self._on_loop(lambda: None)
            if not self.network.under_way():
                return

    def expect(self, kind: str, source: str = "*", target: str = "*") -> Expectation:
        """Watches for one frame with a message of that kind (a struct of `monarch._wire.message`: "Call",
        "Answer", "Pause", "ProcEnded"...; enclosed in an Envelope, too) between these addresses. Ask first, cause it, then
        `wait()`. ValueError for other names."""
        self._check()
        known = getattr(message, kind, None)
        if not isinstance(known, type) or not issubclass(known, message._Message):
            raise ValueError(f"no message type is called {kind!r}")
        expectation = Expectation(kind)

        def seen(sent: DeliveredFrame) -> None:
            msg = message.decode(sent.head)
            if type(msg) is known or (type(msg) is Envelope and type(message.decode(msg.head)) is known):
                end()
                expectation.met()

        end = self.network.tap(seen, source, target)
        return expectation

    def next_failure(self, timeout: float = 30.0, *, handled: bool = False) -> MeshFailure:
        """The next failure that nobody was told of, with which a program would end. Waits for it;
        AssertionError after `timeout` real seconds. With `handled` the next one of those that a call of the test raised (an
        end of a rank that it caught as SupervisionError): they do not end the test, and need not be taken."""
        found = self._handled if handled else self._failures
        with self._failed:
            if not self._failed.wait_for(lambda: bool(found), timeout):
                which = "was told of by a call of the test" if handled else "reached the root client"
                raise AssertionError(f"no failure {which} within {timeout:g} s")
            failure = found[0]
            del found[0]
            return failure

    def statistics(self) -> dict[str, Any]:
        """Returns those of the network, and of each living process by address (see Proc.statistics)."""
        procs = [self.proc, *(proc for agent in self._agents.values() for proc in list(agent.living.values()))]
        return {"network": self.network.statistics(), **{proc.address: proc.statistics() for proc in procs}}

    # --- parts

    def _check(self) -> None:
        if self._state != "in use":
            raise RuntimeError(f"use a cluster inside its with block; this one is {self._state}")

    def _on_failure(self, failure: MeshFailure) -> None:
        with self._failed:
            self._failures.append(failure)
            self._failed.notify_all()

    def _on_handled(self, failure: MeshFailure) -> None:
        with self._failed:
            self._handled.append(failure)
            self._failed.notify_all()

    def _raise_failures(self) -> None:
        if self._failures:
            reports = "\n".join(failure.report() for failure in self._failures)
            raise UnsupervisedFailure(
                f"{len(self._failures)} failure(s) reached the root client, where a program would end. "
                f"If a test causes them on purpose, take each with cluster.next_failure():\n{reports}"
            )

    def _each(self, mesh: Mesh, rank: int | None, fn: Callable[[str], None]) -> None:
        """On the I/O loop, for each process under the mesh."""
        self._check()
        addresses = _addresses(mesh)
        if rank is not None:
            if not 0 <= rank < len(addresses):
                raise ValueError(f"rank {rank} is not one of the {len(addresses)} ranks of {mesh!r}")
            addresses = [addresses[rank]]
        for address in dict.fromkeys(addresses):
            self._on_loop(lambda address=address: fn(address))  # type: ignore[misc]

    def _on_loop(self, fn: Callable[[], Any]) -> None:
        """Runs `fn` on the I/O loop, waits for it, and raises what it raised."""
        if self._loop.in_loop():
            fn()
            return
        slot = Slot()

        def run() -> None:
            try:
                slot.set(fn())
            except BaseException as exc:
                slot.fail(exc)

        self._loop.call_soon(run)
        if not slot.wait(_TURN):
            raise TimeoutError(f"the cluster's I/O loop did not turn for {_TURN:g} s: is a callback of it blocked?")
        slot.value()


def _addresses(mesh: Mesh) -> list[str]:
    """The processes under a view, in the order of its ranks."""
    if isinstance(mesh, ProcMesh):
        return mesh._addresses()
    if isinstance(mesh, ActorMesh):
        return list(mesh._plan.addresses)
    raise TypeError(f"expected a mesh of processes or actors, got {mesh!r}")


def _has_broadcasts(instance: Instance) -> bool:
    """Returns whether it may still handle a message that nobody waits for."""
    if instance.ended.ready:
        return False
    mailbox, running = instance.mailbox, instance.current
    handled = [item for item in (running, *list(instance.concurrent.values())) if item is not None]
    if any(not item.call.port for item in handled) or not instance.ready.ready:
        return True
    if running is None and not mailbox._wakers:  # it has taken something just now, or ends
        return True
    return any(type(item) is Delivery and not item.call.port for item in list(mailbox.messages))


def _doing(instance: Instance) -> str:
    delivery = instance.current
    return f"{instance.name}, rank {instance.rank}" + (f", in {delivery.call.method}()" if delivery is not None else "")


def _join(instances: Sequence[Instance], deadline: float) -> None:
    """Waits for the threads of actors that have ended: their last steps touch nothing but themselves."""
    idents = {instance.thread_ident for instance in instances}
    for thread in threading.enumerate():
        if thread.ident in idents and thread.name.startswith("monarch-actor"):
            thread.join(max(0.0, deadline - time.monotonic()))
