"""Tests of what becomes of the processes of a host, in every order of events, and who is told of it.

A scenario is a text: a line with `>` is an event, the lines below it are what the roster wants done on its account. A
process is `mesh.rank#incarnation`; its connection has the same name; `C` is the client's, `W` and `V` are of others.
Opening sockets succeeds at once unless the event is said `without room`; timers fire in `wait`.

`given m of 2 runs` stands for the events that lead there, and what is wanted then: a mesh of two was asked for and launched,
and its processes, 100 and 101, have said hello. `given m of 2 starts`: it was launched. `given m of 1 fails`: it could not be
forked. Who asks for it is `C` unless said (`by F`).
"""

from __future__ import annotations

import itertools
import signal
from typing import Any

import msgspec
import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from monarch._mesh.agent import roster as rosters
from monarch._mesh.agent.effects import (
    Arm,
    Disarm,
    Effect,
    HostEmpty,
    Launch,
    Limits,
    MeshEnded,
    Prepare,
    Refuse,
    ReleaseProcess,
    Send,
    Signal,
    Start,
)
from monarch._mesh.agent.roster import Roster
from monarch._wire.message import (
    VERSION,
    Answer,
    Hello,
    IncarnationAck,
    LaunchSpec,
    ListProcs,
    Ping,
    ProcEnded,
    ProcReachable,
    ProcsRefused,
    ProcsStopped,
    ProcStarted,
    RestartProcs,
    SpawnProcs,
    StopProc,
    StopProcs,
    Suspected,
    Watch,
)
from tests.support.examples import examples

HOST = "unix:/h"
CLIENT = f"{HOST}/client"
FAR = "tcp://far:1/o.0"  # a process of another host; connected as F
LIMITS = Limits(ready=30.0, suspect_after=10.0, suspect_timeout=300.0)
SPEC = LaunchSpec("m", {}, "/", [], "", b"", False, False, [], False)


def address_of(name: str) -> tuple[str, int]:
    """`m.0#1` -> (its address, 1)."""
    process, _, incarnation = name.partition("#")
    return f"{HOST}/{process}", int(incarnation or 0)


def name_of(address: str, incarnation: int) -> str:
    return f"{address.removeprefix(HOST + '/')}#{incarnation}"


class Player:
    """Gives the events of a scenario to a roster and says what it wants done."""

    def __init__(self, limits: Limits = LIMITS, spec: LaunchSpec = SPEC) -> None:
        self.roster = Roster(HOST, 30.0)
        self.now = 0.0
        self.timers: dict[tuple[Any, ...], float] = {}
        self.limits = limits
        self.spec = spec
        self.token = 0
        self.room = True
        self.at_once = True  # sockets are opened
        self.opening: list[tuple[Start, ...]] = []
        self.said: list[str] = []

    def play(self, event: str) -> list[str]:
        """One event; what is wanted then."""
        self.said = []
        what, *words = event.split()
        self.room = words[-2:] != ["without", "room"]
        if not self.room:
            words = words[:-2]
        getattr(self, what)(*words)
        return self.said

    def do(self, effects: list[Effect]) -> None:
        queue = list(effects)
        while queue:
            effect = queue.pop(0)
            if isinstance(effect, Arm):
                self.timers[effect.key] = self.now + effect.delay
                continue
            if isinstance(effect, Disarm):
                del self.timers[effect.key]
                continue
            self.said.append(self.text(effect))
            if isinstance(effect, Prepare):
                if not self.room:
                    queue += self.roster.refused(self.now, effect.starts, "no room")
                elif self.at_once:
                    queue += self.roster.prepared(self.now, effect.starts)
                else:
                    self.opening.append(effect.starts)

    def text(self, effect: Effect) -> str:
        match effect:
            case Send(connection, message, body):
                return f"{connection} <- {self.message(message, body)}"
            case Prepare(starts):
                return "open " + " ".join(name_of(*start.key) for start in starts)
            case Launch(starts):
                return "launch " + " ".join(name_of(*start.key) for start in starts)
            case Signal(pid, number):
                return f"{signal.Signals(number).name} {pid}"
            case ReleaseProcess(ended):
                return f"gone {name_of(ended.address, ended.incarnation)}"
            case MeshEnded(mesh):
                return f"mesh {mesh} gone"
            case Refuse(connection, why):
                return f"{connection} refused: {why}"
            case HostEmpty():
                return "done"
        raise AssertionError(effect)

    def message(self, message: Any, body: bytes) -> str:
        match message:
            case ProcReachable(address, incarnation):
                return f"listening {name_of(address, incarnation)}"
            case ProcEnded():
                how = f"ended {name_of(message.address, message.incarnation)} code {message.code}"
                return how + ", stopped" * message.stopped + f": {message.detail}" * bool(message.detail)
            case ProcStarted(mesh, rank, pid, incarnation):
                return f"started {mesh}.{rank}#{incarnation} pid {pid}"
            case ProcsRefused(mesh, why):
                return f"refused {mesh}: {why}"
            case ProcsStopped(mesh, port):
                return f"stopped {mesh} port {port}"
            case StopProc(reason):
                return f"stop: {reason}"
            case Suspected(address, pid, why, limit):
                name = address.removeprefix(HOST + "/")
                return f"suspected {name} pid {pid} limit {limit:g}: {why}" if why else f"trusted {name} pid {pid}"
            case Ping(token):
                self.token = token
                return "ping"
            case Answer(port, rank, kind):
                assert (rank, kind) == (0, 0)
                addresses = msgspec.msgpack.decode(body)
                return " ".join(["port", str(port), *(address.removeprefix(HOST + "/") for address in addresses)])
        raise AssertionError(message)

    # --- events

    def spawn(self, mesh: str, count: str, by: str = "C") -> None:
        owner = {"C": CLIENT, "F": FAR}.get(by) or address_of(by)[0]
        ask = SpawnProcs(mesh, mesh, 0, int(count), owner)
        self.do(self.roster.spawn(self.now, by, ask, self.spec, self.limits))

    def restart(self, *names: str) -> None:
        """The last word may be `by ...`."""
        by = "C"
        if names[-2:-1] == ("by",):
            by, names = names[-1], names[:-2]
        mesh = names[0].partition(".")[0]
        ranks = [int(name.partition(".")[2].partition("#")[0]) for name in names]
        incarnations = [address_of(name)[1] for name in names]
        owner = CLIENT if by == "C" else address_of(by)[0]
        ask = RestartProcs(mesh, mesh, 0, 4, ranks, incarnations, owner, 5.0)
        self.do(self.roster.restart(self.now, by, ask, self.spec, self.limits))

    def stop(self, mesh: str, by: str = "C") -> None:
        self.do(self.roster.stop(self.now, by, StopProcs(mesh, "enough", 5.0, 7)))

    def opened(self) -> None:
        self.do(self.roster.prepared(self.now, self.opening.pop(0)))

    def later(self) -> None:
        """Sockets take their time from now on."""
        self.at_once = False

    def born(self, name: str, pid: str) -> None:
        self.do(self.roster.pid_known(self.now, *address_of(name), int(pid)))

    def stillborn(self, name: str) -> None:
        self.do(self.roster.not_started(self.now, *address_of(name), "could not be forked"))

    def hello(self, name: str, connection: str = "") -> None:
        address, incarnation = address_of(name)
        self.do(self.roster.hello(self.now, connection or name, Hello(VERSION, address, 1000, incarnation)))

    def runs(self, name: str, pid: str) -> None:
        self.born(name, pid)
        self.hello(name)

    def exit(self, pid: str, code: str, *why: str) -> None:
        self.do(self.roster.exited(self.now, int(pid), int(code), " ".join(why)))

    def sigstop(self, pid: str) -> None:
        self.do(self.roster.stopped(self.now, int(pid), signal.SIGSTOP))

    def sigcont(self, pid: str) -> None:
        self.do(self.roster.continued(self.now, int(pid)))

    def frame(self, name: str) -> None:
        self.do(self.roster.alive(self.now, name))

    def pong(self, name: str) -> None:
        self.frame(name)
        self.do(self.roster.pong(self.now, name, self.token))

    def watch(self, connection: str, name: str) -> None:
        self.do(self.roster.watch(self.now, connection, Watch(*address_of(name))))

    def watch_lost(self, connection: str, name: str) -> None:
        self.do(self.roster.watch(self.now, connection, Watch(*address_of(name), lost=True)))

    def give_up(self) -> None:
        self.do(self.roster.give_up(self.now, HOST))

    def heard(self, connection: str, name: str) -> None:
        self.do(self.roster.heard(self.now, connection, IncarnationAck(*address_of(name))))

    def lost(self, connection: str) -> None:
        self.do(self.roster.connection_lost(self.now, connection))

    def census(self) -> None:
        self.do(self.roster.census(self.now, "C", ListProcs(3)))

    def owner_ended(self) -> None:
        self.do(self.roster.owner_ended(self.now, FAR))

    def host_ended(self, host: str, *why: str) -> None:
        self.do(self.roster.host_ended(self.now, host, " ".join(why)))

    def shutdown(self) -> None:
        self.do(self.roster.shutdown(self.now, 5.0))

    def wait(self, seconds: str) -> None:
        until = self.now + float(seconds)
        while self.timers:
            key = min(self.timers, key=lambda key: self.timers[key])
            if self.timers[key] > until:
                break
            self.now = max(self.now, self.timers.pop(key))
            self.do(self.roster.fired(self.now, key))
        self.now = until

    def frozen(self, seconds: str) -> None:
        """The agent itself did not run for so long: its timers are late."""
        self.now += float(seconds)
        self.wait("0")


