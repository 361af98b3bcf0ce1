"""Services in memory: the router, its replicas and their readers, with processes that die."""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest

from monarch._mesh.inspection import status_tables
from monarch._runtime.instrument import Counter, Gauge, Histogram
from monarch.actor import (
    Actor,
    ActorError,
    ProcMesh,
    SupervisionError,
    endpoint,
    this_host,
    this_proc,
)
from monarch.service import (
    Autoscale,
    HealthCheck,
    ReplicaLostError,
    ReplicaView,
    RouteRequest,
    Service,
    ServiceError,
    ServiceOverloaded,
    ServiceTimeoutError,
    ServiceUnavailableError,
    ServiceUpdateError,
    batched,
    serve,
)
from monarch.service import service as service_module
from monarch.service.dispatcher import Dispatcher
from monarch.service.status import updated
from monarch.testing import InProcessCluster, Local, VirtualClock
from tests.service.model import Event, Model, new_event, until_outstanding, until_up
from tests.support.watched import record_watched


def test_a_request_goes_to_one_replica(cluster: InProcessCluster) -> None:
    with serve(this_host(), Model, 3, replicas=2) as service:
        assert service.times.route(5).get() == 15
        assert service.later.route(5, plus=1).get() == 16
        answers = [service.times.answer(2).get() for _ in range(8)]
        assert {answer.replica for answer in answers} == {0, 1}
        assert {(answer.value, answer.version) for answer in answers} == {(6, 0)}

        async def many() -> list[int]:
            return await asyncio.gather(*(service.times.route(number) for number in range(20)))

        assert asyncio.run(many()) == [3 * number for number in range(20)]


def test_the_handle_goes_to_actors(cluster: InProcessCluster) -> None:
    class User(Actor):
        @endpoint
        async def use(self, service: Service) -> int:
            return await service.times.route(21)  # type: ignore[no-any-return]

    with serve(this_host(), Model) as service:
        assert this_host().spawn_procs().spawn("user", User).use.call_one(service).get() == 42
        assert len(pickle.dumps(service)) < 2000


def test_a_fan_out_asks_every_replica(cluster: InProcessCluster) -> None:
    with serve(this_host(), Model, replicas=3) as service:
        until_up(service, 3)
        assert service.times.fanout(4).get() == [8, 8, 8]
        with pytest.raises(ActorError, match=r"model.divide\(\) raised at replica 0"):
            service.divide.fanout(0).get()


def test_groups_answer_as_call_does(cluster: InProcessCluster) -> None:
    with serve(this_host(), Model, per_replica={"gpus": 2}) as service:
        ranks = service.rank.route().get()
        assert ranks.values() == [0, 1] and dict(ranks.extent) == {"gpus": 2}
        assert [one.get().values() for one in [service.many.route(1), service.many.route(2)]] == [[2, 2], [4, 4]]
        with pytest.raises(ActorError, match="thirteen"):
            service.many.route(13).get()
        with pytest.raises(TypeError, match="streams are of replicas with one process"):
            service.count.stream(1, Local([]))


def test_an_error_of_the_endpoint_is_the_callers(cluster: InProcessCluster) -> None:
    with serve(this_host(), Model) as service:
        with pytest.raises(ActorError, match=r"model.divide\(\) raised at replica 0") as caught:
            service.divide.route(0).get()
        assert isinstance(caught.value.exception, ZeroDivisionError)
        assert service.divide.route(1).get() == 2


def test_a_full_service_refuses_or_lets_wait(cluster: InProcessCluster) -> None:
    with serve(this_host(), Model, queue=1) as service:
        entered, gate = new_event(), new_event()
        running = service.wait.route(entered, gate)
        entered.value.wait()
        queued = service.times.route(1)
        refused = service.times.route(2).exception()
        assert isinstance(refused, ServiceOverloaded) and refused.retry_after > 0
        assert (
            "the service 'model' is full: it has 2 requests of at most 2, on 1 replica with 1 running and 1 waiting"
            in str(refused)
        )
        assert "service.options(wait=True)" in str(refused)
        waiting = service.options(wait=True).times.route(3)
        gate.value.set()
        assert [running.get(), queued.get(), waiting.get()] == [2, 2, 6]


