"""Copies through pinned pieces, with a card that copies when it is waited for."""

from __future__ import annotations

import os

import pytest
import torch

from monarch._devices import pinned
from monarch._devices.pinned import PIECE
from tests._devices.fake import FakeCard

SIZES = [0, 1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE + 17]


@pytest.fixture(autouse=True)
def _empty_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pinned, "_pool", pinned._PinnedPool())


def host(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data or b"\0"), dtype=torch.uint8)[: len(data)]


@pytest.mark.parametrize("size", SIZES)
def test_bytes_go_out_and_in_again(card: FakeCard, size: int) -> None:
    data = os.urandom(size)
    there, here = card.tensor(data), host(b"." * size)
    mark = card.mark(there)
    pinned.to_host(there, here.data_ptr(), mark)
    assert bytes(here.numpy()) == data
    assert card.after[:1] == [mark][:size]  # the first copy waits for what was there before, the others for it
    back = card.tensor(b"." * size)
    pinned.to_device(back, here.data_ptr())
    assert card.bytes_of(back) == data
    assert pinned._pool._count == len(pinned._pool._free) <= 2


def test_where_nothing_can_be_pinned_ordinary_memory_serves(card: FakeCard) -> None:
    card.can_pin = False
    data = os.urandom(PIECE + 5)
    here = host(b"." * len(data))
    pinned.to_host(card.tensor(data), here.data_ptr())
    assert bytes(here.numpy()) == data
    assert pinned._pool._count == 0


def test_no_more_than_so_much_is_pinned_and_less_is_kept(card: FakeCard) -> None:
    pieces = [pinned.Piece() for _ in range(pinned.PIECES + 3)]
    assert pinned._pool._count == pinned.PIECES
    assert sum(piece._pooled for piece in pieces) == pinned.PIECES
    for piece in pieces:
        piece.close()
    assert pinned._pool._count == len(pinned._pool._free) == pinned.KEPT


def test_a_copy_that_fails_leaves_nothing_under_way(card: FakeCard) -> None:
    data = bytes(3 * PIECE)
    there, here = card.tensor(data), host(data)
    card.fails = RuntimeError("out of order")
    with pytest.raises(RuntimeError, match="out of order"):
        pinned.to_host(there, here.data_ptr())
    with pytest.raises(RuntimeError, match="out of order"):
        pinned.to_device(there, here.data_ptr())
    assert len(pinned._pool._free) == pinned._pool._count == 2
