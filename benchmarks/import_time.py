"""How long does the import take that every program begins with?"""

from __future__ import annotations

import sys

from _harness import main
from _question import DEFAULT_CONTENDERS, Measure, Question, Run
from _stats import SECONDS, Aim

QUESTION = Question(
    "import_time",
    "How long does the import take?",
    (
        Run(
            "imports",
            (
                Measure("interpreter with the import, start to end", "process", SECONDS, (Aim(0.08),)),
                Measure("the import statement alone", "inside", SECONDS),
            ),
            {"warmup": 2, "count": 10},
            {"warmup": 1, "count": 5},
            scripts=dict.fromkeys(DEFAULT_CONTENDERS, "imports.py"),
        ),
    ),
)

if __name__ == "__main__":
    sys.exit(main(QUESTION))
