"""Tests of when a worker has waited too long for a client: in virtual time, over every order of comings and goings."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from monarch._mesh.agent.host_agent import NEVER, Lease

CLIENT, OTHER = "unix:/run/a/client", "tcp://node2:1/mesh.0"


def test_it_runs_from_the_start_and_from_the_moment_the_last_client_left() -> None:
    lease = Lease(10.0, now=100.0)
    assert lease.due() == 110.0
    assert not lease.is_over(109.9)
    assert lease.is_over(110.0)
    lease.came(CLIENT)
    lease.came(OTHER)
    assert lease.due() == NEVER
    lease.left(CLIENT, 500.0)
    assert not lease.is_over(1e9)
    lease.left(OTHER, 600.0)
    assert lease.due() == 610.0
    lease.left(CLIENT, 605.0)  # told twice
    assert lease.due() == 610.0


def test_processes_leave_with_their_host() -> None:
    lease = Lease(10.0, now=0.0)
    for client in ("unix:/run/a", CLIENT, OTHER):
        lease.came(client)
    lease.left("unix:/run/a", 1.0)
    assert lease.due() == NEVER
    lease.left("tcp://node2:1", 2.0)
    assert lease.due() == 12.0


def test_without_a_lease_it_waits_for_ever() -> None:
    lease = Lease(0.0, now=0.0)
    assert lease.due() == NEVER
    assert not lease.is_over(1e12)


def test_the_verdict_names_what_to_change() -> None:
    assert Lease(14400.0, 0.0).verdict() == (
        "no client for 14400 s (setting worker_lease, MONARCH_WORKER_LEASE, --lease)"
    )


@given(st.lists(st.tuples(st.booleans(), st.sampled_from([CLIENT, OTHER, "unix:/run/b/client"]), st.integers(0, 50))))
def test_it_is_over_exactly_after_so_long_without_any(steps: list[tuple[bool, str, int]]) -> None:
    lease, now, there, since = Lease(20.0, 0.0), 0.0, set[str](), 0.0
    for comes, client, pause in steps:
        now += pause
        if comes:
            there.add(client)
            lease.came(client)
        else:
            if there == {client}:
                since = now
            there.discard(client)
            lease.left(client, now)
        assert lease.due() == (NEVER if there else since + 20.0)
        assert lease.is_over(now) == (not there and now >= since + 20.0)
