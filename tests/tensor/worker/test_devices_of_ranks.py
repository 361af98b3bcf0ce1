"""Ranks as libraries for distributed programs see them, and the devices that operations name."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from monarch.tensor import signature  # noqa: E402
from monarch.tensor.controller import engines  # noqa: E402
from monarch.tensor.signature import TensorHole  # noqa: E402


def places(hosts: str) -> Any:
    return types.SimpleNamespace(
        _places=lambda: [(host, hosts[:index].count(host)) for index, host in enumerate(hosts)]
    )


@pytest.mark.parametrize(
    ("hosts", "local", "sizes"),
    [
        ("aa", "01", "22"),  # {"replica": 2, "gpus": 1}, for one: the names of dimensions say nothing
        ("aabb", "0101", "2222"),
        ("abb", "001", "122"),
    ],
)
def test_local_ranks_count_the_ranks_of_a_host(hosts: str, local: str, sizes: str) -> None:
    found = engines._environments(places(hosts))
    assert "".join(one["LOCAL_RANK"] for one in found) == local
    assert "".join(one["LOCAL_WORLD_SIZE"] for one in found) == sizes
    assert [one["RANK"] for one in found] == list(map(str, range(len(hosts))))


@pytest.fixture
def third(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process whose device is the third of four."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 2)
    yield


def test_the_controllers_cuda_is_this_ranks_device(third: None) -> None:
    wanted = torch.device("cuda", 2)
    assert signature.here(torch.device("cuda", 0)) == wanted
    assert signature.here(torch.device("cuda")) == torch.device("cuda")  # torch takes the current one by itself
    assert signature.here(torch.device("cpu", 0)) == torch.device("cpu", 0)
    assert signature.here("cuda:0") == "cuda:0"
    given: list[Any] = []
    run = signature.runner(
        lambda *args, **kwargs: given.append((args, kwargs)), (TensorHole(0),), {"device": torch.device("cuda:0")}
    )
    run(["tensor"], ())
    assert given == [(("tensor",), {"device": wanted})]


def test_without_devices_torch_says_so_itself() -> None:
    if torch.cuda.is_available():
        pytest.skip("this process has a device")
    assert signature.here(torch.device("cuda", 0)) == torch.device("cuda", 0)


def test_out_of_memory_names_the_rank_and_its_host() -> None:
    from monarch.tensor.worker.executor import Executor

    failed = Executor(5).failed(7, "aten.empty", torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 TiB"))
    assert "Tried to allocate 1 TiB" in failed.text
    assert "out of memory on rank 5 (host " in failed.text
