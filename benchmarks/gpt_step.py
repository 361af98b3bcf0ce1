"""What does a training step cost that one script drives, against the same step as one program a rank (DDP)?"""

from __future__ import annotations

import sys

from _harness import main
from _question import Measure, Question, Run
from _stats import MILLISECONDS, Aim

SCRIPTS = {"floor": "gpt_ddp.py", "ours": "gpt_mesh.py"}
SHAPE = {
    "vocabulary": 50257,
    "length": 128,
    "layers": 12,
    "width": 768,
    "heads": 12,
    "batch": 1,
    "procs": 2,
    "threads": 1,
}
SMALL = {"vocabulary": 4096, "layers": 4, "width": 256, "heads": 4, "count": 3}


def run(workload: str, name: str, aims: tuple[Aim, ...], in_quick: bool) -> Run:
    return Run(
        workload,
        (Measure(name, "step", MILLISECONDS, aims),),
        {**SHAPE, "warmup": 3, "count": 6},
        SMALL,
        contenders=("floor", "ours") if workload == "step" else ("ours",),
        scripts=SCRIPTS,
        needs_torch=True,
        in_quick=in_quick,
        timeout_s=300,
    )


QUESTION = Question(
    "gpt_step",
    "What does a data-parallel step of a GPT-2-small shape cost, from one script and under DDP (the floor)?",
    (
        run("step", "a step, traced, 2 procs", (Aim(1.05, against="floor"),), True),
        run("op_by_op", "a step, op by op, 2 procs", (), True),
    ),
)

if __name__ == "__main__":
    sys.exit(main(QUESTION))