SCENARIOS = {
    # --- owners on other hosts
    "the owner on another host ends": """
        given m of 1 by F runs
        given other of 1 starts
        > runs other.0#0 101
        C <- started other.0#0 pid 1000
        > owner_ended
        m.0#0 <- stop: the process that spawned it has ended
        > wait 0.4
        SIGTERM 100
        > exit 100 0
        gone m.0#0
        F <- ended m.0#0 code 0, stopped
        mesh m gone
        > owner_ended
    """,
    "the host of the owner is lost": """
        given m of 1 by F runs
        > host_ended tcp://other:1 the cable was cut
        > lost F
        > host_ended tcp://far:1 the cable was cut
        m.0#0 <- stop: the host of the process that spawned it is gone: the cable was cut
        > exit 100 0
        gone m.0#0
        mesh m gone
    """,
    "the host of the owner is lost before its process is there": """
        given m of 1 by F starts
        > lost F
        > host_ended tcp://far:1 the cable was cut
        > born m.0#0 100
        SIGKILL 100
        > exit 100 -9
        gone m.0#0
        mesh m gone
    """,
    # --- starting
    "a mesh starts": """
        > spawn m 2
        open m.0#0 m.1#0
        launch m.0#0 m.1#0
        > born m.0#0 100
        > born m.1#0 101
        > hello m.1#0
        C <- started m.1#0 pid 1000
        > hello m.0#0
        C <- started m.0#0 pid 1000
    """,
    "a mesh is refused": """
        > watch W m.0#0
        > spawn m 2 without room
        open m.0#0 m.1#0
        C <- refused m: no room
        gone m.0#0
        C <- ended m.0#0 code 1: could not be started: no room
        W <- ended m.0#0 code 1: could not be started: no room
        gone m.1#0
        C <- ended m.1#0 code 1: could not be started: no room
        mesh m gone
    """,
    "a mesh that is there is refused": """
        given m of 1 starts
        > spawn m 1
        C <- refused m: the mesh m runs on this host already
    """,
    "a process cannot be forked": """
        > spawn m 1
        open m.0#0
        launch m.0#0
        > stillborn m.0#0
        gone m.0#0
        C <- ended m.0#0 code 1: could not be forked
        mesh m gone
    """,
    "it ends before its pid is known": """
        given m of 1 starts
        > exit 100 3
        > born m.0#0 100
        gone m.0#0
        C <- ended m.0#0 code 3
        mesh m gone
    """,
    "it is stopped before its pid is known": """
        given m of 1 starts
        > sigstop 100
        > born m.0#0 100
        C <- suspected m.0 pid 100 limit 300: stopped by signal 19 (SIGSTOP)
    """,
    "stopped and continued before its pid is known": """
        given m of 1 starts
        > sigstop 100
        > sigcont 100
        > born m.0#0 100
    """,
    "an orphan ends, and its number is given again": """
        > exit 100 0
        given m of 1 starts
        > born m.0#0 100
    """,
    "not ready in time": """
        given m of 1 starts
        > born m.0#0 100
        > wait 30
        SIGKILL 100
        > exit 100 -9
        gone m.0#0
        C <- ended m.0#0 code -9: was not ready within 30 s (setting host_spawn_ready_timeout)
        mesh m gone
    """,
    "not forked in time, and forked after all": """
        given m of 1 starts
        > wait 30
        gone m.0#0
        C <- ended m.0#0 code 1: was not ready within 30 s (setting host_spawn_ready_timeout)
        mesh m gone
        > born m.0#0 100
        SIGKILL 100
        > exit 100 -9
    """,
    "not forked in time, and ended when its pid is known": """
        given m of 1 starts
        > wait 30
        gone m.0#0
        C <- ended m.0#0 code 1: was not ready within 30 s (setting host_spawn_ready_timeout)
        mesh m gone
        > exit 100 -9
        > born m.0#0 100
    """,
    "a process says hello twice": """
        given m of 1 runs
        > hello m.0#0 again
        > stop m
        > lost m.0#0
        > census
        C <- port 3 m.0
    """,
    "a process closes its descriptors and runs on": """
        given m of 1 runs
        > lost m.0#0
        > watch W m.0#0
        > wait 1.9
        > wait 0.1
        SIGKILL 100
        > exit 100 -9
        gone m.0#0
        C <- ended m.0#0 code -9: closed its connection to the host agent and ran on for 2 s; it was killed
        W <- ended m.0#0 code -9: closed its connection to the host agent and ran on for 2 s; it was killed
        mesh m gone
    """,
    "a process takes long to end after its connection": """
        given m of 1 runs
        > lost m.0#0
        > wait 2
        SIGKILL 100
        > exit 100 -6
        gone m.0#0
        C <- ended m.0#0 code -6
        mesh m gone
    """,
    "somebody from elsewhere says hello": """
        > hello x.0#0
        > lost x.0#0
    """,
    # --- ending
    "it is killed": """
        given m of 2 runs
        > exit 100 -9 killed by the kernel: out of memory
        gone m.0#0
        C <- ended m.0#0 code -9: killed by the kernel: out of memory
        > exit 101 0
        gone m.1#0
        C <- ended m.1#0 code 0
        mesh m gone
    """,
    "a mesh is stopped by its owner": """
        given m of 1 runs
        > stop m
        > exit 100 0
        gone m.0#0
        C <- ended m.0#0 code 0, stopped
        mesh m gone
        C <- stopped m port 7
        > stop m
        C <- stopped m port 7
    """,
    "it does not stop": """
        given m of 1 runs
        > stop m
        > wait 4.5
        > pong m.0#0
        > stop m
        > wait 0.5
        SIGTERM 100
        > wait 0.5
        > stop m
        > wait 0.5
        SIGKILL 100
        > exit 100 -9 killed by the kernel: out of memory
        gone m.0#0
        C <- ended m.0#0 code -9, stopped
        mesh m gone
        C <- stopped m port 7
        C <- stopped m port 7
        C <- stopped m port 7
    """,
    "stopped before it is up": """
        given m of 1 starts
        > stop m
        > born m.0#0 100
        > hello m.0#0
        C <- started m.0#0 pid 1000
        > wait 5
        SIGTERM 100
        m.0#0 <- ping
        > exit 100 -15
        gone m.0#0
        C <- ended m.0#0 code -15, stopped
        mesh m gone
        C <- stopped m port 7
    """,
    "stopped before it is forked": """
        given m of 1 starts
        > stop m
        > wait 6
        gone m.0#0
        C <- ended m.0#0 code -9, stopped
        mesh m gone
        C <- stopped m port 7
        > born m.0#0 100
        SIGKILL 100
    """,
    "stopped while its socket is opened": """
        > later
        > spawn m 1
        open m.0#0
        > watch W m.0#0
        > stop m
        > opened
        gone m.0#0
        C <- ended m.0#0 code 0, stopped
        W <- ended m.0#0 code 0, stopped
        mesh m gone
        C <- stopped m port 7
    """,
    "its owner ends": """
        given m of 1 runs
        given k of 2 by m.0#0 starts
        > runs k.0#0 200
        m.0#0 <- started k.0#0 pid 1000
        > exit 100 -9
        gone m.0#0
        C <- ended m.0#0 code -9
        mesh m gone
        k.0#0 <- stop: the process that spawned it has ended
        > born k.1#0 201
        SIGKILL 201
        > exit 201 -9
        gone k.1#0
        m.0#0 <- ended k.1#0 code -9, stopped
        > wait 0.4
        SIGTERM 200
        > exit 200 -15
        gone k.0#0
        m.0#0 <- ended k.0#0 code -15, stopped
        mesh k gone
    """,
    "the last words of an owner that has ended": """
        given m of 1 runs
        > exit 100 -9
        gone m.0#0
        C <- ended m.0#0 code -9
        mesh m gone
        > spawn k 1 m.0#0
        m.0#0 <- refused k: its mesh is being stopped (the process that asked for it has ended)
        m.0#0 <- ended k.0#0 code 1, stopped: could not be started: its mesh is being stopped (the process that asked for it \
has ended)
        mesh k gone
        > restart m.0#1
        open m.0#1
        C <- listening m.0#1
        launch m.0#1
        > restart k.0#1 by m.0#0
        m.0#0 <- ended k.0#1 code 1, stopped: could not be started: its mesh is being stopped (the process that asked for it \
has ended)
        mesh k gone
    """,
    # --- hosts that are replaced
    "what was lost with the host before is started here": """
        > watch_lost W m.0#65535
        W <- ended m.0#65535 code 1: was lost with its host, and was not restarted on the one that has taken its place
        > restart m.0#65536
        open m.0#65536
        W <- listening m.0#65536
        C <- listening m.0#65536
        launch m.0#65536
        > watch_lost V m.0#65535
        V <- listening m.0#65536
        > runs m.0#65536 100
        > heard W m.0#65536
        > heard C m.0#65536
        > heard V m.0#65536
        C <- started m.0#65536 pid 1000
    """,
    "the host was taken for lost and was not": """
        given m of 2 runs
        > give_up
        m.0#0 <- stop: its host was taken for lost
        m.1#0 <- stop: its host was taken for lost
        > watch_lost W m.0#65535
        W <- ended m.0#65535 code 1: was lost with its host, and was not restarted on the one that has taken its place
        > restart m.0#65536
        > exit 100 0
        gone m.0#0
        C <- ended m.0#0 code 0, stopped
        W <- ended m.0#0 code 0, stopped
        open m.0#65536
        C <- listening m.0#65536
        W <- listening m.0#65536
        launch m.0#65536
        > runs m.0#65536 102
        > exit 101 0
        gone m.1#0
        C <- ended m.1#0 code 0, stopped
        > heard W m.0#65536
        > heard C m.0#65536
        C <- started m.0#65536 pid 1000
    """,
    # --- shutting down
    "a shutdown": """
        given m of 2 starts
        > runs m.0#0 100
        C <- started m.0#0 pid 1000
        > shutdown
        m.0#0 <- stop: the client has ended
        > shutdown
        > born m.1#0 101
        SIGKILL 101
        > exit 101 -9
        gone m.1#0
        C <- ended m.1#0 code -9, stopped
        > exit 100 0
        gone m.0#0
        C <- ended m.0#0 code 0, stopped
        mesh m gone
        done
        > spawn k 1
        C <- refused k: this host is shutting down
        C <- ended k.0#0 code 1: could not be started: this host is shutting down
        mesh k gone
        > restart m.0#1
        C <- ended m.0#1 code 1: could not be started: this host is shutting down
        mesh m gone
    """,
    "a shutdown of nothing": """
        > shutdown
        done
    """,
    "it comes up during a shutdown": """
        given m of 1 starts
        > born m.0#0 100
        > shutdown
        > hello m.0#0
        C <- started m.0#0 pid 1000
        m.0#0 <- stop: the client has ended
        > wait 0.4
        SIGTERM 100
        > wait 1
        SIGKILL 100
        > exit 100 -9
        gone m.0#0
        C <- ended m.0#0 code -9, stopped
        mesh m gone
        done
    """,
    # --- watching
    "watching what starts later": """
        > watch W m.0#0
        > wait 29
        > spawn m 1
        open m.0#0
        W <- listening m.0#0
        launch m.0#0
        > exit 100 7
        > born m.0#0 100
        gone m.0#0
        C <- ended m.0#0 code 7
        W <- ended m.0#0 code 7
        mesh m gone
        > watch W m.0#0
        W <- ended m.0#0 code 7
        > wait 100
    """,
    "watching what never starts": """
        > watch W m.0#0
        > wait 10
        > watch V m.0#2
        > watch W m.0#0
        > wait 20
        W <- ended m.0#0 code 1: was never started on this host
        > wait 10
        V <- ended m.0#2 code 1: was never started on this host
    """,
    "watching the client": """
        > watch W client#0
        W <- listening client#0
    """,
    "watching one that runs: it has to show that it does": """
        given m of 1 starts
        > watch V m.0#0
        > runs m.0#0 100
        C <- started m.0#0 pid 1000
        m.0#0 <- ping
        > watch W m.0#0
        m.0#0 <- ping
        > frame m.0#0
        > pong m.0#0
        V <- listening m.0#0
        W <- listening m.0#0
        > watch W m.0#0
        m.0#0 <- ping
        > exit 100 -9
        gone m.0#0
        C <- ended m.0#0 code -9
        V <- ended m.0#0 code -9
        W <- ended m.0#0 code -9
        mesh m gone
    """,
    "watching one that does not show that it runs": """
        given m of 1 starts
        > watch W m.0#0
        > watch V m.0#0
        > lost V
        > wait 1
        W <- listening m.0#0
    """,
    "who watches no longer is not told": """
        > watch W m.0#0
        > watch V m.0#0
        > lost V
        > spawn m 1
        open m.0#0
        W <- listening m.0#0
        launch m.0#0
        > lost W
        > stillborn m.0#0
        gone m.0#0
        C <- ended m.0#0 code 1: could not be forked
        mesh m gone
    """,
    "a census": """
        > census
        C <- port 3
        given m of 3 starts
        > runs m.2#0 102
        C <- started m.2#0 pid 1000
        > runs m.0#0 100
        C <- started m.0#0 pid 1000
        > census
        C <- port 3 m.0 m.2
    """,
    # --- restarts
    "a restart of one that has ended": """
        given m of 2 starts
        > runs m.0#0 100
        C <- started m.0#0 pid 1000
        > watch W m.0#0
        m.0#0 <- ping
        > pong m.0#0
        W <- listening m.0#0
        > exit 100 -9
        gone m.0#0
        C <- ended m.0#0 code -9
        W <- ended m.0#0 code -9
        > restart m.0#1
        open m.0#1
        C <- listening m.0#1
        W <- listening m.0#1
        launch m.0#1
        > heard C m.0#1
        > born m.0#1 101
        > hello m.0#1
        > heard W m.0#1
        C <- started m.0#1 pid 1000
        > restart m.0#1
        > exit 101 1
        gone m.0#1
        C <- ended m.0#1 code 1
        W <- ended m.0#1 code 1
        > restart m.0#1
        C <- ended m.0#1 code 1
    """,
    "a restart of one that runs": """
        given m of 1 runs
        > restart m.0#1
        > wait 4
        > pong m.0#0
        > wait 1
        SIGTERM 100
        > wait 1
        SIGKILL 100
        > exit 100 -9
        gone m.0#0
        C <- ended m.0#0 code -9, stopped
        open m.0#1
        C <- listening m.0#1
        launch m.0#1
        > runs m.0#1 101
        > heard C m.0#1
        C <- started m.0#1 pid 1000
    """,
    "a restart of several": """
        given m of 3 starts
        > born m.0#0 100
        > exit 100 1
        gone m.0#0
        C <- ended m.0#0 code 1
        > born m.1#0 101
        > exit 101 1
        gone m.1#0
        C <- ended m.1#0 code 1
        > restart m.0#1 m.1#1
        open m.0#1 m.1#1
        C <- listening m.0#1
        C <- listening m.1#1
        launch m.0#1 m.1#1
    """,
    "a restart of one whose owner does not know yet that it runs": """
        given m of 1 starts
        > restart m.0#1
        > born m.0#0 100
        SIGKILL 100
        > exit 100 -9
        gone m.0#0
        C <- ended m.0#0 code -9, stopped
        open m.0#1
        C <- listening m.0#1
        launch m.0#1
    """,
    "a restart of a whole mesh that has ended": """
        given m of 1 fails
        > restart m.0#1
        open m.0#1
        C <- listening m.0#1
        launch m.0#1
        > runs m.0#1 101
        > heard C m.0#1
        C <- started m.0#1 pid 1000
    """,
    "a restart that fails": """
        given m of 1 starts
        > watch W m.0#0
        > stillborn m.0#0
        gone m.0#0
        C <- ended m.0#0 code 1: could not be forked
        W <- ended m.0#0 code 1: could not be forked
        mesh m gone
        > restart m.0#1 without room
        open m.0#1
        gone m.0#1
        C <- ended m.0#1 code 1: could not be started: no room
        W <- ended m.0#1 code 1: could not be started: no room
        mesh m gone
        > restart m.0#2
        open m.0#2
        C <- listening m.0#2
        W <- listening m.0#2
        launch m.0#2
    """,
    "a second restart while the first is under way": """
        given m of 1 runs
        > restart m.0#1
        > wait 4
        > pong m.0#0
        > restart m.0#2
        > restart m.0#1
        > wait 1
        SIGTERM 100
        > exit 100 -15
        gone m.0#0
        C <- ended m.0#0 code -15, stopped
        open m.0#2
        C <- listening m.0#2
        launch m.0#2
        > restart m.0#1
        > restart m.0#2
    """,
    "a watcher that does not answer holds nothing up": """
        given m of 1 starts
        > watch W m.0#0
        > stillborn m.0#0
        gone m.0#0
        C <- ended m.0#0 code 1: could not be forked
        W <- ended m.0#0 code 1: could not be forked
        mesh m gone
        > restart m.0#1
        open m.0#1
        C <- listening m.0#1
        W <- listening m.0#1
        launch m.0#1
        > runs m.0#1 101
        > heard C m.0#1
        > wait 1
        C <- started m.0#1 pid 1000
        > heard W m.0#1
    """,
    "a process that takes longer than its watchers": """
        > restart m.0#1
        open m.0#1
        C <- listening m.0#1
        launch m.0#1
        > wait 2
        > runs m.0#1 101
        C <- started m.0#1 pid 1000
    """,
    "a watcher that goes holds nothing up": """
        > restart m.0#1
        open m.0#1
        C <- listening m.0#1
        launch m.0#1
        > watch W m.0#0
        W <- listening m.0#1
        > runs m.0#1 101
        > heard C m.0#1
        > lost W
        C <- started m.0#1 pid 1000
    """,
    "watching between an end and a restart": """
        given m of 1 starts
        > born m.0#0 100
        > exit 100 -9
        gone m.0#0
        C <- ended m.0#0 code -9
        mesh m gone
        > watch W m.0#0
        W <- ended m.0#0 code -9
        > restart m.0#1
        open m.0#1
        C <- listening m.0#1
        W <- listening m.0#1
        launch m.0#1
    """,
    "watching after a restart, knowing the one before": """
        given m of 1 starts
        > born m.0#0 100
        > exit 100 -9
        gone m.0#0
        C <- ended m.0#0 code -9
        mesh m gone
        > restart m.0#1
        open m.0#1
        C <- listening m.0#1
        launch m.0#1
        > watch W m.0#0
        W <- ended m.0#0 code -9
        W <- listening m.0#1
        > runs m.0#1 101
        > heard C m.0#1
        > heard W m.0#1
        C <- started m.0#1 pid 1000
        > watch V m.0#0
        V <- ended m.0#0 code -9
        V <- listening m.0#1
        > watch V m.0#1
        m.0#1 <- ping
        > pong m.0#1
        V <- listening m.0#1
    """,
    "watching while the socket of the new one is opened": """
        given m of 1 fails
        > later
        > restart m.0#1
        open m.0#1
        > watch W m.0#0
        W <- ended m.0#0 code 1: could not be forked
        > watch V m.0#1
        > opened
        C <- listening m.0#1
        W <- listening m.0#1
        V <- listening m.0#1
        launch m.0#1
    """,
    "an old process says hello": """
        given m of 1 starts
        > wait 30
        gone m.0#0
        C <- ended m.0#0 code 1: was not ready within 30 s (setting host_spawn_ready_timeout)
        mesh m gone
        > hello m.0#0
        m.0#0 refused: this process counts as ended
        > restart m.0#1
        open m.0#1
        C <- listening m.0#1
        launch m.0#1
        > hello m.0#0
        m.0#0 refused: incarnation 0 of this process is not the present one, 1
        > born m.0#0 100
        SIGKILL 100
        > born m.0#1 101
        > exit 100 -9
    """,
    "its owner ends while its mesh restarts": """
        given m of 1 runs
        given k of 1 by m.0#0 starts
        > runs k.0#0 200
        m.0#0 <- started k.0#0 pid 1000
        > watch W k.0#0
        k.0#0 <- ping
        > pong k.0#0
        W <- listening k.0#0
        > restart k.0#1 by m.0#0
        > exit 100 -9
        gone m.0#0
        C <- ended m.0#0 code -9
        mesh m gone
        k.0#0 <- stop: the process that spawned it has ended
        > exit 200 0
        gone k.0#0
        m.0#0 <- ended k.0#0 code 0, stopped
        W <- ended k.0#0 code 0, stopped
        m.0#0 <- ended k.0#1 code 1, stopped: could not be started: its mesh is being stopped (the process that spawned it \
has ended)
        W <- ended k.0#1 code 1, stopped: could not be started: its mesh is being stopped (the process that spawned it \
has ended)
        mesh k gone
    """,
    "a stop during a restart": """
        given m of 1 runs
        > restart m.0#1
        > stop m
        > exit 100 0
        gone m.0#0
        C <- ended m.0#0 code 0, stopped
        C <- ended m.0#1 code 1, stopped: could not be started: its mesh is being stopped (enough)
        mesh m gone
        C <- stopped m port 7
    """,
    "a stop that its owner has not told the new process of": """
        given m of 1 fails
        > restart m.0#1
        open m.0#1
        C <- listening m.0#1
        launch m.0#1
        > runs m.0#1 101
        > stop m
        m.0#1 <- stop: enough
        > exit 101 0
        gone m.0#1
        C <- ended m.0#1 code 0, stopped
        mesh m gone
        C <- stopped m port 7
    """,
    "a shutdown during a restart": """
        given m of 1 runs
        > restart m.0#1
        > shutdown
        m.0#0 <- stop: the client has ended
        > exit 100 0
        gone m.0#0
        C <- ended m.0#0 code 0, stopped
        C <- ended m.0#1 code 1, stopped: could not be started: this host is shutting down
        mesh m gone
        done
    """,
    "who watches a mesh that was stopped is forgotten": """
        given m of 2 starts
        > watch W m.1#0
        > stillborn m.1#0
        gone m.1#0
        C <- ended m.1#0 code 1: could not be forked
        W <- ended m.1#0 code 1: could not be forked
        > stop m
        > stillborn m.0#0
        gone m.0#0
        C <- ended m.0#0 code 1: could not be forked
        mesh m gone
        C <- stopped m port 7
        > watch V m.1#0
        V <- ended m.1#0 code 1: could not be forked
        > restart m.1#1
        open m.1#1
        C <- listening m.1#1
        launch m.1#1
    """,
    "a mesh that has ended by itself is stopped": """
        given m of 1 starts
        > watch W m.0#0
        > stillborn m.0#0
        gone m.0#0
        C <- ended m.0#0 code 1: could not be forked
        W <- ended m.0#0 code 1: could not be forked
        mesh m gone
        > stop m
        C <- stopped m port 7
        > restart m.0#1
        open m.0#1
        C <- listening m.0#1
        launch m.0#1
    """,
    # --- suspicion
    "it is stopped, and continued": """
        given m of 1 runs
        > watch W m.0#0
        m.0#0 <- ping
        > pong m.0#0
        W <- listening m.0#0
        > sigstop 100
        C <- suspected m.0 pid 100 limit 300: stopped by signal 19 (SIGSTOP)
        W <- suspected m.0 pid 100 limit 300: stopped by signal 19 (SIGSTOP)
        > frame m.0#0
        > watch V m.0#0
        m.0#0 <- ping
        > wait 1
        V <- listening m.0#0
        V <- suspected m.0 pid 100 limit 300: stopped by signal 19 (SIGSTOP)
        > wait 200
        > sigcont 100
        C <- trusted m.0 pid 100
        W <- trusted m.0 pid 100
        V <- trusted m.0 pid 100
        > sigcont 100
        > wait 4
    """,
    "it stays stopped": """
        given m of 1 runs
        > sigstop 100
        C <- suspected m.0 pid 100 limit 300: stopped by signal 19 (SIGSTOP)
        > wait 300
        SIGKILL 100
        > exit 100 -9
        gone m.0#0
        C <- ended m.0#0 code -9: was stopped by signal 19 (SIGSTOP) for 300 s and was killed (setting suspect_timeout)
        mesh m gone
    """,
    "it is stopped by a signal and then by its owner": """
        given m of 1 runs
        > sigstop 100
        C <- suspected m.0 pid 100 limit 300: stopped by signal 19 (SIGSTOP)
        > stop m
        > wait 5
        SIGTERM 100
        > wait 1
        SIGKILL 100
        > exit 100 -9
        gone m.0#0
        C <- ended m.0#0 code -9, stopped
        mesh m gone
        C <- stopped m port 7
    """,
    "it is stopped by a signal and restarted": """
        given m of 1 runs
        > sigstop 100
        C <- suspected m.0 pid 100 limit 300: stopped by signal 19 (SIGSTOP)
        > restart m.0#1
        > wait 6
        SIGTERM 100
        SIGKILL 100
        > exit 100 -9
        gone m.0#0
        C <- ended m.0#0 code -9, stopped
        open m.0#1
        C <- listening m.0#1
        launch m.0#1
    """,
    "heartbeats": """
        given m of 1 runs
        > wait 3
        > frame m.0#0
        > wait 4.9
        > wait 0.1
        m.0#0 <- ping
        > pong m.0#0
        > wait 4.9
        > wait 0.1
        m.0#0 <- ping
        > pong m.0#0
    """,
    "it gives no sign of life": """
        given m of 1 runs
        > wait 9.9
        m.0#0 <- ping
        > wait 0.1
        C <- suspected m.0 pid 100 limit 300: its I/O thread has not answered for 10 s: something holds the interpreter \
lock, or the process does not get the processor
        > wait 299
        > frame m.0#0
        C <- trusted m.0 pid 100
        > wait 5
        m.0#0 <- ping
        > wait 5
        C <- suspected m.0 pid 100 limit 300: its I/O thread has not answered for 10 s: something holds the interpreter \
lock, or the process does not get the processor
        > wait 300
        SIGKILL 100
        > exit 100 -9
        gone m.0#0
        C <- ended m.0#0 code -9: gave no sign of life for 310 s (its I/O thread did not answer) and was killed (setting \
suspect_timeout)
        mesh m gone
    """,
    "silent, and then stopped and continued": """
        given m of 1 runs
        > wait 10
        m.0#0 <- ping
        C <- suspected m.0 pid 100 limit 300: its I/O thread has not answered for 10 s: something holds the interpreter \
lock, or the process does not get the processor
        > wait 200
        > sigstop 100
        C <- suspected m.0 pid 100 limit 300: stopped by signal 19 (SIGSTOP)
        > wait 200
        > sigcont 100
        C <- trusted m.0 pid 100
        > wait 5
        m.0#0 <- ping
    """,
    "the agent itself did not run": """
        given m of 1 runs
        > frozen 100
        m.0#0 <- ping
        > frozen 100
        m.0#0 <- ping
        > pong m.0#0
        > wait 5
        m.0#0 <- ping
        > wait 5
        C <- suspected m.0 pid 100 limit 300: its I/O thread has not answered for 10 s: something holds the interpreter \
lock, or the process does not get the processor
    """,
    "one timer serves all": """
        given m of 2 starts
        > runs m.0#0 100
        C <- started m.0#0 pid 1000
        > wait 0.4
        > runs m.1#0 101
        C <- started m.1#0 pid 1000
        > wait 4.6
        m.0#0 <- ping
        m.1#0 <- ping
    """,
}


