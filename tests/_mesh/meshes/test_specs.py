"""Tests of pickles of meshes, which are made once and read once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from monarch._errors import NotSendableError
from monarch._mesh.meshes import specs
from monarch._wire import codec


class Built:
    made = 0

    def __init__(self, *args: Any) -> None:
        type(self).made += 1
        self.args = args


def test_the_same_bytes_are_the_same_object() -> None:
    pickled, before = specs.make_pickle(Built, ("a", 1)), Built.made
    first = specs.read_pickle(pickled)
    assert first.args == ("a", 1)
    assert specs.read_pickle(bytes(bytearray(pickled))) is first and Built.made == before + 1
    assert specs.read_pickle(specs.make_pickle(Built, ("a", 2))) is not first


def test_so_many_are_kept_and_no_more() -> None:
    first = specs.read_pickle(specs.make_pickle(Built, ("first",)))
    for number in range(specs.KEPT):
        specs.read_pickle(specs.make_pickle(Built, (number,)))
    assert specs.read_pickle(specs.make_pickle(Built, ("first",))) is not first


def test_what_is_large_is_read_each_time() -> None:
    large = specs.make_pickle(Built, ("x" * specs.MOST_BYTES,))
    assert specs.read_pickle(large) is not specs.read_pickle(large)


def test_arrays_are_within_it() -> None:
    array = np.arange(codec.OUT_OF_BAND)
    assert (specs.read_pickle(specs.make_pickle(Built, (array,))).args[0] == array).all()


def test_what_cannot_be_sent_is_told() -> None:
    class Stays:
        pass

    codec.forbid(Stays, "it stays")
    with pytest.raises(NotSendableError, match="a Stays cannot be sent to another process: it stays"):
        specs.make_pickle(Built, (Stays(),))


@pytest.mark.parametrize("count", [1, specs.MANY_HOSTS - 1, specs.MANY_HOSTS, 10_000])
def test_the_processes_of_any_number_of_hosts_arrive_whole(count: int) -> None:
    hosts = [f"tcp://10.{index >> 16}.{index >> 8 & 255}.{index & 255}:26600" for index in range(count)]
    spec = specs.ProcSpec("uid", "many", hosts, ("hosts", "gpus"), (count, 2), "python")
    found = specs.read_pickle(spec.pickled())
    assert found.hosts == tuple(hosts) and found.addresses == spec.addresses
    assert (found.uid, found.name, found.labels, found.sizes, found.executable) == (
        "uid", "many", ("hosts", "gpus"), (count, 2), "python",
    )  # fmt: skip


def test_a_handle_of_very_many_hosts_is_small_enough_to_be_read_once() -> None:
    """Each process of its mesh gets it at spawn: bytes that grow with the square of the hosts."""
    hosts = [f"tcp://10.{index >> 16}.{index >> 8 & 255}.{index & 255}:26600" for index in range(10_000)]
    pickled = specs.ProcSpec("uid", "many", hosts, ("hosts",), (10_000,)).pickled()
    assert len(pickled) < 5 * len(hosts)
    assert specs.read_pickle(pickled) is specs.read_pickle(bytes(bytearray(pickled)))
