"""What does a call of a recorded function cost? Beside it the same operations one by one."""

from __future__ import annotations

import sys

from _harness import main
from _question import Measure, Question, Run
from _stats import MICROSECONDS, MILLISECONDS, Aim

SCRIPTS = {"floor": "torch_function.py", "ours": "monarch_function.py", "torchmonarch": "monarch_function.py"}

MODELS = tuple(f"{model}{how}" for model in ("perceptron", "transformer", "convolutions") for how in ("", ", fused"))

QUESTION = Question(
    "tensor_function",
    "What does a call of a recorded function cost?",
    (
        Run(
            "chain",
            (
                Measure("100 operations one by one, issue, 2 procs", "issue one by one", MICROSECONDS),
                Measure("100 operations one by one, complete, 2 procs", "complete one by one", MICROSECONDS),
                Measure("a recorded function of them, issue, 2 procs", "issue", MICROSECONDS, (Aim(200e-6),)),
                Measure("a recorded function of them, complete, 2 procs", "complete", MICROSECONDS),
            ),
            {"procs": 2, "length": 100, "calls": 20, "warmup": 3, "count": 20},
            {"count": 5},
            contenders=("floor", "ours", "torchmonarch"),
            scripts=SCRIPTS,
            needs_torch=True,
        ),
        Run(
            "step",
            (
                Measure("a training step one by one, issue, 2 procs", "issue one by one", MILLISECONDS),
                Measure("a training step one by one, complete, 2 procs", "complete one by one", MILLISECONDS),
                Measure("the same recorded, issue, 2 procs", "issue", MILLISECONDS),
                Measure("the same recorded, complete, 2 procs", "complete", MILLISECONDS),
            ),
            {"procs": 2, "layers": 8, "calls": 5, "warmup": 3, "count": 10},
            {"count": 3},
            contenders=("ours",),
            scripts=SCRIPTS,
            needs_torch=True,
        ),
        Run(
            "models",
            tuple(
                Measure(f"{model}: {way}{what}", f"{model}: {way}{what}", MILLISECONDS)
                for model in MODELS
                for way in ("here", "op by op", "function")
                for what in ("", ", program", ", rank")
            ),
            {"procs": 2, "calls": 4, "warmup": 3, "count": 8},
            {"count": 3},
            contenders=("ours",),
            scripts=SCRIPTS,
            needs_torch=True,
            in_quick=False,
            timeout_s=300.0,
        ),
    ),
)

if __name__ == "__main__":
    sys.exit(main(QUESTION))
