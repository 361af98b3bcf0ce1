"""What does a pipeline of GPT stages by 1F1B cost as a compiled graph, against loops written by hand on pipes (the floor)?"""

from __future__ import annotations

import sys

from _harness import main
from _question import Measure, Question, Run
from _stats import MILLISECONDS, Aim

SCRIPTS = {"floor": "pipeline_floor.py", "ours": "monarch_pipeline.py"}
PARAMS = {
    "stages": 2, "parts": 8, "batch": 2, "vocabulary": 512, "length": 64, "layers": 4, "width": 256, "heads": 4,
    "ahead": 1, "warmup": 3, "count": 20,
}  # fmt: skip

QUESTION = Question(
    "pipeline",
    "What does a pipeline of GPT stages cost as a compiled graph?",
    (
        Run(
            "pipeline",
            (
                Measure("a step, 8 micro-batches, 2 stages", "step", MILLISECONDS, (Aim(1.03, against="floor"),)),
                Measure("... processor time of all", "processor", MILLISECONDS, (Aim(1.03, against="floor"),)),
                Measure("... the last loss, x 1,000", "loss", MILLISECONDS),
            ),
            PARAMS,
            {"count": 5},
            contenders=("floor", "ours"),
            scripts=SCRIPTS,
            needs_torch=True,
            timeout_s=120,
        ),
    ),
)

if __name__ == "__main__":
    sys.exit(main(QUESTION))
