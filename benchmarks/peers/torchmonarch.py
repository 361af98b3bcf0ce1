"""The original, torchmonarch 0.7.0. It is measured, never read. Same public API as ours, so the same
workloads.
"""

from __future__ import annotations

from _contender import Contender
from peers._venv import peer


def contender() -> Contender:
    """torchmonarch in its own virtual environment, or the reason why it cannot take part."""
    return peer("torchmonarch", "torchmonarch", [["torchmonarch==0.7.0", "numpy"]], "import monarch.actor")
