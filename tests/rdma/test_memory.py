"""Tests of what counts as memory."""

from __future__ import annotations

import array
import ctypes
import gc
import mmap
import weakref
from typing import Any

import numpy as np
import pytest
import torch

from monarch.rdma import RDMAError, RDMAMemoryError
from monarch.rdma.local_memory import memory_of


def peek(data: Any) -> bytes:
    memory = memory_of(data)
    return ctypes.string_at(memory.address, memory.size)


TENSOR = torch.arange(24, dtype=torch.int32)
MAPPED = mmap.mmap(-1, 16)


@pytest.mark.parametrize(
    ("data", "size", "writable"),
    [
        (bytearray(b"abcd"), 4, True),
        (b"abcd", 4, False),
        (memoryview(bytearray(b"abcdef"))[2:5], 3, True),
        (memoryview(b"abcdef")[1:], 5, False),
        (memoryview(array.array("d", [1.0, 2.0])), 16, True),
        (memoryview(bytearray(24)).cast("B", (4, 6)), 24, True),
        (memoryview(bytes(24)).cast("B", (4, 6)), 24, False),
        (array.array("i", [1, 2, 3]), 12, True),
        (MAPPED, 16, True),
        ((ctypes.c_int * 3)(1, 2, 3), 12, True),
        (np.arange(6, dtype=np.float64).reshape(2, 3), 48, True),
        (np.zeros(3, dtype="datetime64[s]"), 24, True),
        (np.zeros((), dtype=np.float16), 2, True),
        (np.frombuffer(b"abcd", dtype=np.uint8), 4, False),
        (TENSOR, 96, True),
        (TENSOR[3:9], 24, True),
        (TENSOR.reshape(2, 3, 4), 96, True),
        (torch.ones(3, requires_grad=True), 12, True),
        (torch.ones(5, dtype=torch.bfloat16), 10, True),
        (torch.ones(5, dtype=torch.complex64), 40, True),
        (torch.ones(5).to(torch.float8_e4m3fn), 5, True),
        (torch.ones(5, dtype=torch.bool), 5, True),
        (torch.nn.Parameter(torch.ones(2, 2)), 16, True),
        (torch.ones(()), 4, True),
        (bytearray(), 0, True),
        (b"", 0, False),
        (torch.empty(0), 0, True),
    ],
    ids=lambda value: type(value).__name__,
)
def test_memory_is_seen_where_it_is(data: Any, size: int, writable: bool) -> None:
    memory = memory_of(data)
    assert (memory.size, memory.writable) == (size, writable)
    if isinstance(data, torch.Tensor):
        expected = data.detach().reshape(-1).view(torch.uint8).numpy().tobytes()
    elif isinstance(data, np.ndarray):
        expected = data.tobytes()
    else:
        expected = memoryview(data).tobytes()
    assert peek(data) == expected


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (torch.arange(10)[::2], "not contiguous"),
        (torch.ones(3, 4).t(), "not contiguous"),
        (torch.ones(3, dtype=torch.complex64).conj(), "lazy conjugate"),
        (torch.ones(3, device="meta"), "device meta"),
        (torch.ones(3).to_sparse(), "layout torch.sparse_coo"),
        (np.arange(10)[::2], "not contiguous"),
        (np.asfortranarray(np.ones((2, 3))), "not contiguous"),
        (np.array([object()]), "Python objects"),
        (memoryview(bytearray(8))[::2], "not c-contiguous"),
        (memoryview(bytearray(8))[::-1], "not c-contiguous"),
        ([1, 2], "of type list"),
        ("text", "of type str"),
        (None, "of type NoneType"),
        (3, "of type int"),
    ],
)
def test_what_is_no_memory_is_refused(data: Any, why: str) -> None:
    with pytest.raises(RDMAMemoryError, match=why) as info:
        memory_of(data)
    assert "contiguous" in str(info.value)
    assert isinstance(info.value, ValueError)
    assert isinstance(info.value, RDMAError)


def test_a_view_made_for_the_call_keeps_its_storage() -> None:
    tensor = torch.arange(16)
    storage = weakref.ref(tensor.untyped_storage())
    memory = memory_of(tensor.view(torch.uint8).flatten())
    del tensor
    gc.collect()
    assert ctypes.string_at(memory.address, 16) == bytes([0] * 8 + [1] + [0] * 7)
    del storage, memory


def test_a_bytearray_cannot_be_resized_meanwhile() -> None:
    data = bytearray(8)
    memory = memory_of(data)
    with pytest.raises(BufferError):
        data.extend(b"x")
    del memory
    data.extend(b"x")
