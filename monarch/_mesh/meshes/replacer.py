"""Replaces hosts of attached meshes in place: asked for by the program, or by the mesh's ReplacePolicy.

    lost ──► dialled under its name at another address ──► attached ──► everybody is told ──► replaced
                        └── cannot be reached: the next candidate, or none is left

Names, and with them the addresses of processes in every handle, stay; the generation of the host counts. The agents of all
hosts that this process has attached are told who goes by the name from now on (`routes.Routes.replaced`), and tell their
processes, before the replacement is over.

A replacement runs on a thread of its own, because it waits, and hosts that died together are replaced side by side. Each is
attached with the moves that are known by then; those that come until it has answered are told to it behind that, and from
then on it is among those who are told.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from monarch._linux.locks import Lock
from monarch._mesh.failures.replace_policy import ReplacePolicy
from monarch._mesh.meshes.attaching import PATIENCE, Attaching
from monarch._mesh.meshes.host_slots import HostSlots, NoReplacement
from monarch._mesh.meshes.owned import Acks, Timeout
from monarch._mesh.start import transports
from monarch._runtime.future import All, Slot, Source
from monarch._runtime.log_thread import log
from monarch._runtime.loop import start_thread
from monarch._runtime.proc import Proc
from monarch._wire.address import agent_at, agent_of
from monarch._wire.message import AttachedHost, HostReplaced

logger = logging.getLogger("monarch")

_AT_ONCE = 64  # hosts that one call of `replace` attaches side by side; each takes a thread of this process meanwhile

Find = Callable[[list[int]], Sequence[str]]  # ranks that were lost -> the workers that take their places


class AttachedMeshes:
    """The meshes that one process has attached, and which of their hosts were replaced."""

    def __init__(self) -> None:
        self.search = Lock()  # to be held while a program or a job looks for workers: they are not asked by two threads
        self._turns: dict[str, Any] = {}
        self._lock = Lock()
        self._meshes: list[HostReplacer] = []
        self._moves: dict[str, HostReplaced] = {}
        self._closing = False

    def add(self, mesh: HostReplacer) -> None:
        with self._lock:
            self._meshes.append(mesh)

    def remove(self, mesh: HostReplacer) -> None:
        with self._lock:
            self._meshes = [other for other in self._meshes if other is not mesh]

    def moves(self) -> list[HostReplaced]:
        """Returns the moves for the host that is attached next."""
        with self._lock:
            return list(self._moves.values())

    def turn(self, host: str) -> Any:
        """Returns the lock that is to be held while that host is replaced."""
        with self._lock:
            return self._turns.setdefault(host, Lock())

    def moved(self, told: HostReplaced, knew: Sequence[HostReplaced]) -> tuple[list[str], list[HostReplaced]]:
        """Remembers it. Who is to be told: every host that lives, by name; and what the new host, which was attached with
        the moves that it `knew`, is to be told itself."""
        with self._lock:
            missed = [move for move in self._moves.values() if move.host != told.host and move not in knew]
            self._moves[told.host] = told
            return list(dict.fromkeys(host for mesh in self._meshes for host in mesh.living())), missed

    def host_lost(self, host: str, why: str) -> None:
        """Takes the word that a host is lost, on the I/O thread."""
        for mesh in list(self._meshes) if not self._closing else ():
            mesh.host_lost(host, why)

    def closing(self) -> None:
        """This process is about to end: what is lost from now on is not replaced."""
        self._closing = True

    def why_lost(self, host: str) -> str:
        """Returns why nothing can be started on that host; "" when it lives, as far as is known here, or is being
        replaced. One that was lost with one mesh may have been attached anew, with another."""
        whys = [why for mesh in list(self._meshes) if (why := mesh.why_lost(host)) is not None]
        return whys[0] if whys and all(whys) else ""

    def knows(self, host: str) -> bool:
        """Returns whether a mesh that was attached here has that host."""
        return any(mesh.why_lost(host) is not None for mesh in list(self._meshes))

    def coming(self, host: str) -> Source | None:
        """Ready when that host, which was lost, was replaced or will not be. None when nobody is about to."""
        for mesh in list(self._meshes):
            source = mesh.coming(host)
            if source is not None:
                return source
        return None


class HostReplacer:
    """The hosts of one attached mesh. `admit(worker)` makes the name of a host from what a program gives, or raises what is
    wrong with it. `find`: where a job looks for replacements, when the program names none; None: nowhere."""

    def __init__(
        self,
        proc: Proc,
        slots: HostSlots,
        env: dict[str, str],
        policy: ReplacePolicy | None,
        admit: Callable[[str], str],
        find: Find | None,
    ) -> None:
        self._find = find
        self._proc = proc
        self._slots = slots
        self._env = env
        self._intensity = None if policy is None else policy.begin()
        self._policy = policy
        self._admit = admit
        self._attached: AttachedMeshes = proc.mesh.attached
        self._under_way: dict[int, Slot] = {}  # by rank
        self._claimed: dict[int, str] = {}  # rank -> who is being tried for it, and so for no other
        self._ended = ""
        self._lock = Lock()

    # --- what is known

    def living(self) -> list[str]:
        with self._lock:
            return self._slots.living()

    def lost(self) -> list[int]:
        with self._lock:
            return sorted(self._slots.lost)

    def spares(self) -> list[str]:
        """Returns the spares that are left, as far as known."""
        with self._lock:
            return list(self._slots.spares)

    def why_lost(self, host: str) -> str | None:
        """ "" for one that lives, and for one that is being replaced; None for one that is not in this mesh."""
        with self._lock:
            if host not in self._slots.names:
                return None
            rank = self._slots.names.index(host)
            return "" if rank in self._under_way else self._slots.lost.get(rank, "")

    def attached(self, agents: Mapping[str, str]) -> None:
        """Notes the agents of hosts that were attached first."""
        with self._lock:
            self._slots.agents = {**agents, **self._slots.agents}

    def spare_ready(self, spare: str, agent: str) -> None:
        """Notes that a spare was attached, with that agent."""
        with self._lock:
            self._slots.ready_spares.add(spare)
            self._slots.agents[spare] = agent

    def host_lost(self, host: str, why: str) -> None:
        """On the I/O thread. Under a policy, its replacement begins."""
        with self._lock:
            rank = self._slots.host_lost(host, why)
            if rank is None or self._ended or self._intensity is None or rank in self._under_way:
                return
            shown = self._slots.shown(rank)
            delay = self._intensity.next(self._proc.loop.now())
            if delay is not None:
                self._under_way[rank] = Slot()
        if delay is None:
            log(logger, logging.ERROR, "%s was lost (%s) and is not replaced any more: %r", shown, why, self._policy)
            return
        log(logger, logging.WARNING, "%s was lost and is being replaced%s: %s", shown,
            f" in {delay:g} s" if delay else "", why)  # fmt: skip
        self._proc.loop.call_later(delay, lambda: start_thread(self._by_policy, "monarch-replace", rank))

    def coming(self, host: str) -> Source | None:
        with self._lock:
            if host not in self._slots.names:
                return None
            return self._under_way.get(self._slots.names.index(host))

    # --- replacing

    def replace(self, ranks: Sequence[int] | None, workers: Sequence[str] | Find | None) -> Source:
        """Replaces, of `ranks` (None: of all) those that are lost; its value is which. Those that are being replaced
        already are waited for, unless `workers` says by whom."""
        if workers is not None and not callable(workers):
            if isinstance(workers, str) or not isinstance(workers, Sequence):
                raise TypeError(
                    f"workers is a sequence of addresses, or a function of ranks that gives one, got {workers!r}"
                )
            workers = [self._admit(worker) for worker in workers]
        with self._lock:
            if self._ended:
                raise RuntimeError(f"HostMesh has already been {self._ended}")
            wanted = self._slots.choose(ranks)
            fresh = [rank for rank in wanted if rank not in self._under_way]
            if workers is not None and len(fresh) < len(wanted):
                (rank, *_others) = [rank for rank in wanted if rank in self._under_way]
                raise NoReplacement(
                    f"{self._slots.shown(rank)} is being replaced already: wait for that, with "
                    f"hosts.replace(failed=True).get()"
                )
            if workers is not None and not callable(workers) and len(workers) < len(fresh):
                raise ValueError(f"{len(fresh)} hosts are lost (ranks {fresh}), and workers names {len(workers)}")
            for rank in fresh:
                self._under_way[rank] = Slot()
            slots: list[Source] = [self._under_way[rank] for rank in wanted]
        if fresh:
            start_thread(self._by_hand, "monarch-replace", fresh, workers)
        return _Replaced(wanted, slots)

    def _by_hand(self, ranks: list[int], workers: list[str] | Find | None) -> None:
        try:
            pool = self._pool(ranks, workers)
        except BaseException as exc:
            for rank in ranks:
                self._over(rank, exc)
            return
        try:
            for rank in ranks:  # in their order, before any thread is quicker than another
                self._claim(rank, pool, {})
        except NoReplacement:
            pass  # the one whose turn it is finds out as well, with who was tried
        left = deque(ranks)

        def run() -> None:
            while True:
                try:
                    rank = left.popleft()
                except IndexError:
                    return
                self._over(rank, self._replaced(rank, pool))

        for _ in ranks[1:_AT_ONCE]:
            start_thread(run, "monarch-replace")
        run()

    def _by_policy(self, rank: int) -> None:
        """Until it is replaced or the policy has enough."""
        assert self._intensity is not None
        while True:
            try:
                error = self._replaced(rank, self._pool([rank], None))
            except BaseException as exc:
                error = exc
            with self._lock:
                again = error is not None and not self._ended and self._proc.closed is None
                delay = self._intensity.next(self._proc.loop.now()) if again else None
            if error is None or delay is None:
                break
            log(logger, logging.WARNING, "replacing a host did not succeed and is tried again: %s", error)
            self._pause(delay)
        if error is not None and not self._ended and self._proc.closed is None:
            log(logger, logging.ERROR, "%s\n    %r does not try again", error, self._policy)
        self._over(rank, error)

    def _pause(self, seconds: float) -> None:
        over = Timeout()
        self._proc.ports.add(over)
        self._proc.loop.call_later(seconds, over.end)
        if self._proc.closed is not None:
            over.end()
        over.wait(None)

    def _over(self, rank: int, error: BaseException | None) -> None:
        with self._lock:
            slot = self._under_way.pop(rank, None)
            # Lost again before anybody could use it: nobody is told who had not asked.
            shown = self._slots.shown(rank)
        if slot is None:
            return
        if error is None:
            log(logger, logging.WARNING, "%s was replaced", shown)
            slot.set()
        else:
            slot.fail(error)

    def _pool(self, ranks: list[int], workers: list[str] | Find | None) -> list[str] | None:
        """Returns who may take these places, and is taken out of it when tried; None: spares, or a worker at its address."""
        if isinstance(workers, list):
            return workers
        find = self._find if workers is None else workers
        if find is None:
            return None
        try:
            with self._attached.search:
                return [self._admit(worker) for worker in find(list(ranks))]
        except Exception as exc:
            why = f"no worker was found to take the place of hosts {ranks}: {type(exc).__name__}: {exc}"
            raise NoReplacement(why) from None

    def _replaced(self, rank: int, pool: list[str] | None) -> BaseException | None:
        """Replaces it, by whoever can be reached; why nobody could, else None."""
        tried: dict[str, str] = {}
        try:
            with self._attached.turn(self._slots.names[rank]):
                while True:
                    worker = self._claim(rank, pool, tried)
                    try:
                        wrong = self._take(rank, worker)
                    finally:
                        with self._lock:
                            del self._claimed[rank]
                    if not wrong:
                        return None
                    tried[worker] = wrong
        except BaseException as exc:
            return exc

    def _claim(self, rank: int, pool: list[str] | None, tried: dict[str, str]) -> str:
        """Returns who is to be tried for that rank now; from then on nobody else tries that worker."""
        with self._lock:
            left: list[str] = [self._claimed[rank]] if rank in self._claimed else []
            if not left:
                taken = {*tried, *self._claimed.values()}
                candidates = self._slots.candidates(rank) if pool is None else pool
                left = [worker for worker in candidates if worker not in taken]
            if self._ended or self._proc.closed is not None or not left:
                why = f"the mesh was {self._ended}" if self._ended else ""
                raise NoReplacement(why or self._slots.why_none(rank, tried, pool is not None))
            worker = self._claimed[rank] = left[0]
            if pool is not None and worker in pool:
                pool.remove(worker)
            return worker

    def _take(self, rank: int, worker: str) -> str:
        """Puts that worker in the place; why it cannot be, or ""."""
        with self._lock:
            wrong = self._slots.check(rank, worker)
        if wrong:
            return wrong
        try:
            self._dial(rank, worker)
            with self._lock:
                losses = self._slots.losses[rank]
            knew = self._attached.moves()
            facts = self._attach(rank, knew)
        except Exception as exc:
            return str(exc)
        with self._lock:
            self._slots.answered.add(rank)
            self._slots.agents[self._slots.names[rank]] = facts.agent
        self._tell(rank, worker, facts.agent, knew)
        with self._lock:
            self._slots.answered.discard(rank)
            if self._slots.losses[rank] == losses:
                self._slots.taken(rank, worker)
                return ""
        return "it was lost again at once"

    def _dial(self, rank: int, worker: str) -> None:
        """Dials that worker by the name of the lost host from now on. What is said of that one has come before: to dial
        it anew, as when something was sent there, has been given up."""
        proc, host = self._proc, self._slots.names[rank]
        told = HostReplaced(host, worker, "", proc.host_generations.get(host, 0))
        self._ask([(agent, told) for agent in self._way() if agent != agent_at(host)])

    def _attach(self, rank: int, knew: Sequence[HostReplaced]) -> AttachedHost:
        """It gets the name. Nobody else is told yet."""
        host = self._slots.names[rank]
        attaching = Attaching(self._proc, [host])
        attaching.ask(self._env, [told for told in knew if told.host != host], host)
        attaching.wait(None)
        (facts,) = attaching.value()
        assert facts is not None
        return facts

    def _way(self) -> list[str]:
        """The agents through which others are reached from here."""
        gateway = transports.gateway()
        return [agent_of(self._proc.address), *([agent_at(gateway)] if gateway else [])]

    def _tell(self, rank: int, worker: str, agent: str, knew: Sequence[HostReplaced]) -> None:
        """Everybody hears who goes by that name now, and the new host what it missed; returns when they have, but waits for
        nobody for long: who hears it later hears it before all else that is sent from here."""
        proc, host = self._proc, self._slots.names[rank]
        told = HostReplaced(host, worker, agent, proc.host_generations.get(host, 0) + 1)
        others, missed = self._attached.moved(told, knew)
        addresses = dict.fromkeys([*self._way(), agent_at(host), *map(agent_at, others)])
        self._ask([*((address, told) for address in addresses), *((agent_at(host), move) for move in missed)])

    def _ask(self, told: Sequence[tuple[str, HostReplaced]]) -> None:
        """Tells each of these agents that, and waits for their answers, not for long."""
        proc = self._proc

        def ask(port: int, index: int) -> None:
            agent, move = told[index]
            proc.post(agent, msgspec.structs.replace(move, port=port, rank=index))

        acks = Acks([agent for agent, _move in told], ask)
        proc.ports.add(acks)
        timer = proc.loop.call_later(PATIENCE, lambda: acks.give_up(TimeoutError()))
        acks.ask(range(len(told)))
        acks.wait(None)
        timer.cancel()

    # --- the end

    def close(self, how: str) -> dict[str, str]:
        """The mesh was stopped or shut down: nothing is replaced any more. Its hosts and spares that live, each with the id
        of its agent ("" not known)."""
        with self._lock:
            self._ended = how
            hosts = {host: self._slots.agents.get(host, "") for host in self._slots.living()}
        self._attached.remove(self)
        return hosts


class _Replaced(All):
    """Ready when each of these hosts was replaced, or was not. Its value is their ranks; raises what all failures say."""

    __slots__ = ("_ranks",)

    def __init__(self, ranks: list[int], slots: list[Source]) -> None:
        super().__init__(slots)
        self._ranks = ranks

    def value(self) -> list[int]:
        errors: list[BaseException] = []
        for source in self._sources:
            try:
                source.value()
            except BaseException as exc:
                if exc not in errors:  # one search for all of them has failed once
                    errors.append(exc)
        if len(errors) > 1:
            raise NoReplacement("\n".join(map(str, errors)))
        if errors:
            raise errors[0]
        return self._ranks
