"""Tensors handed from one stream of a device to another, on a device that is not there."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from monarch.tensor.worker.handover import ready_here, taken_here, used_here
from monarch.tensor.worker.moves import AdoptTensors, MoveConnections


class OnCard(torch.Tensor):
    """A tensor that says it is on cuda:0, and which streams use its memory."""

    __torch_function__ = torch._C._disabled_torch_function_impl
    users: list[Any]

    @property
    def device(self) -> torch.device:
        return torch.device("cuda", 0)

    def record_stream(self, stream: Any) -> None:
        self.users.append(stream)

    def clone(self, **options: Any) -> Any:
        return on_card()


def on_card() -> Any:
    made: Any = torch.zeros(2).as_subclass(OnCard)
    made.users = []
    return made


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Its current stream, and what streams did: (event, what, stream)."""
    found = SimpleNamespace(stream="first", done=[])

    class Event:
        def __init__(self, device: Any = None) -> None:
            pass

        def record(self, stream: Any = None) -> None:
            found.done.append((self, "record", stream))

        def wait(self, stream: Any = None) -> None:
            found.done.append((self, "wait", stream))

    monkeypatch.setattr(torch, "Event", Event)
    monkeypatch.setattr(torch.accelerator, "current_stream", lambda device=None: found.stream)
    return found


def test_who_takes_a_tensor_waits_for_it_and_says_that_it_uses_the_memory(card: Any) -> None:
    tensor = on_card()
    handed = ready_here(tensor)
    card.stream = "second"
    assert taken_here(handed) is tensor
    (event, recorded, first), (same, waited, second) = card.done
    assert (recorded, first, waited, second, same is event) == ("record", "first", "wait", "second", True)
    assert tensor.users == ["second"]


@pytest.mark.parametrize("value", [torch.ones(2), torch.ones(2, device="meta"), 3, None])
def test_what_is_on_no_device_passes_through(card: Any, value: Any) -> None:
    assert taken_here(ready_here(value)) is value
    used_here(value)
    assert card.done == []


def test_a_move_from_a_rank_to_itself_is_a_hand_over(card: Any) -> None:
    groups: Any = None
    lines = MoveConnections(groups)
    lines.send(0, 0, (0, 1), 7, on_card())
    card.stream = "second"
    got: Any = lines.receive(0, 0, (0, 1), 7, (2,), torch.float32, "cuda")
    assert got.users == ["second"]
    assert [(what, stream) for _, what, stream in card.done] == [("record", "first"), ("wait", "second")]


def test_who_waits_for_a_move_that_will_not_come_is_told(card: Any) -> None:
    groups: Any = None
    lines = MoveConnections(groups)
    lines.close()
    with pytest.raises(RuntimeError, match="the tensor engine has ended"):
        lines.receive(0, 0, (0, 1), 7, (2,), torch.float32, "cuda")


def test_a_copy_that_another_stream_made_is_taken_over(card: Any) -> None:
    tensor = on_card()
    card.stream = "second"
    AdoptTensors().prepare(None)([tensor], ())
    assert tensor.users == ["second"]
