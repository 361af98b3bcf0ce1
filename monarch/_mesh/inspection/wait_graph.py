"""`wait_graph()`: who waits for whom in the whole program, asked of every process at once.

Each process answers from its I/O thread, so it answers while every actor in it is stuck. What travels is text and numbers;
nothing is unpickled.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import msgspec

from monarch._mesh.failures import stacks
from monarch._mesh.failures.activity import Jobs, RunningHandler, WaitEdge, edge_of, handler_of
from monarch._runtime.context import here
from monarch._runtime.future import Future, check_timeout, make_future
from monarch._runtime.remote_errors import Raw
from monarch._runtime.replies import Entry
from monarch._wire.address import agent_of
from monarch._wire.frame import Frame
from monarch._wire.message import VALUE, Answer, AskWaits, ListProcs, ProcEnded
from monarch._wire.peer import PeerEnded
from monarch._wire.transport.base import Connection

if TYPE_CHECKING:
    from monarch._runtime.proc import Proc

_MOST = 10_000  # waits, and running endpoints, that one process tells of; it says how many more there are


class Report(msgspec.Struct):
    """What one process answers: see WaitGraph."""

    edges: list[WaitEdge]
    handlers: list[RunningHandler]
    left_out: int
    suspected: dict[str, str]


class WaitGraph(msgspec.Struct, frozen=True):
    """Who waits for whom, at one moment in each process (not at one moment in all of them).

    `edges`: every thread and task that waits for the answer of an endpoint, longest first (see WaitEdge). `handlers`: every
    endpoint that runs, longest first (see RunningHandler). `silent`: address -> why, of processes that did not answer; what
    happens there is not in the graph. `left_out`: how many waits and endpoints are missing because their process has more
    than 10,000. Picklable. `str()` is a page for people, one line an edge.
    """

    edges: list[WaitEdge]
    handlers: list[RunningHandler]
    silent: dict[str, str]
    left_out: int = 0

    def __str__(self) -> str:
        lines = _section("waits", self.edges) + _section("endpoints that run", self.handlers)
        lines += _section("processes that did not answer", (f"{a}: {why}" for a, why in self.silent.items()))
        if self.left_out:
            lines.append(f"({self.left_out} more waits and endpoints are left out)")
        return "\n".join(lines) or "no endpoint runs, and nobody waits for one"


def _section(title: str, items: Iterable[object]) -> list[str]:
    lines = [f"  {item}" for item in items]
    return [f"{title}: {len(lines)}", *lines] if lines else []


def wait_graph(timeout: float = 2.0) -> Future[WaitGraph]:
    """Asks every process of this program who waits for whom there, since when, and at which source line.

    Works from the client and from any actor, `wait_graph().get()` or `await wait_graph()`, and while any number of actors
    is stuck. Processes that have not answered after `timeout` seconds (stopped ones, ones that start) are listed as
    `silent`. ValueError for a timeout that is not a finite number of seconds, 0 or more.
    """
    timeout = check_timeout(timeout)
    proc = here()
    if proc.closed is not None:
        raise proc.closed
    survey = _Survey(proc, timeout)
    survey.start()
    return make_future(survey)


# --- asking


class _Heard(Entry):
    """Calls `fn` with the first answer that comes."""

    __slots__ = ("_fn",)

    def __init__(self, fn: Callable[[Raw], None]) -> None:
        super().__init__(None)
        self._fn = fn

    def receive(self, raw: Raw) -> None:
        self.close()
        self._fn(raw)

    def give_up(self, error: BaseException) -> None:
        self.close()


class _Survey(Entry):
    """Collects the answers of all processes: the client and those that this one knows are asked at once, the others when the
    agents of the hosts that are known here have said which there are."""

    __slots__ = ("_agents", "_asked", "_left", "_lock", "_proc", "_reports", "_timeout")

    def __init__(self, proc: Proc, timeout: float) -> None:
        super().__init__(None)
        self._proc = proc
        self._timeout = timeout
        self._lock = threading.Lock()
        self._asked: list[str] = []
        known = [address for address, peer in proc.processes.known() if peer.ended is None]
        self._agents = sorted({agent_of(address) for address in (proc.address, proc.client, *known)})
        self._left: set[str] = set(self._agents)
        self._reports: list[Report] = []

    def start(self) -> None:
        proc = self._proc
        proc.ports.add(self)
        self.timer = proc.loop.call_later(self._timeout, self._finish_if_complete)
        self._ask([proc.address, proc.client, *proc.processes.connected()])
        for agent in self._agents:
            self._ask_census(agent)

    def _ask_census(self, agent: str) -> None:
        heard = _Heard(lambda raw: self._on_census(agent, raw))
        self.on_ready(heard.close)
        try:
            self._proc.post(agent, ListProcs(self._proc.ports.add(heard)))
        except PeerEnded:
            heard.close()
            self._done(agent)

    def _ask(self, addresses: Iterable[str]) -> None:
        with self._lock:  # all before the first can answer, who would otherwise be the last
            first = len(self._asked)
            fresh = list(dict.fromkeys(addresses).keys() - set(self._asked))
            self._asked += fresh
            self._left.update(fresh)
        for rank, address in enumerate(fresh, first):
            try:
                self._proc.post(address, AskWaits(self.number, rank))
            except PeerEnded:
                self._done(address)

    def _on_census(self, agent: str, raw: Raw) -> None:
        self._ask(msgspec.msgpack.decode(raw[2], type=list[str]))
        self._done(agent)

    def receive(self, raw: Raw) -> None:
        report = _decode_report(raw[2])
        with self._lock:
            if not 0 <= raw[0] < len(self._asked):
                return
            address = self._asked[raw[0]]
            if address in self._left:
                self._reports.append(report)
        self._done(address)

    def process_ended(self, ended: ProcEnded) -> None:
        """Nothing to wait for, and nothing to tell."""
        if ended.address in self._left:
            self._done(ended.address)

    def _done(self, address: str) -> None:
        with self._lock:
            self._left.discard(address)
            last = not self._left
        if last:
            self._finish_if_complete()

    def _finish_if_complete(self) -> None:
        if not self.ready:
            self.close()
            self.set_ready()

    def give_up(self, error: BaseException) -> None:
        self._finish_if_complete()

    def abandon(self) -> None:
        self.close()

    def value(self) -> WaitGraph:
        with self._lock:
            reports, left = list(self._reports), sorted(self._left)
        suspected = dict(self._proc.suspected)
        for report in reports:
            suspected.update(report.suspected)
        patience = f"did not answer within {self._timeout:g} s"
        return WaitGraph(
            sorted((edge for report in reports for edge in report.edges), key=_longest),
            sorted((handler for report in reports for handler in report.handlers), key=_longest),
            {address: suspected.get(address) or patience + self._who(address) for address in left},
            sum(report.left_out for report in reports),
        )

    def _who(self, address: str) -> str:
        return " (a host agent: processes that this one does not know are missing)" if address in self._agents else ""


def _longest(item: WaitEdge | RunningHandler) -> float:
    return -item.seconds


_decode_report = msgspec.msgpack.Decoder(Report).decode


# --- answering


def serve(proc: Proc) -> None:
    """Lets a process answer AskWaits."""
    proc.receivers[AskWaits] = lambda connection, ask, frame: _on_ask(proc, connection, ask, frame)


def _on_ask(proc: Proc, connection: Connection, ask: AskWaits, frame: Frame) -> None:
    body = msgspec.msgpack.encode(_report(proc))
    proc.answer(connection.remote, Answer(ask.port, ask.rank, VALUE), body, ())


def _report(proc: Proc) -> Report:
    frames = stacks.frames()
    waits, jobs = proc.waits.standing(), Jobs(proc)
    left_out = max(0, len(waits) - _MOST) + max(0, len(jobs.all) - _MOST)
    edges = [edge_of(proc, wait, jobs, frames) for wait in waits[:_MOST]]
    handlers = [handler_of(job, frames) for job in jobs.all[:_MOST]]
    return Report(edges, handlers, left_out, dict(proc.suspected))