def test_a_request_in_time_or_not(cluster: InProcessCluster) -> None:
    with serve(this_host(), Model, timeout=60) as service:
        entered, gate = new_event(), new_event()
        running = service.wait.route(entered, gate)
        entered.value.wait()
        with pytest.raises(
            ServiceTimeoutError, match=r"model.times\(\) .* timeout of 0.02 s: it had not begun, and was dropped"
        ):
            service.options(timeout=0.02).times.route(1).get()
        gate.value.set()
        assert running.get() == 2


def test_a_request_of_a_dead_replica_fails_with_the_cause(cluster: InProcessCluster) -> None:
    with serve(this_host(), Model, backoff=0) as service:
        entered, gate = new_event(), new_event()
        where = service.where.route().get()
        running = service.wait.route(entered, gate)
        queued = service.times.route(4)
        entered.value.wait()
        cluster.kill(where)
        with pytest.raises(
            ReplicaLostError, match=r"model.wait\(\) ran at replica 0, which died: Killed\(sig=9\) \(rank 0 of"
        ) as caught:
            running.get()
        assert "decorate the endpoint with @retried(n), below @endpoint" in str(caught.value)
        assert caught.value.replica == 0
        assert isinstance(caught.value.__cause__, SupervisionError)
        assert queued.get() == 8  # it had not begun
        gate.value.set()
        (replica,) = service.status().get().replicas
        assert (replica.state, replica.restarts) == ("up", 1) and "Killed(sig=9)" in replica.why


def test_a_request_that_may_run_again_does(cluster: InProcessCluster) -> None:
    import queue

    with serve(this_host(), Model, replicas=2, backoff=0) as service:
        entered: Local[Any] = Local(queue.Queue())
        gate = new_event()
        running = service.wait_again.route(entered, gate)
        for _ in range(2):
            cluster.kill(entered.value.get())
        assert entered.value.get() is not None
        gate.value.set()
        assert running.get() == "done"
        assert service.status().get().retried == 2


def test_a_group_dies_as_a_whole(cluster: InProcessCluster) -> None:
    with serve(this_host(), Model, per_replica={"gpus": 2}, backoff=0) as service:
        first, second = service.where.route().get().values()
        cluster.kill(second)
        assert service.options(wait=True, retries=1).times.route(2).get().values() == [4, 4]
        assert repr(service.where.route().get().values()[0]) != repr(first)


def test_a_service_whose_replicas_all_died_says_so(cluster: InProcessCluster) -> None:
    with serve(this_host(), Model, restarts=0) as service:
        cluster.kill(service.where.route().get())
        with pytest.raises((ServiceUnavailableError, ReplicaLostError)):
            service.times.route(1).get()
        with pytest.raises(
            ServiceUnavailableError, match="'model' has no replica left: each died more than 0 times"
        ) as caught:
            service.times.route(1).get()
        assert "Killed(sig=9)" in str(caught.value) and caught.value.__cause__ is not None
        service.scale(1).get()
        assert service.times.route(1).get() == 2


def test_a_constructor_that_raises_ends_the_service_at_once(
    cluster: InProcessCluster, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Actor):
        def __init__(self) -> None:
            raise ValueError("no weights")

        @endpoint
        def run(self) -> None: ...

    with serve(this_host(), Broken, replicas=2, backoff=1000) as service:
        for _ in range(2):
            with pytest.raises(
                ServiceUnavailableError, match="'broken' did not start, and does not try again"
            ) as caught:
                service.run.route().get()
            assert "Broken.__init__ raised: ValueError: no weights. service.scale(n)" in str(caught.value)
            cause = caught.value.__cause__
            assert isinstance(cause, ActorError) and isinstance(cause.exception, ValueError)
        assert [one.restarts for one in service.status().get().replicas] == [0, 0]
    assert (
        caplog.text.count("of service 'broken' failed: Broken.__init__ raised: ValueError: no weights; it is given up")
        == 2
    )


