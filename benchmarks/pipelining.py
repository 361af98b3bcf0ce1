"""How many call_one a second does one actor answer when the caller does not wait for each?"""

from __future__ import annotations

import sys

from _harness import main
from _question import Measure, Question, Run
from _stats import KILO_PER_SECOND, Aim

QUESTION = Question(
    "pipelining",
    "How many pipelined calls a second?",
    (
        Run(
            "pipelining",
            (Measure("call_one, batches of 2,000", "calls", KILO_PER_SECOND, (Aim(80e3),)),),
            {"procs": 1, "batch": 2000, "warmup": 2, "count": 10},
            {"warmup": 1, "count": 3},
        ),
        Run(
            "pipelining",
            (Measure("the same, async endpoint", "calls", KILO_PER_SECOND),),
            {"procs": 1, "batch": 2000, "warmup": 2, "count": 10, "style": "async"},
            contenders=("floor", "ours", "torchmonarch"),
            in_quick=False,
        ),
    ),
)

if __name__ == "__main__":
    sys.exit(main(QUESTION))
