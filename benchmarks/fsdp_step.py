"""What does a step of sharded training (FSDP2) cost in actors that one script drives, against one program a rank?"""

from __future__ import annotations

import sys

from _harness import main
from _question import Measure, Question, Run
from _stats import MILLISECONDS, Aim
from gpt_step import SHAPE, SMALL

QUESTION = Question(
    "fsdp_step",
    "What does a step of a GPT-2-small shape under FSDP2 cost in actors, and as one program a rank (the floor)?",
    (
        Run(
            "step",
            (Measure("a step, 2 ranks", "step", MILLISECONDS, (Aim(1.02, against="floor"),)),),
            {**SHAPE, "warmup": 2, "count": 6},
            SMALL,
            contenders=("floor", "ours"),
            scripts={"floor": "gpt_fsdp.py", "ours": "monarch_fsdp.py"},
            needs_torch=True,
            in_quick=True,
            timeout_s=300,
        ),
    ),
)

if __name__ == "__main__":
    sys.exit(main(QUESTION))
