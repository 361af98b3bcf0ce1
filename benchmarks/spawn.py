"""How long until freshly asked-for processes answer? Cold: first in a client, runtime's start included.
Warm: again.
"""

from __future__ import annotations

import sys

from _harness import main
from _question import Measure, Question, Run
from _stats import SECONDS, Aim


def spawn(procs: int, torch: bool, cold: float | None, warm: float | None, in_quick: bool) -> Run:
    """A run for so many processes; `cold` and `warm` are aims in seconds."""
    what = f"spawn {procs} procs{', torch imported' if torch else ''}"
    aims = {"cold": cold, "warm": warm}
    measures = tuple(
        Measure(f"{what}, {key}", key, SECONDS, () if bound is None else (Aim(bound),)) for key, bound in aims.items()
    )
    params = {"procs": procs, "torch": torch, "warm": 3}
    return Run("spawn", measures, params, {"warm": 1}, needs_torch=torch, in_quick=in_quick, timeout_s=240)


QUESTION = Question(
    "spawn",
    "How long until new processes answer?",
    (
        spawn(8, False, 0.4, 0.1, in_quick=True),
        spawn(8, True, 1.3, 0.15, in_quick=True),
        spawn(32, False, 0.6, None, in_quick=True),
        spawn(32, True, None, None, in_quick=False),
    ),
)

if __name__ == "__main__":
    sys.exit(main(QUESTION))
