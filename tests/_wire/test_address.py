from __future__ import annotations

import pytest

from monarch._wire import address

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
