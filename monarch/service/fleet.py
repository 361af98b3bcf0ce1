"""The replicas of a service: how many there are, how they come, get updates and go. Pure; the half of the dispatcher that
knows no requests beyond how many a replica has."""

from __future__ import annotations

import math
from collections import Counter, deque

from monarch._errors import ActorError, SupervisionError
from monarch._text import raised_line
from monarch.service.effects import (
    Cause,
    PrepareReplica,
    ProbeReplica,
    ReplicaFailed,
    ServiceEffect,
    StartReplica,
    StopReplica,
    UpdateEnded,
    UpdateReplica,
)
from monarch.service.errors import ServiceError, ServiceUnavailableError, ServiceUpdateError, caused
from monarch.service.replica_record import LIVING, Replica, ServiceRequest
from monarch.service.rules import ServiceRules

_SHORT = 500  # characters of a cause


class Fleet:
    """See the module. `effects` collects what is to be done; whoever does it takes them out."""

    def __init__(self, rules: ServiceRules) -> None:
        self.rules = rules
        self.effects: list[ServiceEffect] = []
        self.replicas: dict[int, Replica] = {}
        self.target = rules.replicas
        if rules.autoscale is not None:
            self.target = min(max(self.target, rules.autoscale.least), rules.autoscale.most)
        self.version = 0  # that new replicas get
        self.closed = False
        self.settled = 0  # the last version that every replica got
        self._latest = 0  # the last that was asked for
        self._wanted_updates: deque[int] = deque()
        # Of those under way and wanted, the ones that replicas prepare beside requests.
        self._in_place: set[int] = set()
        self._rolling = False
        self._preparing = False  # it is one of these, and no replica has it yet
        self._died_preparing: set[int] = set()
        self._tried: int | None = None  # a replica that died in the update under way, and is started with it once more
        self._low_since = math.inf  # since when fewer replicas are wanted
        self._low_peak = 0
        self._last_cause: Cause = None
        self._bad_starts: Counter[int] = Counter()  # of a host, since the last good one
        self._generations: Counter[int] = Counter()  # of a number, which a later replica may have again
        self._was_up = False  # whether any replica ever was

    # --- what the dispatcher does

    def _drain(self, now: float) -> None:
        """Gives replicas that have room what waits for one."""
        raise NotImplementedError

    def _go_on(self, replica: Replica, now: float) -> None:
        """A replica is up again."""
        raise NotImplementedError

    def _spill(self, replica: Replica, now: float) -> None:
        """A replica takes nothing for a while, or ever again: what waits for it goes elsewhere."""
        raise NotImplementedError

    def _empty(self, replica: Replica, cause: Cause) -> list[ServiceRequest]:
        """Takes everything from a replica that is gone; returns what may go elsewhere, the rest fails."""
        raise NotImplementedError

    def _to_backlog(self, requests: list[ServiceRequest]) -> None:
        """Puts requests, by their numbers, among those that wait for a replica."""
        raise NotImplementedError

    def _settle(self, now: float) -> None:
        """Ends what can come no more: requests of a service without replicas, the service itself."""
        raise NotImplementedError

    # --- events

    def started(self, number: int, generation: int, now: float) -> None:
        """A replica is there, with the version that it was started with."""
        replica = self._current(number, generation)
        if replica is None or replica.state != "starting":
            return
        replica.state = "up"
        if not self._was_up:
            self._was_up = True
            for other in [one for one in self.replicas.values() if one.state == "lost"]:
                self._restart_later(other, now)  # it was given up for its class, which is not broken
        del self._bad_starts[replica.host]
        self._schedule_probe(replica, now)
        if replica.version < self._start_version:  # an update began meanwhile
            self._begin_update(replica)
        else:
            self._go_on(replica, now)
        self._roll(now)

    def lost(self, number: int, generation: int, cause: Cause, now: float) -> None:
        """A replica died, or could not be started."""
        self._lost(number, generation, cause, now, raised=False)

    def not_made(self, number: int, generation: int, cause: Cause, now: float) -> None:
        """The constructor of a replica raised: it is given up if none was ever up, since it would raise again."""
        self._lost(number, generation, cause, now, raised=False, made=False)

    def update_failed(self, number: int, generation: int, cause: Cause, now: float) -> None:
        """The endpoint of the update raised."""
        self._lost(number, generation, cause, now, raised=True)

    def _lost(self, number: int, generation: int, cause: Cause, now: float, raised: bool, made: bool = True) -> None:
        replica = self._current(number, generation)
        if replica is None or replica.state in ("backoff", "lost"):
            return
        was = replica.state
        self._bad_starts[replica.host] += was == "starting"
        preparing = self._preparing and replica.asked == self.version != replica.prepared
        self._last_cause = replica.cause = cause
        self.effects.append(StopReplica(number, generation))
        displaced = self._empty(replica, cause)
        if was == "leaving":
            del self.replicas[number]
        elif made or self._was_up:
            self._restart_later(replica, now)
        else:
            replica.state = "lost"
            self.effects.append(ReplicaFailed(number, cause, None, 0))
        self._to_backlog(displaced)
        if preparing and number in self._died_preparing:
            self._stop_rolling(replica, cause)
        elif preparing:
            self._died_preparing.add(number)
        elif self._rolling and was in ("updating", "starting") and (raised or number == self._tried):
            self._stop_rolling(replica, cause)
            for other in [other for other in self.replicas.values() if other.state == "draining"]:
                other.state = "up"
                self._go_on(other, now)
        elif self._rolling and was == "updating":  # by chance, or of the update: it will show
            self._tried = number
        self._drain(now)
        self._roll(now)
        self._settle(now)

    def probed(self, number: int, generation: int, cause: Cause | None, now: float) -> None:
        """The health check was answered; `cause`: what it raised."""
        replica = self._current(number, generation)
        if replica is None or replica.probe_deadline == math.inf:
            return
        replica.probe_deadline = math.inf
        if cause is not None:
            self.lost(number, generation, cause, now)

    def scale(self, count: int, now: float) -> None:
        """So many replicas are wanted. Those that were given up do not count."""
        if self.closed:
            return
        self.target = count
        for number in [number for number, replica in self.replicas.items() if replica.state == "lost"]:
            del self.replicas[number]
        self._adjust(now)

    @property
    def next_version(self) -> int:
        """Returns the version that the next update will have."""
        return self._latest + 1

    def update(self, now: float, in_place: bool = False) -> int:
        """An update is wanted; returns its version. UpdateEnded says when it is done. One begins after the other.

        `in_place`: all replicas prepare it beside requests, and when all have, each uses it between two requests.
        """
        self._latest += 1
        if in_place:
            self._in_place.add(self._latest)
        self._wanted_updates.append(self._latest)
        self._roll(now)
        return self._latest

    def prepared(self, number: int, generation: int, version: int, now: float) -> None:
        """A replica has prepared an update."""
        replica = self._current(number, generation)
        if replica is not None and replica.asked == version:
            replica.prepared = version
            self._roll(now)

    def prepare_failed(self, number: int, generation: int, version: int, cause: Cause, now: float) -> None:
        """It raised. No replica has the update, and none gets it."""
        replica = self._current(number, generation)
        if replica is not None and self._preparing and replica.asked == self.version == version:
            self._stop_rolling(replica, cause, replaced=False)
            self._roll(now)

    def updated(self, number: int, generation: int, now: float) -> None:
        """A replica has the version that it was to get."""
        replica = self._current(number, generation)
        if replica is None or replica.state != "updating":
            return
        if replica.version < self._start_version:
            self._begin_update(replica)
            return
        replica.state, replica.errors = "up", 0
        self._go_on(replica, now)
        self._roll(now)

    # --- time

    def _replica_due(self, replica: Replica, now: float) -> None:
        if replica.until <= now:
            replica.until = math.inf
            if replica.state == "backoff":
                self._start(replica)
            elif replica.state == "suspended":
                replica.state = "trial"
        health = self.rules.health
        if health is None:
            return
        if replica.probe_deadline <= now:
            text = (
                f"replica {replica.number} of service {self.rules.name!r} did not answer its health check "
                f"{health.endpoint}() within {health.timeout:g} s"
            )
            self.lost(replica.number, replica.generation, text, now)
        elif replica.next_probe <= now:
            self._schedule_probe(replica, now)
            asked = replica.probe_deadline != math.inf
            if not asked and replica.state in ("up", "trial") and (self.rules.health_beside or not replica.calls):
                replica.probe_deadline = now + health.timeout
                self.effects.append(ProbeReplica(replica.number, replica.generation))

    def _fleet_due(self) -> float:
        """Returns when something of the replicas is due; infinity when nothing is."""
        due = min(
            (min(replica.until, replica.next_probe, replica.probe_deadline) for replica in self.replicas.values()),
            default=math.inf,
        )
        if self.rules.autoscale is not None and not self.closed and not self._is_lost():
            due = min(due, self._low_since + self.rules.autoscale.idle)
        return due

    def _schedule_probe(self, replica: Replica, now: float) -> None:
        if self.rules.health is not None:
            replica.next_probe = now + self.rules.health.every

    # --- starts

    def _current(self, number: int, generation: int) -> Replica | None:
        replica = self.replicas.get(number)
        return replica if replica is not None and replica.generation == generation else None

    def _start(self, replica: Replica) -> None:
        """Starts a replica on the host that has the fewest, those counted as well that failed there of late."""
        busy = [0] * self.rules.hosts
        for other in self.replicas.values():
            if other is not replica and other.state not in ("backoff", "lost"):
                busy[other.host] += 1
        busy[replica.host] += len(replica.failures)  # a host that is gone fails every start
        for host, bad in self._bad_starts.items():
            busy[host] += bad
        replica.restarts += replica.generation > 0
        replica.host = min(range(self._usable_hosts()), key=busy.__getitem__)
        self._generations[replica.number] += 1
        replica.generation = self._generations[replica.number]
        replica.state, replica.version = "starting", self._start_version
        self.effects.append(StartReplica(replica.number, replica.generation, replica.host, replica.version))

    def _usable_hosts(self) -> int:
        """Returns how many of the hosts are in use: those that are no spares, and a spare for each where starts fail."""
        own = usable = self.rules.hosts - self.rules.spares
        while usable < (wanted := min(self.rules.hosts, own + sum(host < usable for host in +self._bad_starts))):
            usable = wanted
        return usable

    @property
    def _start_version(self) -> int:
        """Returns the version that replicas are started with."""
        return self.settled if self._preparing else self.version

    def _restart_later(self, replica: Replica, now: float) -> None:
        failures = replica.failures
        failures.append(now)
        while failures and failures[0] <= now - self.rules.within:
            failures.popleft()
        pause = None
        if len(failures) > self.rules.restarts:
            replica.state = "lost"
        else:
            pause = self.rules.backoff_of(max(1, len(failures)))
            replica.state, replica.until = "backoff", now + pause
        self.effects.append(ReplicaFailed(replica.number, replica.cause, pause, len(failures)))

    def _is_lost(self) -> bool:
        return bool(self.replicas) and all(replica.state == "lost" for replica in self.replicas.values())

    def why_none_is_up(self, method: str) -> ServiceError:
        """Returns the error of a fan-out that has nobody to go to."""
        if self._is_lost():
            return self._unavailable()
        return ServiceUnavailableError(
            f"no replica of service {self.rules.name!r} is up, to fan {method}() out to, and it does not wait for one, as "
            "route() does"
        )

    def _unavailable(self) -> ServiceError:
        if any(replica.failures for replica in self.replicas.values()):
            why = (
                f"has no replica left: each died more than {self.rules.restarts} times within {self.rules.within:g} s, "
                "the last because"
            )
        else:
            why = "did not start, and does not try again by itself:"
        error = ServiceUnavailableError(
            f"the service {self.rules.name!r} {why} {in_short(self._last_cause)}. service.scale(n) starts new ones"
        )
        return caused(error, self._last_cause)

    # --- how many

    def _adjust(self, now: float) -> None:
        """Starts replicas, or lets some go, until there are as many as wanted."""
        staying = [replica for replica in self.replicas.values() if replica.state != "leaving"]
        for _ in range(self.target - len(staying)):
            number = next(number for number in range(len(self.replicas) + 1) if number not in self.replicas)
            self.replicas[number] = Replica(number, version=self.version)
            self._start(self.replicas[number])
        if len(staying) > self.target:
            staying.sort(key=lambda one: (one.state in LIVING, one.running + len(one.queue), -one.number))
            for replica in staying[: len(staying) - self.target]:
                self._let_go(replica, now)
            self._drain(now)
            self._roll(now)
        self._settle(now)

    def _let_go(self, replica: Replica, now: float) -> None:
        gone = replica.state in ("backoff", "lost")
        replica.state, replica.until, replica.next_probe = "leaving", math.inf, math.inf
        self._spill(replica, now)
        if not replica.calls:
            del self.replicas[replica.number]
            if not gone:
                self.effects.append(StopReplica(replica.number, replica.generation))

    def _autoscale(self, outstanding: int, now: float) -> None:
        scale = self.rules.autoscale
        if scale is None or self.closed or self._is_lost():
            return
        target = self.rules.concurrency if scale.target is None else scale.target
        wanted = min(max(math.ceil(outstanding / target), scale.least), scale.most)
        if wanted >= self.target:
            self._low_since = math.inf
            if wanted > self.target:
                self.target = wanted
                self._adjust(now)
            return
        if self._low_since == math.inf:
            self._low_since, self._low_peak = now, 0
        self._low_peak = max(self._low_peak, wanted)
        if now >= self._low_since + scale.idle:
            self.target = self._low_peak
            self._low_since, self._low_peak = (now, wanted) if wanted < self.target else (math.inf, 0)
            self._adjust(now)

    # --- rolling updates

    def _begin_update(self, replica: Replica) -> None:
        replica.state, replica.version = "updating", self._start_version
        replica.blocks.clear()  # what it kept was made with the old weights
        self.effects.append(UpdateReplica(replica.number, replica.generation, replica.version))

    def _roll(self, now: float) -> None:
        """Goes on with the update under way, or begins the next."""
        while self._rolling or self._wanted_updates:
            if not self._rolling:
                self.version, self._rolling = self._wanted_updates.popleft(), True
                self._preparing = self.version in self._in_place
                self._died_preparing.clear()
            if any(replica.state in ("draining", "updating") for replica in self.replicas.values()):
                return
            tried = None if self._tried is None else self.replicas.get(self._tried)
            if tried is not None and tried.state in ("backoff", "starting"):
                return
            self._tried = None
            living = [replica for replica in self.replicas.values() if replica.state in LIVING]
            older = [replica for replica in living if replica.version < self.version]
            if self._preparing:
                self._ask_to_prepare(older)
                coming = [self.replicas[number].state for number in self._died_preparing & self.replicas.keys()]
                if "backoff" in coming or "starting" in coming:  # it is to try once more before anybody uses it
                    return
                if not all(replica.prepared == self.version for replica in older):
                    return
                self._preparing = False
            if older:
                older[0].state, older[0].until = "draining", math.inf
                if self.version not in self._in_place:  # else it is back in a moment
                    self._spill(older[0], now)
                if not older[0].calls:
                    self._begin_update(older[0])
                return
            self._rolling, self.settled = False, self.version
            self._in_place.discard(self.version)
            self.effects.append(UpdateEnded(self.version, None))

    def _ask_to_prepare(self, replicas: list[Replica]) -> None:
        for replica in replicas:
            if replica.asked < self.version:
                replica.asked = self.version
                self.effects.append(PrepareReplica(replica.number, replica.generation, self.version))

    def _stop_rolling(self, failed: Replica, cause: Cause, replaced: bool = True) -> None:
        version, self._rolling, self._tried = self.version, False, None
        preparing, self._preparing = self._preparing, False
        self._in_place.discard(version)
        self.version = self.settled
        living = [replica for replica in self.replicas.values() if replica.state in LIVING]
        having = ", ".join(str(replica.number) for replica in living if replica.version == version)
        if preparing:
            came_of_it = f"No replica has it: all go on with version {self.settled}"
        else:
            came_of_it = f"Replicas that have it: {having or 'none'}"
        if replaced:
            came_of_it += f"; the one that failed is replaced, with version {self.settled}"
        error = ServiceUpdateError(
            f"update {version} of service {self.rules.name!r} failed at replica {failed.number} and was stopped: "
            f"{in_short(cause)}. {came_of_it}",
            failed.number,
        )
        self.effects.append(UpdateEnded(version, caused(error, cause)))

    def _end_updates(self) -> None:
        """The service ends: so do the updates that are wanted."""
        versions = [self.version] if self._rolling else []
        for version in [*versions, *self._wanted_updates]:
            text = f"the service {self.rules.name!r} was shut down before update {version} was done"
            self.effects.append(UpdateEnded(version, ServiceUnavailableError(text)))
        self._rolling = self._preparing = False
        self._in_place.clear()
        self._wanted_updates.clear()


def in_short(cause: Cause) -> str:
    """Returns a cause on one line; all of it is the error's `__cause__`."""
    if isinstance(cause, ActorError) and cause.exception is not None:
        where, made, _ = cause.message.partition(".__init__ raised")
        what = f"{where}{made}: " if made else ""
        return f"{what}{type(cause.exception).__name__}: {cause.exception}"[:_SHORT]
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()] or [type(cause).__name__]
    if isinstance(cause, SupervisionError):
        traceback = next((place for place, line in enumerate(lines) if "Traceback " in line), len(lines))
        raised = raised_line(lines[traceback:])
        lines = [*lines[:traceback], raised] if raised else lines[:3]
    # What is behind the names of the actor and its owners.
    return " ".join(lines).rpartition(" failed: ")[2][:_SHORT]
