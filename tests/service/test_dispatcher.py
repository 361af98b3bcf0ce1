"""The decisions of a service, one by one, in virtual time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from monarch.service.declared import batched, blocks_of, declared, prefixed, retried
from monarch.service.effects import ReplyWith
from monarch.service.errors import (
    ReplicaLostError,
    ServiceOverloaded,
    ServiceTimeoutError,
    ServiceUnavailableError,
    ServiceUpdateError,
)
from monarch.service.fleet import in_short
from monarch.service.histogram import DurationHistogram
from monarch.service.replica_record import ServiceRequest
from monarch.service.routing import (
    ReplicaView,
    RouteRequest,
    by_prefix,
    least_outstanding,
    round_robin,
    two_choices,
)
from monarch.service.rules import Autoscale, HealthCheck, ServiceRules
from tests.service.simulation import Simulation

RULES = ServiceRules("s", replicas=1, concurrency=1, queue=2)


def world(**rules: Any) -> Simulation:
    """Returns a service whose replicas are up, and answer within a tenth of a second."""
    made = Simulation(replace(RULES, **rules))
    made.run(1)
    return made


def kinds(made: Simulation, numbers: list[int]) -> list[type]:
    return [type(made.outcomes.get(number)) for number in numbers]


NONE = type(None)


def test_what_is_beyond_the_bounds_is_refused_or_waits() -> None:
    made = world()
    numbers = [made.request() for _ in range(4)]
    assert kinds(made, numbers) == [NONE, NONE, NONE, ServiceOverloaded]
    waiting = made.request(wait=True)
    made.run(5)
    assert kinds(made, [*numbers[:3], waiting]) == [ReplyWith] * 4
    made.finish()

    narrow = world(limit=1)
    assert kinds(narrow, [narrow.request(), narrow.request()]) == [NONE, ServiceOverloaded]
    narrow.finish()


def test_how_long_to_wait_follows_what_requests_take() -> None:
    made = world(queue=0)
    for _ in range(100):
        made.request()
        made.run(0.2)
    made.request()
    refused = made.outcomes[made.request()]
    assert isinstance(refused, ServiceOverloaded) and 0.01 < refused.retry_after < 0.1
    made.finish()


def test_before_a_replica_is_up_requests_wait_within_the_limit() -> None:
    made = Simulation(RULES)
    numbers = [made.request() for _ in range(4)]
    assert kinds(made, numbers) == [NONE, NONE, NONE, ServiceOverloaded]
    made.run(5)
    assert kinds(made, numbers[:3]) == [ReplyWith] * 3
    made.finish()


def test_while_some_replicas_start_requests_wait_within_the_limit_of_all() -> None:
    made = Simulation(replace(RULES, replicas=3))
    made.slow = 10.0
    while not any(replica.state == "up" for replica in made.machine.replicas.values()):
        made.run(0.01)
    states = sorted(replica.state for replica in made.machine.replicas.values())
    assert states == ["starting", "starting", "up"]
    bound = [made.request(session="s") for _ in range(4)]  # to the one that is up
    numbers = [made.request() for _ in range(7)]
    assert kinds(made, bound) == [NONE, NONE, NONE, ServiceOverloaded]
    assert kinds(made, numbers) == [NONE] * 6 + [ServiceOverloaded]
    made.slow = 0.0
    made.run(60)
    assert kinds(made, [*bound[:3], *numbers[:6]]) == [ReplyWith] * 9
    made.finish()


def test_a_deadline_drops_what_has_not_begun() -> None:
    made = world()
    made.slow = 10.0
    running, queued = made.request(deadline=made.now + 0.01), made.request(deadline=made.now + 0.01)
    made.run(0.01)
    assert kinds(made, [running, queued]) == [ServiceTimeoutError] * 2
    assert [request for _replica, request in made.begun] == [running]
    assert "it ran at replica 0, which goes on" in str(made.outcomes[running])
    assert "s.work() was not answered within its timeout of 0.01 s: it had not begun" in str(made.outcomes[queued])
    late = made.request(deadline=made.now)
    assert kinds(made, [late]) == [ServiceTimeoutError]
    made.finish()


@pytest.mark.parametrize("wait", [0.0, 0.02])
def test_a_replica_that_does_nothing_takes_a_batch_at_once(wait: float) -> None:
    made = world(queue=16)
    for _ in range(6):
        made.request(max_batch=4, max_wait=wait)
    made.run(2)
    assert [len(batch) for batch in made.batches] == [1, 4, 1]
    made.finish()


def test_a_replica_at_work_waits_for_company() -> None:
    made = world(queue=16, concurrency=2)
    made.slow = 100.0
    made.request(max_batch=3, max_wait=0.5)
    made.request(max_batch=3, max_wait=0.5)
    made.run(0.4)
    assert [len(batch) for batch in made.batches] == [1]
    made.request(max_batch=3, max_wait=0.5)
    made.run(0.1)
    assert [len(batch) for batch in made.batches] == [1, 2]  # the first of them has waited for half a second
    made.finish()

    full = world(queue=16, concurrency=2)
    full.slow = 100.0
    for _ in range(4):
        full.request(max_batch=3, max_wait=0.5)
    assert [len(batch) for batch in full.batches] == [1, 3]
    full.finish()


def test_keys_and_methods_are_not_mixed_in_a_batch() -> None:
    made = world(queue=16)
    for key in "xxyxy":
        made.request(max_batch=8, key=key)
    made.request("other", max_batch=8, key="x")
    made.run(5)
    assert made.batches == [(1,), (2, 4), (3, 5), (6,)]
    made.finish()


def test_what_ran_at_a_dead_replica_fails_or_goes_elsewhere() -> None:
    made = world(replicas=2, queue=4)
    made.slow = 100.0
    numbers = [made.request(), made.request(retries=1), made.request(), made.request()]
    made.kill(0)
    made.kill(1)
    assert kinds(made, numbers) == [ReplicaLostError, NONE, NONE, NONE]
    error = made.outcomes[numbers[0]]
    assert "which died: killed by signal 9. It was not given to another one" in str(error)
    assert str(error.__cause__) == "killed by signal 9"
    made.run(500)
    assert kinds(made, numbers[1:]) == [ReplyWith] * 3
    made.finish()

    again = world()
    again.slow = 100.0
    number = again.request(retries=1)
    again.kill(0)
    again.run(2)
    again.kill(0)
    assert "which died: killed by signal 9, as did the 1 before that had it" in str(again.outcomes[number])
    again.finish()


def test_restarts_wait_longer_each_time_and_end() -> None:
    made = world(restarts=3, backoff=1.0)
    for wait in (1.0, 2.0, 4.0):
        made.kill(0)
        assert made.machine.replicas[0].until == made.now + wait
        made.run(wait + 1)
        assert made.machine.replicas[0].state == "up"
    made.kill(0)
    assert made.machine.replicas[0].state == "lost"
    refused = made.outcomes[made.request()]
    assert isinstance(refused, ServiceUnavailableError)
    assert "has no replica left: each died more than 3 times within 60 s, the last because killed by signal 9" in str(
        refused
    )
    made.machine.scale(1, made.now)
    made.run(1)
    number = made.request()
    made.run(1)
    assert kinds(made, [number]) == [ReplyWith]
    made.finish()


def test_a_host_where_replicas_die_is_avoided() -> None:
    made = world(replicas=4, hosts=3, backoff=0.0)
    assert sorted(made.hosts) == [0, 0, 1, 2]
    there = made.machine.replicas[0].host
    made.kill(0)
    made.run(2)
    assert made.machine.replicas[0].host != there
    made.finish()


def test_the_circuit_opens_and_closes() -> None:
    made = world(breaker=3, pause=5.0)
    made.raising = 1.0
    for _ in range(3):
        made.request()
        made.run(0.2)
    assert made.machine.replicas[0].state == "suspended"
    number = made.request()
    made.run(4)
    assert kinds(made, [number]) == [NONE]
    made.run(1.5)  # one request is let through, and raises
    assert kinds(made, [number]) == [ReplyWith] and made.machine.replicas[0].state == "suspended"
    made.raising = 0
    number = made.request()
    made.run(6)
    assert kinds(made, [number]) == [ReplyWith] and made.machine.replicas[0].state == "up"
    made.finish()


def test_autoscaling() -> None:
    made = world(replicas=0, autoscale=Autoscale(0, 3, target=2, idle=10.0), queue=8)
    assert made.machine.replicas == {}
    made.slow = 0.01
    numbers = [made.request() for _ in range(5)]
    assert made.machine.target == 3
    made.run(5)
    assert kinds(made, numbers) == [ReplyWith] * 5 and len(made.machine.replicas) == 3
    made.run(8)
    assert len(made.machine.replicas) == 2  # as many as were wanted at most in those ten seconds
    made.run(12)
    assert made.machine.replicas == {} and made.machine.next_due() is None
    number = made.request()
    made.run(5)
    assert kinds(made, [number]) == [ReplyWith]
    made.finish()


def test_a_replica_that_goes_finishes_what_it_has() -> None:
    made = world(replicas=2)
    made.slow = 50.0
    numbers = [made.request() for _ in range(4)]
    made.machine.scale(1, made.now)
    made.settle()
    assert [replica.state for replica in made.machine.replicas.values()].count("leaving") == 1
    made.run(300)
    assert kinds(made, numbers) == [ReplyWith] * 4 and len(made.living) == 1
    made.finish()


def test_updates_go_from_one_to_the_next() -> None:
    made = world(replicas=3)
    first, second = made.machine.update(made.now), made.machine.update(made.now)
    made.settle()
    states = [replica.state for replica in made.machine.replicas.values()]
    assert sorted(states) == ["up", "up", "updating"]
    number = made.request()
    made.run(30)
    assert made.updates == {first: None, second: None} and kinds(made, [number]) == [ReplyWith]
    assert {living.version for living in made.living.values()} == {second}
    made.finish()


def test_an_update_that_kills_stops_at_the_second_time() -> None:
    made = world(replicas=2, backoff=0.0)
    version = made.machine.update(made.now)
    made.settle()
    made.kill(0)
    assert made.updates == {}
    while version not in made.updates:
        if made.machine.replicas[0].state == "starting":
            made.kill(0)
        else:
            made.run(0.01)
    error = made.updates[version]
    assert isinstance(error, ServiceUpdateError) and error.replica == 0
    assert (
        "update 1 of service 's' failed at replica 0 and was stopped: killed by signal 9. Replicas that have it: none"
        in str(error)
    )
    made.run(5)
    assert {living.version for living in made.living.values()} == {0}
    assert made.machine.update(made.now) == 2
    made.settle()
    made.run(10)
    assert made.updates[2] is None
    made.finish()


def test_a_health_check_that_hangs_ends_the_replica() -> None:
    made = world(health=HealthCheck("check", every=1.0, timeout=2.0), backoff=0.0)
    made.run(5)
    assert made.machine.replicas[0].restarts == 0
    made.broken = 1.0
    made.run(3)
    made.broken = 0.0
    made.run(5)
    assert made.machine.replicas[0].restarts >= 1
    made.finish()


def view(number: int, outstanding: int, matched: int = 0) -> ReplicaView:
    return ReplicaView(number, outstanding, 0, 0, 0, matched)


def test_policies() -> None:
    views = [view(1, 5), view(4, 2, 3), view(7, 2), view(9, 3, 3)]
    asked = [RouteRequest("work", "", turn) for turn in range(200)]
    assert [round_robin(one, views) for one in asked[:5]] == [1, 4, 7, 9, 1]
    assert {least_outstanding(one, views) for one in asked} == {4, 7}
    assert {by_prefix(one, views) for one in asked} == {4}
    drawn = [two_choices(one, views) for one in asked]
    assert set(drawn) == {4, 7, 9}  # the one with most to do is never the better of two
    assert all(drawn.count(number) > 20 for number in (4, 7, 9))
    assert two_choices(asked[0], views[:1]) == 1


def test_declarations() -> None:
    @retried(2)
    @batched(max_batch=4, key=len)
    @prefixed(lambda text: text, block=2)
    def work(self: Any, text: str) -> str:
        return text

    found = declared(work)
    assert (found.max_batch, found.max_wait, found.retries, found.block) == (4, 0.01, 2, 2)
    assert found.key is len and declared(len).max_batch == 0
    for wrong in (lambda: batched(max_batch=0), lambda: retried(0), lambda: prefixed(str, block=0)):
        with pytest.raises(ValueError, match="is 1 or more"):
            wrong()
    for least, most in ((-1, 1), (2, 1), (0, 0)):
        with pytest.raises(ValueError, match="least"):
            Autoscale(least, most)
    with pytest.raises(ValueError, match="target is above 0"):
        Autoscale(target=0)
    with pytest.raises(ValueError, match="every is above 0"):
        HealthCheck("check", every=0)


def test_declarations_that_cannot_be_are_refused() -> None:
    for wrong, text in (
        (lambda: batched(lambda self: None), r"write @batched\(\) with its brackets"),  # type: ignore[arg-type]
        (lambda: retried(lambda self: None), r"such as @retried\(2\)"),  # type: ignore[arg-type]
        (lambda: retried("3"), "retries is a whole number, got '3'"),  # type: ignore[arg-type]
        (lambda: prefixed("prompt"), "takes a function of a request's arguments"),  # type: ignore[arg-type]
    ):
        with pytest.raises(TypeError, match=text):
            wrong()


def test_blocks_stand_for_all_before_them() -> None:
    whole = blocks_of("abcdef", 2)
    assert len(whole) == 3 and blocks_of("abcdefg", 2) == whole
    assert blocks_of("abXXef", 2)[0] == whole[0] and not {*blocks_of("abXXef", 2)[1:]} & {*whole}
    assert blocks_of([1, 2, 3], 2) == blocks_of([1, 2, 9], 2) and blocks_of("a", 2) == ()
    assert len(blocks_of("x" * 100_000, 1)) == 256


def test_percentiles() -> None:
    found = DurationHistogram()
    assert found.percentile(50) is None
    for number in range(1, 1001):
        found.add(number / 1000)
    for percent in (50, 90, 99):
        percentile = found.percentile(percent)
        assert percentile is not None and percent / 100 <= percentile <= percent / 100 * 1.2
    found.add(0)
    found.add(1e9)
    assert found.count == 1002


def test_a_cause_in_short() -> None:
    assert in_short("killed") == "killed"
    assert in_short("x" * 10_000) == "x" * 500
    assert in_short(ValueError()) == "ValueError"


def test_a_request_of_a_session_waits_for_those_before_it() -> None:
    made = world(replicas=2, queue=4, concurrency=2, backoff=0.0)
    made.slow = 50.0
    numbers = [made.request(session="a", retries=3) for _ in range(4)]
    place = made.machine.requests[numbers[0]].place
    assert {made.machine.requests[number].place for number in numbers} == {place}
    made.kill(place)
    assert {made.machine.requests[number].place for number in numbers} == {1 - place}
    assert [request for _replica, request in made.begun] == [1, 2, 1, 2]
    made.run(500)
    replies = [made.outcomes[number] for number in numbers]
    assert [reply.moves for reply in replies if isinstance(reply, ReplyWith)] == [1] * 4
    made.finish()


def test_requests_are_told_apart_by_what_they_are() -> None:
    assert ServiceRequest(1, "work") != ServiceRequest(1, "work")


def test_what_begins_again_begins_before_later_requests_of_its_session() -> None:
    made = world(replicas=2, concurrency=1, queue=2, limit=10, backoff=0.0)
    made.slow = 50.0
    first = made.request(session="a", retries=1)
    old = made.machine.requests[first].place
    (other,) = made.fanout(1 - old)
    made.machine.target = 1
    made.machine._let_go(made.machine.replicas[old], made.now)  # it still runs the first
    later = [made.request(session="a", wait=True) for _ in range(3)]
    assert {made.machine.requests[number].place for number in later[:2]} == {1 - old}  # its queue is full now
    made.kill(old)
    made.run(500)
    assert [request for _replica, request in made.begun] == [first, other, first, *later]
    made.finish()


def test_an_answer_that_comes_after_the_death_is_nobodys() -> None:
    made = world(backoff=0.0)
    number = made.request(retries=1)
    attempt = made.machine._attempt
    made.kill(0)
    made.machine.answered(attempt, made.now)
    made.settle()
    assert kinds(made, [number]) == [NONE]
    made.finish()


def starting_during_an_update(queue: int) -> Simulation:
    """Returns a service whose replica 0 drains for an update, and whose replica 1 came up meanwhile."""
    made = world(replicas=2, queue=queue, backoff=0.0)
    made.slow = 500.0
    made.fanout(0)
    made.kill(1)
    made.machine.tick(made.now)
    made.settle()
    assert made.machine.replicas[1].state == "starting"
    made.machine.update(made.now)
    made.settle()
    assert made.machine.replicas[0].state == "draining"
    while made.machine.replicas[1].state == "starting":
        made.run(0.01)
    return made


def test_a_replica_that_starts_gets_the_update_first() -> None:
    made = starting_during_an_update(queue=4)
    assert made.machine.replicas[1].state == "updating"
    number = made.request()
    while made.machine.replicas[1].state == "updating":
        assert number not in [request for _replica, request in made.begun]
        made.run(0.01)
    assert (1, number) in made.begun and made.machine.replicas[1].version == 1
    made.finish()


def test_an_update_that_stops_elsewhere_lets_a_draining_replica_go_on() -> None:
    made = starting_during_an_update(queue=4)
    replica = made.machine.replicas[1]
    made.machine.update_failed(1, replica.generation, "it raised", made.now)
    made.settle()
    assert made.machine.replicas[0].state == "up" and isinstance(made.updates[1], ServiceUpdateError)
    made.run(1000)
    assert {living.version for living in made.living.values()} == {0}
    made.finish()


def test_what_a_dead_replica_had_goes_before_what_came_later() -> None:
    made = world(replicas=2, queue=8, backoff=1000.0)
    made.slow = 50.0
    first = made.request(retries=1)
    rest = [made.request() for _ in range(3)]
    made.kill(made.machine.requests[first].place)
    made.run(500)
    assert [request for _replica, request in made.begun] == [first, rest[0], first, *rest[1:]]
    made.finish()


def test_an_update_in_place_is_used_when_all_have_prepared_it() -> None:
    made = world(replicas=2)
    version = made.update(in_place=True)
    numbers = [made.request() for _ in range(4)]
    assert all(one.state == "up" and one.calls for one in made.machine.replicas.values())  # it goes on
    made.run(5)
    assert made.updates == {version: None} and {made.outcomes[number].version for number in numbers} <= {0, 1}  # type: ignore[union-attr]
    assert [one.version for one in made.machine.replicas.values()] == [1, 1]
    made.finish()


def test_an_update_in_place_that_cannot_be_prepared_reaches_nobody() -> None:
    made = world(replicas=2)
    version = made.update(in_place=True)
    made.machine.prepare_failed(1, 1, version, "no memory", made.now)
    made.settle()
    assert str(made.updates[version]) == (
        "update 1 of service 's' failed at replica 1 and was stopped: no memory. No replica has it: all go on with version 0"
    )
    made.run(5)
    assert [(one.version, one.generation) for one in made.machine.replicas.values()] == [(0, 1), (0, 1)]
    assert made.update() == 2
    made.run(5)
    assert made.updates[2] is None
    made.finish()


def test_an_update_in_place_that_kills_stops_at_the_second_time() -> None:
    made = world(replicas=2, backoff=0)
    version = made.update(in_place=True)
    made.kill(0)
    assert made.updates == {}
    for _ in range(1000):
        if made.machine.replicas[0].asked == version:
            break
        made.run(0.01)
    made.kill(0)
    assert "No replica has it: all go on with version 0; the one that failed is replaced" in str(made.updates[version])
    made.finish()


def test_the_end_of_a_start_is_not_taken_for_that_of_a_later_replica_with_the_number() -> None:
    """It was let go while it started, and what it has is an older version."""
    made = world()
    machine, first = made.machine, made.machine.replicas[0].generation
    machine.scale(0, made.now)
    made.settle()
    made.update()
    machine.scale(1, made.now)
    made.settle()
    machine.started(0, first, made.now)
    assert (machine.replicas[0].state, machine.replicas[0].version) == ("starting", 1)
    assert machine.replicas[0].generation > first
    made.finish()


def test_a_stream_that_runs_gets_no_error_when_it_is_cancelled() -> None:
    """The reader could take that for the end, and the replica would wait for it for ever."""
    made = world()
    running = made.request(once=True)
    made.cancel(running)
    assert running not in made.outcomes and made.machine.counts["cancelled"] == 0
    made.run(1)
    assert kinds(made, [running]) == [ReplyWith]
    made.finish()


def test_a_request_that_is_cancelled_makes_room() -> None:
    made = world(queue=1)
    running, waiting = made.request(), made.request()
    with_patience = made.request(wait=True)
    for number in (waiting, 99):
        made.cancel(number)
    assert str(made.outcomes[waiting]) == "s.work() was cancelled by who made it"
    assert made.machine.requests[with_patience].place == 0
    made.cancel(running)  # what runs goes on, and its answer is dropped
    made.run(1)
    assert kinds(made, [with_patience]) == [ReplyWith] and made.machine.counts["cancelled"] == 2
    made.finish()


def test_so_many_wait_for_a_place_and_no_more() -> None:
    made = world(queue=0, waiting=2)
    numbers = [made.request(wait=True) for _ in range(4)]
    assert kinds(made, numbers) == [NONE, NONE, NONE, ServiceOverloaded]
    assert str(made.outcomes[numbers[3]]).startswith(
        "the service 's' is full, and 2 requests wait for a place already: try again"
    )
    made.finish()


def not_made(made: Simulation, number: int) -> None:
    generation = made.machine.replicas[number].generation
    made.living.pop((number, generation))
    made.machine.not_made(number, generation, "it raised", made.now)
    made.settle()


def test_a_service_whose_constructor_raises_does_not_start() -> None:
    made = Simulation(replace(RULES, replicas=2))
    asked = made.request()
    not_made(made, 0)
    assert made.outcomes.get(asked) is None  # the other may be well
    not_made(made, 1)
    assert isinstance(made.outcomes[asked], ServiceUnavailableError)
    assert str(made.outcomes[asked]) == (
        "the service 's' did not start, and does not try again by itself: it raised. service.scale(n) starts new ones"
    )
    assert [(one.replica, one.pause, one.failures) for one in made.failed] == [(0, None, 0), (1, None, 0)]
    made.machine.scale(1, made.now)
    made.settle()
    made.run(2)
    assert kinds(made, [made.request()]) == [NONE]
    made.finish()


def test_a_constructor_that_raises_is_tried_again_when_another_did_not() -> None:
    made = Simulation(replace(RULES, replicas=2))
    not_made(made, 0)
    assert made.machine.replicas[0].state == "lost"
    made.run(5)
    assert [one.state for one in made.machine.replicas.values()] == ["up", "up"]
    made.kill(0)
    made.run(0.201)
    not_made(made, 0)
    assert [(one.pause, one.failures) for one in made.failed] == [(None, 0), (0.1, 1), (0.2, 2), (0.4, 3)]
    made.finish()


def test_a_spare_host_serves_for_one_where_nothing_starts() -> None:
    made = world(replicas=4, hosts=3, spares=1, backoff=0)
    assert sorted(made.hosts) == [0, 0, 1, 1]
    gone = 0
    victims = [one.number for one in made.machine.replicas.values() if one.host == gone]
    for number in victims:
        made.kill(number)
    for _ in range(5_000):
        for one in list(made.machine.replicas.values()):
            if one.state == "starting" and one.host == gone:
                made.kill(one.number)
        made.run(0.001)
    assert sorted(one.host for one in made.machine.replicas.values()).count(gone) == 0
    assert {one.host for one in made.machine.replicas.values()} == {1, 2}
    made.finish()


def test_there_is_a_host_beside_the_spares() -> None:
    with pytest.raises(ValueError, match="2 of its hosts are to be spares, and it has 2: leave one or more"):
        replace(RULES, hosts=2, spares=2)
