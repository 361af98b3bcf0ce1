"""For those who test their actors: docs/testing-your-actors.md is the guide.

clock      VirtualClock: time that moves when the test says so
cluster    InProcessCluster: a host and its processes inside this one, over a network that can be disturbed
sequencer  Sequencer: an order forced on threads and tasks
local      Local: an object that a test shares with its simulated actors
leaks      check_leaks: what a test leaves behind
mock       patch_actor: another class in place of an actor's
fixtures   the same for pytest
"""

from __future__ import annotations

from monarch.testing.clock import VirtualClock
from monarch.testing.cluster import InProcessCluster, UnsupervisedFailure
from monarch.testing.leaks import LeakError, check_leaks
from monarch.testing.local import Local
from monarch.testing.mock import patch_actor
from monarch.testing.network import Network
from monarch.testing.sequencer import SequenceBroken, Sequencer

__all__ = [
    "InProcessCluster",
    "LeakError",
    "Local",
    "Network",
    "SequenceBroken",
    "Sequencer",
    "UnsupervisedFailure",
    "VirtualClock",
    "check_leaks",
    "patch_actor",
]


def __dir__() -> list[str]:
    return sorted(__all__)
