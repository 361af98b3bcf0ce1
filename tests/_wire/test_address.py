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


@pytest.mark.parametrize(("text", "parts"), [(UNIX, ("unix", UNIX[5:])), ("inproc:a/b", ("inproc", "a/b"))])
def test_scheme_and_rest(text: str, parts: tuple[str, str]) -> None:
    assert address.parse(text) == parts


@pytest.mark.parametrize("text", ["", "unix", "smoke:signals", "/a/b", ":x"])
def test_an_unknown_scheme_is_refused_with_the_known_ones(text: str) -> None:
    with pytest.raises(ValueError, match="known schemes: unix, inproc") as caught:
        address.parse(text)
    assert repr(text) in str(caught.value)
