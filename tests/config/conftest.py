from __future__ import annotations

import pytest

from monarch.config import clear_runtime_config


@pytest.fixture(autouse=True)
def _nothing_is_set(settings_as_they_were: None) -> None:
    """Settings are as a program finds them."""
    clear_runtime_config()
