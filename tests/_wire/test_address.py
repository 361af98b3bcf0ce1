from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._wire import address, message

UNIX = "unix:/run/user/1/monarch-x"


@pytest.mark.parametrize("host", [UNIX, "inproc:net", "unix:relative/folder"])
def test_a_process_of_a_mesh_is_named_by_host_mesh_and_rank(host: str) -> None:
    there = address.proc_address(host, "3xYz", 12)
    assert address.host_of(there) == host
    assert address.split_proc_name(address.name_of(there)) == ("3xYz", 12)
    assert address.agent_of(there) == address.agent_at(host)
    assert address.host_of(address.agent_at(host)) == host


def test_the_agent_is_its_own_agent() -> None:
    agent = address.agent_at(UNIX)
    assert address.agent_of(agent) == agent
    assert address.name_of(agent) == "agent"


@pytest.mark.parametrize("name", ["client", "agent", "mesh.", ".", "", "mesh.x1", "mesh.-1"])
def test_names_that_belong_to_no_mesh(name: str) -> None:
    assert address.split_proc_name(name) is None


ADDRESSES = st.builds(
    address.proc_address, st.sampled_from([UNIX, "tcp://h.example:1"]), st.sampled_from("ab"), st.integers(0, 9)
)


@given(st.dictionaries(ADDRESSES, st.integers(0, 3)))
def test_numbers_of_many_processes_come_out_of_their_ranges(numbers: dict[str, int]) -> None:
    assert address.of_ranges(address.by_ranges(numbers)) == numbers


@pytest.mark.parametrize(
    ("generations", "bound"), [([1], 120), ([1, 2], 8_000), ([2**31], 130)], ids=["all once", "in turns", "lost hosts"]
)
def test_a_probe_is_small_though_a_thousand_ranks_were_restarted(generations: list[int], bound: int) -> None:
    """At most eight bytes a rank, and hardly any where all were restarted equally often."""
    over = {address.proc_address(UNIX, "3xYz", rank): generations[rank % len(generations)] for rank in range(1000)}
    probe = message.Probe("key", 1, 0, True, over=address.by_ranges(over))
    assert len(message.encode(probe)) < bound
    assert len(message.encode(message.Probe("key", 1, 0, True, over={}))) < 60
