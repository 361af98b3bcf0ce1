"""A host and its processes, simulated inside this operating-system process, for tests of actors.

The trunk is the real one: every simulated process is a Proc with its own actors (each on its own thread), ports and mesh
layer, and messages between them are encoded, framed, ordered and decoded as ever. Simulated are what is below, the
network, and what is beside: the host agent that starts and reaps processes. All of them share one I/O loop.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

import msgspec

from monarch._mesh import context as contexts
from monarch._mesh import singletons
from monarch._mesh.actor_mesh import ActorMesh
from monarch._mesh.controller import MeshLayer
from monarch._mesh.host_mesh import HostMesh, host_mesh_of
from monarch._mesh.proc_mesh import ProcMesh
from monarch._mesh.supervision import MeshFailure
from monarch._runtime.context import forget_root, home, set_home, set_root
from monarch._runtime.future import All, Slot
from monarch._runtime.instance import Delivery, Instance, Leave
from monarch._runtime.loop import Loop
from monarch._runtime.proc import Proc
from monarch._wire import frame as frames
from monarch._wire import message
from monarch._wire.address import agent_at, proc_address
from monarch._wire.frame import Frame
from monarch._wire.ids import new_id
from monarch._wire.message import (
    VERSION,
    Bounced,
    Failure,
    Flush,
    Flushed,
    Hello,
    LaunchSpec,
    Listening,
    ProcEnded,
    ProcsRefused,
    ProcsStopped,
    ProcStarted,
    Shutdown,
    SpawnProcs,
    StopProc,
    StopProcs,
    Watch,
    encode_extent,
)
from monarch._wire.transport.base import Connection, ConnectionLost
from monarch._wire.transport.inproc import InprocTransport, Network, Sent
from monarch.config import settings
from monarch.testing.clock import VirtualClock

_PATIENCE = 10.0  # real seconds for a cluster to end
_SIGTERM, _SIGKILL = 15, 9


class ProcKilled(SystemExit):
    """Raised in the threads of a simulated process that was killed, wherever they use the runtime next.

    Derived from SystemExit so that `except Exception` does not keep them alive and no traceback is printed.
    """


class UnsupervisedFailure(AssertionError):
    """A failure reached the cluster's root client, and the test did not take it with `next_failure`."""


