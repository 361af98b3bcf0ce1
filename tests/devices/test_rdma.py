"""Buffers on a real device."""

from __future__ import annotations

from typing import Any

import pytest

from tests.devices.side import call

pytestmark = [pytest.mark.device, pytest.mark.procs]
PATHS = ["device_ipc", "tcp", "actor"]
DTYPES = ["float32", "bfloat16", "bool", "complex64"]


def some(rows: int, columns: int, dtype: str = "float32") -> Any:
    import torch

    return (torch.arange(rows * columns) % 119).view(rows, columns).to(getattr(torch, dtype))


def same(one: Any, other: Any) -> bool:
    import torch

    return isinstance(one, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("path", PATHS)
def test_every_dtype_in_two_dimensions(owner: Any, reader: Any, path: str, dtype: str) -> None:
    call(reader.use, path)
    data = some(257, 33, dtype)
    buffer = call(owner.make, data, "cuda")
    assert same(call(reader.read, buffer, data, "cuda"), data)
    call(owner.drop, buffer)


def test_two_processes_on_one_card_use_it(owner: Any, reader: Any) -> None:
    buffer = call(owner.make, some(10, 10), "cuda")
    assert call(reader.path, buffer) == "device_ipc"
    call(owner.drop, buffer)


@pytest.mark.parametrize("path", PATHS)
def test_what_the_device_still_computes_is_waited_for(owner: Any, reader: Any, path: str) -> None:
    import torch

    call(reader.use, path)
    buffer = call(owner.make_computed, 1024)
    assert same(call(reader.read, buffer, torch.ones(1024, 1024), "cuda"), torch.ones(1024, 1024))
    call(reader.write_computed, buffer, 1024)
    assert torch.allclose(call(owner.seen, buffer), torch.full((1024, 1024), 3.0))
    call(owner.drop, buffer)


def test_after_a_drop_the_memory_is_the_devices_again(owner: Any, reader: Any) -> None:
    before = call(owner.reserved)
    for _ in range(3):
        buffer = call(owner.make, some(1000, 1000), "cuda")
        call(reader.hold, buffer)
        assert call(owner.reserved) >= before + 4_000_000
        call(owner.drop, buffer)
        assert call(reader.again) == "BufferDroppedError"
    assert call(reader.reserved) >= 0  # collects what it had open
    assert call(owner.reserved) == before


def test_the_memory_has_a_dma_buf(owner: Any) -> None:
    """What RDMA devices register; skipped where the driver has none."""
    import os

    import torch

    from monarch import _devices

    tensor = torch.zeros(1 << 20, device="cuda")
    try:
        found = _devices.dma_buf(tensor.data_ptr(), tensor.nbytes, tensor.device.index)
    except _devices.DmaBufError as exc:
        pytest.skip(str(exc))
    os.close(found.file)
    assert found.size >= found.offset + tensor.nbytes


def test_the_card_has_a_name_that_is_the_same_in_every_process(owner: Any, reader: Any) -> None:
    buffer = call(owner.make, some(1, 1), "cuda")
    assert buffer._handle.device is not None
    assert buffer._handle.device.card.uuid
    again = call(reader.make, some(1, 1), "cuda")
    assert again._handle.device is not None
    assert again._handle.device.card == buffer._handle.device.card
    call(owner.drop, buffer)
    call(reader.drop, again)