class Loose(Actor):
    """An actor whose constructor raises as often as `raises` says, which all simulated processes share."""

    raises: ClassVar[list[bool]] = []

    def __init__(self) -> None:
        if self.raises.pop(0):
            raise OSError("not yet")

    @endpoint
    def where(self) -> ProcMesh:
        return this_proc()


def test_a_constructor_that_raises_later_is_tried_again_and_each_time_said(
    cluster: InProcessCluster, caplog: pytest.LogCaptureFixture
) -> None:
    Loose.raises[:] = [False, True, True, False]
    with serve(this_host(), Loose, backoff=0.001) as service:
        cluster.kill(service.where.route().get())
        assert service.options(retries=1).where.route().get()
    lines = [line.getMessage() for line in caplog.records if "of service 'loose' failed" in line.getMessage()]
    assert len(lines) == 3 and "Killed(sig=9)" in lines[0]
    assert (
        "failed: Loose.__init__ raised: OSError: not yet; it starts again in 0.002 s, restart 2 of at most 5"
        in lines[1]
    )


def test_batches(cluster: InProcessCluster) -> None:
    with serve(this_host(), Model, queue=32) as service:
        assert [one.get() for one in [service.many.route(number) for number in range(12)]] == list(range(0, 24, 2))
        good, bad = service.many.route(1), service.many.route(13)
        assert good.get() == 2
        with pytest.raises(ActorError, match="returned an exception for this request of its batch"):
            bad.get()
        with pytest.raises(ActorError, match="got 1 requests, and returned 0 items: it has to return a list"):
            service.too_few.route(1).get()


def test_a_session_stays_and_is_told_when_it_moves(cluster: InProcessCluster) -> None:
    with serve(this_host(), Model, replicas=3, backoff=0) as service:
        until_up(service, 3)
        with service.session() as session:
            where = session.where.route().get()
            replicas = {session.times.answer(1).get().replica for _ in range(5)}
            assert len(replicas) == 1 and session.moves == 0
            cluster.kill(where)
            assert session.options(retries=1).times.route(1).get() == 2
            assert session.moves == 1
            assert "moved 1 times" in repr(session)
        with pytest.raises(RuntimeError, match="this session of service 'model' has ended, with its block"):
            session.times.route(1)


def test_a_session_in_async_code(cluster: InProcessCluster) -> None:
    async def use() -> list[int]:
        async with serve(this_host(), Model) as service, service.session() as session:
            return await asyncio.gather(*(session.times.route(number) for number in range(5)))

    assert asyncio.run(use()) == [0, 2, 4, 6, 8]


