"""One question to every process of the program at once, answered while any number of actors is stuck: see `questions`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from monarch._linux.locks import Lock
from monarch._mesh.inspection.survey_answers import SurveyAnswers
from monarch._runtime.context import here
from monarch._runtime.future import Future, check_timeout, make_future
from monarch._runtime.remote_errors import Raw
from monarch._runtime.replies import Entry
from monarch._wire.address import agent_of
from monarch._wire.message import VALUE, Ask, Failure, ListProcs, ProcEnded
from monarch._wire.peer import PeerEnded

if TYPE_CHECKING:
    from monarch._runtime.proc import Proc


STOPPED = (
    "stopped by signal"  # with which a suspicion begins of a process that the kernel has stopped: see `liveness.Life`
)


LARGEST_REPLY = 80 << 20  # bytes of one answer; a larger one counts as none


def ask(
    question: str,
    argument: bytes = b"",
    *,
    timeout: float = 2.0,
    only: Sequence[str] | None = None,
    agents: bool = False,
    attached: Sequence[str] = (),
) -> Future[SurveyAnswers]:
    """Asks the client and every process of this program, from any of them; or the addresses `only`, agents among them.

    `agents`: the agents of the hosts are asked as well. `attached`: agents of hosts that are attached here and may have no
    process of this program; what runs there is asked as well. After `timeout` seconds what has not answered is `silent`.
    ValueError for a timeout that is not a finite number of seconds, 0 or more.
    """
    survey = Survey(open_proc(), check_timeout(timeout), question, argument, only, agents, attached)
    survey.start()
    return make_future(survey)


def open_proc() -> Proc:
    """The Proc of this process, which becomes a client if it is none. ClientClosedError when that has ended."""
    proc = here()
    if proc.closed is not None:
        raise proc.closed
    return proc


_decode_failure = msgspec.msgpack.Decoder(Failure).decode


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


class Survey(Entry):
    """Collects the answers of all processes: the client and those that this one knows are asked at once, the others when the
    agents of the hosts that are known here have said which there are. Ready when all have answered or the time is up."""

    __slots__ = (
        "_agents", "_argument", "_ask_agents", "_asked", "_hosts", "_left", "_lock", "_only", "_question", "_refused",
        "_replies", "_timeout", "proc",
    )  # fmt: skip

    def __init__(
        self,
        proc: Proc,
        timeout: float,
        question: str,
        argument: bytes = b"",
        only: Sequence[str] | None = None,
        agents: bool = False,
        attached: Sequence[str] = (),
    ) -> None:
        super().__init__(None)
        self.proc = proc
        self._timeout = timeout
        self._question = question
        self._argument = argument
        self._only = only
        self._ask_agents = agents
        self._lock = Lock()
        self._asked: list[str] = []
        known = [address for address, peer in proc.processes.known() if peer.ended is None]
        hosts = sorted({*attached, *(agent_of(address) for address in (proc.address, proc.client, *known) if address)})
        self._hosts = hosts
        self._agents = hosts if only is None else []
        # What is waited for: addresses that were asked; and ("list", agent), which is to say what runs on its host.
        self._left: set[str | tuple[str, str]] = {("list", agent) for agent in self._agents}
        self._replies: dict[str, bytes] = {}
        self._refused: dict[str, str] = {}

    def start(self) -> None:
        proc = self.proc
        proc.ports.add(self)
        self.timer = proc.loop.call_later(self._timeout, self._finish)
        if self._only is not None:
            for address in self._only:
                if not self._is_known(address):
                    self._refused[address] = "it is on no host of this program"
            self._ask([address for address in self._only if address not in self._refused])
            self._finish_if_complete()
            return
        self._ask([proc.address, proc.client or proc.address, *proc.processes.connected()])
        if self._ask_agents:
            self._ask(self._agents)
        for agent in self._agents:
            self._ask_list(agent)

    def _is_known(self, address: str) -> bool:
        return "/" in address and agent_of(address) in self._hosts

    def _ask_list(self, agent: str) -> None:
        heard = _Heard(lambda raw: self._on_list(agent, raw))
        self.on_ready(heard.close)
        try:
            self.proc.post(agent, ListProcs(self.proc.ports.add(heard)))
        except PeerEnded:
            heard.close()
            self._done(("list", agent))

    def _ask(self, addresses: Iterable[str]) -> None:
        with self._lock:  # all before the first can answer, who would otherwise be the last
            first = len(self._asked)
            fresh = list(dict.fromkeys(addresses).keys() - set(self._asked))
            self._asked += fresh
            self._left.update(fresh)
        for rank, address in enumerate(fresh, first):
            if self.proc.suspected.get(address, "").startswith(STOPPED):  # it cannot answer, and is not waited for
                self._refused[address] = self.proc.suspected[address]
                self._done(address)
                continue
            try:
                self.proc.post(address, Ask(self.number, rank, self._question), self._argument)
            except PeerEnded:
                self._named(address, "it has ended")
                self._done(address)

    def _named(self, address: str, why: str) -> None:
        """Notes an address that was asked for by name: something is always said of it."""
        if self._only is not None:
            self._refused[address] = why

    def _on_list(self, agent: str, raw: Raw) -> None:
        self._ask(msgspec.msgpack.decode(raw[2], type=list[str]))
        self._done(("list", agent))

    def receive(self, raw: Raw) -> None:
        rank, kind, body, _ = raw
        with self._lock:
            if not 0 <= rank < len(self._asked):
                return
            address = self._asked[rank]
            if address in self._left:
                if kind == VALUE and len(body) > LARGEST_REPLY:
                    self._refused[address] = f"its answer has {len(body):,} bytes, more than {LARGEST_REPLY:,}"
                elif kind == VALUE:
                    self._replies[address] = bytes(body)
                else:
                    self._refused[address] = _decode_failure(body).report
        self._done(address)

    def process_ended(self, ended: ProcEnded) -> None:
        """Notes that nothing comes from that process any more."""
        if ended.address in self._left:
            self._named(ended.address, "it has ended")
            self._done(ended.address)

    def _done(self, what: str | tuple[str, str]) -> None:
        with self._lock:
            self._left.discard(what)
        self._finish_if_complete()

    def _finish_if_complete(self) -> None:
        with self._lock:
            last = not self._left
        if last:
            self._finish()

    def _finish(self) -> None:
        if not self.ready:
            self.close()
            self.set_ready()

    def give_up(self, error: BaseException) -> None:
        self._finish()

    def abandon(self) -> None:
        self.close()

    def value(self) -> SurveyAnswers:
        return self.answers()

    def answers(self, suspected: dict[str, str] | None = None) -> SurveyAnswers:
        """Returns what came. `suspected`: why others find that processes give no sign of life."""
        with self._lock:
            replies, silent = dict(self._replies), dict(self._refused)
            left = sorted(what if isinstance(what, str) else what[1] for what in self._left)
        known = {**self.proc.suspected, **(suspected or {})}
        for address in left:
            silent.setdefault(
                address, known.get(address) or f"did not answer within {self._timeout:g} s{self._who(address)}"
            )
        return SurveyAnswers(replies, silent)

    def _who(self, address: str) -> str:
        return " (a host agent: processes that this one does not know are missing)" if address in self._agents else ""
