"""Tensors of devices inside messages."""

from __future__ import annotations

import types
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from monarch._wire import codec
from tests._devices.fake import FakeCard, OnCard, plain
from tests.support.devices import on_gpu, skip_without_gpu


class TorchWithCard(types.SimpleNamespace):
    """Torch, whose tensors are those of the card."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


class Message:
    """The message that the codec makes of tensors on a card, as a pickle has it."""

    def __init__(self, *tensors: Any) -> None:
        self.tensors = tensors

    def __reduce__(self) -> Any:
        pickler, namespace = types.SimpleNamespace(spans=None), TorchWithCard(Tensor=OnCard)
        return _all, tuple(Reduced(codec._reduce_tensor(pickler, namespace, one)) for one in self.tensors)


class Reduced:
    def __init__(self, reduced: Any) -> None:
        self.reduced = reduced

    def __reduce__(self) -> Any:
        return self.reduced


def _all(*values: Any) -> Any:
    return values


def sent(*tensors: Any) -> Any:
    body, buffers = codec.encode(Message(*tensors) if isinstance(tensors[0], OnCard) else tensors)
    return codec.decode(body, [bytearray(buffer) for buffer in buffers])


class RealCard:
    """The first GPU of this machine."""

    def tensor(self, data: bytes, dtype: torch.dtype = torch.uint8) -> Any:
        return torch.tensor(list(data), dtype=torch.uint8, device="cuda").view(dtype)

    def bytes_of(self, tensor: Any) -> bytes:
        return bytes(tensor.contiguous().view(-1).view(torch.uint8).cpu().numpy())


@pytest.fixture(params=["imitated", on_gpu])
def each_card(request: pytest.FixtureRequest) -> Iterator[FakeCard | RealCard]:
    """An imitated card, and a GPU where there is one."""
    if request.param == "imitated":
        yield request.getfixturevalue("card")
    else:
        skip_without_gpu()
        yield RealCard()


@pytest.fixture(autouse=True)
def _not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "_told_of_no_device", False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.complex64, torch.float8_e4m3fn])
@pytest.mark.parametrize("rows", [1, 100])
def test_a_tensor_arrives_on_a_card(each_card: Any, dtype: torch.dtype, rows: int) -> None:
    data = bytes(range(64)) * 8 * rows if dtype != torch.bool else bytes([0, 1]) * 256 * rows
    there = each_card.tensor(data, dtype).view(rows, -1)
    (back,) = sent(there)
    assert type(back) is type(there)
    assert (back.device, back.dtype, back.shape) == (there.device, dtype, there.shape)
    assert each_card.bytes_of(back) == data


def test_what_the_card_has_to_do_first_is_waited_for_on_both_sides(card: FakeCard) -> None:
    sent(card.tensor(b"12345678"))
    assert len(card.marks) == 2
    assert [one for one in card.after if one is not None] == card.marks


def test_views_of_one_storage_stay_so(each_card: Any) -> None:
    whole = each_card.tensor(bytes(range(200)))
    first, second, transposed = sent(whole[:100], whole[50:150], whole.view(20, 10).t())
    plain(first)[60] = 7
    assert plain(second)[10] == 7
    assert transposed.shape == (10, 20)
    assert plain(transposed).t().reshape(-1)[60] == 7
    assert each_card.bytes_of(second)[11:] == bytes(range(61, 150))


def test_a_column_of_a_large_storage_travels_alone_and_is_no_other_column(each_card: Any) -> None:
    rows = 1 << 12
    table = each_card.tensor(bytes(range(256)) * 2 * rows).view(rows, 512)
    back = sent(table[:, 3], table[:, 200])
    assert [one.untyped_storage().nbytes() for one in back] == [rows, rows]
    assert each_card.bytes_of(back[0].contiguous()) == bytes([3]) * rows
    assert each_card.bytes_of(back[1].contiguous()) == bytes([200]) * rows


def test_it_is_put_on_the_device_that_the_receiver_uses(card: FakeCard, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not on the sender's, though this process sees that one too: seven receivers would fill it seven times."""
    body, buffers = codec.encode(Message(card.tensor(b"abc")))
    put: list[str] = []
    empty = card.empty
    monkeypatch.setattr(card, "find", lambda other: "cuda:0")
    monkeypatch.setattr(card, "current", lambda kind: "cuda:3")
    monkeypatch.setattr(card, "empty", lambda size, device: put.append(device) or empty(size, "cuda:0"))
    (back,) = codec.decode(body, buffers)
    assert put == ["cuda:3"]
    assert card.bytes_of(back) == b"abc"


def test_without_any_device_it_is_on_the_cpu_and_one_warning_says_so(card: FakeCard) -> None:
    body, buffers = codec.encode(Message(card.tensor(b"abc"), card.tensor(b"def")))
    card.visible = False
    with pytest.warns(UserWarning, match=r"a cuda device was sent to a process that has none.*on the CPU") as told:
        back = codec.decode(body, buffers)
    assert len(told) == 1
    assert [type(one) for one in back] == [torch.Tensor, torch.Tensor]
    assert [bytes(one.numpy()) for one in back] == [b"abc", b"def"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        codec.decode(body, buffers)


def test_a_message_holds_what_the_tensor_was_when_it_was_made(card: FakeCard) -> None:
    there = card.tensor(b"before")
    body, buffers = codec.encode(Message(there))
    plain(there)[:] = 0
    assert card.bytes_of(codec.decode(body, buffers)[0]) == b"before"


def test_an_empty_tensor_and_one_with_a_gradient(each_card: Any) -> None:
    needs = each_card.tensor(bytes(16), torch.float32).requires_grad_()
    empty, back = sent(each_card.tensor(b""), needs)
    assert empty.numel() == 0
    assert back.requires_grad
    assert back.is_leaf


@pytest.mark.device
def test_what_the_device_still_computes_is_waited_for() -> None:
    skip_without_gpu()
    with torch.cuda.stream(torch.cuda.Stream()):
        there = torch.ones(1024, 1024, device="cuda")
        for _ in range(20):
            there = there @ there / 1024
        (back,) = sent(there)
    assert torch.equal(back.cpu(), torch.ones(1024, 1024))


@pytest.mark.device
def test_a_parameter_stays_one() -> None:
    skip_without_gpu()
    there = torch.nn.Parameter(torch.ones(4, device="cuda"))
    (back,) = sent(there)
    assert (type(back), back.requires_grad, back.device) == (torch.nn.Parameter, True, there.device)
