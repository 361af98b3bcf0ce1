"""The dispatcher of a service: which replica gets which request, and when. Pure: events in, effects out, the time (in
seconds) an argument; nothing is sent or started from here.

Every request ends in exactly one ReplyWith or FailRequest. It waits in the queue of a replica or, while none can take it, in
the backlog, in the order of arrival. What a dead replica had is put back there under its old number, so requests of a session
begin in the order in which they were made, whatever dies.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, OrderedDict, deque
from collections.abc import Collection, Sequence

from monarch.service.effects import (
    Cause,
    FailRequest,
    PolicyFailed,
    ReplyWith,
    SendBatch,
    ServiceClosed,
    StopReplica,
)
from monarch.service.errors import (
    ReplicaLostError,
    ServiceError,
    ServiceOverloaded,
    ServiceTimeoutError,
    ServiceUnavailableError,
    caused,
)
from monarch.service.fleet import Fleet, in_short
from monarch.service.replica_record import LIVING, Replica, ReplicaCall, ServiceRequest
from monarch.service.routing import EVEN, RouteRequest, least_outstanding
from monarch.service.rules import ServiceRules

_SESSIONS_KEPT = 100_000  # the latest used; one that was forgotten is routed anew
_AT_FIRST = 0.1  # seconds: how long a request takes, before one has
_TAKING = LIVING - {"suspended"}


class Dispatcher(Fleet):
    """See the module. Takes what happens to requests; its base takes what happens to replicas."""

    def __init__(self, rules: ServiceRules, now: float) -> None:
        super().__init__(rules)
        self.requests: dict[int, ServiceRequest] = {}  # not answered
        self.backlog: deque[ServiceRequest] = deque()  # by number
        self.taken = 0  # requests that count towards the limit
        self.counts = Counter(taken=0, refused=0, expired=0, cancelled=0, retried=0, died=0)
        self._close_by = math.inf
        self._ended = False
        self._sessions: OrderedDict[str, tuple[int, int, int]] = OrderedDict()  # replica, generation, moves
        self._behind: Counter[str] = Counter()  # requests in the backlog, by session
        self._deadlines: list[tuple[float, int]] = []
        self._attempts: dict[int, Replica] = {}
        self._attempt = self._turn = 0
        self._seconds = _AT_FIRST  # that a request takes, on average
        self._adjust(now)

    # --- events

    def request(self, request: ServiceRequest, now: float) -> None:
        """A request came. Its number is higher than those before."""
        request.arrived = now
        if not self._may_come(request, now):
            return
        full = self.taken >= self.limit
        replica = None if full else self._choose(request)
        states = {replica.state for replica in self.replicas.values()}
        # One that starts will have room: what fits the service waits for it, whether others are up already or none.
        able = not states.isdisjoint(_TAKING) and (request.bound or "starting" not in states)
        if replica is None and (full or able):
            if not request.wait:
                self._refuse(request)
                return
            if len(self.requests) - self.taken >= self.rules.waiting:
                self._refuse_to_wait(request)
                return
        self._admit(request)
        if replica is not None:
            self._put(request, replica, now)
        else:
            if not full and not able:
                self._take(request)
            self._to_backlog([request])
        self._autoscale(len(self.requests), now)

    def fanout(self, requests: Sequence[ServiceRequest], now: float) -> None:
        """A request for each replica of `everywhere()`, pinned to it: all are taken, or none."""
        if not all([self._may_come(request, now) for request in requests]):
            return
        room = self.limit - self.taken >= len(requests)
        if not room or any(self._full(self.replicas[request.pin]) for request in requests):
            for request in requests:
                self._refuse(request)
            return
        for request in requests:
            request.arrived = now
            self._admit(request)
            self._put(request, self.replicas[request.pin], now)
        self._autoscale(len(self.requests), now)

    def everywhere(self) -> list[int]:
        """Returns the replicas that a fan-out goes to: all that live, but those left alone for their errors."""
        return [replica.number for replica in self.replicas.values() if replica.state in _TAKING]

    def answered(self, attempt: int, now: float, errors: Collection[int] = ()) -> None:
        """The call `attempt` has returned; the requests at places `errors` have an exception as their answer."""
        replica = self._attempts.pop(attempt, None)
        if replica is None:  # it died before, and its requests were dealt with
            return
        call = replica.calls.pop(attempt)
        replica.answered += 1
        for place, request in enumerate(call.requests):
            replica.failed += place in errors
            replica.served += place not in errors
            if request.number in self.requests:
                moves = self._sessions.get(request.session, (0, 0, 0))[2]
                self.effects.append(ReplyWith(request.number, place, replica.number, replica.version, moves))
                replica.latency.add(now - request.arrived)
                self._done(request)
        self._seconds += 0.1 * ((now - call.began) / len(call.requests) - self._seconds)
        self._judge(replica, len(errors) == len(call.requests), now)
        self._go_on(replica, now)
        self._autoscale(len(self.requests), now)

    def cancel(self, number: int, now: float) -> None:
        """Nobody waits for the answer of a request any more."""
        request = self.requests.get(number)
        # The reader of a stream leaves when it hears where the replica writes: an error from here could come before that, and
        # be taken for the end.
        if request is None or (request.once and request.running):
            return
        self.counts["cancelled"] += 1
        self._withdraw(request, ServiceError(f"{self.rules.name}.{request.method}() was cancelled by who made it"))
        self._drain(now)
        self._autoscale(len(self.requests), now)
        self._settle(now)

    def end_session(self, session: str) -> None:
        """Nobody makes requests of it any more. Where some are left they keep their order, and it goes with the oldest."""
        if all(request.session != session for request in self.requests.values()):
            self._sessions.pop(session, None)

    def close(self, now: float, grace: float) -> None:
        """Takes no more requests; what is there has `grace` seconds to end."""
        self.closed = True
        self._close_by = min(self._close_by, now + grace)
        if self._ended:
            self.effects.append(ServiceClosed())
        self._settle(now)

    def tick(self, now: float) -> None:
        """Time has passed: does what is due."""
        while self._deadlines and self._deadlines[0][0] <= now:
            _deadline, number = heapq.heappop(self._deadlines)
            if (request := self.requests.get(number)) is not None:
                self._expire(request)
        for replica in list(self.replicas.values()):
            self._replica_due(replica, now)
            self._dispatch(replica, now)
        self._drain(now)
        self._autoscale(len(self.requests), now)
        self._settle(now)

    def next_due(self) -> float | None:
        """Returns when `tick` has something to do; None when not before another event."""
        while self._deadlines and self._deadlines[0][1] not in self.requests:
            heapq.heappop(self._deadlines)
        due = self._fleet_due() if self._ended else min(self._fleet_due(), self._close_by)
        if self._deadlines:
            due = min(due, self._deadlines[0][0])
        for replica in self.replicas.values():
            if replica.state == "up" and replica.queue and len(replica.calls) < self.rules.concurrency:
                due = min(due, replica.queue[0].queued_at + replica.queue[0].max_wait)
        return None if due == math.inf else due

    @property
    def limit(self) -> int:
        """The number of requests that the service takes."""
        if self.rules.limit is not None:
            return self.rules.limit
        most = 0 if self.rules.autoscale is None else self.rules.autoscale.most
        return max(1, self.target, most) * (self.rules.concurrency + self.rules.queue)

    # --- one request

    def _may_come(self, request: ServiceRequest, now: float) -> bool:
        error: ServiceError | None = None
        if self.closed:
            error = ServiceUnavailableError(f"the service {self.rules.name!r} was shut down, and takes no requests")
        elif self._is_lost():
            error = self._unavailable()
        elif request.deadline <= now:
            error = self._too_late(request)
        if error is not None:
            self.effects.append(FailRequest(request.number, error))
        return error is None

    def _refuse(self, request: ServiceRequest) -> None:
        self.counts["refused"] += 1
        living = sum(replica.state in LIVING for replica in self.replicas.values())
        text = (
            f"the service {self.rules.name!r} is full: it has {self.taken} requests of at most {self.limit}, on {living} "
            f"{'replica' if living == 1 else 'replicas'} with {self.rules.concurrency} running and {self.rules.queue} "
            f"waiting at most; try again in {self._seconds:.3g} s, or wait for a place: service.options(wait=True)"
        )
        self.effects.append(FailRequest(request.number, ServiceOverloaded(text, self._seconds)))

    def _refuse_to_wait(self, request: ServiceRequest) -> None:
        self.counts["refused"] += 1
        seconds = self._seconds * self.rules.waiting / max(1, self.limit)
        text = (
            f"the service {self.rules.name!r} is full, and {self.rules.waiting} requests wait for a place already: try again "
            f"in {seconds:.3g} s, or let more wait: serve(waiting=)"
        )
        self.effects.append(FailRequest(request.number, ServiceOverloaded(text, seconds)))

    def _admit(self, request: ServiceRequest) -> None:
        self.requests[request.number] = request
        if request.deadline != math.inf:
            heapq.heappush(self._deadlines, (request.deadline, request.number))

    def _take(self, request: ServiceRequest) -> None:
        if not request.taken:
            request.taken = True
            self.taken += 1
            self.counts["taken"] += 1

    def _done(self, request: ServiceRequest) -> None:
        del self.requests[request.number]
        self.taken -= request.taken

    def _fail(self, request: ServiceRequest, error: ServiceError) -> None:
        self.effects.append(FailRequest(request.number, error))
        self._done(request)

    def _expire(self, request: ServiceRequest) -> None:
        self.counts["expired"] += 1
        self._withdraw(request, self._too_late(request))

    def _withdraw(self, request: ServiceRequest, error: ServiceError) -> None:
        """Fails a request wherever it is."""
        self._fail(request, error)
        if request.running:  # what runs cannot be stopped: its answer is dropped
            return
        if request.place >= 0:
            self.replicas[request.place].queue.remove(request)
        else:
            self.backlog.remove(request)
            self._came_out(request)

    def _too_late(self, request: ServiceRequest) -> ServiceTimeoutError:
        where = f"{self.rules.name}.{request.method}()"
        was = (
            f"it ran at replica {request.place}, which goes on"
            if request.running
            else "it had not begun, and was dropped"
        )
        seconds = max(0.0, request.deadline - request.arrived)
        return ServiceTimeoutError(f"{where} was not answered within its timeout of {seconds:.6g} s: {was}")

    def _died(self, request: ServiceRequest, replica: Replica, cause: Cause) -> ServiceError:
        where = f"{self.rules.name}.{request.method}()"
        if cause is None:
            text = f"{where} waited for replica {replica.number}, which was taken away"
        elif not request.running:
            text = f"{where} waited for replica {replica.number}, which died: {in_short(cause)}"
        else:
            text = f"{where} ran at replica {replica.number}, which died: {in_short(cause)}"
            if request.runs > 1:
                text += f", as did the {request.runs - 1} before that had it"
            elif request.pin < 0 and not request.once:
                text += (
                    ". It was not given to another one: decorate the endpoint with @retried(n), below @endpoint, if it may "
                    "run more than once"
                )
        self.counts["died"] += 1
        return caused(ReplicaLostError(text, replica.number), cause)

    # --- which replica

    def _full(self, replica: Replica) -> bool:
        if replica.state not in _TAKING:
            return True
        if replica.state == "trial":
            return bool(replica.calls or replica.queue)
        if len(replica.queue) < self.rules.queue:
            return False
        return replica.state != "up" or bool(replica.queue) or len(replica.calls) >= self.rules.concurrency

    def _choose(self, request: ServiceRequest, draining: bool = False) -> Replica | None:
        """Returns the replica for a request; None when those that may have it are full."""
        if not request.session:
            return self._by_policy(request)
        if not draining and request.session in self._behind:
            return None
        number, generation, moves = self._sessions.get(request.session, (-1, 0, -1))
        replica = self._current(number, generation)
        if replica is not None and replica.state in _TAKING:
            self._sessions.move_to_end(request.session)
            return None if self._full(replica) else replica
        replica = self._by_policy(request)
        if replica is not None:
            self._sessions[request.session] = (replica.number, replica.generation, moves + 1)
            self._sessions.move_to_end(request.session)
            if len(self._sessions) > _SESSIONS_KEPT:
                self._sessions.popitem(last=False)
        return replica

    def _by_policy(self, request: ServiceRequest) -> Replica | None:
        open_now = [replica for replica in self.replicas.values() if replica.state in ("up", "trial")]
        # While all that live are being updated, it waits there.
        chosen_from = open_now or [replica for replica in self.replicas.values() if replica.state in _TAKING]
        candidates = {replica.number: replica for replica in chosen_from if not self._full(replica)}
        if not candidates:
            return None
        self._turn += 1
        asked = RouteRequest(request.method, request.session, self._turn)
        views = [replica.view(request.blocks) for replica in candidates.values()]
        try:
            return candidates[self.rules.policy(asked, views)]
        except Exception as exc:  # of a policy of somebody's own: the request is not to suffer
            self.effects.append(PolicyFailed(exc, tuple(candidates)))
            return candidates[least_outstanding(asked, views)]

    def _put(self, request: ServiceRequest, replica: Replica, now: float) -> None:
        self._take(request)
        request.place, request.queued_at = replica.number, now
        place = len(replica.queue)
        while (
            place and replica.queue[place - 1].number > request.number
        ):  # it was elsewhere before: the oldest goes first
            place -= 1
        replica.queue.insert(place, request)
        if request.blocks:
            replica.remember(request.blocks)
        self._dispatch(replica, now)

    def _dispatch(self, replica: Replica, now: float) -> None:
        most = self.rules.concurrency if replica.state == "up" else 1 if replica.state == "trial" else 0
        while replica.queue and len(replica.calls) < most:
            head = replica.queue[0]
            if head.max_batch > 1:
                taken = _together(replica.queue)
                enough = len(taken) >= head.max_batch or not replica.calls or len(replica.queue) > self.rules.queue
                if not enough and now < head.queued_at + head.max_wait:
                    return
                for request in taken:
                    replica.queue.remove(request)
            else:
                taken = [replica.queue.popleft()]
            for request in taken:
                request.running = True
                request.runs += 1
            self._attempt += 1
            replica.calls[self._attempt] = ReplicaCall(taken, now)
            self._attempts[self._attempt] = replica
            numbers = tuple(request.number for request in taken)
            self.effects.append(SendBatch(replica.number, replica.generation, self._attempt, numbers))

    def _go_on(self, replica: Replica, now: float) -> None:
        if not replica.calls:
            if replica.state == "draining":
                self._begin_update(replica)
            elif replica.state == "leaving":
                del self.replicas[replica.number]
                self.effects.append(StopReplica(replica.number, replica.generation))
        self._dispatch(replica, now)
        self._drain(now)
        if replica.state == "up" and self.rules.policy in EVEN:
            self._steal(replica, now)
        self._settle(now)

    def _steal(self, replica: Replica, now: float) -> None:
        """Gives a replica that has nothing left what waits for the one with the longest queue."""
        while len(replica.calls) < self.rules.concurrency and not replica.queue:
            longest = max(self.replicas.values(), key=lambda other: len(other.queue))
            found = next((request for request in longest.queue if not request.bound), None)
            if found is None:
                return
            longest.queue.remove(found)
            self._put(found, replica, now)

    # --- the backlog

    def _to_backlog(self, requests: list[ServiceRequest]) -> None:
        if sessions := {request.session: request.number for request in reversed(requests) if request.session}:
            requests = [*requests, *self._later_ones(sessions)]
        for request in requests:
            request.place, request.running = -1, False
            if request.session:
                self._behind[request.session] += 1
        in_order = len(requests) == 1 and (not self.backlog or self.backlog[-1].number < requests[0].number)
        self.backlog.extend(requests)
        if not in_order:
            self.backlog = deque(sorted(self.backlog, key=lambda request: request.number))

    def _later_ones(self, sessions: dict[str, int]) -> list[ServiceRequest]:
        """Takes from all queues what sessions have asked after the request of that number: it may not begin before that."""
        found: list[ServiceRequest] = []
        for replica in self.replicas.values():
            later = [request for request in replica.queue if sessions.get(request.session, math.inf) < request.number]
            for request in later:
                replica.queue.remove(request)
            found += later
        return found

    def _came_out(self, request: ServiceRequest) -> None:
        if request.session:
            self._behind[request.session] -= 1
            if not self._behind[request.session]:
                del self._behind[request.session]

    def _drain(self, now: float) -> None:
        kept: list[ServiceRequest] = []
        blocked: set[str] = set()
        while self.backlog and not all(map(self._full, self.replicas.values())):
            request = self.backlog[0]
            may = (request.taken or self.taken < self.limit) and request.session not in blocked
            replica = self._choose(request, draining=True) if may else None
            self.backlog.popleft()
            if replica is None:
                kept.append(request)
                if request.session:
                    blocked.add(request.session)
            else:
                self._came_out(request)
                self._put(request, replica, now)
        self.backlog.extendleft(reversed(kept))

    def _spill(self, replica: Replica, now: float) -> None:
        waiting, replica.queue = replica.queue, deque()
        if replica.state == "draining":  # it will soon be back: what is bound to it, and what finds no room, waits
            for request in waiting:
                other = None if request.bound else self._by_policy(request)
                if other is None or other is replica:
                    replica.queue.append(request)
                else:
                    self._put(request, other, now)
            return
        for request in waiting:
            if request.pin >= 0 and replica.state == "leaving":
                self._fail(request, self._died(request, replica, None))
            elif request.pin >= 0:
                replica.queue.append(request)
        self._to_backlog([request for request in waiting if request.pin < 0])
        self._drain(now)

    # --- failures and the end

    def _empty(self, replica: Replica, cause: Cause) -> list[ServiceRequest]:
        running = [request for call in replica.calls.values() for request in call.requests]
        displaced = []
        for request in sorted([*running, *replica.queue], key=lambda request: request.number):
            if request.number not in self.requests:  # its time was over
                continue
            if request.pin >= 0 or (request.running and (request.once or not request.retries)):
                self._fail(request, self._died(request, replica, cause))
                continue
            if request.running:
                request.retries -= 1
                self.counts["retried"] += 1
            displaced.append(request)
        for attempt in replica.calls:
            del self._attempts[attempt]
        replica.forget()
        return displaced

    def _judge(self, replica: Replica, only_errors: bool, now: float) -> None:
        """Counts errors in a row, and opens or closes the circuit."""
        replica.errors = replica.errors + 1 if only_errors else 0
        if replica.state == "trial" and not only_errors:
            replica.state = "up"
        elif replica.state in ("up", "trial") and self.rules.breaker and replica.errors >= self.rules.breaker:
            replica.state, replica.until = "suspended", now + self.rules.pause
            self._spill(replica, now)

    def _settle(self, now: float) -> None:
        if self._is_lost():
            waiting, self.backlog = self.backlog, deque()
            self._behind.clear()
            for request in waiting:
                self._fail(request, self._unavailable())
        if not self.closed or self._ended or (self.requests and self.replicas and now < self._close_by):
            return
        self._ended = True
        for request in list(self.requests.values()):
            text = f"the service {self.rules.name!r} was shut down before it answered"
            self._fail(request, ServiceUnavailableError(text))
        for replica in self.replicas.values():
            if replica.state not in ("backoff", "lost"):
                self.effects.append(StopReplica(replica.number, replica.generation))
        self.replicas.clear()
        self._attempts.clear()
        self.backlog.clear()
        self._behind.clear()
        self._end_updates()
        self.effects.append(ServiceClosed())


def _together(queue: deque[ServiceRequest]) -> list[ServiceRequest]:
    """Returns the requests that go in one call with the first; none before an earlier one of its session."""
    head = queue[0]
    taken: list[ServiceRequest] = []
    passed: set[str] = set()
    for request in queue:
        if request.method == head.method and request.key == head.key and request.session not in passed:
            taken.append(request)
            if len(taken) == head.max_batch:
                break
        elif request.session:
            passed.add(request.session)
    return taken
