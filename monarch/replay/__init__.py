"""Record what an actor receives, and replay it alone: the crash of rank 341 under pdb, on a laptop.

    MONARCH_RECORD=trainers python train.py       # or: with monarch.replay.recording("trainers"): ...
    monarch replay trainers-341.monarchrec --pdb

See docs/replay.md for what is recorded, what it costs, and what cannot be replayed.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from monarch.replay.events import RecordingError as RecordingError
    from monarch.replay.player import Divergence as Divergence
    from monarch.replay.replaying import Outcome as Outcome
    from monarch.replay.replaying import replay as replay
    from monarch.replay.selection import recording as recording

_PLACES = {
    "Divergence": "player",
    "Outcome": "replaying",
    "RecordingError": "events",
    "recording": "selection",
    "replay": "replaying",
}

__all__ = ["Divergence", "Outcome", "RecordingError", "recording", "replay"]


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        return getattr(importlib.import_module(f"monarch.replay.{_PLACES[name]}"), name)
    raise AttributeError(f"module 'monarch.replay' has no attribute {name!r}")
