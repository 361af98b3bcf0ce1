"""How many broadcasts a second reach 8 processes? A final call makes sure that all have arrived."""

from __future__ import annotations

import sys

from _harness import main
from _question import Measure, Question, Run
from _stats import KILO_PER_SECOND, Aim

QUESTION = Question(
    "broadcast",
    "How many broadcasts a second?",
    (
        Run(
            "broadcast",
            (Measure("broadcast to 8 procs", "broadcasts", KILO_PER_SECOND, (Aim(12e3),)),),
            {"procs": 8, "batch": 1000, "warmup": 1, "count": 8},
            {"batch": 500, "count": 3},
        ),
    ),
)

if __name__ == "__main__":
    sys.exit(main(QUESTION))
