"""Tests marked `netns` are skipped, with the reason, where no namespaces can be made."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest

from tests.netns.lab import Lab, why_not

_why_not = functools.cache(why_not)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("netns") is not None and (reason := _why_not()) is not None:
        pytest.skip(f"network namespaces: {reason}")


@pytest.fixture(scope="session")
def _lab() -> Iterator[Lab]:
    with Lab(hosts=3) as made:
        yield made


@pytest.fixture
def lab(_lab: Lab) -> Iterator[Lab]:
    """Three hosts, as new for every test."""
    yield _lab
    _lab.reset()
