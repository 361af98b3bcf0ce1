"""Tests of who is restarted, how often and how soon: policies, and the bookkeeping of a group of meshes."""

from __future__ import annotations

import asyncio
import contextvars
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._mesh.failures.restart_policy import Children, RestartAttempt, RestartGroup, RestartPolicy, active

STRATEGIES = ["one_for_one", "all_for_one", "rest_for_one"]

# --- the arguments of a policy


def test_without_arguments_a_policy_is_that_of_its_signature() -> None:
    policy = RestartPolicy()
    assert vars(policy) == {
        "strategy": "one_for_one",
        "max_restarts": 3,
        "within": 60.0,
        "backoff": 0.0,
        "max_backoff": 30.0,
    }
    assert repr(policy) == "RestartPolicy('one_for_one', max_restarts=3, within=60, backoff=0)"


@pytest.mark.parametrize(("given", "seconds"), [(0, 0.0), (2, 2.0), (0.25, 0.25), ("1m", 60.0), ("1m 30s", 90.0)])
@pytest.mark.parametrize("name", ["within", "backoff", "max_backoff"])
def test_durations_are_seconds_or_text(name: str, given: Any, seconds: float) -> None:
    assert getattr(RestartPolicy(**{name: given}), name) == seconds


@pytest.mark.parametrize("wrong", [-1, -0.5, float("inf"), float("nan"), "", "soon", "-1s", None, True, [1]], ids=repr)
@pytest.mark.parametrize("name", ["within", "backoff", "max_backoff"])
def test_what_is_no_duration_is_refused_by_name(name: str, wrong: Any) -> None:
    with pytest.raises(ValueError, match=name) as caught:
        RestartPolicy(**{name: wrong})
    assert repr(wrong) in str(caught.value)


@pytest.mark.parametrize("wrong", ["", "one-for-one", "simple_one_for_one", None])
def test_an_unknown_strategy_is_refused_and_the_known_ones_are_named(wrong: Any) -> None:
    with pytest.raises(ValueError, match="unknown strategy") as caught:
        RestartPolicy(strategy=wrong)
    assert all(strategy in str(caught.value) for strategy in STRATEGIES)


@pytest.mark.parametrize("wrong", [True, 1.5, "3", None])
def test_a_number_of_restarts_is_an_integer(wrong: Any) -> None:
    with pytest.raises(TypeError, match="max_restarts must be an integer"):
        RestartPolicy(max_restarts=wrong)


def test_a_negative_number_of_restarts_is_refused() -> None:
    with pytest.raises(ValueError, match="max_restarts must be 0 or more, got -1"):
        RestartPolicy(max_restarts=-1)


# --- blocks


def test_spawns_belong_to_the_innermost_block() -> None:
    outer, inner = RestartPolicy(), RestartPolicy("all_for_one")
    assert active() is None
    with outer as entered:
        assert entered is outer
        first = active()
        assert first is not None and first.policy is outer
        with inner:
            second = active()
            assert second is not None and second.policy is inner
        assert active() is first
    assert active() is None


def test_each_block_counts_for_itself() -> None:
    policy = RestartPolicy(max_restarts=1)
    groups = []
    for _ in range(2):
        with policy:
            groups.append(active())
    with policy, policy:
        groups.append(active())
    assert None not in groups and len(set(map(id, groups))) == 3
    for group in groups:
        assert group is not None
        group.add("m", 1)
        assert group.failed("m", [0], 0.0) is not None
        assert group.failed("m", [0], 0.0) is None


def test_a_block_ends_with_an_exception_too() -> None:
    with pytest.raises(KeyError), RestartPolicy():
        raise KeyError("out of here")
    assert active() is None


def test_a_block_holds_for_its_own_thread_of_control_only() -> None:
    """Tasks made in the block are in it; others, made before, are not."""

    async def look(go: asyncio.Event) -> RestartGroup | None:
        await go.wait()
        return active()

    async def main() -> None:
        go = asyncio.Event()
        before = asyncio.create_task(look(go))
        with RestartPolicy():
            group = active()
            inside = asyncio.create_task(look(go))
            await asyncio.sleep(0)
        after = asyncio.create_task(look(go))
        go.set()
        assert group is not None and await asyncio.gather(before, inside, after) == [None, group, None]

    asyncio.run(main())
    with RestartPolicy():
        assert contextvars.Context().run(active) is None


# --- who is restarted: the children of an Erlang supervisor, in the order of their start

MESHES = {"a": 2, "b": 3, "c": 1}


def group_of(strategy: str, meshes: dict[str, int] = MESHES, **policy: Any) -> RestartGroup:
    group = RestartGroup(RestartPolicy(strategy, **policy))
    for key, count in meshes.items():
        group.add(key, count)
    return group


@pytest.mark.parametrize(
    ("strategy", "key", "ranks", "children"),
    [
        ("one_for_one", "a", [0], {"a": [0]}),
        ("one_for_one", "b", [2, 1], {"b": [1, 2]}),
        ("all_for_one", "a", [1], {"a": [0, 1], "b": [0, 1, 2], "c": [0]}),
        ("all_for_one", "c", [0], {"a": [0, 1], "b": [0, 1, 2], "c": [0]}),
        ("rest_for_one", "a", [0], {"a": [0, 1], "b": [0, 1, 2], "c": [0]}),
        ("rest_for_one", "a", [1], {"a": [1], "b": [0, 1, 2], "c": [0]}),
        ("rest_for_one", "b", [1], {"b": [1, 2], "c": [0]}),
        ("rest_for_one", "b", [2, 1], {"b": [1, 2], "c": [0]}),
        ("rest_for_one", "c", [0], {"c": [0]}),
    ],
)
def test_who_is_restarted(strategy: str, key: str, ranks: list[int], children: Children) -> None:
    round = group_of(strategy).failed(key, ranks, 0.0)
    assert round is not None and round.children == children
    assert list(round.children) == sorted(children)  # in the order of spawning
    assert repr(round) == f"RestartAttempt({children!r}, 0)"


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_mesh_that_was_stopped_is_no_child_any_more(strategy: str) -> None:
    group = group_of(strategy)
    assert len(group) == 6
    group.remove("b")
    group.remove("b")
    assert len(group) == 3
    round = group.failed("a", [0], 0.0)
    assert round is not None and "b" not in round.children
    late = group.failed("b", [1], 0.0)  # its failure was on its way
    assert late is not None and late.children == {"b": [1]}


