"""What the kernel asks of a gather mount, asked of its owner."""

from __future__ import annotations
from typing import Any


class GatherView:
    def __init__(self, ask: Any) -> None:
        self._ask = ask
