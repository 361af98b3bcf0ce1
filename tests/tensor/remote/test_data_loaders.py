"""A data loader in each process, whose batches are distributed tensors."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import monarch
import monarch.tensor as mt
from monarch.tensor.worker import batches
from tests.support.patience import TIMEOUT
from tests.tensor.loopback import loopback


def rows(rank: int, size: int, count: int = 3, batch: int = 2) -> Iterator[Any]:
    """`count` batches of a data set whose rows are dealt to the ranks in turn."""
    for number in range(count):
        first = (number * size + rank) * batch
        yield {
            "x": torch.arange(first, first + batch, dtype=torch.float32),
            "y": [torch.tensor(rank)],
            "name": f"{number}",
        }


def sets(rank: int, size: int) -> Any:
    data = torch.utils.data.TensorDataset(torch.arange(10.0), torch.arange(10))
    sampler: Any = torch.utils.data.DistributedSampler(data, size, rank, shuffle=False)
    return torch.utils.data.DataLoader(data, batch_size=2, sampler=sampler, drop_last=True)


def values(tensor: Any) -> list[Any]:
    return [mt.inspect(tensor, gpus=rank).tolist() for rank in range(tensor.mesh.size())]


def test_each_process_reads_its_own() -> None:
    with loopback(gpus=2) as mesh:
        loaders = monarch.DataLoaders(rows)
        for _ in range(2):  # each iteration starts anew
            found = list(loaders)
            assert [values(batch["x"]) for batch in found] == [
                [[0, 1], [2, 3]],
                [[4, 5], [6, 7]],
                [[8, 9], [10, 11]],
            ]
            assert [batch["name"] for batch in found] == ["0", "1", "2"]
            assert all(type(batch["x"]) is mt.Tensor and batch["x"].mesh is mesh for batch in found)
            assert values(found[0]["y"][0]) == [0, 1]


def test_a_torch_loader() -> None:
    with loopback(gpus=2):
        found = [(values(x), values(y)) for x, y in monarch.DataLoaders(sets)]
    assert found == [([[0, 2], [1, 3]], [[0, 2], [1, 3]]), ([[4, 6], [5, 7]], [[4, 6], [5, 7]])]


def test_peers_in_other_dimensions_read_the_same() -> None:
    with loopback(dp=2, tp=2):
        (batch,) = monarch.DataLoaders(rows, 1, dims="dp")
        found = [mt.inspect(batch["x"], dp=dp, tp=tp).tolist() for dp in range(2) for tp in range(2)]
        assert found == [[0, 1], [0, 1], [2, 3], [2, 3]]


def test_training_is_that_of_one_process() -> None:
    def trained(all_batches: Any, averaged: Any) -> Any:
        weight = torch.ones(2, requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=0.001)
        for batch in all_batches:
            optimizer.zero_grad()
            (weight * batch).square().sum().backward()
            averaged(weight.grad)
            optimizer.step()
        return weight

    alone = [torch.stack([batch["x"], batch["x"]]) for batch in rows(0, 1)]
    wanted = trained(alone, lambda grad: grad.div_(2))
    with loopback(gpus=1):
        found = trained((batch["x"] for batch in monarch.DataLoaders(rows)), lambda grad: None)
        assert mt.inspect(found).tolist() == wanted.tolist()


def test_one_batch_ahead_is_enough() -> None:
    with loopback(gpus=1):
        found = [values(batch["x"]) for batch in monarch.DataLoaders(rows, ahead=1)]
        assert found == [[[0, 1]], [[2, 3]], [[4, 5]]]


def test_parts_of_larger_tensors() -> None:
    def views(rank: int, size: int) -> Iterator[Any]:
        yield torch.arange(4.0)[rank * 2 : rank * 2 + 2]

    with loopback(gpus=2):
        (batch,) = monarch.DataLoaders(views)
        assert values(batch) == [[0, 1], [2, 3]]


def test_it_ends_with_the_first_that_has_no_more() -> None:
    def uneven(rank: int, size: int) -> Iterator[Any]:
        yield from [torch.ones(1)] * (3 - rank)

    with loopback(gpus=2) as mesh:
        iterator = iter(monarch.DataLoaders(uneven))
        assert len(list(iterator)) == 2
        with pytest.raises(StopIteration):
            next(iterator)
        mesh.client.flush()
        assert [len(one.extras["loaders"]) for one in mesh.client.executors] == [0, 0]


def test_what_was_left_early_ends_with_the_next() -> None:
    with loopback(gpus=1) as mesh:
        loaders = monarch.DataLoaders(rows, 100)
        for _ in loaders:
            break
        gc.collect()
        assert len(list(monarch.DataLoaders(rows))) == 3
        mesh.client.flush()
        assert len(mesh.client.executors[0].extras["loaders"]) == 0


def test_a_process_is_no_more_than_so_many_batches_ahead() -> None:
    made: list[int] = []
    more = threading.Event()

    def counted() -> Iterator[Any]:
        for number in range(10):
            made.append(number)
            if number == 2:
                more.set()
            yield torch.ones(1)

    loader = batches.Loader(counted, 2)
    assert loader.describe(1) is not None and more.wait(TIMEOUT)
    assert made == [0, 1, 2]  # the third waits for room
    assert len(loader.take(0)) == 1 and loader.describe(2) is not None
    loader.close()
    loader.join(TIMEOUT)
    assert loader.describe(9) is None and made[-1] <= 4


# --- what goes wrong ------------------------------------------------------------------------------------------------


def test_batches_of_other_shapes() -> None:
    def smaller(rank: int, size: int) -> Iterator[Any]:
        yield torch.ones(4 - rank, 2)

    text = r"batch 0 of rank 0 is float32\[4, 2\], and that of rank 1 is float32\[3, 2\].*drop_last=True"
    with loopback(gpus=2), pytest.raises(ValueError, match=text):
        list(monarch.DataLoaders(smaller))


def test_a_loader_that_fails() -> None:
    def failing(rank: int, size: int) -> Iterator[Any]:
        yield torch.ones(1)
        if rank == 1:
            raise OSError("the data set is gone")
        yield torch.ones(1)

    with loopback(gpus=2):
        iterator = iter(monarch.DataLoaders(failing))
        next(iterator)
        with pytest.raises(mt.RemoteException, match="the data set is gone"):
            next(iterator)
        with pytest.raises(StopIteration):
            next(iterator)


def test_wrong_arguments() -> None:
    with pytest.raises(ValueError, match="no device mesh is active"):
        monarch.DataLoaders(rows)
    with loopback(gpus=2):
        with pytest.raises(KeyError, match="no dimension 'dp'"):
            monarch.DataLoaders(rows, dims="dp")
        with pytest.raises(ValueError, match="at least one batch"):
            monarch.DataLoaders(rows, ahead=0)
        with pytest.raises(mt.RemoteException, match="not iterable"):
            list(monarch.DataLoaders(lambda rank, size: 3))