def test_updates_roll_and_answers_say_the_version(cluster: InProcessCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = record_watched(monkeypatch, service_module)
    with serve(this_host(), Model, 2, replicas=2, backoff=0) as service:
        until_up(service, 2)
        requests = [service.options(wait=True).times.answer(1) for _ in range(20)]
        assert service.update("load", 5).get() == 1
        ((title, far),) = watched
        assert (title, far()) == ("update of service 'model', replicas", (2, 2))
        requests += [service.times.answer(1) for _ in range(4)]
        answers = [request.get() for request in requests]
        assert {(answer.version, answer.value) for answer in answers} <= {(0, 2), (1, 5)}
        assert {answer.version for answer in answers[-4:]} == {1}

        cluster.kill(service.where.route().get())
        until_up(service, 2)
        assert {service.times.answer(1).get().value for _ in range(6)} == {5}  # the new one has the update

        with pytest.raises(
            ServiceUpdateError, match="update 2 of service 'model' failed at replica 0 and was stopped"
        ) as caught:
            service.update("load", -1).get()
        assert "negative weights" in str(caught.value.__cause__)
        until_up(service, 2)
        assert {service.times.answer(1).get().value for _ in range(6)} == {5}


def test_new_weights_are_prepared_beside_requests(cluster: InProcessCluster) -> None:
    with serve(this_host(), Model, 2, replicas=2, backoff=0) as service:
        until_up(service, 2)
        entered, gate = new_event(), new_event()
        updating = service.update_in_place("fetch", 5, entered, gate, then="use")
        assert entered.value.wait()
        before = [service.times.answer(1).get() for _ in range(4)]  # while it is prepared
        assert {(answer.value, answer.version, answer.replica) for answer in before} == {(2, 0, 0), (2, 0, 1)}
        gate.value.set()
        assert updating.get() == 1
        after = [service.times.answer(1).get() for _ in range(4)]
        assert {(answer.value, answer.version) for answer in after} == {(5, 1)}

        cluster.kill(service.where.route().get())
        until_up(service, 2)
        assert {service.times.answer(1).get().value for _ in range(6)} == {5}  # the new one has both steps

        with pytest.raises(
            ServiceUpdateError, match=r"ValueError: negative weights. No replica has it: all go on with version 1$"
        ):
            service.update_in_place("fetch", -1, entered, gate, then="use").get()
        status = service.status().get()
        assert ({one.version for one in status.replicas}, status.version) == ({1}, 1)
        with pytest.raises(TypeError, match=r"model.use\(scale\): missing a required argument: 'scale'"):
            service.update("use", x=1)


def test_a_replica_that_is_being_updated_does_not_count_as_done(cluster: InProcessCluster) -> None:
    with serve(this_host(), Model, 2, replicas=2, backoff=0) as service:
        until_up(service, 2)
        entered, gate = new_event(), new_event()
        updating = service.update("fetch", 5, entered, gate)
        assert entered.value.wait()
        status = service.status().get()
        assert status.version == 1 and [one.version for one in status.replicas if one.state == "updating"] == [1]
        assert updated(status) == (0, 2)
        gate.value.set()
        assert updating.get() == 1
        assert updated(service.status().get()) == (2, 2)


def test_of_two_updates_the_second_fails_and_the_first_stays(cluster: InProcessCluster) -> None:
    with serve(this_host(), Model, 2, backoff=0) as service:
        until_up(service)
        first, second = service.update("load", 5), service.update("load", -1)
        assert first.get() == 1
        with pytest.raises(ServiceUpdateError, match="is replaced, with version 1"):
            second.get()
        answer = service.options(wait=True).times.answer(1).get()
        assert (answer.value, answer.version) == (5, 1)


def test_a_process_tells_of_its_services(cluster: InProcessCluster) -> None:
    with serve(this_host(), Model) as service:
        assert service.many.route(1).get() == 2
        (table,) = status_tables.decode(status_tables.answer(None, b""))
        assert table.title.startswith("service 'model', version 0: 0 outstanding of at most 17, ")
        (row,) = (dict(zip(table.columns, row, strict=True)) for row in table.rows)
        assert (row["state"], row["served"], row["batch"], row["version"]) == ("up", "1", "1", "0")
    assert status_tables.decode(status_tables.answer(None, b"")) == []


def test_a_table_that_is_long_or_changes_is_told_all_the_same() -> None:
    many = status_tables.StatusTable("t", ["a"], [["x"]] * 250)
    told = iter([RuntimeError("changed"), many])

    def tell() -> status_tables.StatusTable:
        found = next(told, RuntimeError("changed"))
        if isinstance(found, RuntimeError):
            raise found
        return found

    status_tables.tell_table("key", tell)
    try:
        (table,) = status_tables.decode(status_tables.answer(None, b""))
        assert len(table.rows) == status_tables.MOST_ROWS and table.lines()[-1] == "x  and 50 more"
        (table,) = status_tables.decode(status_tables.answer(None, b""))
        assert table.lines() == ["a table that changes too fast to be read"]
    finally:
        status_tables.tell_table("key", None)


def test_an_awaited_request_is_cancelled_with_its_task(cluster: InProcessCluster) -> None:
    with serve(this_host(), Model) as service:
        entered, gate = new_event(), new_event()
        running = service.wait.route(entered, gate)
        assert entered.value.wait()

        async def leave() -> None:
            asking = asyncio.create_task(service.times.cancellable(1))
            while (await service.status()).outstanding < 2:
                pass
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            while (await service.status()).cancelled < 1:
                pass
            assert (await service.status()).outstanding == 1

        asyncio.run(leave())
        gate.value.set()
        assert running.get() == 2
        assert asyncio.run(service.times.cancellable(4)).value == 8


def test_scale_to_zero_and_up_again(cluster: InProcessCluster) -> None:
    with serve(this_host(), Model) as service:
        assert service.times.route(1).get() == 2
        service.scale(0).get()
        waiting = service.times.route(2)
        assert service.status().get().waiting == 1
        service.scale(2).get()
        assert waiting.get() == 4
        until_up(service, 2)


def test_autoscaling_starts_from_nothing(cluster: InProcessCluster) -> None:
    with serve(this_host(), Model, replicas=0, autoscale=Autoscale(0, 2, idle=0.01)) as service:
        assert service.status().get().replicas == []
        assert service.times.route(1).get() == 2
        while service.status().get().replicas:
            pass
        entered, gate = new_event(), new_event()
        running = [service.wait.route(entered, gate) for _ in range(3)]
        assert len(service.status().get().replicas) == 2
        gate.value.set()
        assert [one.get() for one in running] == [2, 2, 2]


def test_a_replica_that_fails_its_check_is_replaced(cluster: InProcessCluster) -> None:
    with serve(this_host(), Model, health=HealthCheck("check", every=0.01), backoff=0) as service:
        service.become_sick.route().get()
        while not service.status().get().replicas[0].restarts:
            pass
        assert "not well" in service.status().get().replicas[0].why
        assert service.times.route(1).get() == 2


def test_a_replica_that_only_raises_is_left_alone(cluster: InProcessCluster) -> None:
    with serve(this_host(), Model, breaker=2, pause=0.01) as service:
        assert [type(service.divide.route(0).exception()) for _ in range(2)] == [ActorError, ActorError]
        assert service.status().get().replicas[0].state in ("suspended", "trial")
        assert service.times.route(1).get() == 2  # it waits, and then tries it
        assert service.status().get().replicas[0].state == "up"


def by_the_text(request: RouteRequest, replicas: Sequence[ReplicaView]) -> int:
    return max(replicas, key=lambda replica: (replica.matched, -replica.number)).number


def test_policies(cluster: InProcessCluster, caplog: pytest.LogCaptureFixture) -> None:
    with serve(this_host(), Model, replicas=3, routing="by_prefix") as service:
        until_up(service, 3)
        first = service.complete.answer("abcdef").get().replica
        assert {service.complete.answer("abcdxy").get().replica for _ in range(4)} == {first}
        assert service.complete.answer("nothing").get().replica != first
    with serve(this_host(), Model, replicas=2, routing=by_the_text) as service:
        until_up(service, 2)
        assert {service.complete.answer("ab").get().replica for _ in range(4)} == {0}
    with serve(this_host(), Model, replicas=2, routing=lambda request, replicas: 77) as service:
        assert service.complete.route("ab").get() == "AB"
        assert "the routing policy of service 'model' failed, and least_outstanding decides" in caplog.text


def test_shutdown_finishes_what_is_there(cluster: InProcessCluster) -> None:
    service = serve(this_host(), Model)
    entered, gate = new_event(), new_event()
    running, queued = service.wait.route(entered, gate), service.times.route(3)
    entered.value.wait()
    other = pickle.loads(pickle.dumps(service))
    ending = other.shutdown()
    with pytest.raises(ServiceUnavailableError, match="'model' was shut down, and takes no requests"):
        service.times.route(1).get()
    with pytest.raises(ServiceUnavailableError, match="'model' was shut down, and takes no updates"):
        service.update("load", 1).get()
    gate.value.set()
    ending.get()
    assert (running.get(), queued.get()) == (2, 6)
    service.shutdown().get()
    for late in (service.times.route, service.options(retries=1).times.fanout, service.session().times.route):
        with pytest.raises(ServiceUnavailableError, match="the service 'model' was shut down: make another one"):
            late(1)
    for asked in (service.status, lambda: service.scale(1), lambda: service.update("load", 1)):
        with pytest.raises(ServiceUnavailableError, match="the service 'model' was shut down: make another one"):
            asked()
    service.shutdown().get()


def test_the_end_of_the_owner_ends_it(cluster: InProcessCluster) -> None:
    class Owner(Actor):
        @endpoint
        async def begin(self) -> tuple[Service, ProcMesh]:
            service = serve(this_host(), Model)
            return service, await service.where.route()

    owner = this_host().spawn_procs().spawn("owner", Owner)
    service, _where = owner.begin.call_one().get()
    owner.stop().get()
    with pytest.raises(SupervisionError):
        service.times.route(1).get()


def test_what_is_asked_wrongly_says_how(cluster: InProcessCluster) -> None:
    with pytest.raises(TypeError, match="serve takes hosts, such as this_host\\(\\), and got a mesh of processes"):
        serve(this_host().spawn_procs(), Model)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"Model\(scale=2\): got an unexpected keyword argument 'size'"):
        serve(this_host(), Model, size=3)
    with pytest.raises(TypeError, match=r"serve takes a subclass of monarch.actor.Actor"):
        serve(this_host(), int)
    with pytest.raises(ValueError, match="routing is one of round_robin, least_outstanding, two_choices, by_prefix"):
        serve(this_host(), Model, routing="random")
    with pytest.raises(ValueError, match="service 'model': concurrency is 1 or more, got 0"):
        serve(this_host(), Model, concurrency=0)
    with pytest.raises(ValueError, match="Model has no endpoint 'well' that returns"):
        serve(this_host(), Model, health=HealthCheck("well"))
    with pytest.raises(TypeError, match="@batched decorates the method itself"):

        class _Wrong(Actor):
            @batched()
            @endpoint
            def run(self) -> None: ...

    class Taken(Actor):
        @endpoint
        def update(self) -> None: ...

    with pytest.raises(ValueError, match="Taken has an endpoint update, and a service has a method of that name"):
        serve(this_host(), Taken)

    with serve(this_host(), Model) as service:
        with pytest.raises(ValueError, match="retries is 0 or more"):
            service.options(retries=-1)
        with pytest.raises(AttributeError, match="service 'model' of Model has no endpoint 'tiems'; it has acount,"):
            service.tiems.route(1)
        with pytest.raises(TypeError, match=r"model.times\(number\): too many positional arguments"):
            service.times.route(1, 2)
        with pytest.raises(TypeError, match=r"count\(\) is a generator: its values come from stream\(\), not route"):
            service.count.route(1, Local([]))
        with pytest.raises(TypeError, match="times\\(\\) is no generator, and has no stream"):
            service.times.stream(1)
        with pytest.raises(ValueError, match="update calls an endpoint of Model, one of"):
            service.update("count")
        with pytest.raises(ValueError, match="scale: replicas is 0 or more"):
            service.scale(-1)
        with pytest.raises(ValueError, match="window is 1 or more"):
            service.options(window=0)
        assert isinstance(service.divide.route(0).exception(), ActorError)
        assert issubclass(ServiceTimeoutError, TimeoutError) and issubclass(ReplicaLostError, ServiceError)


