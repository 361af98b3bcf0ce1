"""The real interface, with the few names of torch.cuda that it uses replaced: there need not be a device."""

from __future__ import annotations

import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from monarch._devices.memory import Card, Torch
from tests._devices.counts import Counts
from tests._devices.fake import OnCard, OnSecond, plain


class Cuda:
    """Two cards; `log` has what they are asked to do, in order."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.cards = ["uuid-a", "uuid-b"]
        self.streams = 0
        self.used = 0  # the device of this thread
        self.contexts: set[int] = set()

    class Event:
        def __init__(self, log: list[str], name: str) -> None:
            self.log, self.name = log, name

        def synchronize(self) -> None:
            self.log.append(f"wait for {self.name}")

    def Stream(self, device: Any) -> Any:
        self.streams += 1
        return self.made(f"stream {self.streams} of {device}", device)

    def current_stream(self, device: Any) -> Any:
        return self.made(f"current stream of {device}")

    def made(self, name: str, device: Any = None) -> Any:
        return types.SimpleNamespace(
            name=name,
            device=device,
            record_event=lambda: Cuda.Event(self.log, f"what {name} had to do"),
            wait_event=lambda event: self.log.append(f"{name} waits for {event.name}"),
            synchronize=lambda: self.log.append(f"wait for all of {name}"),
        )

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        """Both ways by cudaSetDevice, which makes a context."""
        before, self.used = self.used, stream.device.index
        self.contexts.add(self.used)
        self.log.append(f"use {stream.name}")
        yield
        self.log.append("no more")
        if self.used != before:
            self.used = before
            self.contexts.add(before)

    @contextmanager
    def device(self, device: Any) -> Iterator[None]:
        """Back to the device before only where that has a context."""
        before, self.used = self.used, device.index
        yield
        self.used = before

    def is_available(self) -> bool:
        return bool(self.cards)

    def device_count(self) -> int:
        return len(self.cards)

    def current_device(self) -> int:
        return len(self.cards) - 1

    def get_device_properties(self, device: Any) -> Any:
        return types.SimpleNamespace(uuid=self.cards[device.index])

    def _lazy_init(self) -> None:
        self.log.append("init")


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    fake = Cuda()
    monkeypatch.setattr(torch, "cuda", fake)
    return fake


def on_card(*values: int) -> Any:
    return torch.tensor(values, dtype=torch.uint8).as_subclass(OnCard)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.complex64, torch.bfloat16, torch.float8_e4m3fn])
def test_the_bytes_of_a_tensor_are_its_own(dtype: torch.dtype) -> None:
    tensor = torch.ones(4, 6).to(dtype)[1:3]
    flat = Torch().flat(tensor)
    assert (flat.dtype, flat.shape) == (torch.uint8, (tensor.nbytes,))
    assert flat.data_ptr() == tensor.data_ptr()
    flat.zero_()
    row = 6 * tensor.element_size()
    whole = bytes(tensor.untyped_storage().tolist())
    assert whole[row : 3 * row] == bytes(2 * row)
    assert any(whole[:row])
    assert any(whole[3 * row :])
    assert Torch().whole(tensor.untyped_storage()).shape == (24 * tensor.element_size(),)


def test_a_tensor_that_needs_a_gradient_is_bytes_without_one() -> None:
    flat = Torch().flat(torch.ones(3, requires_grad=True))
    flat.zero_()
    assert not flat.requires_grad


def test_a_copy_runs_on_a_stream_of_the_threads_behind_what_it_is_to_come_after(cuda: Cuda) -> None:
    real, there, here = Torch(), on_card(1, 2, 3), torch.zeros(3, dtype=torch.uint8)
    wait = real.begin(here, there, real.mark(there))
    assert cuda.log == [
        "use stream 1 of cuda:0",
        "stream 1 of cuda:0 waits for what current stream of cuda:0 had to do",
        "no more",
    ]
    cuda.log.clear()
    wait()
    assert cuda.log == ["wait for what stream 1 of cuda:0 had to do"]
    assert here.tolist() == [1, 2, 3]
    back = on_card(0, 0, 0)
    real.begin(back, here)()
    assert plain(back).tolist() == [1, 2, 3]
    assert cuda.streams == 1


def test_a_copy_makes_no_context_on_a_card_that_it_does_not_use(cuda: Cuda) -> None:
    there = torch.tensor([1, 2, 3], dtype=torch.uint8).as_subclass(OnSecond)
    Torch().begin(torch.zeros(3, dtype=torch.uint8), there)()
    assert (cuda.contexts, cuda.used) == ({1}, 0)


def test_what_a_thread_has_given_a_device_to_do_can_be_waited_for(cuda: Cuda) -> None:
    Torch().settle(on_card(1))
    assert cuda.log == ["wait for all of current stream of cuda:0"]


def test_cards_are_found_by_what_they_are_and_not_by_their_number(cuda: Cuda) -> None:
    real = Torch()
    assert real.card(on_card(1)) == Card("cuda", "uuid-a")
    assert real.find(Card("cuda", "uuid-b")) == "cuda:1"
    assert real.find(Card("cuda", "uuid-c")) == ""
    assert real.find(Card("cuda", "")) == ""
    assert real.find(Card("nowhere", "uuid-a")) == ""
    assert real.current("cuda") == "cuda:1"
    assert real.current("nowhere") == ""
    cuda.cards.clear()
    assert (Torch().find(Card("cuda", "uuid-b")), Torch().current("cuda")) == ("", "")


def test_a_storage_is_opened_under_this_processs_number_of_its_card(
    cuda: Cuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = (5, b"handle", 64, 0, b"counter", 0, b"event", True)  # 5 is the number there
    storage = types.SimpleNamespace(_share_cuda_=lambda: fields)
    shared = Torch().share(types.SimpleNamespace(untyped_storage=lambda: storage))
    asked: list[Any] = []

    def new(*args: Any) -> Any:
        asked.append(args)
        return torch.ones(64, dtype=torch.uint8).untyped_storage()

    monkeypatch.setattr(torch.UntypedStorage, "_new_shared_cuda", new)
    assert Torch().open(shared, "cuda:1").tolist() == [1] * 64
    assert asked == [(1, *fields[1:])]
    assert cuda.log == ["init"]


def test_what_was_shared_is_let_go_of_once_and_also_when_it_cannot_be_opened(
    cuda: Cuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A count is never taken below 0: torch would keep the memory for good."""
    counts, real = Counts(), Torch()
    monkeypatch.setattr(torch.UntypedStorage, "_release_ipc_counter_cuda", counts.drop, raising=False)

    def fails(*args: Any) -> Any:
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(torch.UntypedStorage, "_new_shared_cuda", fails)
    try:
        one, other = ((b"handle", 64, 0, *counts.take(), b"event", True) for _ in range(2))
        assert real.lent(one)
        real.release(one)
        real.release(one)
        assert not real.lent(one)
        with pytest.raises(RuntimeError, match="out of memory"):
            real.open(other, "cuda:1")
        assert not real.lent(other)
        real.forget(other)
        assert not real.lent(other)
    finally:
        counts.close()
    strange = (b"handle", 64, 0, b"/../etc/passwd", 0, b"event", True)
    real.release(strange)
    real.forget(strange)


def test_a_device_without_streams_is_waited_for_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "cuda", types.SimpleNamespace(is_available=lambda: True))
    real, there, here = Torch(), on_card(1, 2, 3), torch.zeros(3, dtype=torch.uint8)
    real.settle(there)
    wait = real.begin(here, there, real.mark(there))
    assert here.tolist() == [1, 2, 3]
    wait()
    assert real.card(there) == Card("cuda", "")
    assert real.current("cuda") == "cuda:0"
