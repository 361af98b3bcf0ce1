"""Carries a program out on an InProcessCluster in virtual time, and tells what was wrong.

The program's lines are the client's; nothing waits but Join. Then the end: everything is answered, every living actor is
called once more, whatever is to be told is told, everything is stopped, and nothing may be left.
"""

from __future__ import annotations

import logging
import random
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import monarch
from monarch.actor import RestartPolicy, this_host
from monarch.testing import InProcessCluster, Local, VirtualClock
from tests.soak import model
from tests.soak.actors import hear, note_failure, send, spawn_on
from tests.soak.history import Done, History, Over, Refused, Sent, Spawned, Struck
from tests.soak.message_log import MessageLog, lines, recording, report
from tests.soak.processes import ProcessCluster, WallClock
from tests.soak.program import (
    BROADCAST,
    CALL_ONE,
    CLIENT,
    Advance,
    Calm,
    Cast,
    Cut,
    CutHosts,
    Disturb,
    Freeze,
    Hold,
    Join,
    Kill,
    KillHost,
    Lose,
    Open,
    Operation,
    Program,
    RestartActors,
    RestartProcs,
    Spawn,
    SpawnProcs,
    StopActors,
    StopProcs,
    process,
)
from tests.soak.sockets import SocketCluster
from tests.support.syscalls import Faults
from tests.support.threads import left_beside, stacks

PATIENCE = 60.0  # real seconds in which no message makes a step; what is not there by then never comes
_LONGEST = 20  # times that, for a whole program
_QUIET = 0.1  # real seconds
_LIMIT = 1.0  # virtual seconds of the runtime's own limits that programs run into
_LIMIT_SPREAD = 8.0  # with several hosts, or faults: what waits for a link, or for room to accept, has to come in time
_LOST = 4.0  # virtual seconds in which hosts that cannot connect lose each other
_PARTED = 1.0  # virtual seconds that hosts may be parted: well below that
_BEAT = 0.5  # virtual seconds
_STEPS = 5_000  # of messages, in the report of a failure
_ROLL_CALL = 1_000_000  # its messages are numbered from here


class Hang(BaseException):
    """Something that must end did not. No Exception, so that nothing takes it for an answer."""


def run(
    program: Program, patience: float = PATIENCE, faults: Faults | None = None, real: ProcessCluster | None = None
) -> list[str]:
    """Returns what was wrong, a line or paragraph each; [] when nothing was.

    With `faults` over real sockets, whose system calls fail as they say; `real`: in processes.
    """
    before = set(threading.enumerate())
    limits = {} if real is not None else _limits(program, faults is not None)
    log = MessageLog(others=real.messages if real is not None else "")
    with recording(log), _settings_for(program, limits):
        runner = _Runner(program, patience, faults, log, real)
        wrong = runner.run()
    facts = runner.history.facts()
    wrong += model.broken_rules(facts) + left_beside(before)
    if wrong:
        wrong += ["what happened:", *map(str, facts), "what happened to messages:", lines(log.steps()[-_STEPS:])]
    return wrong


@contextmanager
def _settings_for(program: Program, limits: dict[str, str | int]) -> Iterator[None]:
    """Chances of this interpreter, and its log, for one program."""
    logger, interval = logging.getLogger("monarch"), sys.getswitchinterval()
    level = logger.level
    random.seed(program.seed)
    sys.setswitchinterval(program.switch_interval)
    logger.setLevel(logging.CRITICAL)
    try:
        with monarch.configured(**limits):
            yield
    finally:
        logger.setLevel(level)
        sys.setswitchinterval(interval)


