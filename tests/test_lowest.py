"""`make test-lowest`: every dependency has a lower bound, and tests that run on it."""

from __future__ import annotations

import tomllib

import pytest

from tests.support import lowest

PROJECT = tomllib.loads((lowest.ROOT / "pyproject.toml").read_text())["project"]


def test_every_dependency_has_a_bound() -> None:
    found = dict(bound.split("==") for bound in lowest.bounds(PROJECT))
    assert {"msgspec", "cloudpickle", "duckdb", "textual", "cryptography"} <= found.keys() and "torch" not in found
    with pytest.raises(ValueError, match=r"'cryptography' of tls in pyproject.toml has no lower bound NAME>=VERSION"):
        list(lowest.bounds({"dependencies": [], "optional-dependencies": {"tls": ["cryptography"]}}))


def test_every_extra_has_tests_or_a_reason_why_not() -> None:
    extras = {name for name in PROJECT["optional-dependencies"] if not name.startswith("dev")}
    told = {name for names in lowest.TESTS for name in names.split(", ")}
    assert extras == told - {"cloudpickle", "msgspec"} | lowest.LEFT_OUT.keys()
    missing = [path for paths in lowest.TESTS.values() for path in paths if not (lowest.ROOT / path).exists()]
    assert missing == []
