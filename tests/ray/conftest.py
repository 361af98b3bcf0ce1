"""A Ray cluster for the tests of a module, and what their programs have in the environment to find it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.ray.programs import running


@pytest.fixture(scope="module")
def ray_cluster() -> Iterator[tuple[str, str]]:
    with running({}) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def ray_address(ray_cluster: tuple[str, str]) -> str:
    return ray_cluster[0]


@pytest.fixture
def environment(ray_address: str) -> dict[str, str]:
    return {"RAY_ADDRESS": ray_address, "RAY_USAGE_STATS_ENABLED": "0"}
