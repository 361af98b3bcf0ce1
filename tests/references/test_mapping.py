"""Mappings that wait for the next value in the same memory; and pages that a process wrote to."""

from __future__ import annotations

import ctypes
import os
import resource
from collections.abc import Iterator

import pytest

from monarch._linux import memory_map
from monarch.references import mapping
from monarch.references.mapping import IdleRegions, MappedRegion, map_region

PAGE = resource.getpagesize()


@pytest.fixture
def unmapped(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The regions that were unmapped, by their addresses."""
    found: list[int] = []
    monkeypatch.setattr(MappedRegion, "unmap", lambda self: found.append(self.address))
    return found


def test_a_region_is_given_once(unmapped: list[int]) -> None:
    idle = IdleRegions()
    idle.give((1, 2), MappedRegion(10, 1), 0.0)
    assert idle.take((1, 3)) is None
    assert idle.take((1, 2)) == MappedRegion(10, 1)
    assert idle.take((1, 2)) is None
    assert not unmapped


def test_a_region_is_unmapped_ten_seconds_after_its_last_use(unmapped: list[int]) -> None:
    idle = IdleRegions()
    idle.give((1, 1), MappedRegion(10, 1), 0.0)
    idle.give((1, 2), MappedRegion(20, 1), 4.0)
    assert idle.trim(9.0) == 1.0
    assert idle.trim(10.0) == 4.0
    assert unmapped == [10]
    assert idle.trim(14.0) is None
    assert unmapped == [10, 20] and not len(idle)


def test_there_is_one_region_a_file_and_a_bound_of_files(unmapped: list[int]) -> None:
    idle = IdleRegions()
    idle.give((1, 0), MappedRegion(1, 1), 0.0)
    for number in range(mapping._MOST + 1):
        idle.give((1, number), MappedRegion(100 + number, 1), 0.0)
    assert unmapped == [1, 100 + mapping._MOST] and len(idle) == mapping._MOST


@pytest.fixture
def region() -> Iterator[MappedRegion]:
    file = os.memfd_create("test")
    os.truncate(file, 8 * PAGE)
    made = map_region(file, 0, 8 * PAGE)
    os.close(file)
    yield made
    made.unmap()


@pytest.mark.parametrize("has_scan", [True, False])
def test_what_was_written_to_is_known(region: MappedRegion, has_scan: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not has_scan:  # a kernel before 6.7
        monkeypatch.setattr(memory_map, "_PAGEMAP_SCAN", 0xC0606611)
    elif not _has_scan(region):
        pytest.skip("the kernel has no PAGEMAP_SCAN")
    assert not memory_map.is_written(*region)
    assert ctypes.string_at(region.address, region.size) == bytes(region.size)
    assert not memory_map.is_written(*region)
    ctypes.memset(region.address + region.size - 1, 1, 1)
    assert memory_map.is_written(*region)
    assert not memory_map.is_written(region.address, region.size - PAGE)


def _has_scan(region: MappedRegion) -> bool:
    file = os.open("/proc/self/pagemap", os.O_RDONLY)
    try:
        memory_map._scanned(file, *region)
    except OSError:
        return False
    finally:
        os.close(file)
    return True


def test_where_the_kernel_does_not_say_all_counts_as_written_to(
    region: MappedRegion, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*args: object) -> int:
        raise OSError

    monkeypatch.setattr("os.open", refused)
    assert memory_map.is_written(*region)
