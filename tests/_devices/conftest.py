from __future__ import annotations

from collections.abc import Iterator

import pytest

from monarch._devices import memory
from tests._devices.fake import FakeCard


@pytest.fixture
def card() -> Iterator[FakeCard]:
    """This process has one card. All copies that were begun have been waited for."""
    fake = FakeCard()
    before = memory.replace(fake)
    yield fake
    memory.replace(before)
    fake.close()
    assert fake.begun == fake.waited
