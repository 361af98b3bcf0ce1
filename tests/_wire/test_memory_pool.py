"""Memory that is used again: what is in it stays as long as somebody has it, and goes then."""

from __future__ import annotations

import gc
import os

import pytest

from monarch._wire.memory_pool import MemoryPool

SIZE = 1 << 16


def blocks(file: int) -> int:
    return os.fstat(file).st_blocks * 512


@pytest.mark.parametrize("limit", [1 << 20, 0])
def test_a_forked_child_leaves_memory_to_its_parent(limit: int) -> None:
    pool = MemoryPool("test", lambda: limit)
    memory = pool.memory_for(SIZE)
    assert memory is not None
    memory.write(0, memoryview(bytes([7] * SIZE)))
    file = os.dup(memory.fd)
    child = os.fork()
    if not child:
        del memory
        gc.collect()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert os.pread(file, SIZE, memory.offset) == bytes([7] * SIZE)
    assert memory._segment.busy == bool(limit)
    os.close(file)


def test_memory_that_is_not_used_again_is_given_back_at_once() -> None:
    memory = MemoryPool("test", lambda: 0).memory_for(SIZE)
    assert memory is not None
    memory.write(0, memoryview(bytes(SIZE)))
    file = os.dup(memory.fd)
    assert blocks(file) >= SIZE
    del memory
    assert blocks(file) == 0
    os.close(file)