def opening(mesh: str, _of: str, count: str, *words: str) -> list[tuple[str, list[str]]]:
    """The steps that a line `given` stands for."""
    owner, state = words[-2] if "by" in words else "C", words[-1]
    names = [f"{mesh}.{rank}#0" for rank in range(int(count))]
    joined = " ".join(names)
    steps = [(f"spawn {mesh} {count} {owner}", [f"open {joined}", f"launch {joined}"])]
    match state:
        case "runs":
            return steps + [
                (f"runs {name} {pid}", [f"{owner} <- started {name} pid 1000"]) for pid, name in enumerate(names, 100)
            ]
        case "fails":
            (name,) = names
            ended = f"{owner} <- ended {name} code 1: could not be forked"
            return [*steps, (f"stillborn {name}", [f"gone {name}", ended, f"mesh {mesh} gone"])]
    assert state == "starts"
    return steps


def parse(scenario: str) -> list[tuple[str, list[str]]]:
    """(event, what is wanted then)."""
    steps: list[tuple[str, list[str]]] = []
    for line in map(str.strip, scenario.strip().splitlines()):
        if line.startswith("given "):
            steps += opening(*line.split()[1:])
        elif line.startswith("> "):
            steps.append((line[2:], []))
        else:
            steps[-1][1].append(line)
    return steps


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(name: str) -> None:
    player = Player()
    for event, wanted in parse(SCENARIOS[name]):
        assert (event, player.play(event)) == (event, wanted)


