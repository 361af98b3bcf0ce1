"""Events as bytes: one that cannot be sent costs none of the others, and no batch is larger than it may be."""

from __future__ import annotations

import enum
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._mesh.inspection import outgoing_batches
from monarch._mesh.inspection.outgoing_batches import LONGEST, MOST_BYTES, BatchHead, encode

HEAD = BatchHead("unix:x/client", "client:5", "node", 5, 1.0, 2.0, 0.0, 0.0, 1, 3)
GOOD = [(7, 1, "first"), (7, 2, "last")]


class Name(str):
    pass


class Rank(enum.IntEnum):
    ONE = 1


class Rude:
    def __str__(self) -> str:
        raise AssertionError("code of the program runs")

    __repr__ = __int__ = __float__ = __str__


def decoded(body: bytes) -> tuple[BatchHead, list[Any]]:
    return msgspec.msgpack.decode(body, type=tuple[BatchHead, list[Any]])


ENDLESS: list[Any] = []
ENDLESS.append(ENDLESS)


@pytest.mark.parametrize(
    ("odd", "sent"),
    [
        ("caf\udce9", "caf\\udce9"),
        (Name("a name"), "a name"),
        (Rank.ONE, 1),
        (("a", ("\ud800",)), ["a", ["\\ud800"]]),
        ({"\ud800": Name("x")}, {"\\ud800": "x"}),
        (float("inf"), float("inf")),
        (2**64, None),
        (Rude(), None),
        (ENDLESS, None),
    ],
    ids=["no UTF-8", "a str of its own", "an int of its own", "within lists", "within a dict", "endless", "65 bits",
         "an object", "a list in itself"],
)  # fmt: skip
def test_one_odd_event_costs_no_other(odd: Any, sent: Any) -> None:
    first, last = GOOD
    body, rest, left_out = encode(HEAD, [first, (7, odd), last])
    head, events = decoded(body)
    between = [] if sent is None else [[7, sent]]
    assert events == [list(first), *between, list(last)]
    assert (rest, left_out, head.dropped) == ([], 1 - len(between), 3 + 1 - len(between))


def test_long_texts_are_cut_where_an_event_is_too_large() -> None:
    head, ((_, text),) = decoded(encode(HEAD, [(7, "x" * MOST_BYTES)]).body)
    assert len(text) == LONGEST and "characters left out" in text and head.dropped == 3


def test_what_is_too_large_even_so_is_left_out() -> None:
    body, rest, left_out = encode(HEAD, [(7, b"x" * MOST_BYTES), *GOOD])
    assert (len(decoded(body)[1]), rest, left_out) == (2, [], 1)


@given(st.lists(st.integers(0, 3_000), max_size=40), st.integers(200, 5_000))
def test_no_batch_is_too_large_and_each_event_is_sent_once_in_its_order(sizes: list[int], most: int) -> None:
    events = [(number, b"." * size) for number, size in enumerate(sizes)]
    found, left_out, left = [], 0, list(events)
    while left:
        body, rest, out = encode(HEAD, left, most)
        assert len(body) <= most and len(rest) < len(left)
        found += [number for number, _ in decoded(body)[1]]
        left_out, left = left_out + out, rest
    assert found == sorted(found) and len(found) + left_out == len(events)
    assert set(range(len(events))) - set(found) == {n for n, size in enumerate(sizes) if size > most - 150} - set(found)


def test_what_fits_is_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outgoing_batches, "_encoded", None)
    assert decoded(encode(HEAD, GOOD).body) == (HEAD, [list(event) for event in GOOD])