class Locker(Actor):
    """Returns what cannot be sent."""

    @endpoint
    def lock(self) -> Any:
        return {"mine": threading.Lock()}

    @endpoint
    @batched(max_batch=2)
    async def locks(self, numbers: list[int]) -> list[Any]:
        return [number or threading.Lock() for number in numbers]


def test_an_answer_that_cannot_be_sent_says_which_part_and_spoils_no_other_of_its_batch(
    cluster: InProcessCluster,
) -> None:
    with serve(this_host(), Locker) as service:
        with pytest.raises(
            ActorError, match=r"return value of lock\(\).*result\['mine'\] cannot be sent.*_thread.lock"
        ):
            service.lock.route().get(60)
        first, others = (
            service.locks.route(5),
            [service.locks.route(number) for number in (0, 7)],
        )  # a batch of two waits
        assert (first.get(60), others[1].get(60)) == (5, 7)
        with pytest.raises(ActorError, match=r"(?s)for this request of its batch what cannot.*result cannot be sent"):
            others[0].get(60)


def test_a_batch_of_which_one_was_given_up(cluster: InProcessCluster) -> None:
    with serve(this_host(), Model, queue=8) as service:
        entered, gate = new_event(), new_event()
        running = service.wait.route(entered, gate)
        entered.value.wait()
        late = service.options(timeout=0.01).many.route(1)
        batch = [service.many.route(number) for number in (2, 3)]
        assert isinstance(late.exception(), ServiceTimeoutError)
        gate.value.set()
        assert (running.get(), [one.get() for one in batch]) == (2, [4, 6])