starts = st.dictionaries(st.text("abcdef", min_size=1, max_size=2), st.integers(1, 5), min_size=1, max_size=5)


@given(st.sampled_from(STRATEGIES), starts, st.data())
def test_erlangs_meaning(strategy: str, meshes: dict[str, int], data: st.DataObject) -> None:
    order = [(key, rank) for key, count in meshes.items() for rank in range(count)]
    key = data.draw(st.sampled_from(list(meshes)))
    ranks = data.draw(st.lists(st.integers(0, meshes[key] - 1), min_size=1, unique=True))
    dead = [order.index((key, rank)) for rank in ranks]
    expected = {
        "one_for_one": [order[index] for index in sorted(dead)],
        "all_for_one": order,
        "rest_for_one": order[min(dead) :],
    }[strategy]
    round = group_of(strategy, meshes).failed(key, ranks, 0.0)
    assert round is not None
    assert [(mesh, rank) for mesh, ranks in round.children.items() for rank in ranks] == expected


# --- how often


def restarts(group: RestartGroup, *times: float) -> list[bool]:
    return [group.failed("m", [0], time) is not None for time in times]


def group_within(max_restarts: int, within: float, **policy: Any) -> RestartGroup:
    return group_of("one_for_one", {"m": 4}, max_restarts=max_restarts, within=within, **policy)


@pytest.mark.parametrize(
    ("most", "within", "times", "restarted"),
    [
        (0, 10, [0, 100], [False, False]),
        (1, 10, [0, 9.9, 10], [True, False, True]),
        (3, 10, [0, 0, 0, 0, 9.99, 10, 10, 10, 10], [True] * 3 + [False, False] + [True] * 3 + [False]),
        (2, 10, [0, 5, 9, 10, 14, 15], [True, True, False, True, False, True]),
        (2, 0, [1, 1, 1, 1], [True] * 4),  # no time at all: never too often
    ],
)
def test_the_limit(most: int, within: float, times: list[float], restarted: list[bool]) -> None:
    assert restarts(group_within(most, within), *times) == restarted


def test_a_failure_of_several_ranks_is_one_restart() -> None:
    group = group_within(1, 10)
    round = group.failed("m", [3, 0, 2], 0.0)
    assert round is not None and round.children == {"m": [0, 2, 3]}


def test_the_meshes_of_a_block_share_its_limit() -> None:
    group = group_of("one_for_one", max_restarts=2)
    assert [group.failed(key, [0], 0.0) is not None for key in "abc"] == [True, True, False]


steps = st.lists(st.one_of(st.just(0.0), st.floats(0, 3, allow_nan=False)), max_size=60)


@given(steps, st.integers(0, 5), st.floats(0.001, 10))
def test_never_more_than_that_many_within_any_window(steps: list[float], most: int, within: float) -> None:
    group, now, done = group_within(most, within), 0.0, []
    for step in steps:
        now += step
        recent = [time for time in done if time > now - within]
        if group.failed("m", [0], now) is None:
            assert len(recent) >= most  # and it is refused only when it would be one too many
        else:
            done.append(now)
    for end in done:
        assert sum(end - within < time <= end for time in done) <= most


@given(steps, st.integers(0, 50))
def test_what_is_remembered_is_bounded(steps: list[float], most: int) -> None:
    group, now = group_within(most, 5.0), 0.0
    for step in steps:
        now += step
        group.failed("m", [0], now)
        assert len(group._intensity._done) <= most


# --- how soon


def delays(group: RestartGroup, *times: float) -> list[float]:
    rounds = [group.failed("m", [0], time) for time in times]
    return [round.delay for round in rounds if round is not None]


@pytest.mark.parametrize(
    ("backoff", "longest", "times", "expected"),
    [
        (0, 30, [0, 0, 0], [0, 0, 0]),
        (1, 30, [0] * 7, [1, 2, 4, 8, 16, 30, 30]),
        (0.5, 1, [0, 1, 2], [0.5, 1, 1]),
        (1, 30, [0, 10, 99, 100, 110, 400], [1, 2, 4, 4, 4, 1]),  # those of the last 100 seconds count
        (40, 30, [0], [30]),
        (1, 0, [0, 0], [0, 0]),
    ],
)
def test_the_backoff(backoff: float, longest: float, times: list[float], expected: list[float]) -> None:
    group = group_within(100, 100, backoff=backoff, max_backoff=longest)
    assert delays(group, *times) == expected


def test_a_backoff_does_not_overflow() -> None:
    group = group_within(5000, 1e6, backoff=1, max_backoff=7)
    assert delays(group, *[0.0] * 5000)[-1] == 7


@given(steps, st.floats(0, 5), st.floats(0, 20))
def test_a_delay_is_within_its_bounds(steps: list[float], backoff: float, longest: float) -> None:
    group, now = group_within(10, 5.0, backoff=backoff, max_backoff=longest), 0.0
    for step in steps:
        now += step
        round = group.failed("m", [0], now)
        if round is not None:
            assert isinstance(round, RestartAttempt) and min(backoff, longest) <= round.delay <= longest
