"""The router of a service: an actor with a process of its own that owns the replicas and does what the dispatcher decides."""

from __future__ import annotations

import asyncio
import functools
import logging
import time
import traceback
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from monarch._errors import ActorError, SupervisionError
from monarch.actor import (
    Actor,
    ActorMesh,
    HostMesh,
    MeshFailure,
    NDSlice,
    Port,
    ProcMesh,
    Shape,
    ValueMesh,
    context,
    endpoint,
)
from monarch.actor.lowlevel import Sealed, tell_table
from monarch.service.dispatcher import Dispatcher
from monarch.service.effects import (
    FailRequest,
    PolicyFailed,
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
from monarch.service.errors import ServiceError, ServiceUnavailableError
from monarch.service.fleet import in_short
from monarch.service.measures import ServiceMeasures
from monarch.service.replica import EndpointKind, StreamReader, kinds_of, replica_class
from monarch.service.replica_record import ServiceRequest
from monarch.service.rules import ServiceRules
from monarch.service.status import ServiceStatus, status_of

_logger = logging.getLogger("monarch")


class ServiceCall(NamedTuple):
    """A request on its way to the router."""

    method: str
    call: Sealed  # (args, kwargs)
    timeout: float | None
    retries: int
    wait: bool
    session: str
    blocks: tuple[int, ...]
    max_batch: int
    max_wait: float
    key: Any
    reader: StreamReader | None = None
    ticket: str = ""  # by which it may be cancelled


class Replied(NamedTuple):
    """An answer on its way back. `result` is sealed: a value, or (exception, its cause); of a group a mesh of
    sealed values."""

    ok: bool
    result: Any
    version: int = 0
    replica: int = -1
    moves: int = 0


@dataclass
class _Pending:
    """A request that was not answered, as far as the dispatcher does not look at it."""

    asked: ServiceCall
    reply: Callable[[Replied], None]
    arrived: float


@dataclass
class _Processes:
    """The processes of a replica, and its actors."""

    host: HostMesh
    procs: ProcMesh | None = None
    mesh: Any = None
    prepared: int = 0  # the update that they have beside what they use


class _Update(NamedTuple):
    method: str
    call: Sealed
    then: str  # of one in place: the endpoint that takes what `method` returned


class ServiceRouter(Actor):
    """See the module. Its endpoints are called by `Service`."""

    def __init__(
        self,
        rules: ServiceRules,
        hosts: HostMesh,
        per_replica: Mapping[str, int] | None,
        cls: type,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        self.rules = rules
        self._hosts = hosts.flatten("hosts")
        self._per_replica = per_replica
        self._class, self._args, self._kwargs = replica_class(cls), args, kwargs
        self._group = per_replica is not None and any(size != 1 for size in per_replica.values())
        self._kinds: dict[str, EndpointKind] = kinds_of(cls)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._dispatcher: Dispatcher | None = None
        self._early: list[Callable[[], None]] = []  # what came before the loop was known
        self._numbers = 0
        self._pending: dict[int, _Pending] = {}
        self._tickets: dict[str, int] = {}
        self._processes: dict[tuple[int, int], _Processes] = {}
        self._answers: list[Replied] = []  # of the call that has just returned
        self._updates: dict[int, _Update] = {}
        self._wait_updates: dict[int, Port[Any]] = {}
        self._wait_closed: list[Port[Any]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._policy_failed = False
        self._measures = ServiceMeasures(rules.name)

    # --- endpoints

    @endpoint
    async def begin(self) -> None:
        """Starts the replicas."""
        self._loop, self._instance = asyncio.get_running_loop(), context().actor_instance
        self._dispatcher = Dispatcher(self.rules, time.monotonic())
        tell_table(self, lambda: status_of(self._decided).table())
        early, self._early = self._early, []
        for act in early:
            act()
        self._act()

    @endpoint(explicit_response_port=True)
    def ask(self, port: Port[Replied], asked: ServiceCall) -> None:
        """Makes a request."""
        self._soon(lambda: self._ask(port, asked))

    @endpoint(explicit_response_port=True)
    def ask_all(self, port: Port[Any], asked: ServiceCall) -> None:
        """Makes a request to every replica; answers with a list of what came back, or a Replied that says why not."""
        self._soon(lambda: self._ask_all(port, asked))

    @endpoint
    def cancel(self, ticket: str) -> None:
        """Says that nobody waits for the answer of a request any more."""
        self._soon(lambda: self._decided.cancel(self._tickets.get(ticket, 0), time.monotonic()))

    @endpoint(explicit_response_port=True)
    def update(self, port: Port[Any], method: str, call: Sealed, then: str = "") -> None:
        """Begins an update, one in place with `then`; answers with a Replied when it has ended."""
        self._soon(lambda: self._update(port, _Update(method, call, then)))

    @endpoint
    def scale(self, count: int) -> None:
        """Says how many replicas are wanted."""
        self._soon(lambda: self._decided.scale(count, time.monotonic()))

    @endpoint
    def end_session(self, session: str) -> None:
        """Says that nobody makes requests of it any more."""
        self._soon(lambda: self._decided.end_session(session))

    @endpoint(explicit_response_port=True)
    def status(self, port: Port[ServiceStatus]) -> None:
        """Tells how the replicas are."""
        self._soon(lambda: port.send(status_of(self._decided)))

    @endpoint(explicit_response_port=True)
    def close(self, port: Port[None], grace: float) -> None:
        """Takes no more requests, and answers when nothing is left."""

        def begin() -> None:
            self._wait_closed.append(port)
            self._decided.close(time.monotonic(), grace)

        self._soon(begin)

    # --- requests

    @property
    def _decided(self) -> Dispatcher:
        assert self._dispatcher is not None
        return self._dispatcher

    def _soon(self, act: Callable[[], None]) -> None:
        """Does it now, or as soon as the router has begun: senders other than its owner may be earlier."""
        if self._dispatcher is None:
            self._early.append(act)
            return
        act()
        self._act()

    def _request(
        self, asked: ServiceCall, reply: Callable[[Replied], None], now: float, pin: int = -1
    ) -> ServiceRequest:
        self._numbers += 1
        self._pending[self._numbers] = _Pending(asked, reply, now)
        if asked.ticket:
            self._tickets[asked.ticket] = self._numbers
        request = ServiceRequest(
            self._numbers,
            asked.method,
            retries=asked.retries,
            wait=asked.wait,
            session=asked.session,
            pin=pin,
            once=asked.reader is not None,
            blocks=asked.blocks,
            max_batch=asked.max_batch,
            max_wait=asked.max_wait,
            key=asked.key,
        )
        if asked.timeout is not None:
            request.deadline = now + asked.timeout
        return request

    def _ask(self, port: Port[Replied], asked: ServiceCall) -> None:
        now = time.monotonic()
        self._decided.request(self._request(asked, port.send, now), now)

    def _ask_all(self, port: Port[Any], asked: ServiceCall) -> None:
        replicas = self._decided.everywhere()
        if not replicas:
            port.send(_failed(self._decided.why_none_is_up(asked.method)))
            return
        came: dict[int, Replied] = {}

        def take(replica: int, replied: Replied) -> None:
            came[replica] = replied
            if len(came) == len(replicas):
                port.send([came[replica] for replica in replicas])

        def taker(replica: int) -> Callable[[Replied], None]:
            return lambda replied: take(replica, replied)

        now = time.monotonic()
        self._decided.fanout([self._request(asked, taker(replica), now, replica) for replica in replicas], now)

    def _take_out(self, number: int) -> _Pending:
        """Forgets a request that has its answer; returns what was known of it."""
        found = self._pending.pop(number)
        self._tickets.pop(found.asked.ticket, None)
        return found

    def _update(self, port: Port[Any], update: _Update) -> None:
        if self._decided.closed:
            port.send(
                _failed(ServiceUnavailableError(f"the service {self.rules.name!r} was shut down, and takes no updates"))
            )
            return
        version = self._decided.next_version
        self._updates[version], self._wait_updates[version] = update, port
        self._decided.update(time.monotonic(), in_place=bool(update.then))

    # --- what the dispatcher wants

    def _act(self) -> None:
        """Does what is wanted, and has `tick` called when it is due."""
        dispatcher = self._decided
        while dispatcher.effects:
            effects, dispatcher.effects = dispatcher.effects, []
            for effect in effects:
                self._do(effect)
        self._answers = []  # they may hold references
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = dispatcher.next_due()
        if due is not None:
            assert self._loop is not None
            self._timer = self._loop.call_later(max(0.0, due - time.monotonic()), self._tick)

    def _tick(self) -> None:
        try:
            self._decided.tick(time.monotonic())
            self._act()
        except Exception as exc:
            self._fail(exc)

    def _do(self, effect: Any) -> None:
        match effect:
            case SendBatch():
                calls = [self._pending[number].asked for number in effect.requests]
                self._measures.sent(effect.replica, len(calls), self._outstanding(effect.replica))
                self._task(self._send(effect, calls))
            case ReplyWith():
                replied = self._answers[effect.place]
                found = self._take_out(effect.request)
                left, seconds = self._outstanding(effect.replica), time.monotonic() - found.arrived
                self._measures.answered(effect.replica, seconds, effect.version, left)
                found.reply(replied._replace(version=effect.version, replica=effect.replica, moves=effect.moves))
            case FailRequest():
                self._measures.not_answered(type(effect.error).__name__)
                self._take_out(effect.request).reply(_failed(effect.error))
            case StartReplica():
                host = self._hosts.slice(hosts=effect.host)
                processes = self._processes[effect.replica, effect.generation] = _Processes(host)
                self._task(self._start(effect, processes))
            case StopReplica():
                self._stop(effect.replica, effect.generation)
            case ReplicaFailed():
                self._say_failed(effect)
            case PrepareReplica():
                self._task(self._prepare_replica(effect))
            case UpdateReplica():
                self._task(self._update_replica(effect))
            case UpdateEnded():
                port = self._wait_updates.pop(effect.version)
                port.send(Replied(True, None, effect.version) if effect.error is None else _failed(effect.error))
                if effect.error is not None and self._updates[effect.version].then:
                    for processes in self._processes.values():
                        if processes.mesh is not None:
                            processes.mesh._service_forget.broadcast(effect.version)
                for version in [version for version in self._updates if version < self._decided.settled]:
                    del self._updates[version]
            case ProbeReplica():
                self._task(self._probe(effect))
            case PolicyFailed():
                self._say_policy_failed(effect)
            case ServiceClosed():
                self._task(self._say_closed())

    def _outstanding(self, replica: int) -> int:
        found = self._decided.replicas.get(replica)
        return 0 if found is None else found.running + len(found.queue)

    def _task(self, body: Coroutine[Any, Any, None], among: set[asyncio.Task[None]] | None = None) -> None:
        tasks = self._tasks if among is None else among
        assert self._loop is not None
        task = self._loop.create_task(body)
        tasks.add(task)
        task.add_done_callback(functools.partial(self._ended, tasks))

    def _ended(self, tasks: set[asyncio.Task[None]], task: asyncio.Task[None]) -> None:
        tasks.discard(task)
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """Ends the router for a mistake in it: nobody is to wait for what it would have done."""
        text = "".join(traceback.format_exception(error))
        self._instance.abort(f"the router of service {self.rules.name!r} failed:\n{text}")

    # --- calls

    async def _send(self, effect: SendBatch, asked: list[ServiceCall]) -> None:
        processes = self._processes.get((effect.replica, effect.generation))
        if processes is None:  # it ended in the same moment
            return
        try:
            answers = await self._run(processes.mesh, asked)
        except SupervisionError as exc:
            self._decided.lost(effect.replica, effect.generation, exc, time.monotonic())
        except Exception as exc:
            if isinstance(exc, ActorError):
                exc.message = f"{self.rules.name}.{asked[0].method}() raised at replica {effect.replica}."
            self._answered(effect, [_failed(exc)] * len(asked))
        else:
            self._answered(effect, answers)
        self._act()

    def _answered(self, effect: SendBatch, answers: list[Replied]) -> None:
        self._answers = answers
        errors = {place for place, replied in enumerate(answers) if not replied.ok}
        self._decided.answered(effect.attempt, time.monotonic(), errors)

    async def _run(self, mesh: Any, asked: list[ServiceCall]) -> list[Replied]:
        """Runs requests in one call; what comes back for each."""
        first = asked[0]
        kind = self._kinds[first.method]
        if first.reader is not None:
            made = await getattr(mesh, f"_service_{kind}").call_one(first.method, first.call, first.reader)
            return [Replied(True, Sealed(made))]
        batch = first.max_batch > 0
        calls = [one.call for one in asked]
        if self._group:
            result = await getattr(mesh, f"_service_{kind}").call(first.method, calls, batch)
            return _of_group(result, len(asked), batch)
        only = await getattr(mesh, f"_service_{kind}").call_one(first.method, calls, batch)
        return [Replied(ok, item) for ok, item in only] if batch else [Replied(True, only)]

    async def _probe(self, effect: ProbeReplica) -> None:
        processes = self._processes.get((effect.replica, effect.generation))
        health = self.rules.health
        if processes is None or health is None:
            return
        cause: Exception | None = None
        try:
            await getattr(processes.mesh, health.endpoint).call()
        except Exception as exc:
            cause = exc
        self._decided.probed(effect.replica, effect.generation, cause, time.monotonic())
        self._act()

    # --- replicas

    async def _start(self, effect: StartReplica, processes: _Processes) -> None:
        key = effect.replica, effect.generation
        if self._processes.get(key) is not processes:  # it was let go in the same moment
            return
        try:
            processes.procs = processes.host.spawn_procs(self._per_replica, name=f"{self.rules.name}_{effect.replica}")
            name = f"{self.rules.name}_{effect.replica}_{effect.generation}"
            processes.mesh = processes.procs.spawn(name, self._class, *self._args, **self._kwargs)
            await ActorMesh.healthy(processes.mesh)
            try:
                await processes.mesh._service_made.call()
            except ActorError as exc:
                where = f"replica {effect.replica} of service {self.rules.name!r}"
                exc.message = f"{self._class.__qualname__}.__init__ raised at {where}."
                self._decided.not_made(*key, exc, time.monotonic())
                self._act()
                return
            if effect.version in self._updates:  # else a later one awaits it, or there was none
                await self._run_update(processes, effect.version)
        except Exception as exc:
            self._decided.lost(*key, exc, time.monotonic())
        else:
            self._decided.started(*key, time.monotonic())
        self._act()

    async def _prepare_replica(self, effect: PrepareReplica) -> None:
        key = effect.replica, effect.generation
        processes = self._processes.get(key)
        if processes is None:  # it was let go in the same moment
            return
        try:
            await self._prepare(processes, effect.version)
        except SupervisionError as exc:
            self._decided.lost(*key, exc, time.monotonic())
        except Exception as exc:
            self._decided.prepare_failed(*key, effect.version, exc, time.monotonic())
        else:
            self._decided.prepared(*key, effect.version, time.monotonic())
        self._act()

    async def _update_replica(self, effect: UpdateReplica) -> None:
        key = effect.replica, effect.generation
        try:
            await self._run_update(self._processes[key], effect.version)
        except SupervisionError as exc:
            self._decided.lost(*key, exc, time.monotonic())
        except Exception as exc:
            self._decided.update_failed(*key, exc, time.monotonic())
        else:
            self._decided.updated(*key, time.monotonic())
        self._act()

    async def _run_update(self, processes: _Processes, version: int) -> None:
        update = self._updates[version]
        if not update.then:
            kind = self._kinds[update.method]
            await getattr(processes.mesh, f"_service_{kind}").call(update.method, [update.call], False)
            return
        if processes.prepared != version:
            await self._prepare(processes, version)
        kind = "plain" if self._kinds[update.then] == "plain" else "async"
        await getattr(processes.mesh, f"_service_use_{kind}").call(update.then, version)

    async def _prepare(self, processes: _Processes, version: int) -> None:
        update = self._updates[version]
        threaded = self._kinds[update.method] == "plain"
        await processes.mesh._service_prepare.call(update.method, update.call, version, threaded)
        processes.prepared = version

    def _stop(self, replica: int, generation: int) -> None:
        processes = self._processes.pop((replica, generation), None)
        if processes is not None and processes.procs is not None:
            self._task(_stopped(processes.procs), self._stopping)

    def __supervise__(self, failure: MeshFailure) -> bool:
        for (replica, generation), processes in list(self._processes.items()):
            name = f"{self.rules.name}_{replica}_{generation}"
            if processes.mesh is not None and failure.mesh_name.rpartition("-")[0] == name:
                self._decided.lost(replica, generation, SupervisionError(failure.event), time.monotonic())
                self._act()
        return True

    async def __cleanup__(self, exc: Exception | None) -> None:
        tell_table(self, None)
        if self._timer is not None:
            self._timer.cancel()
        for task in [*self._tasks, *self._stopping]:
            task.cancel()

    def _say_failed(self, effect: ReplicaFailed) -> None:
        rules = self.rules
        if effect.pause is not None:
            then = (
                f"it starts again in {effect.pause:.3g} s, restart {effect.failures} of at most {rules.restarts} within "
                f"{rules.within:g} s"
            )
        elif effect.failures:
            then = f"it is given up after {rules.restarts} restarts within {rules.within:g} s"
        else:
            then = "it is given up: no replica of the service has ever started"
        _logger.warning(
            "replica %s of service %r failed: %s; %s", effect.replica, rules.name, in_short(effect.cause), then
        )

    def _say_policy_failed(self, effect: PolicyFailed) -> None:
        if not self._policy_failed:  # once: it is asked for every request
            self._policy_failed = True
            _logger.error(
                "the routing policy of service %r failed, and least_outstanding decides where it does: %r. A policy returns "
                "the number of one of the replicas that it is given, here one of %s",
                self.rules.name,
                effect.error,
                list(effect.given),
            )

    async def _say_closed(self) -> None:
        while self._stopping:
            await asyncio.gather(*self._stopping, return_exceptions=True)
        for port in self._wait_closed:
            port.send(None)
        self._wait_closed.clear()


async def _stopped(procs: ProcMesh) -> None:
    try:
        await procs.stop()
    except Exception as exc:  # it was dead
        _logger.debug("a replica's processes could not be stopped: %s", exc)


def _of_group(result: ValueMesh[Any], count: int, batch: bool) -> list[Replied]:
    """Returns the answers of a group of ranks, each with a mesh of the ranks' parts; the first error is that of a request."""
    if not batch:
        return [Replied(True, result)]
    replied = []
    for place in range(count):
        items = [items[place] for items in result.values()]
        errors = [item for ok, item in items if not ok]
        shape = Shape(list(result.extent.labels), NDSlice.new_row_major(list(result.extent.sizes)))
        parts = ValueMesh(shape, [item for _, item in items])
        replied.append(Replied(False, errors[0]) if errors else Replied(True, parts))
    return replied


def _failed(error: BaseException) -> Replied:
    try:
        return Replied(False, Sealed((error, error.__cause__)))
    except Exception as exc:  # of an exception that cannot be pickled
        return Replied(False, Sealed((ServiceError(f"{error}\n(the cause cannot be sent: {exc})"), None)))
