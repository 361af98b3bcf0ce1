"""Actors that have ended, as far as it is told of them later."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from monarch._wire.message import Failure

if TYPE_CHECKING:
    from monarch._runtime.instance import Instance


class Departed(NamedTuple):
    """The remains of an actor. Its object, messages and thread are not held. Fields as those of its Instance."""

    key: str
    name: str
    rank: int
    unique: str
    cls: str
    owner: str
    owner_proc: str
    created_at: float
    ended_at: float
    processed: int
    busy: float
    peak: int
    endpoint: str
    system: bool
    failure: Failure
    caused_by: tuple[str, int, str, str] | None

    @classmethod
    def of(cls, instance: Instance, failure: Failure | None) -> Departed:
        call = instance.last_call
        return cls(
            instance.key,
            instance.name,
            instance.rank,
            instance.unique,
            instance.cls,
            instance.owner,
            instance.owner_proc,
            instance.created_at,
            time.time(),
            instance.processed,
            instance.busy,
            instance.peak,
            "" if call is None else call.method,
            is_system(instance),
            failure or instance.end or Failure("ended", stopped=True),
            instance.caused_by,
        )

    @property
    def word(self) -> str:
        return "stopped" if self.failure.stopped else "failed"


def is_system(instance: Instance) -> bool:
    """Returns whether it belongs to the runtime and not to the program."""
    return instance.system
