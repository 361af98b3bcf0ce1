"""How many records a second come out of readers and tokenizers, against torch's DataLoader with as many workers?"""

from __future__ import annotations

import sys

from _harness import main
from _question import Measure, Question, Run
from _stats import KILO_PER_SECOND, MILLISECONDS

QUESTION = Question(
    "data_pipeline",
    "How many records a second do 2 tokenizers deliver: stages of a mesh, and torch's DataLoader (the floor)?",
    (
        Run(
            "records",
            (
                Measure("records of 1 KiB, read, tokenized, padded", "delivered", KILO_PER_SECOND),
                Measure("from the start of the workers to the first batch", "first", MILLISECONDS),
            ),
            {"workers": 2, "readers": 1, "batch": 8, "in_flight": 2, "chunk": 100, "warmup": 1, "count": 8},
            {"count": 2},
            contenders=("floor", "ours"),
            scripts={"floor": "torch_data_loader.py", "ours": "monarch_data_pipeline.py"},
            needs_torch=True,
        ),
    ),
)

if __name__ == "__main__":
    sys.exit(main(QUESTION))