def test_the_death_of_the_router_is_told_to_its_callers(cluster: InProcessCluster) -> None:
    service = serve(this_host(), Model)
    entered, gate = new_event(), new_event()
    running = service.wait.route(entered, gate)
    entered.value.wait()
    assert service._procs is not None
    cluster.kill(service._procs)
    gate.value.set()
    with pytest.raises(SupervisionError, match="Killed"):
        running.get()
    with pytest.raises(SupervisionError):
        service.times.route(1).get()


@pytest.mark.parametrize("event", ["answered", "tick"])
def test_a_mistake_in_the_router_holds_nobody_up(
    cluster: InProcessCluster, monkeypatch: pytest.MonkeyPatch, event: str
) -> None:
    def wrong(*_args: Any) -> None:
        raise RuntimeError("a mistake")

    service = serve(this_host(), Model)
    assert service.times.route(1).get() == 2
    monkeypatch.setattr(Dispatcher, event, wrong)
    entered, gate = new_event(), new_event()
    running = service.options(timeout=0.01 if event == "tick" else None).wait.route(entered, gate)
    if event == "answered":
        gate.value.set()
    with pytest.raises(SupervisionError, match=r"the router of service 'model' failed:[^@]*a mistake"):
        running.get()
    gate.value.set()


@pytest.mark.parametrize(("spares", "before"), [(0, [0, 1]), (1, [0, 0])])
def test_replicas_of_a_host_that_dies_start_on_another(spares: int, before: list[int]) -> None:
    clock = VirtualClock()
    with (
        InProcessCluster(hosts=2, clock=clock) as cluster,
        serve(cluster.hosts, Model, replicas=2, backoff=0, spares=spares) as service,
    ):
        until_up(service, 2)
        assert sorted(one.host for one in service.status().get().replicas) == before
        cluster.kill_agent(0)
        while {one.host for one in service.status().get().replicas if one.state == "up"} != {1} or any(
            one.state != "up" for one in service.status().get().replicas
        ):
            clock.advance(1)
        assert service.times.fanout(3).get() == [6, 6]