class Expectation:
    """A frame that is to be delivered: see `InProcessCluster.expect`."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._seen = threading.Event()

    def wait(self, timeout: float = 30.0) -> None:
        """Returns once it was delivered; TimeoutError after `timeout` real seconds."""
        if not self._seen.wait(timeout):
            raise TimeoutError(f"no {self._kind} was delivered within {timeout:g} s")

    def _met(self) -> None:
        self._seen.set()


class InProcessCluster:
    """Runs actors on simulated processes. In its block the ordinary API works on them, in every thread:

        with InProcessCluster() as cluster:
            procs = this_host().spawn_procs(per_host={"gpus": 4})
            counters = procs.spawn("counters", Counter)
            assert counters.add.call(1).get().item(gpus=0) == 1

    `clock` governs the runtime's timers; `seed` the network's chances. Entering takes about a millisecond and starts no
    process. Blocks may be nested; the innermost is the one in use. Settings (`monarch.configured`) that processes read
    when they start count from the spawn on.

    Leaving stops all actors, running each `__cleanup__`, and puts back what was there before. It raises
    UnsupervisedFailure for failures that reached the root client and that no `next_failure` took, TimeoutError for
    actors that do not stop, naming them, and RuntimeError for errors inside the runtime; none of them when the block
    raised already.

    What differs from real processes: all share one interpreter, so module globals are shared as well, `os.getpid()` is
    the same everywhere and a killed process leaves behind threads that are busy in user code. `env=`, `proc_bind` and
    the output of processes are not simulated, and commands and other interpreters are refused. A plain thread started
    in an actor counts as the root client.
    """

    def __init__(self, *, clock: VirtualClock | None = None, seed: int = 0) -> None:
        self.clock = clock
        self.network = Network(seed)
        self._host = f"inproc:{new_id()}"
        self._failures: list[MeshFailure] = []
        self._failed = threading.Condition()
        self._errors: list[BaseException] = []
        self._before: Proc | None = None
        self._entered = False

    def __repr__(self) -> str:
        return f"<InProcessCluster {self._host} ({'entered' if self._entered else 'not entered'})>"

    # --- the block

    def __enter__(self) -> InProcessCluster:
        if self._entered:
            raise RuntimeError("an InProcessCluster is entered once: make a new one")
        self._entered = True
        clock = self.clock
        self._loop = Loop("monarch-simulated-io", time.monotonic if clock is None else clock.now, clock is not None)
        self._loop.on_error = self._errors.append
        shared = _SharedLoop(self._loop)
        self._agent = _Agent(self.network, self._host, shared)
        self._proc = _make_proc(self.network, f"{self._host}/client", shared, 1)
        self._proc.mesh.fault = self._on_failure
        self._root = Instance(self._proc, key="client", name="root", rank=0, view=encode_extent((), ()))
        self._proc.root_name = self._root.unique
        set_root(self._root)
        self._agent.greeted_by(self._proc)
        self._before = home()
        set_home(self._proc)
        if clock is not None:
            clock.attach(self._loop)
        self._loop.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        stuck = self._end()
        if error is not None:
            return
        if self._errors:
            raise RuntimeError(f"{len(self._errors)} errors inside the runtime, this is the first") from self._errors[0]
        if stuck:
            raise TimeoutError("these actors did not stop, and their threads are left behind:\n  " + "\n  ".join(stuck))
        self._raise_failures()

    def _end(self) -> list[str]:
        """Stops everything; says which actors did not."""
        deadline = time.monotonic() + _PATIENCE
        proc = self._proc
        own = list(proc.actors.values())
        All([proc.mesh.stop_instance(actor, "the cluster is closing") for actor in own]).wait(_PATIENCE)
        proc.post(agent_at(self._host), Shutdown(settings.get("process_exit_timeout")))
        self._agent.done.wait(max(0.0, deadline - time.monotonic()))
        instances = [*proc.simulation.instances, *self._agent.instances()]
        stuck = [repr(instance) for instance in instances if not instance.ended.ready]
        self._on_loop(self._agent.kill_all)
        self._on_loop(lambda: proc.disconnect(RuntimeError("this InProcessCluster was left: its meshes are gone")))
        if not stuck:
            _join(instances, deadline)
        if self.clock is not None:
            self.clock.detach(self._loop)
        self._loop.stop()
        self._loop.join(_PATIENCE)
        set_home(self._before)
        forget_root(proc)
        contexts._clients.pop(id(self._root), None)
        for address in [proc.address, *self._agent.addresses]:
            singletons._made.pop(address, None)
        return stuck

    # --- what tests use

    def this_host(self) -> HostMesh:
        """The simulated host; what `monarch.actor.this_host()` returns inside the block."""
        self._check()
        return host_mesh_of(self._host)

    def kill(self, mesh: ProcMesh | ActorMesh[Any], rank: int | None = None, *, code: int = -_SIGKILL) -> None:
        """Ends every process under `mesh` (its `rank` only), as if by SIGKILL, and returns when the agent has told it.

        Connections break after what was sent; no `__cleanup__` runs; whoever watches the process is told that it ended
        with `code` (a signal negated, or an exit status). Threads of its actors that wait in the runtime end at once,
        others when they next use it. ValueError when a process is not alive, or `rank` is not one of the mesh.
        """
        self._check()
        addresses = addresses_of(mesh)
        if rank is not None:
            if not 0 <= rank < len(addresses):
                raise ValueError(f"rank {rank} is none of the {len(addresses)} ranks of {mesh!r}")
            addresses = [addresses[rank]]
        for address in dict.fromkeys(addresses):
            self._on_loop(lambda address=address: self._agent.kill(address, code))  # type: ignore[misc]

    def address_of(self, mesh: ProcMesh | ActorMesh[Any] | str, rank: int = 0) -> str:
        """For the rules of `network`: the address of a process under `mesh`, of the "client" or the "agent"."""
        if isinstance(mesh, str):
            if mesh not in ("client", "agent"):
                raise ValueError(f"expected a mesh, 'client' or 'agent', got {mesh!r}")
            return f"{self._host}/{mesh}"
        return addresses_of(mesh)[rank]

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
        """Watches the network for one frame that carries a message of that kind (a class of `monarch._wire.message`:
        "Call", "Answer", "Pause", "ProcEnded"...) between these addresses. Ask first, cause it, then `wait()`."""
        known = getattr(message, kind, None)
        if not isinstance(known, type) or not issubclass(known, message._Message):
            raise ValueError(f"there is no message {kind!r}")
        expectation = Expectation(kind)
        paths = self.network.hold  # the same patterns as rules have
        del paths

        def seen(sent: Sent) -> None:
            if matches(sent, source, target) and type(message.decode(sent.head)) is known:
                end()
                expectation._met()

        end = self.network.tap(seen)
        return expectation

    def next_failure(self, timeout: float = 30.0) -> MeshFailure:
        """The next failure that nobody supervised, which a program would end with. Waits for it; AssertionError after
        `timeout` real seconds."""
        with self._failed:
            if not self._failed.wait_for(lambda: bool(self._failures), timeout):
                raise AssertionError(f"no failure reached the root client within {timeout:g} s")
            return self._failures.pop(0)

    def statistics(self) -> dict[str, Any]:
        """Of each simulated process by address (see Proc.statistics), and of the network."""
        procs = [self._proc, *(record.proc for record in self._agent.live.values())]
        return {"network": self.network.statistics(), **{proc.address: proc.statistics() for proc in procs}}

    # --- parts

    def _check(self) -> None:
        if home() is None or not self._entered:
            raise RuntimeError("the cluster is in use inside its with block only")

    def _on_failure(self, failure: MeshFailure) -> None:
        with self._failed:
            self._failures.append(failure)
            self._failed.notify_all()

    def _raise_failures(self) -> None:
        if self._failures:
            reports = "\n".join(failure.report() for failure in self._failures)
            raise UnsupervisedFailure(
                f"{len(self._failures)} failure(s) reached the root client; a program would have ended. If the test "
                f"causes them on purpose, take each with cluster.next_failure():\n{reports}"
            )

    def _on_loop(self, fn: Callable[[], Any]) -> None:
        """Runs `fn` on the I/O loop, waits for it and raises what it raised."""
        slot = Slot()

        def run() -> None:
            try:
                slot.set(fn())
            except BaseException as exc:
                slot.fail(exc)

        self._loop.call_soon(run)
        if not slot.wait(_PATIENCE):
            raise TimeoutError("the cluster's I/O loop does not turn: is a callback of it blocked?")
        slot.value()
