"""For every test: settings are put back after it, and property tests try the same examples in every run."""

from __future__ import annotations

from collections.abc import Iterator

import hypothesis
import pytest

from monarch.config import settings

hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
hypothesis.settings.load_profile("repeatable")


@pytest.fixture(autouse=True)
def settings_as_they_were() -> Iterator[None]:
    before = settings.LAYERS.runtime()
    yield
    settings.LAYERS.set_runtime(before)