# --- what a scenario does not show


def play(player: Player, *events: str) -> list[str]:
    return [line for event in events for line in player.play(event)]


def test_no_timer_is_left_when_no_process_lives() -> None:
    player = Player()
    play(player, "spawn m 2", "runs m.0#0 100", "runs m.1#0 101", "watch W m.0#0", "sigstop 100")
    play(player, "wait 7", "restart m.1#1", "exit 100 -9", "exit 101 -9")
    play(player, "runs m.1#1 102", "watch W m.1#0", "stop m", "exit 102 0")
    assert player.timers == {}
    assert len(player.roster) == 0


def test_one_timer_for_all_heartbeats() -> None:
    player = Player()
    play(
        player, "spawn m 3", "runs m.0#0 100", "wait 0.1", "runs m.1#0 101", "wait 2", "runs m.2#0 102", "heard C m.0#0"
    )
    assert list(player.timers) == [("beat",)]


def test_a_process_whose_zygote_imports_first_gets_longer() -> None:
    player = Player(spec=msgspec.structs.replace(SPEC, preload=["torch"]))
    assert play(player, "spawn m 1", "born m.0#0 100", "wait 149")[2:] == []
    assert play(player, "wait 1") == ["SIGKILL 100"]


@pytest.mark.parametrize("limits", [Limits(30.0, 0.0, 300.0), Limits(30.0, 0.0, 0.0)])
def test_without_suspect_after_nobody_is_asked_for_signs_of_life(limits: Limits) -> None:
    player = Player(limits)
    play(player, "spawn m 1", "runs m.0#0 100", "sigstop 100", "sigcont 100")
    assert player.timers == {}


