"""Tests that what a program puts in front of torch (a dispatch mode, a default device) takes nothing of what moves bytes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from monarch import rdma
from monarch._devices import modes, pinned
from monarch._devices.memory import Torch
from monarch._wire import codec
from monarch.rdma import entries
from monarch.rdma.local_memory import memory_of
from tests._devices.fake import FakeCard


class Takes(TorchDispatchMode):
    """A mode as an active mesh of distributed tensors does: what is made under it is no tensor of this process."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func} was taken")


def through_everything(there: Any) -> None:
    here = bytearray(8)
    assert memory_of(there).size == 8
    assert Torch().flat(TENSOR).numel() == Torch().whole(TENSOR.untyped_storage()).numel() == 12
    pinned.to_host(memory_of(there).keep, memory_of(here).address)
    pinned.to_device(memory_of(there).keep, memory_of(here).address)
    for shape in ((2, 3), (0, 3)):
        mine = rdma.empty(shape, torch.float32)
        assert type(mine) is torch.Tensor
        assert mine.device.type == "cpu"
    shown = entries.shown("torch", "uint8", (8,), memoryview(bytearray(8)))
    entries.copy("torch", EIGHT, shown)
    body, buffers = codec.encode([TENSOR, EMPTY])
    back = codec.decode(body, buffers)
    assert [one.device.type for one in back] == ["cpu", "cpu"]


TENSOR, EIGHT, EMPTY = torch.ones(3), torch.ones(8, dtype=torch.uint8), torch.empty(0)


def test_under_a_dispatch_mode(card: FakeCard) -> None:
    there = card.tensor(bytes(range(8)))
    with Takes():
        assert modes.active()
        with pytest.raises(AssertionError, match="was taken"):
            torch.empty(1)
        through_everything(there)
    assert not modes.active()


@pytest.mark.parametrize("pins", [True, False])
def test_under_a_default_device(card: FakeCard, pins: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pinned, "_pool", pinned._PinnedPool())
    card.can_pin = pins
    there = card.tensor(bytes(range(8)))
    with torch.device("meta"):
        assert torch.empty(1).device.type == "meta"
        through_everything(there)
