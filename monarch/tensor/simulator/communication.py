"""The costs of collectives and messages on a cluster, as functions of bytes and ranks. Nanoseconds; nothing else is
looked at.

Rings between neighbours: each step costs a hop, and each byte goes over the slowest link. Eight ranks share a node,
whose links are faster than those between nodes. The figures are those of a node with eight GPUs, NVLink and one 400
Gb/s card a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

NODE = 8  # ranks in one node
INTRA_NODE = 900.0  # bytes in a nanosecond (GB/s), between ranks of a node
INTER_NODE = 50.0  # the same, as soon as more nodes than one take part
HOP = 2_000.0  # nanoseconds from one rank to the next
CONTENTION = 0.5  # what is left of a link when every rank sends to every other
UNKNOWN_ITEM = 4  # bytes of an element of unknown dtype


def nbytes(shape: Sequence[int], dtype: torch.dtype = None) -> int:
    """Bytes of a tensor; an element of what is no dtype counts four."""
    total = int(getattr(dtype, "itemsize", UNKNOWN_ITEM))
    for length in shape:
        total *= length
    return total


def bandwidth(ranks: int) -> float:
    """Bytes in a nanosecond between neighbours of a ring of `ranks`."""
    return INTRA_NODE if ranks <= NODE else INTER_NODE


def all_reduce_time(size: float, ranks: int) -> float:
    """Nanoseconds until each of `ranks` has the sum of tensors of `size` bytes: every byte goes around twice."""
    return max(ranks // 2 * HOP, 2 * _share(size, ranks) / bandwidth(ranks)) if ranks > 1 else 0.0


def reduce_scatter_time(size: float, ranks: int) -> float:
    """Nanoseconds until each of `ranks` has its part of the sum of tensors of `size` bytes."""
    return max((ranks - 1) * HOP, _share(size, ranks) / bandwidth(ranks)) if ranks > 1 else 0.0


def all_gather_time(size: float, ranks: int) -> float:
    """Nanoseconds until each of `ranks` has all parts of what is `size` bytes together."""
    return reduce_scatter_time(size, ranks)


def all_to_all_time(size: float, ranks: int) -> float:
    """Nanoseconds until each of `ranks` has sent a part of its `size` bytes to every other; they are in each other's
    way."""
    return max((ranks - 1) * HOP, _share(size, ranks) / (bandwidth(ranks) * CONTENTION)) if ranks > 1 else 0.0


def send_time(size: float, same_node: bool = True) -> float:
    """Nanoseconds for `size` bytes from one rank to another."""
    return HOP + size / (INTRA_NODE if same_node else INTER_NODE) if size else 0.0


_COLLECTIVES = {
    "all_reduce": all_reduce_time,
    "reduce_scatter": reduce_scatter_time,
    "all_gather": all_gather_time,
    "all_to_all": all_to_all_time,
}


def collective_time(name: str, shape: Sequence[int], dtype: torch.dtype, ranks: int) -> float:
    """Nanoseconds of the collective `name` over `ranks` with a tensor of that shape and dtype; of all_gather, the
    result.

    0 for a single rank, and for an empty shape or tensor. A name that is not known counts as all_reduce.
    """
    size = nbytes(shape, dtype)
    if not shape or not size:
        return 0.0
    return _COLLECTIVES.get(name, all_reduce_time)(size, ranks)


def _share(size: float, ranks: int) -> float:
    """Returns what a rank sends of `size` bytes to have each of them go around once."""
    return size * (ranks - 1) / ranks
