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
