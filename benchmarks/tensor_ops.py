"""What does an operation on distributed tensors cost? The floor is plain torch in one process."""

from __future__ import annotations

import sys

from _harness import main
from _question import Measure, Question, Run
from _stats import MICROSECONDS, MILLISECONDS, Aim

SCRIPTS = {"floor": "torch_local.py", "ours": "monarch_tensors.py", "torchmonarch": "monarch_tensors.py"}
KINDS = (
    "x + y",
    "x.add_(y)",
    "x.lerp_(y, 0.5)",
    "x @ y",
    "x.sum()",
    "x.softmax(1)",
    "x.t()",
    "x[1:]",
    "x.view(-1)",
    "cat((x, y))",
)  # of workloads/_operations.py
WHO = ("floor", "ours", "torchmonarch")

QUESTION = Question(
    "tensor_ops",
    "What does an operation on distributed tensors cost?",
    (
        Run(
            "chains",
            (
                Measure("x + y, issue, 2 procs", "issue", MICROSECONDS, (Aim(15e-6),)),
                Measure("x + y, complete, 2 procs", "complete", MICROSECONDS, (Aim(30e-6),)),
                Measure("x.add_(y), issue, 2 procs", "issue in place", MICROSECONDS, (Aim(15e-6),)),
                Measure("x.add_(y), complete, 2 procs", "complete in place", MICROSECONDS, (Aim(30e-6),)),
            ),
            {"procs": 2, "length": 1000, "warmup": 2, "count": 8},
            {"length": 300, "count": 3},
            contenders=WHO,
            scripts=SCRIPTS,
            needs_torch=True,
        ),
        Run(
            "kinds",
            tuple(Measure(f"{kind}, issue, 2 procs", kind, MICROSECONDS) for kind in KINDS),
            {"procs": 2, "length": 200, "warmup": 3, "count": 12},
            {"count": 4},
            contenders=WHO,
            scripts=SCRIPTS,
            needs_torch=True,
        ),
        Run(
            "fetch",
            (Measure("inspect(x + y), 2 procs", "inspect", MICROSECONDS),),
            {"procs": 2, "warmup": 20, "count": 200},
            {"count": 30},
            contenders=("ours", "torchmonarch"),
            scripts=SCRIPTS,
            needs_torch=True,
        ),
        Run(
            "death",
            (
                Measure(
                    "kill -9 in a step until the exception", "noticed", MILLISECONDS, (Aim(20e-3, statistic="p99"),)
                ),
                Measure("the same until the restarted mesh works", "again", MILLISECONDS),
            ),
            {"procs": 2, "warmup": 2, "count": 20},
            {"count": 4},
            contenders=("ours",),
            scripts=SCRIPTS,
            needs_torch=True,
        ),
        Run(
            "step",
            (Measure("a step of a small network, 2 procs", "step", MILLISECONDS),),
            {"procs": 2, "warmup": 5, "count": 50},
            {"count": 10},
            contenders=WHO,
            scripts=SCRIPTS,
            needs_torch=True,
        ),
    ),
)

if __name__ == "__main__":
    sys.exit(main(QUESTION))