def test_replicas_that_are_let_go_while_they_start_leave_nothing(cluster: InProcessCluster) -> None:
    with serve(this_host(), Model, replicas=0) as service:
        for count in (3, 0, 2, 0):
            service.scale(count).get()
        assert service.status().get().replicas == []
        waiting = service.times.route(1)
        assert service.update("load", 3).get() == 1
        service.scale(1).get()
        assert waiting.get() == 3
        with service.options(timeout=30) as same:
            assert same.times.route(2).get() == 6


def test_what_is_measured(cluster: InProcessCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[tuple[str, float, dict[str, Any]]] = []

    def note(self: Any, amount: float, attributes: dict[str, Any]) -> None:
        found.append((self.name, amount, attributes))

    for instrument, method in ((Counter, "add"), (Gauge, "set"), (Histogram, "record")):
        monkeypatch.setattr(instrument, method, note)
    with serve(this_host(), Model) as service:
        assert service.times.route(1).get() == 2
        assert isinstance(service.options(timeout=0).times.route(1).exception(), ServiceTimeoutError)
    names = [name for name, _amount, _attributes in found]
    assert names == [
        "service.batch_size", "service.outstanding", "service.latency", "service.outstanding", "service.version",
        "service.not_answered",
    ]  # fmt: skip
    assert [amount for name, amount, _attributes in found if name == "service.outstanding"] == [1, 0]
    assert found[0][2] == {"service": "model", "replica": 0}
    assert found[-1][1:] == (1, {"service": "model", "error": "ServiceTimeoutError"})


def test_arguments_are_the_same_by_place_and_by_name(cluster: InProcessCluster) -> None:
    class Lengths(Actor):
        @endpoint
        @batched(max_batch=4, key=lambda word: len(word) > 1)
        def upper(self, words: list[str]) -> list[str]:
            return [f"{word.upper()} of {len(words)}" for word in words]

        @endpoint
        def wait(self, entered: Event, gate: Event) -> None:
            entered.value.set()
            gate.value.wait()

    with serve(this_host(), Lengths) as service:
        entered, gate = new_event(), new_event()
        running = service.wait.route(entered, gate)
        assert entered.value.wait()
        asked = [service.upper.route("ab"), service.upper.route(words="cd"), service.upper.route("e")]
        until_outstanding(service, 4)
        gate.value.set()
        assert [one.get() for one in asked] == ["AB of 2", "CD of 2", "E of 1"]
        running.get()


def test_timeouts_name_the_service_and_what_was_asked(cluster: InProcessCluster) -> None:
    with serve(this_host(), Model) as service:
        entered, gate = new_event(), new_event()
        running = service.wait.route(entered, gate)
        assert entered.value.wait()
        for future, what in [
            (running, r"wait\(\) of service 'model'"),
            (service.times.answer(1), r"times\(\) of service 'model'"),
            (service.times.fanout(1), r"times\(\) of service 'model'"),
            (service.update("times", 1), r"update\('times'\) of service 'model'"),
        ]:
            assert "of service 'model', pending" in repr(future)
            with pytest.raises(TimeoutError, match=rf"no result after 0.001 s from {what}; .*service.status\(\) tells"):
                future.get(timeout=0.001)
        gate.value.set()


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"replicas": 1.5}, TypeError, "service 'model': replicas is a whole number, got 1.5"),
    ({"queue": None}, TypeError, "service 'model': queue is a whole number, got None"),
    ({"timeout": "5s"}, TypeError, "timeout, in seconds, is a number, got '5s'"),
    ({"timeout": float("nan")}, ValueError, "timeout, in seconds, is 0 or more, got nan"),
    ({"per_replica": 2}, TypeError, r"names the processes of a replica, such as \{\"gpus\": 2\}, got 2"),
    ({"per_replica": {"gpus": 0}}, ValueError, "per_replica: gpus is 1 or more, got 0"),
    ({"health": "check"}, TypeError, r"health is such as HealthCheck\(\"check\"\), got 'check'"),
    ({"autoscale": (1, 4)}, TypeError, r"autoscale is such as Autoscale\(least=1, most=4\), got \(1, 4\)"),
    ({"replica": 2}, TypeError, "got an unexpected keyword argument 'replica'; serve has an option 'replicas'"),
    ({"spares": 1}, ValueError, "1 of its hosts are to be spares, and it has 1"),
]


def test_options_that_cannot_be_are_refused_where_they_are_given(cluster: InProcessCluster) -> None:
    for options, error, text in WRONG:
        with pytest.raises(error, match=text):
            serve(this_host(), Model, **options)
    with pytest.raises(TypeError, match=r"give the class and its arguments, serve\(hosts, Model, ...\)"):
        serve(this_host(), Model.__new__(Model))  # type: ignore[arg-type]
    with serve(this_host(), Model) as service:
        with pytest.raises(AttributeError, match=r"which has no call\(\): route\(\) asks one replica, fanout\(\) all"):
            service.times.call(1)
        with pytest.raises(TypeError, match=r"is asked by times.route\(...\)"):
            service.times(1)
