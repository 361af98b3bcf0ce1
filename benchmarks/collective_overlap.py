"""What does a collective cost that runs beside a computation? Beside it the two in turn, and each alone."""

from __future__ import annotations

import sys

from _harness import main
from _question import Measure, Question, Run
from _stats import MILLISECONDS

QUESTION = Question(
    "collective_overlap",
    "What does a collective cost that runs beside a computation?",
    (
        Run(
            "overlap",
            (
                Measure("matrix products alone, 2 procs", "compute", MILLISECONDS),
                Measure("a sum of 64 MiB alone, 2 procs", "communicate", MILLISECONDS),
                Measure("one after the other", "in turn", MILLISECONDS),
                Measure("beside each other (async_op=True)", "beside", MILLISECONDS),
            ),
            {"procs": 2, "side": 768, "products": 12, "megabytes": 64, "warmup": 2, "count": 8},
            {"count": 2, "megabytes": 4, "products": 2},
            contenders=("ours",),
            scripts={"ours": "collective_overlap.py"},
            needs_torch=True,
        ),
    ),
)

if __name__ == "__main__":
    sys.exit(main(QUESTION))
