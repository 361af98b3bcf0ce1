"""How long does `map` take for many small items? 10,000 squares by 8 processes; the floor is multiprocessing.Pool.map."""

from __future__ import annotations

import sys

from _harness import main
from _question import Measure, Question, Run
from _stats import MILLISECONDS, Aim

SIZES = (156, 313, 625, 1250)

QUESTION = Question(
    "map",
    "How long does a map of 10,000 small items take?",
    (
        Run(
            "map_items",
            tuple(
                Measure(f"chunks of {size}", str(size), MILLISECONDS, (Aim(1.3, "floor"),) if size == SIZES[-1] else ())
                for size in SIZES
            ),
            {"procs": 8, "items": 10_000, "sizes": list(SIZES), "warmup": 3, "count": 30},
            {"count": 10},
            contenders=("floor", "ours"),
        ),
    ),
)

if __name__ == "__main__":
    sys.exit(main(QUESTION))
