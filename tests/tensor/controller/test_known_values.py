"""Small masks, counts and sequences that are made of constants stay known to the program, which reads them at once."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from monarch.tensor import function
from monarch.tensor.controller.activation import no_modes
from monarch.tensor.controller.misuse import DataDependentError
from tests.tensor.recording.looked_at import local, number


def test_masks_made_of_sequences(loop: Any) -> None:
    lengths = torch.tensor([3, 5])
    mask = torch.arange(5)[None, :] < lengths[:, None]
    assert mask.tolist() == [[True, True, True, False, False], [True] * 5]
    assert not mask.all() and mask.any() and mask[1].all()
    assert mask.sum().item() == 8 and mask.sum(-1).tolist() == [3, 5]
    assert mask.long().cumsum(-1)[:, -1].tolist() == [3, 5]
    assert bool((mask.sum() == mask.numel()).logical_not())
    assert (mask.t()[3]).tolist() == local(loop, mask.t()[3]).tolist() == [False, True]
    assert torch.equal(mask, mask.clone())


def test_sequences_of_numbers(loop: Any) -> None:
    with no_modes():
        rates = torch.linspace(0, 0.1, 6).tolist()
    assert torch.linspace(0, 0.1, 6).tolist() == rates
    assert [part.tolist() for part in torch.linspace(0, 0.1, 6).split([2, 4])] == [rates[:2], rates[2:]]
    assert [rate.item() for rate in torch.linspace(0, 0.1, 6)] == rates
    assert torch.tensor([1, 2, 3]).tolist() == [1, 2, 3]
    assert torch.tensor([[1.5], [2.5]]).tolist() == [[1.5], [2.5]]
    assert torch.arange(3)[1:].max().item() == 2


def test_what_is_written_in_place(loop: Any) -> None:
    mask = torch.zeros(2, 3, dtype=torch.bool)
    view = mask[1]
    view[1:] = True
    mask |= torch.tensor([True, False, False])
    assert mask.tolist() == local(loop, mask).tolist() == [[True, False, False], [True, True, True]]
    one = torch.tensor(1.0)
    one.view(1).mul_(2)
    assert one.item() == 2.0
    view.copy_(torch.randn(3) > 0)
    for gone in (mask, view, mask.any()):
        with pytest.raises(DataDependentError):
            gone.tolist()


def test_what_is_not_known(loop: Any) -> None:
    with pytest.raises(DataDependentError, match=r"tolist\(\) needs the values .* of up to 32 KiB"):
        torch.randint(0, 2, (3,)).tolist()
    with pytest.raises(DataDependentError):
        torch.empty(3, dtype=torch.long).tolist()
    with pytest.raises(DataDependentError):
        torch.arange(1 << 13).tolist()
    with pytest.raises(DataDependentError):
        (torch.ones(3) * 2).tolist()
    with pytest.raises(DataDependentError):
        loop.rank("gpus").tolist()
    seen = torch.arange(4)
    seen.drop()
    with pytest.raises(TypeError, match="was dropped"):
        seen.tolist()


def test_in_recorded_functions(loop: Any) -> None:
    """Their own masks are the same in each replay; those that they are given are not."""

    def attention(x: Any, causal: bool) -> Any:
        mask = torch.arange(x.shape[0]) < 3
        if causal and not mask.all():
            x = torch.where(mask, x, 0.0)
        return x.sum()

    recorded = function(attention)
    for _ in range(4):
        assert number(loop, recorded(torch.ones(3), True)) == 3.0
        assert number(loop, recorded(torch.ones(5), True)) == 3.0
        assert number(loop, recorded(torch.ones(5), False)) == 5.0
    assert recorded.traces == 3


# --- what a function reads of values that it is given


def padded(lengths: list[int], width: int = 4) -> Any:
    return torch.arange(width)[None, :] < torch.tensor(lengths)[:, None]


def test_a_recording_serves_every_mask_of_which_the_same_is_read(loop: Any) -> None:
    def attention(x: Any, mask: Any) -> Any:
        longest = int((mask.long().cumsum(-1) * mask).max())
        return (x * mask).sum() if not mask.all() else x.sum() * longest

    recorded = function(attention)
    x = torch.ones(2, 4)
    for lengths in ([1, 3], [2, 3], [3, 1], [4, 4], [3, 3], [0, 3], [4, 4], [1, 4]):
        mask = padded(lengths)
        assert number(loop, recorded(x, mask)) == number(loop, attention(x, mask)), lengths
    # Longest 3 with padding, none padded, longest 4 with padding.
    assert recorded.traces == 3
    with pytest.raises(DataDependentError):
        recorded(x, torch.rand(2, 4) > 0.5)


def test_all_of_a_mask_may_be_read(loop: Any) -> None:
    recorded = function(
        lambda x, mask: sum((part for part, keep in zip(x, mask.tolist(), strict=True) if keep), x[0] * 0)
    )
    x = torch.tensor([1.0, 10.0, 100.0])
    masks = [[True, False, True], [False, True, True], [True, False, True], [False, True, True]] * 2
    assert [number(loop, recorded(x, torch.tensor(mask))) for mask in masks] == [101.0, 110.0] * 4
    assert recorded.traces == 2


def test_a_mask_of_the_function_itself_that_is_changed_outside(loop: Any) -> None:
    mask = torch.ones(3, dtype=torch.bool)
    recorded = function(lambda x: x.sum() if (~mask).any() else x.sum() * 2)
    x = torch.ones(3)
    assert [number(loop, recorded(x)) for _ in range(3)] == [6.0] * 3
    mask[1] = False
    assert [number(loop, recorded(x)) for _ in range(3)] == [3.0] * 3
    mask[2] = False
    assert number(loop, recorded(x)) == 3.0 and recorded.traces == 2
    mask.fill_(True)
    assert number(loop, recorded(x)) == 6.0 and recorded.traces == 2


def test_a_view_of_a_mask(loop: Any) -> None:
    masks = padded([2, 4, 3])
    recorded = function(lambda x, mask: x * 2 if mask.all() else x)
    found = [number(loop, recorded(torch.ones(()), masks[at])) for at in (0, 1, 2, 0, 1, 2)]
    assert found == [1.0, 2.0, 1.0, 1.0, 2.0, 1.0]


def test_the_same_mask_as_argument_and_as_variable(loop: Any) -> None:
    mask = padded([2])[0]
    recorded = function(lambda x, given: x * (1 + int(mask.all()) + 2 * int(given.all())))
    for given in (mask, mask, mask, padded([4])[0], mask):
        wanted = 1.0 if given is mask else 3.0
        assert number(loop, recorded(torch.ones(()), given)) == wanted
    mask.fill_(True)
    assert number(loop, recorded(torch.ones(()), padded([2])[0])) == 2.0


def test_a_count_that_it_changes_and_reads_ends_the_recording(loop: Any) -> None:
    count = torch.tensor(0)

    def step(x: Any) -> Any:
        count.add_(1)
        return x * count.item()

    recorded = function(step)
    with pytest.warns(
        RuntimeWarning, match=r"operation by operation .* it reads a number with item\(\), which would stay"
    ):
        assert [number(loop, recorded(torch.ones(()))) for _ in range(4)] == [1.0, 2.0, 3.0, 4.0]


def test_what_is_read_and_is_other_each_time_ends_recording(loop: Any) -> None:
    recorded = function(lambda x, mask: x * mask.sum().item())
    with pytest.warns(RuntimeWarning, match=r"what it reads with item\(\) of a tensor changes again and again"):
        for length in range(20):
            assert number(loop, recorded(torch.ones(()), padded([length], 32))) == length


def test_a_long_way_from_what_is_given_to_what_is_read(loop: Any) -> None:
    def far(x: Any, start: Any) -> Any:
        for _ in range(400):
            start = start + start - start
        return x * start.item()

    recorded = function(far)
    assert [number(loop, recorded(torch.ones(()), torch.tensor(at))) for at in (3, 3, 3, 5, 3)] == [
        3.0,
        3.0,
        3.0,
        5.0,
        3.0,
    ]


def test_a_sign_of_zero_is_read(loop: Any) -> None:
    @function
    def signed(x: Any, scale: Any) -> Any:
        return x * math.copysign(1.0, (scale * 2).item())

    found = [number(loop, signed(torch.ones(()), torch.tensor(zero))) for zero in (0.0, 0.0, 0.0, -0.0, 0.0, -0.0)]
    assert found == [1.0, 1.0, 1.0, -1.0, 1.0, -1.0]


def test_memory_that_is_exchanged(loop: Any) -> None:
    """With `set_` a tensor has that of another: what a function has read of the first is not what it reads now."""
    mask = torch.tensor([True, True])

    @function
    def masked(x: Any) -> Any:
        return x * 2 if mask.all() else x

    assert [number(loop, masked(torch.ones(()))) for _ in range(3)] == [2.0, 2.0, 2.0] and masked.traces == 1
    mask.set_(torch.tensor([True, False]))
    with pytest.raises(DataDependentError):
        masked(torch.ones(()))
