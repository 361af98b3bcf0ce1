"""How much private memory does a process with one idle actor take? The floor is an interpreter with nothing
in it.
"""

from __future__ import annotations

import sys

from _harness import main
from _question import Measure, Question, Run
from _stats import MEGABYTES, Aim

PARAMS = {"procs": 4, "settle_s": 0.5}

QUESTION = Question(
    "memory",
    "How much memory does an idle process take?",
    (
        Run("memory", (Measure("idle proc, private", "private", MEGABYTES, (Aim(15e6),)),), PARAMS),
        Run(
            "memory",
            (Measure("idle proc, private, torch imported", "private", MEGABYTES),),
            {**PARAMS, "torch": True},
            needs_torch=True,
        ),
    ),
)

if __name__ == "__main__":
    sys.exit(main(QUESTION))