def test_without_suspect_timeout_nobody_is_killed_for_it() -> None:
    player = Player(Limits(30.0, 10.0, 0.0))
    play(player, "spawn m 2", "runs m.0#0 100", "runs m.1#0 101", "sigstop 101")
    (told,) = play(player, "wait 10")[1:]
    assert told.startswith("C <- suspected m.0 pid 100 limit 0: its I/O thread")
    assert player.timers == {}


def test_remembered_ends_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest go, with whoever watches there."""
    monkeypatch.setattr(rosters, "ENDED_KEPT", 2)
    player = Player()
    for mesh in "abc":
        play(player, f"spawn {mesh} 1", f"watch W {mesh}.0#0", f"stillborn {mesh}.0#0")
    assert play(player, "watch V a.0#0") == []
    assert play(player, "watch V b.0#0") == ["V <- ended b.0#0 code 1: could not be forked"]
    assert "W <- listening a.0#1" not in play(player, "restart a.0#1")
    assert "W <- listening b.0#1" in play(player, "restart b.0#1")


def test_early_exits_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rosters, "EARLY_KEPT", 2)
    player = Player()
    play(player, "spawn m 3", "exit 100 1", "exit 101 1", "exit 102 1")
    assert play(player, "born m.0#0 100") == []
    assert play(player, "born m.1#0 101")[:1] == ["gone m.1#0"]


def test_signals_without_a_name_are_shown_as_numbers() -> None:
    player = Player()
    play(player, "spawn m 1", "runs m.0#0 100")
    (told,) = (player.text(effect) for effect in player.roster.stopped(1.0, 100, 90) if isinstance(effect, Send))
    assert told == "C <- suspected m.0 pid 100 limit 300: stopped by signal 90"


def test_the_end_says_what_the_agent_has_put_into_it() -> None:
    """The last lines of a process go to those who watch, and to those who ask later."""
    player = Player()
    play(player, "spawn m 1", "runs m.0#0 100")
    effects = player.roster.exited(1.0, 100, 1)
    (ended,) = (effect.ended for effect in effects if isinstance(effect, ReleaseProcess))
    ended.tail.append("last words")
    later = player.roster.watch(2.0, "W", Watch(ended.address, 0))
    for effect in (*effects, *later):
        if isinstance(effect, Send) and isinstance(effect.message, ProcEnded):
            assert effect.message.tail == ["last words"]


def test_killing_is_known_of_those_that_were_sent_sigkill() -> None:
    player = Player()
    play(player, "spawn m 1", "born m.0#0 100")
    assert not player.roster.killing(100) and not player.roster.killing(4)
    play(player, "wait 30")
    assert player.roster.killing(100)


# --- for any events

CONNECTIONS = ["C", "V", "W"]


class Life:
    """A process that was launched, as the operating system would have it."""

    def __init__(self, start: Start) -> None:
        self.start = start
        self.pid = 0
        self.greeted = False
        self.doomed = False


class AnyEvents(RuleBasedStateMachine):
    """A host with arbitrary events. Whatever happens, in whatever order: one process at an address at a time, each end told
    once and before what follows it, and after a shutdown everything ends."""

    def __init__(self) -> None:
        super().__init__()
        self.roster = Roster(HOST, 30.0)
        self.now = 0.0
        self.timers: dict[tuple[Any, ...], float] = {}
        self.lives: dict[tuple[str, int], Life] = {}  # launched and not exited
        self.running: dict[str, int] = {}  # for the roster: address -> incarnation
        self.ends: dict[str, int] = {}  # the last incarnation of which the end was seen
        self.asked: dict[str, int] = {}  # the last incarnation that was asked for
        self.outcomes: set[tuple[str, str, int]] = set()  # (who asked, address, incarnation) that is to be told
        self.told: dict[tuple[str, str], list[tuple[int, str]]] = {}
        self.answers: dict[tuple[str, str, int], int] = {}  # ends that were asked for
        self.lost_ones: set[str] = set()
        self.meshes: dict[str, str] = {}  # its owner's connection
        self.pids = itertools.count(100)
        self.uids = itertools.count()
        self.room = True
        self.done = 0

    # --- effects

    def do(self, effects: list[Effect]) -> None:
        queue = list(effects)
        while queue:
            effect = queue.pop(0)
            match effect:
                case Arm(key, delay):
                    assert delay >= 0
                    self.timers[key] = self.now + delay
                case Disarm(key):
                    del self.timers[key]
                case Prepare(starts):
                    queue += (
                        self.roster.prepared(self.now, starts)
                        if self.room
                        else self.roster.refused(self.now, starts, "no room")
                    )
                case Launch(starts):
                    for start in starts:
                        assert start.address not in self.running
                        assert start.incarnation > self.ends.get(start.address, -1)
                        self.running[start.address] = start.incarnation
                        self.lives[start.key] = Life(start)
                case Signal(pid, number):
                    for life in self.lives.values():
                        if life.pid == pid:
                            life.doomed = life.doomed or number == signal.SIGKILL
                case ReleaseProcess(ended):
                    assert self.running.pop(ended.address, ended.incarnation) == ended.incarnation
                    assert ended.incarnation > self.ends.get(ended.address, -1)
                    self.ends[ended.address] = ended.incarnation
                case Send(connection, message):
                    self.sent(connection, message)
                case HostEmpty():
                    self.done += 1
                    assert not self.running

    def sent(self, connection: str, message: Any) -> None:
        if isinstance(message, ProcReachable):
            self.tell(connection, message.address, message.incarnation, "listening")
        elif isinstance(message, ProcEnded) and "never started" not in message.detail:
            self.tell(connection, message.address, message.incarnation, "ended")
            self.outcomes -= {
                (connection, message.address, incarnation) for incarnation in range(message.incarnation + 1)
            }

    def tell(self, connection: str, address: str, incarnation: int, what: str) -> None:
        """In order: listening 0, ended 0, listening 1, ..."""
        heard = self.told.setdefault((connection, address), [])
        place = (incarnation, {"listening": "a", "ended": "b"}[what])
        assert heard[-1:] <= [place], (connection, address, heard, place)
        heard.append(place)
        if what == "ended":
            allowed = 1 + self.answers.get((connection, address, incarnation), 0)
            assert heard.count(place) <= allowed, (connection, address, heard)

    def known(self, connection: str, address: str) -> int:
        """The incarnation that whoever is there means."""
        return max((incarnation for incarnation, _ in self.told.get((connection, address), ())), default=0)

    # --- events

    @rule(count=st.integers(1, 3), room=st.booleans(), data=st.data())
    def spawn(self, count: int, room: bool, data: st.DataObject) -> None:
        uid = f"m{next(self.uids)}"
        connection, owner = self.an_owner(data)
        self.meshes[uid] = connection
        self.room = room
        for rank in range(count):
            self.asked[f"{HOST}/{uid}.{rank}"] = 0
            self.outcomes.add((connection, f"{HOST}/{uid}.{rank}", 0))
        ask = SpawnProcs(uid, uid, 0, count, owner)
        self.do(self.roster.spawn(self.now, connection, ask, SPEC, LIMITS))

    def an_owner(self, data: st.DataObject) -> tuple[str, str]:
        """(connection, address): the client, or a process that runs."""
        owners = [("C", CLIENT)]
        owners += [(name_of(*key), key[0]) for key, life in self.lives.items() if life.greeted]
        return data.draw(st.sampled_from(owners))

    @precondition(lambda self: self.asked)
    @rule(data=st.data(), room=st.booleans(), again=st.booleans())
    def restart(self, data: st.DataObject, room: bool, again: bool) -> None:
        address = data.draw(st.sampled_from(sorted(self.asked)))
        uid, _, rank = address.removeprefix(f"{HOST}/").partition(".")
        connection = self.meshes[uid]
        if connection in self.lost_ones:
            return
        if not again:
            self.asked[address] += 1
        incarnation = self.asked[address]
        self.room = room
        self.outcomes.add((connection, address, incarnation))
        for ended in range(incarnation + 1):  # one that is over already is told again
            asked = (connection, address, ended)
            self.answers[asked] = self.answers.get(asked, 0) + 1
        owner = CLIENT if connection == "C" else address_of(connection)[0]
        ask = RestartProcs(uid, uid, 0, 3, [int(rank)], [incarnation], owner, 5.0)
        self.do(self.roster.restart(self.now, connection, ask, SPEC, LIMITS))

    @precondition(lambda self: self.meshes)
    @rule(data=st.data())
    def stop(self, data: st.DataObject) -> None:
        uid = data.draw(st.sampled_from(sorted(self.meshes)))
        self.do(self.roster.stop(self.now, self.meshes[uid], StopProcs(uid, "enough", 5.0, 1)))

    @precondition(lambda self: any(not life.pid for life in self.lives.values()))
    @rule(data=st.data(), how=st.sampled_from(["born", "born", "born", "stillborn", "exited", "stopped"]))
    def launched(self, data: st.DataObject, how: str) -> None:
        key = data.draw(st.sampled_from(sorted(key for key, life in self.lives.items() if not life.pid)))
        if how == "stillborn":
            del self.lives[key]
            self.do(self.roster.not_started(self.now, *key, "could not be forked"))
            return
        pid = self.lives[key].pid = next(self.pids)
        if how == "stopped":
            self.do(self.roster.stopped(self.now, pid, signal.SIGSTOP))
        elif how == "exited":
            del self.lives[key]
            self.do(self.roster.exited(self.now, pid, 1))
        self.do(self.roster.pid_known(self.now, *key, pid))

    @precondition(lambda self: any(life.pid for life in self.lives.values()))
    @rule(data=st.data(), how=st.sampled_from(["hello", "hello", "exit", "frame", "pong", "stop", "continue"]))
    def happens(self, data: st.DataObject, how: str) -> None:
        key = data.draw(st.sampled_from(sorted(key for key, life in self.lives.items() if life.pid)))
        life, name = self.lives[key], name_of(*key)
        if how == "exit":
            self.exit(key, data.draw(st.sampled_from([0, 1, -9])))
        elif how == "stop":
            self.do(self.roster.stopped(self.now, life.pid, signal.SIGSTOP))
        elif how == "continue":
            self.do(self.roster.continued(self.now, life.pid))
        elif how == "hello" and not life.greeted:
            effects = self.roster.hello(self.now, name, Hello(VERSION, key[0], life.pid, key[1]))
            refused = any(isinstance(effect, Refuse) for effect in effects)
            assert refused is (self.running.get(key[0]) != key[1])
            life.greeted = not refused
            self.do(effects)
        elif life.greeted:
            self.do(self.roster.alive(self.now, name))
            if how == "pong":
                self.do(self.roster.pong(self.now, name, 1 << 60))

    def exit(self, key: tuple[str, int], code: int) -> None:
        """Ends a process: of its connection and its exit status, either may be seen first."""
        life = self.lives.pop(key)
        if life.greeted:
            self.lost_ones.add(name_of(*key))
            self.do(self.roster.connection_lost(self.now, name_of(*key)))
        self.do(self.roster.exited(self.now, life.pid, code))

    @precondition(lambda self: self.asked)
    @rule(data=st.data(), connection=st.sampled_from(CONNECTIONS))
    def watch(self, data: st.DataObject, connection: str) -> None:
        address = data.draw(st.sampled_from(sorted(self.asked)))
        known = self.known(connection, address)
        for incarnation in range(known, self.asked[address] + 1):
            asked = (connection, address, incarnation)
            self.answers[asked] = self.answers.get(asked, 0) + 1
        self.do(self.roster.watch(self.now, connection, Watch(address, known)))

    @precondition(lambda self: self.told)
    @rule(data=st.data())
    def heard(self, data: st.DataObject) -> None:
        connection, address = data.draw(st.sampled_from(sorted(self.told)))
        self.do(self.roster.heard(self.now, connection, IncarnationAck(address, self.known(connection, address))))

    @rule(connection=st.sampled_from(["V", "W"]))
    def lost(self, connection: str) -> None:
        """Another takes its place, and knows nothing."""
        self.do(self.roster.connection_lost(self.now, connection))
        for table in (self.told, self.answers):
            for key in [key for key in table if key[0] == connection]:
                del table[key]  # type: ignore[attr-defined]

    @rule(seconds=st.sampled_from([0.1, 0.5, 1.0, 5.0, 40.0, 400.0]))
    def wait(self, seconds: float) -> None:
        until = self.now + seconds
        for _ in range(10_000):
            key = min(self.timers, key=lambda key: self.timers[key], default=None)
            if key is None or self.timers[key] > until:
                break
            self.now = self.timers.pop(key)
            self.do(self.roster.fired(self.now, key))
        else:
            raise AssertionError(f"timers without an end: {self.timers}")
        self.now = until

    @precondition(lambda self: self.now > 500)
    @rule()
    def shutdown(self) -> None:
        self.do(self.roster.shutdown(self.now, 5.0))

    def teardown(self) -> None:
        """Nobody ends by himself; signals do what they do."""
        self.shutdown()
        for _ in range(20):
            for key in [key for key, life in self.lives.items() if life.doomed]:
                self.exit(key, -9)
            for key, life in list(self.lives.items()):
                if not life.pid:
                    life.pid = next(self.pids)
                    self.do(self.roster.pid_known(self.now, *key, life.pid))
            self.wait(10.0)
        assert self.done == 1
        assert self.lives == {} and self.running == {} and len(self.roster) == 0
        assert {key[0] for key in self.timers} <= {"unknown"}
        assert {one for one in self.outcomes if one[0] not in self.lost_ones} == set()


AnyEvents.TestCase.settings = hypothesis_settings(max_examples=examples(150), stateful_step_count=40, deadline=None)
TestAnyEvents = AnyEvents.TestCase


def test_who_is_awaited() -> None:
    player = Player()
    awaited = player.roster.awaited
    address = address_of("m.0")[0]
    assert not awaited(address)
    player.play("spawn m 1")
    assert awaited(address) and not awaited(address_of("m.1")[0])
    player.play("runs m.0#0 100")
    assert not awaited(address)
    player.play("lost m.0#0")
    assert not awaited(address)  # it is not to come: it was there


def test_processes_are_known_by_the_address_under_which_their_host_was_reached() -> None:
    roster = Roster(HOST, 30.0)
    ask = SpawnProcs("m", "m", 2, 2, FAR, host="tcp://named:2")
    (prepare,) = (effect for effect in roster.spawn(0.0, "F", ask, SPEC, LIMITS) if isinstance(effect, Prepare))
    assert [start.address for start in prepare.starts] == ["tcp://named:2/m.2", "tcp://named:2/m.3"]
    assert [start.place for start in prepare.starts] == [0, 1]
    assert roster.awaited("tcp://named:2/m.2") and not roster.awaited(f"{HOST}/m.2")
