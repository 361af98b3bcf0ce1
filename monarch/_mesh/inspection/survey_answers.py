"""The answers of processes to a question (see `survey`). Who asks loads them without the runtime."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

T = TypeVar("T")


class SurveyAnswers(msgspec.Struct, frozen=True):
    """The answers of processes, by address. `silent`: those that gave no answer, and why."""

    replies: dict[str, bytes]
    silent: dict[str, str]

    def decoded(self, decode: Callable[[bytes], T]) -> dict[str, T]:
        """Returns the answers as `decode` reads them. A process whose answer cannot be read has given none: `silent` says
        so from then on."""
        found: dict[str, T] = {}
        for address, reply in self.replies.items():
            try:
                found[address] = decode(reply)
            except (ValueError, RecursionError) as exc:
                self.silent[address] = f"its answer cannot be read: {exc}"
        return found