def _limits(program: Program, faults: bool) -> dict[str, str | int]:
    # With faults: what rests for a moment of the time that the program lets pass has to come in time as well.
    limit = _LIMIT_SPREAD if program.hosts or faults else _LIMIT
    few = 2 if program.seed % 3 else 1000  # receivers from which on casts go down the tree of hosts
    return {
        "tree_casts_from": few,
        "tree_calls_from": few,
        "pending_actor_delivery_timeout": f"{limit:g}s",
        "server_heartbeat_interval": f"{_BEAT:g}s",
        "channel_reconnect_timeout": f"{_LOST:g}s",
        "mesh_orphan_timeout": f"{_LOST:g}s",
        "mesh_attach_config_timeout": f"{_LOST:g}s",
    }


class _Runner:
    def __init__(
        self,
        program: Program,
        patience: float,
        faults: Faults | None,
        log: MessageLog,
        real: ProcessCluster | None,
    ) -> None:
        self.history = History() if real is None else real.history
        self._log = log
        self._program = program
        self._clock: Any = VirtualClock() if real is None else WallClock()
        self._cluster: Any
        if real is not None:
            self._cluster = real
        elif faults is None:
            self._cluster = InProcessCluster(
                clock=self._clock, seed=program.seed, patience=5.0, hosts=program.hosts, gateway=program.gateway
            )
        else:
            self._cluster = SocketCluster(clock=self._clock, seed=program.seed, patience=5.0, faults=faults)
            faults.broke = self._breaks
        self._limit = _LIMIT_SPREAD if program.hosts or faults else _LIMIT
        self._places: dict[str, int | str] = {}  # process -> its host
        self._dead: int | None = None  # the host that was killed
        self._unnoticed = False  # its death may not be known to all
        self._partitions: list[Any] = []
        self._parted_at = 0.0
        self._torn = False  # links were cut since the last Join
        self._began, self._patience = time.monotonic(), patience
        self._last = time.monotonic() + _LONGEST * patience
        self._shared: Any = Local(self.history) if real is None else real.history
        self._procs: dict[str, Any] = {}
        self._meshes: dict[str, Any] = {}
        self._spawned: dict[str, Spawned] = {}
        self._owned: list[str] = []  # meshes that the client spawned
        self._gates: dict[int, Any] = {}
        self._new_gate = (lambda number: Local(threading.Event())) if real is None else real.gate
        self._frozen: list[Freeze] = []
        self._answers: list[tuple[Cast, Any]] = []
        self._ends: list[tuple[str, Any, Struck]] = []  # of stops and restarts: what, its Future, what it is the end of
        self._delays = 0.0  # seconds that frames under way may take at most
        self._needs_time = bool(program.hosts or faults or real) or any(map(_needs_time, program.operations))
        self._doing = "the beginning"

    def run(self) -> list[str]:
        wrong: list[str] = []
        try:
            with self._cluster as cluster:
                layer = cluster.proc.mesh  # told by a call or as a fault: of each failure once
                layer.owners.fault = layer.owners.handled = lambda failure: note_failure(self.history, CLIENT, failure)
                try:
                    for operation in self._program.operations:
                        self._doing = str(operation)
                        self._do(operation)
                    wrong += self._finish()
                except Hang as hang:
                    messages = report(self._log.steps())  # before the end, which closes all ports
                    wrong.append(f"hang: {hang}\n{messages}\n{self._situation()}")
                finally:
                    self._open_gates()
        except Exception as exc:
            wrong.append(f"at {self._doing}: {_whole(exc)}")
        return wrong

    # --- operations

    def _do(self, operation: Operation) -> None:
        try:
            match operation:
                case SpawnProcs():
                    self._spawn_procs(operation)
                case Spawn():
                    self._spawn(operation)
                case Cast():
                    self._cast(operation)
                case Hold():
                    self._hold(operation)
                case Open():
                    self._gate(operation.number).value.set()
                case Kill():
                    self._kill(operation)
                case Freeze():
                    self._cluster.stop_process(self._find(self._procs, operation.procs), operation.rank)
                    self._frozen.append(operation)
                case StopActors() | StopProcs() | RestartActors() | RestartProcs():
                    self._end(operation)
                case Disturb():
                    self._disturb(operation)
                case Calm():
                    self._cluster.network.calm()
                case Lose():
                    self._lose(operation)
                case Cut():
                    self._cut(operation)
                case CutHosts():
                    self._cut_hosts(operation)
                case KillHost():
                    self._kill_host(operation)
                case Advance():
                    self._advance(operation.seconds)
                case Join():
                    self._join()
        except Missing:
            pass  # shrunk away, or never spawned because its processes were gone
        except (RuntimeError, ValueError) as exc:
            self.history.note(Refused(str(operation), type(exc).__name__, str(exc)))

    def _spawn_procs(self, spawn: SpawnProcs) -> None:
        hosts = self._cluster.hosts if spawn.hosts else None
        places = [process(spawn.procs, rank) for rank in range(spawn.size)]
        if hosts is None:
            self._procs[spawn.procs] = this_host().spawn_procs({"gpus": spawn.size})
        elif len(spawn.hosts) == 1:
            self._procs[spawn.procs] = hosts.slice(hosts=spawn.hosts[0]).spawn_procs({"gpus": spawn.size})
        else:
            whole = hosts.slice(hosts=slice(spawn.hosts[0], spawn.hosts[-1] + 1))
            self._procs[spawn.procs] = whole.spawn_procs()
        for rank, place in enumerate(places):
            self._places[place] = spawn.hosts[rank % len(spawn.hosts)] if spawn.hosts else CLIENT
        lost = tuple(place for place in places if self._places[place] == self._dead)
        if lost:
            struck = Struck("kill", places=lost)
            self.history.note(struck)
            self.history.note(Done(struck))
            self._unnoticed = True

    def _spawn(self, spawn: Spawn) -> None:
        procs = self._find(self._procs, spawn.procs)
        places = tuple(process(spawn.procs, spawn.first + rank) for rank in range(spawn.count))
        view = procs.slice(**{procs.extent.labels[0]: slice(spawn.first, spawn.first + spawn.count)})
        if spawn.owner is not None:
            self._adopt(spawn, view, places)
            return
        policy = spawn.policy
        group = spawn.meshes[0] if policy is not None else ""
        with ExitStack() as block:
            if policy is not None:
                block.enter_context(RestartPolicy(policy.strategy, policy.max_restarts, backoff=policy.backoff))
            for name in spawn.meshes:
                self._announce(Spawned(name, CLIENT, places, group, spawn.broken))
                self._meshes[name] = spawn_on(self._shared, spawn, name, view, places)
                self._owned.append(name)

    def _announce(self, spawned: Spawned) -> None:
        self.history.note(spawned)
        self._spawned[spawned.mesh] = spawned

    def _adopt(self, spawn: Spawn, view: Any, places: tuple[str, ...]) -> None:
        """An actor spawns a mesh of its own and gives us a reference."""
        assert spawn.owner is not None
        owner, name = self._view(*spawn.owner), spawn.meshes[0]
        self._join()
        self._announce(Spawned(name, spawn.owner, places, "", spawn.broken))
        mesh, rank = spawn.owner
        with self.history.sending(Sent(CLIENT, CLIENT, spawn.number, mesh, (rank,), CALL_ONE, "adopt")):
            made = owner.adopt.call_one(CLIENT, spawn.number, spawn, view, places)
        try:
            self._meshes[name] = self._wait(made, f"{spawn}")
        except Exception as exc:
            self.history.note(Refused(str(spawn), type(exc).__name__, str(exc)))

    def _cast(self, cast: Cast) -> None:
        target = self._view(cast.mesh, cast.rank)
        if cast.via is None:
            self._answers += [(cast, future) for future in send(self.history, CLIENT, CLIENT, cast, target)]
            return
        via, (mesh, rank) = self._view(*cast.via), cast.via
        with self.history.sending(Sent(CLIENT, CLIENT, cast.number, mesh, (rank,), CALL_ONE, "relay")):
            asked = via.relay.call_one(CLIENT, cast, target)
        if cast.kept:
            self._answers.append((cast, asked))

    def _hold(self, hold: Hold) -> None:
        view = self._view(hold.mesh, hold.rank)
        with self.history.sending(Sent(CLIENT, CLIENT, hold.number, hold.mesh, (hold.rank,), BROADCAST, "hold")):
            view.hold.broadcast(CLIENT, hold.number, self._gate(hold.number))

    def _gate(self, number: int) -> Any:
        if number not in self._gates:
            self._gates[number] = self._new_gate(number)
        return self._gates[number]

    def _kill(self, kill: Kill) -> None:
        procs = self._find(self._procs, kill.procs)
        struck = Struck("kill", places=(process(kill.procs, kill.rank),))
        self.history.note(struck)
        self._cluster.kill(procs, kill.rank)
        self.history.note(Done(struck))

    def _kill_host(self, kill: KillHost) -> None:
        lost = tuple(place for place, host in self._places.items() if host == kill.host)
        struck = Struck("kill", places=lost)
        self.history.note(struck)
        (self._cluster.kill_agent if kill.power else self._cluster.kill_host)(kill.host)
        self._dead = kill.host
        self._unnoticed = True
        self.history.note(Done(struck))

    def _end(self, operation: StopActors | StopProcs | RestartActors | RestartProcs) -> None:
        """Begins to stop or restart; how that ends is seen in the next Join."""
        restart = isinstance(operation, (RestartActors, RestartProcs))
        rank, failed = (operation.rank, operation.failed) if restart else (None, False)
        what = "revive" if failed else "restart" if restart else "stop"
        if isinstance(operation, (StopProcs, RestartProcs)):
            mesh = self._find(self._procs, operation.procs)
            ranks = range(len(mesh)) if rank is None else [rank]
            struck = Struck(what, places=tuple(process(operation.procs, rank) for rank in ranks))
        else:
            mesh = self._find(self._meshes, operation.mesh)
            ranks = range(len(mesh)) if rank is None else [rank]
            struck = Struck(what, actors=tuple((operation.mesh, rank) for rank in ranks))
        self.history.note(struck)
        selected = {} if rank is None else {mesh.extent.labels[0]: rank}
        future = mesh.restart(failed=failed, **selected) if restart else mesh.stop()
        self._ends.append((str(operation), future, struck))

    # --- the network

    def _address(self, place: str) -> str:
        if place == "*":
            return place
        if place in ("client", "agent"):
            return self._cluster.address_of(place)
        procs, _, rank = place.rstrip("]").partition("[")
        return self._cluster.address_of(self._find(self._procs, procs), int(rank))

    def _disturb(self, rule: Disturb) -> None:
        network, path = self._cluster.network, (self._address(rule.source), self._address(rule.target))
        if rule.hold:
            network.hold(*path)
        elif rule.delay is not None:
            self._delays += rule.delay[1]
            network.delay(*rule.delay, *path)
        else:
            self.history.note(Struck("repeat"))
            agent = self._address("agent")  # what agents are told, they are told by a socket, which repeats nothing
            for source, target in self._paths(*path):
                if agent not in (source, target):
                    network.duplicate(rule.duplicate, source, target)

    def _paths(self, source: str, target: str) -> Iterator[tuple[str, str]]:
        places = [process(procs, rank) for procs, mesh in self._procs.items() for rank in range(len(mesh))]
        everybody = [self._address(place) for place in (CLIENT, *places)]
        for one in everybody if source == "*" else [source]:
            for other in everybody if target == "*" else [target]:
                yield one, other

    def _lose(self, lose: Lose) -> None:
        self._join()
        here, there = self._address(CLIENT), self._address(lose.target)
        if self._places.get(lose.target, CLIENT) != CLIENT:  # between hosts nothing is lost
            for cast in lose.casts:
                self._do(cast)
            return
        with self._struck_by_cut(CLIENT, lose.target):
            with self._cluster.network.drop(lose.share, here, there):
                for cast in lose.casts:
                    self._do(cast)
                if lose.patient:
                    self._advance(max(cast.deadline or 0.0 for cast in lose.casts))
            self._cluster.network.cut(here, there)

    def _cut(self, cut: Cut) -> None:
        if cut.source == cut.target or self._places.get(cut.source, CLIENT) != self._places.get(cut.target, CLIENT):
            return
        here, there = self._address(cut.source), self._address(cut.target)
        with self._struck_by_cut(cut.source, cut.target):
            for cast in cut.casts:
                self._do(cast)
            self._cluster.network.cut(here, there)

    @contextmanager
    def _struck_by_cut(self, source: str, target: str) -> Iterator[None]:
        struck = Struck("cut", places=(source, target))
        self.history.note(struck)
        yield
        self._cluster.settle()
        self.history.note(Done(struck))

    def _breaks(self, sock: Any) -> bool:
        """A system call is about to say that this connection is gone. Not of one with an agent, whose end is that of a
        process."""
        places = {address: place for place, address in self._addresses().items()}
        ends = [places.get(address) for address in sock.pair]
        if None in ends or ends[0] == ends[1]:
            return False
        self.history.note(Struck("cut", places=(str(ends[0]), str(ends[1]))))
        return True

    def _addresses(self) -> dict[str, str]:
        """Returns those of all processes, by their places."""
        places = [process(procs, rank) for procs, mesh in list(self._procs.items()) for rank in range(len(mesh))]
        return {place: self._address(place) for place in (CLIENT, *places)}

    def _cut_hosts(self, cut: CutHosts) -> None:
        for cast in cut.casts:
            self._do(cast)
        self._torn = True
        if cut.parted:
            if not self._partitions:
                self._parted_at = self._clock.now()
            self._partitions.append(self._cluster.part_hosts(cut.one, cut.other))
        else:
            self._cluster.cut_hosts(cut.one, cut.other)

    def _advance(self, seconds: float) -> None:
        if self._partitions and self._clock.now() + seconds > self._parted_at + _PARTED:
            self._heal()
        self._clock.advance(seconds)

    def _heal(self) -> None:
        for partition in self._partitions:
            partition.end()
        self._partitions = []

    def _mend_links(self) -> None:
        """They dial again, or notice that nobody is there any more."""
        self._heal()
        seconds = 2 * _LOST if self._unnoticed else 2.0 if self._torn else 0.0
        self._torn = self._unnoticed = False
        for _ in range(round(seconds / _BEAT)):
            self._cluster.settle()
            self._clock.advance(_BEAT)

    # --- waiting

    def _join(self) -> None:
        self._open_gates()
        self._let_run()
        self._cluster.network.calm()
        self._clock.advance(self._delays)
        self._delays = 0.0
        self._mend_links()
        answers, self._answers = self._answers, []
        for cast, future in answers:
            hear(self.history, CLIENT, cast, lambda future=future, cast=cast: self._wait(future, str(cast)))
        ends, self._ends = self._ends, []
        for what, future, struck in ends:
            self._see_end(what, future, struck)

    def _see_end(self, what: str, future: Any, struck: Struck) -> None:
        try:
            self._wait(future, what)
        except Exception as exc:
            self.history.note(Refused(what, type(exc).__name__, str(exc)))
        else:
            self.history.note(Done(struck))

    def _wait(self, future: Any, what: str) -> Any:
        """Its value or exception; Hang when neither comes. Where the runtime may wait for its own time limits, they pass
        when nothing has come for a while."""
        while True:
            left = self._left_to_wait()
            patience = min(left, _QUIET) if self._needs_time else left
            try:
                return future.get(patience)
            except TimeoutError:
                if "pending" not in repr(future):
                    return future.get()  # there since, or the endpoint's own
            if not self._left_to_wait():
                raise Hang(f"no answer to {what}")
            if self._needs_time:
                self._clock.advance(self._limit)

    def _left_to_wait(self) -> float:
        """Real seconds. A machine that has other work gives little time, but messages go on then."""
        now = time.monotonic()
        return max(0.0, min(self._last, max(self._log.last, self._began) + self._patience) - now)

    def _open_gates(self) -> None:
        for gate in self._gates.values():
            gate.value.set()

    def _let_run(self) -> None:
        frozen, self._frozen = self._frozen, []
        for freeze in frozen:
            try:
                self._cluster.continue_process(self._procs[freeze.procs], freeze.rank)
            except ValueError:  # it was killed
                pass

    # --- the end

    def _finish(self) -> list[str]:
        self._doing = "the end"
        self._join()
        self._call_the_roll()
        self._see_what_follows()
        self.history.note(Over())
        self._stop_everything()
        return self._residue()

    def _call_the_roll(self) -> None:
        numbers = iter(range(_ROLL_CALL, 2 * _ROLL_CALL))
        for name, mesh in self._meshes.items():
            for rank in range(len(mesh)):
                self._cast(Cast(next(numbers), name, rank, CALL_ONE))
        self._join()

    def _see_what_follows(self) -> None:
        """Until the client was told of every failure, or a policy has restarted who failed."""
        while not self.history.wait_for(lambda facts: not model.owed(facts), _QUIET if self._needs_time else PATIENCE):
            if not self._left_to_wait():
                raise Hang(f"nobody was told of the end of {model.owed(self.history.facts())}, nor was it restarted")
            self._clock.advance(self._limit)

    def _stop_everything(self) -> None:
        for name in self._owned:
            self._do(StopActors(name))
        for name in self._procs:
            self._do(StopProcs(name))
        self._join()

    def _residue(self) -> list[str]:
        """Returns what is left when everything was stopped, and what goes by itself had the time to."""
        while (left := self._left()) and self._left_to_wait():
            self._cluster.settle()
            self._clock.advance(self._limit)
        return left

    def _left(self) -> list[str]:
        cluster = self._cluster
        proc, layer = cluster.proc, cluster.proc.mesh
        left = {
            "actors of the client": proc.actors,
            "ports of the client": [_shown_port(entry) for entry in proc.ports.entries()],
            "messages for unknown actors": proc.table._unknown,
            "meshes in the ledger": layer.owned.ledger._entries,
            "actor meshes": layer.owned.actors,
            "proc meshes": layer.owned.procs,
            "meshes that the client owns": cluster.root.owned,
            "processes": [address for address in cluster.statistics() if address not in ("network", proc.address)],
        }
        return [f"left over: {what}: {list(things)}" for what, things in left.items() if things]

    # --- parts

    def _find(self, table: dict[str, Any], name: str) -> Any:
        if name not in table:
            raise Missing(name)
        return table[name]

    def _view(self, mesh: str, rank: int | None) -> Any:
        found = self._find(self._meshes, mesh)
        if rank is None or len(found) == 1:
            return found
        return found.slice(**{found.extent.labels[0]: rank})

    def _situation(self) -> str:
        statistics = "\n".join(f"  {key}: {value}" for key, value in self._cluster.statistics().items())
        return f"{statistics}\nthreads:\n{stacks()}"


def _needs_time(operation: Operation) -> bool:
    """Tells whether something may end only at a time limit of the runtime.

    So do actors that nobody constructs in a new process, and notes that are lost with a connection.
    """
    return isinstance(operation, (Lose, Cut, RestartProcs)) or (isinstance(operation, Spawn) and bool(operation.policy))


def _shown_port(entry: Any) -> str:
    waits_for = f" for {entry.target.label}" if entry.target is not None else ""
    return f"{entry.number}: {type(entry).__name__}{waits_for}"


class Missing(Exception):
    """A name that this program does not have."""


def _whole(exc: BaseException) -> str:
    return "".join(traceback.format_exception(exc))
