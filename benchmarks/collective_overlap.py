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
                Measure("a sum of 32 MiB, 2 procs", "sum", MILLISECONDS),
                Measure("matrix products on the same processors", "processor", MILLISECONDS),
                Measure("the sum and the products, in turn", "processor in turn", MILLISECONDS),
                Measure("the sum beside the products (async_op=True)", "processor beside", MILLISECONDS),
                Measure("a pause, as of a device that computes", "device", MILLISECONDS),
                Measure("the sum and the pause, in turn", "device in turn", MILLISECONDS),
                Measure("the sum beside the pause (async_op=True)", "device beside", MILLISECONDS),
            ),
            {"procs": 2, "side": 512, "products": 12, "pause": 0.2, "megabytes": 32, "warmup": 2, "count": 8},
            {"count": 2, "megabytes": 4, "products": 2, "pause": 0.02},
            contenders=("ours",),
            scripts={"ours": "collective_overlap.py"},
            needs_torch=True,
        ),
    ),
)

if __name__ == "__main__":
    sys.exit(main(QUESTION))
