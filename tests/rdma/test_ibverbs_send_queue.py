"""The queue pair's pure side: splitting into requests, states, the window, completions."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monarch.rdma.backends.ibverbs.send_queue import (
    SUCCESS,
    PostedRequest,
    QueuePairFailure,
    QueuePairState,
    SendQueue,
    TransferFault,
    WorkRequest,
    fault_of,
    split,
)

FLUSH, REFUSED = 5, 10


def ready(window: int = 512) -> SendQueue:
    queue = SendQueue(window)
    for state in (QueuePairState.INIT, QueuePairState.RTR, QueuePairState.RTS):
        queue.advance(state)
    return queue


def some(count: int) -> list[WorkRequest]:
    return [WorkRequest(number, number, 1) for number in range(count)]


@given(st.integers(0, 50), st.integers(0, 50), st.integers(0, 200), st.integers(1, 30))
def test_requests_move_every_byte_once(local: int, remote: int, size: int, message: int) -> None:
    requests = split(local, remote, size, message)
    assert all(0 < request.size <= message for request in requests)
    moved = [(one.local + at, one.remote + at) for one in requests for at in range(one.size)]
    assert moved == [(local + at, remote + at) for at in range(size)]
    assert len(requests) == -(-size // message)


def test_a_gibibyte_a_request() -> None:
    assert [request.size >> 20 for request in split(0, 0, 5 << 29)] == [1024, 1024, 512]


@pytest.mark.parametrize("message", [0, -1])
def test_limits_that_let_nothing_through(message: int) -> None:
    with pytest.raises(ValueError, match="moves nothing"):
        split(0, 0, 1, message)
    with pytest.raises(ValueError, match="lets nothing through"):
        SendQueue(0)


ORDER = (QueuePairState.RESET, QueuePairState.INIT, QueuePairState.RTR, QueuePairState.RTS)


@pytest.mark.parametrize("reached", range(4))
@pytest.mark.parametrize("state", list(QueuePairState))
def test_states_are_gone_through_one_by_one(reached: int, state: QueuePairState) -> None:
    queue = SendQueue()
    for step in ORDER[1 : reached + 1]:
        queue.advance(step)
    allowed = state is QueuePairState.ERROR or (reached < 3 and state is ORDER[reached + 1])
    if allowed:
        queue.advance(state)
        assert queue.state is state
    else:
        with pytest.raises(ValueError, match=f"from {ORDER[reached].value} to {state.value}"):
            queue.advance(state)


def test_from_error_leads_no_way() -> None:
    queue = ready()
    queue.advance(QueuePairState.ERROR)
    for state in ORDER:
        with pytest.raises(ValueError, match="cannot go"):
            queue.advance(state)
    with pytest.raises(ValueError, match="error takes no requests"):
        queue.submit("a", some(1))
    assert queue.post() == []


def test_what_is_not_ready_takes_nothing() -> None:
    with pytest.raises(ValueError, match="reset takes no requests"):
        SendQueue().submit("a", some(1))
    queue = ready()
    with pytest.raises(ValueError, match="at least one"):
        queue.submit("a", [])
    queue.submit("a", some(1))
    with pytest.raises(ValueError, match="at once"):
        queue.submit("a", some(1))


def test_the_window_holds_back() -> None:
    queue = ready(2)
    queue.submit("a", some(3))
    queue.submit("b", some(1))
    first = queue.post()
    assert [post.job for post in first] == ["a", "a"] and queue.post() == []
    assert queue.complete(first[0].number, SUCCESS) is None
    (third,) = queue.post()
    assert third.job == "a"
    assert queue.complete(first[1].number, SUCCESS) is None
    (fourth,) = queue.post()
    assert fourth.job == "b"
    assert queue.complete(third.number, SUCCESS) == "a" and queue.busy
    assert queue.complete(fourth.number, SUCCESS) == "b" and not queue.busy


def test_the_first_failure_is_the_guilty_one() -> None:
    queue = ready()
    for job in "abc":
        queue.submit(job, some(2))
    posts = queue.post()
    assert [queue.complete(post.number, SUCCESS) for post in posts[:2]] == [None, "a"]
    assert queue.complete(posts[2].number, REFUSED) == QueuePairFailure("b", TransferFault.REFUSED, ["c"])
    assert queue.state is QueuePairState.ERROR and not queue.busy
    assert [queue.complete(post.number, FLUSH) for post in posts[3:]] == [None] * 3


def test_what_is_not_posted_can_be_taken_back() -> None:
    queue = ready(1)
    queue.submit("a", some(1))
    queue.submit("b", some(2))
    queue.submit("c", some(1))
    (post,) = queue.post()
    assert not queue.withdraw("a")
    assert queue.withdraw("b") and queue.withdraw("nobody")
    assert queue.complete(post.number, SUCCESS) == "a"
    assert [post.job for post in queue.post()] == ["c"]


@pytest.mark.parametrize(
    ("status", "fault"),
    [(4, TransferFault.LOCAL), (5, TransferFault.FLUSHED), (10, TransferFault.REFUSED),
     (12, TransferFault.UNREACHABLE), (13, TransferFault.UNREACHABLE),
     (19, TransferFault.DEVICE), (99, TransferFault.DEVICE)],
)  # fmt: skip
def test_what_statuses_mean(status: int, fault: TransferFault) -> None:
    assert fault_of(status) is fault


@settings(max_examples=settings.default.max_examples // 3)  # each takes a fifth of a second
@given(st.data())
def test_every_job_ends_once(data: st.DataObject) -> None:
    window = data.draw(st.integers(1, 4))
    sizes = data.draw(st.lists(st.integers(1, 5), max_size=6))
    fails_at = data.draw(st.integers(0, 40))
    queue = ready(window)
    ended: Counter[Any] = Counter()
    posted: list[PostedRequest] = []
    completed = 0
    waiting = list(enumerate(sizes))
    while waiting or posted or queue.busy:
        if waiting and data.draw(st.booleans()):
            if queue.state is not QueuePairState.RTS:
                break
            job, count = waiting.pop(0)
            queue.submit(job, some(count))
        posted += queue.post()
        assert len(posted) <= window
        if not posted:
            if waiting:
                continue
            assert not queue.busy
            break
        post = posted.pop(0)
        completed += 1
        outcome = queue.complete(post.number, REFUSED if completed == fails_at else SUCCESS)
        if isinstance(outcome, QueuePairFailure):
            ended.update([outcome.job, *outcome.others])
            break
        if outcome is not None:
            ended[outcome] += 1
    submitted = len(sizes) - len(waiting)
    assert ended == Counter(range(submitted))
    assert not queue.busy
