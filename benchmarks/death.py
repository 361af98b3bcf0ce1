"""How long from `kill -9` of a process until whoever waits for it has the exception? 1, 8 and 64 processes."""

from __future__ import annotations

import sys

from _harness import main
from _question import Measure, Question, Run
from _stats import MILLISECONDS, Aim

AIMS = (Aim(20e-3, statistic="p99"),)


def death(procs: int, count: int, slow: int, quick: int) -> Run:
    """One of `procs` processes is killed `count` times a round; `slow` times where each takes seconds to be noticed."""
    return Run(
        "death",
        (Measure(f"kill -9 of one of {procs}", "noticed", MILLISECONDS, AIMS),),
        {"procs": procs, "warmup": 2, "count": count, "slow": slow},
        {"count": quick, "slow": 1},
        timeout_s=300,
    )


QUESTION = Question(
    "death",
    "How long until a caller hears of a death?",
    (
        death(1, count=50, slow=2, quick=10),
        death(8, count=50, slow=2, quick=10),
        death(64, count=15, slow=1, quick=4),
    ),
)

if __name__ == "__main__":
    sys.exit(main(QUESTION))
