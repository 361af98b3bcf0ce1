"""Tests of who is which rank of what, and which backend that makes."""

from __future__ import annotations

import pytest

from monarch.spmd.layout import RankLocation, VisibleDevices, backend_for, by_host, by_last_dimension, environments
from monarch.spmd.ranks import interface_of


def local_ranks(hosts: str) -> list[tuple[int, int, int, int]]:
    return by_host([RankLocation(host, number) for number, host in enumerate(hosts)])


def test_ranks_of_one_host_are_a_group() -> None:
    assert local_ranks("aabb") == [(0, 2, 0, 2), (1, 2, 0, 2), (0, 2, 1, 2), (1, 2, 1, 2)]


def test_a_slice_may_have_more_ranks_on_one_host_than_on_another() -> None:
    assert local_ranks("baab") == [(0, 2, 0, 2), (0, 2, 1, 2), (1, 2, 1, 2), (1, 2, 0, 2)]
    assert local_ranks("abb") == [(0, 1, 0, 2), (0, 2, 1, 2), (1, 2, 1, 2)]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([], [(0, 1, 0, 1)]),
        ([2], [(0, 2, 0, 1), (1, 2, 0, 1)]),
        ([2, 2], [(0, 2, 0, 2), (1, 2, 0, 2), (0, 2, 1, 2), (1, 2, 1, 2)]),
    ],
)
def test_by_the_last_dimension(sizes: list[int], expected: list[tuple[int, int, int, int]]) -> None:
    assert by_last_dimension(sizes) == expected


def test_the_variables_are_those_of_torchrun() -> None:
    assert environments(local_ranks("aab"))[1] == {
        "RANK": "1",
        "WORLD_SIZE": "3",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "2",
        "ROLE_RANK": "1",
        "ROLE_WORLD_SIZE": "3",
        "ROLE_NAME": "rank",
    }


@pytest.mark.parametrize(
    ("devices", "backend"),
    [
        ([(0, ""), (0, "")], "gloo"),
        ([(2, ""), (2, "")], "nccl"),
        ([(1, ""), (1, "")], "gloo"),  # they share one, which nccl refuses
        ([(1, "0"), (1, "1")], "nccl"),  # each sees its own
        ([(1, ""), (0, "")], "gloo"),
    ],
)
def test_nccl_where_each_rank_has_a_device_of_its_own(devices: list[tuple[int, str]], backend: str) -> None:
    places = [RankLocation("a", 0), RankLocation("a", 1)]
    assert backend_for(places, [VisibleDevices(*one) for one in devices]) == backend


def test_ranks_of_two_hosts_have_their_own_devices() -> None:
    assert (
        backend_for([RankLocation("a", 0), RankLocation("b", 0)], [VisibleDevices(1, ""), VisibleDevices(1, "")])
        == "nccl"
    )


def test_the_interface_of_an_address() -> None:
    assert interface_of("127.0.0.1") == interface_of("::1") == "lo"
    assert interface_of("192.0.2.1") == interface_of("2001:db8::1") == ""
