"""Shapes as the tables of telemetry have them."""

from __future__ import annotations

from functools import lru_cache

import msgspec

from monarch._shape.extent import Extent
from monarch._shape.region import Shape
from monarch._shape.slice import NDSlice


def shape_json(shape: Shape) -> str:
    """Returns which ranks of a whole: `{"labels": [...], "slice": {"offset": 0, "sizes": [...], "strides": [...]}}`."""
    ranks = shape.ndslice
    place = {"offset": ranks.offset, "sizes": list(ranks.sizes), "strides": list(ranks.strides)}
    return msgspec.json.encode({"labels": list(shape.labels), "slice": place}).decode()


def whole_json(extent: Extent) -> str:
    """All ranks, in the form of `shape_json`."""
    sizes = list(extent.sizes)
    strides = [1] * len(sizes)
    for place in range(len(sizes) - 2, -1, -1):
        strides[place] = strides[place + 1] * sizes[place + 1]
    place_of_all = {"offset": 0, "sizes": sizes, "strides": strides}
    return msgspec.json.encode({"labels": list(extent.labels), "slice": place_of_all}).decode()


@lru_cache(1024)
def one_json(rank: int) -> tuple[str, str]:
    """A single rank of a whole, and the shape without dimensions, both in the form of `shape_json`."""
    one = Shape((), NDSlice(offset=rank, sizes=(), strides=()))
    return shape_json(one), whole_json(one.extent)


def extent_json(labels: tuple[str, ...] | list[str], sizes: tuple[int, ...] | list[int]) -> str:
    """A mesh's shape: `{"inner": {"labels": [...], "sizes": [...]}}`."""
    return msgspec.json.encode({"inner": {"labels": list(labels), "sizes": list(sizes)}}).decode()
