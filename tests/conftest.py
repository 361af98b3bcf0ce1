"""For every test: settings are put back after it, and property tests try the same examples in every run."""

from __future__ import annotations

import signal
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


def pytest_configure(config: pytest.Config) -> None:
    """Shells start background jobs with SIGINT ignored, nohup with SIGHUP: the programs that tests start would inherit
    that, and tests that send these signals would wait in vain."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
