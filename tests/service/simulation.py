"""A service in virtual time: the dispatcher, and a world of replicas that answer, raise, die and hang by chance.

After every event it checks what holds at all times; `finish` checks what holds at the end.
"""

from __future__ import annotations

import heapq
import random
from typing import Any

from monarch.service.dispatcher import Dispatcher
from monarch.service.effects import (
    FailRequest,
    PrepareReplica,
    ProbeReplica,
    ReplicaFailed,
    ReplyWith,
    SendBatch,
    ServiceClosed,
    StartReplica,
    StopReplica,
    UpdateEnded,
    UpdateReplica,
)
from monarch.service.errors import ServiceError
from monarch.service.replica_record import ServiceRequest
from monarch.service.rules import ServiceRules


class Living:
    """Processes of a replica, in the world."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.ready = False
        self.calls: dict[int, list[int]] = {}
        self.updating = False
        self.prepared = 0


class Simulation:
    """See the module. Chances are those of one event: `dying` and `raising` of a call, `broken` of a start or update."""

    def __init__(
        self,
        rules: ServiceRules,
        seed: int = 0,
        dying: float = 0,
        raising: float = 0,
        broken: float = 0,
        slow: float = 0.1,
    ) -> None:
        self.rules, self.random = rules, random.Random(seed)
        self.dying, self.raising, self.broken, self.slow = dying, raising, broken, slow
        self.now = 0.0
        self.due: list[tuple[float, int, Any]] = []
        self.count = 0
        self.numbers = 0
        self.made: dict[int, ServiceRequest] = {}
        self.may_run: dict[int, int] = {}  # how often each request may still begin
        self.outcomes: dict[int, ReplyWith | ServiceError] = {}
        self.begun: list[tuple[int, int]] = []  # (replica, request), in order
        self.batches: list[tuple[int, ...]] = []
        self.updates: dict[int, ServiceError | None] = {}
        self.in_place: set[int] = set()
        self.living: dict[tuple[int, int], Living] = {}
        self.hosts: list[int] = []
        self.failed: list[ReplicaFailed] = []
        self.closed = False
        self.machine = Dispatcher(rules, 0.0)
        self.settle()

    # --- what a test does

    def request(self, method: str = "work", **fields: Any) -> int:
        """Makes a request now; returns its number."""
        request = self._new(method, **fields)
        self.machine.request(request, self.now)
        self.settle()
        return request.number

    def fanout(self, *replicas: int) -> list[int]:
        """Makes a request for each of these replicas, or for all; returns their numbers."""
        requests = [self._new("work", pin=replica) for replica in replicas or self.machine.everywhere()]
        self.machine.fanout(requests, self.now)
        self.settle()
        return [request.number for request in requests]

    def cancel(self, number: int) -> None:
        """Gives a request up."""
        self.machine.cancel(number, self.now)
        self.settle()

    def update(self, in_place: bool = False) -> int:
        """Wants an update; returns its version."""
        version = self.machine.update(self.now, in_place)
        if in_place:
            self.in_place.add(version)
        self.settle()
        return version

    def run(self, seconds: float) -> None:
        """Lets time pass."""
        until = self.now + seconds
        while (due := self._next()) is not None and due <= until:
            self._step(due)
        self.now = max(self.now, until)
        self.settle()

    def kill(self, replica: int) -> None:
        """Kills the processes of a replica."""
        self._dies(replica, self.machine.replicas[replica].generation)

    def finish(self) -> None:
        """Lets everything end, shuts the service down, and checks that nothing is left."""
        self.machine.close(self.now, grace=1000)
        self.settle()
        self.run(2000)
        assert self.closed
        assert self.outcomes.keys() == self.made.keys()
        machine = self.machine
        assert not machine.requests and not machine.backlog and not machine.replicas and not machine._attempts
        assert not machine._behind and machine.taken == 0 and machine.next_due() is None
        assert self.living == {}
        assert sorted(self.updates) == list(range(1, machine._latest + 1))

    # --- time

    def _next(self) -> float | None:
        dues = [due for due in (self.machine.next_due(), self.due[0][0] if self.due else None) if due is not None]
        return min(dues, default=None)

    def _step(self, due: float) -> None:
        self.now = max(self.now, due)
        wanted = self.machine.next_due()
        if wanted is not None and wanted <= self.now:
            self.machine.tick(self.now)
            again = self.machine.next_due()
            assert again is None or again > self.now or self.machine.effects, "it asks for the same time again"
        elif self.due:
            _time, _count, act = heapq.heappop(self.due)
            act()
        self.settle()

    def later(self, act: Any, longest: float = 1.0) -> None:
        self.count += 1
        heapq.heappush(self.due, (self.now + self.random.random() * longest, self.count, act))

    # --- the world

    def _new(self, method: str, **fields: Any) -> ServiceRequest:
        self.numbers += 1
        request = self.made[self.numbers] = ServiceRequest(self.numbers, method, **fields)
        self.may_run[self.numbers] = 1 + request.retries
        return request

    def settle(self) -> None:
        while self.machine.effects:
            effects, self.machine.effects = self.machine.effects, []
            for effect in effects:
                getattr(self, f"do_{type(effect).__name__}")(effect)
        self.check()

    def do_StartReplica(self, effect: StartReplica) -> None:
        key = effect.replica, effect.generation
        assert key not in self.living and 0 <= effect.host < self.rules.hosts
        self.hosts.append(effect.host)
        living = self.living[key] = Living(effect.version)

        def ready() -> None:
            if self.living.get(key) is living:
                if self.random.random() < self.broken:
                    if self.random.random() < 0.3:
                        del self.living[key]
                        self.machine.not_made(*key, "it raised", self.now)
                    else:
                        self._dies(*key)
                else:
                    living.ready = True
                    self.machine.started(*key, self.now)

        self.later(ready)

    def do_StopReplica(self, effect: StopReplica) -> None:
        self.living.pop((effect.replica, effect.generation), None)

    def do_ReplicaFailed(self, effect: ReplicaFailed) -> None:
        self.failed.append(effect)

    def do_SendBatch(self, effect: SendBatch) -> None:
        key = effect.replica, effect.generation
        living = self.living[key]
        assert living.ready and not living.updating
        requests = [self.made[number] for number in effect.requests]
        assert len({(one.method, one.key) for one in requests}) == 1
        assert len(requests) <= max(1, requests[0].max_batch)
        for request in requests:
            assert request.number not in self.outcomes
            assert request.pin in (-1, effect.replica)
            self.may_run[request.number] -= 1
            assert self.may_run[request.number] >= 0, "it runs again, and nobody said that it may"
            if request.session:
                earlier = [one for one in self.machine.requests.values() if one.session == request.session]
                assert all(one.running for one in earlier if one.number < request.number), "order within a session"
            self.begun.append((effect.replica, request.number))
        self.batches.append(effect.requests)
        living.calls[effect.attempt] = list(effect.requests)

        def done() -> None:
            if self.living.get(key) is not living:
                return
            assert not living.updating, "it ran at two versions"
            if self.random.random() < self.dying:
                self._dies(*key)
                return
            del living.calls[effect.attempt]
            errors = {place for place in range(len(requests)) if self.random.random() < self.raising}
            self.machine.answered(effect.attempt, self.now, errors)

        self.later(done, self.slow)

    def do_PrepareReplica(self, effect: PrepareReplica) -> None:
        key = effect.replica, effect.generation
        living = self.living[key]
        assert living.ready and not living.updating and max(living.version, living.prepared) < effect.version
        assert effect.version in self.in_place
        assert all(one.version < effect.version for one in self.living.values()), (
            "one has it before all have prepared it"
        )

        def done() -> None:
            if self.living.get(key) is not living:
                return
            if self.random.random() < self.broken:
                if self.random.random() < 0.5:
                    self.machine.prepare_failed(*key, effect.version, "the endpoint raised", self.now)
                else:
                    self._dies(*key)
                return
            living.prepared = effect.version
            self.machine.prepared(*key, effect.version, self.now)

        self.later(done)

    def do_UpdateReplica(self, effect: UpdateReplica) -> None:
        key = effect.replica, effect.generation
        living = self.living[key]
        assert living.ready and not living.calls and not living.updating and effect.version > living.version
        living.updating = True

        def done() -> None:
            if self.living.get(key) is not living:
                return
            if self.random.random() < self.broken:
                if self.random.random() < 0.5:
                    self.machine.update_failed(*key, "the endpoint raised", self.now)
                else:
                    self._dies(*key)
                return
            living.updating, living.version = False, effect.version
            self.machine.updated(*key, self.now)

        self.later(done)

    def do_UpdateEnded(self, effect: UpdateEnded) -> None:
        assert effect.version not in self.updates
        self.updates[effect.version] = effect.error

    def do_ProbeReplica(self, effect: ProbeReplica) -> None:
        key = effect.replica, effect.generation
        living = self.living[key]

        def done() -> None:
            if self.living.get(key) is living and self.random.random() >= self.broken:  # else it hangs
                self.machine.probed(*key, None, self.now)

        self.later(done)

    def do_ReplyWith(self, effect: ReplyWith) -> None:
        self._ends(effect.request, effect)
        generation = max(generation for number, generation in self.living if number == effect.replica)
        assert effect.version == self.living[effect.replica, generation].version

    def do_FailRequest(self, effect: FailRequest) -> None:
        self._ends(effect.request, effect.error)

    def do_ServiceClosed(self, effect: ServiceClosed) -> None:
        self.closed = True

    def _ends(self, number: int, outcome: ReplyWith | ServiceError) -> None:
        assert number in self.made and number not in self.outcomes, f"request {number} ends twice"
        self.outcomes[number] = outcome

    def _dies(self, number: int, generation: int) -> None:
        self.living.pop((number, generation), None)
        self.machine.lost(number, generation, "killed by signal 9", self.now)
        self.settle()

    # --- what holds at all times

    def check(self) -> None:
        machine, rules = self.machine, self.rules
        assert machine.taken == sum(request.taken for request in machine.requests.values())
        if rules.limit is not None:
            assert machine.taken <= rules.limit
        held: list[int] = []
        for replica in machine.replicas.values():
            assert len(replica.queue) <= rules.queue
            assert len(replica.calls) <= rules.concurrency
            held += [request.number for request in replica.queue]
            held += [
                one.number for call in replica.calls.values() for one in call.requests if one.number in machine.requests
            ]
        held += [request.number for request in machine.backlog]
        assert sorted(held) == sorted(machine.requests), "a request is nowhere, or in two places"
        assert [request.number for request in machine.backlog] == sorted(request.number for request in machine.backlog)
        assert self.made.keys() - self.outcomes.keys() == machine.requests.keys()
