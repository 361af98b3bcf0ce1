"""How fast does asynchronous reinforcement learning go, beside the same loop by hand and with Ray?

The floor is torch.multiprocessing: queues, and weights in shared memory. All have the task, the policy, the loss and the
batch of examples/grpo, two generators, a scorer, a buffer of one batch, and a learner that has the next one fetched while it
computes. Each computes with one thread.
"""

from __future__ import annotations

import sys

from _harness import main
from _question import Column, Measure, Question, Run
from _stats import COUNT, KILO_PER_SECOND, Aim, Unit

SCRIPTS = {"floor": "grpo_by_hand.py", "ours": "monarch_grpo.py", "ray": "ray_grpo.py"}
PER_SECOND = Unit("1/s", "1/s", 1.0, 1, higher_is_better=True)
COLUMNS = (
    Column("steps/s", PER_SECOND, ("steps",)),
    Column("versions old", Unit("count", "count", 1.0, 2), ("age",)),
    Column("learner waited %", Unit("1", "%", 100.0, 0), ("waited",)),
    Column("refused", COUNT, ("refused",)),
)
AIMS = (Aim(1.05, against="floor"), Aim(1.0, against="ray"))


def run(name: str, count: int, **settings: float) -> Run:
    return Run(
        "train",
        (Measure(f"samples, {name}", "samples", KILO_PER_SECOND, AIMS, columns=COLUMNS),),
        {
            "settings": settings,
            "generators": 2,
            "capacity": 1,
            "max_age": 4,
            "warmup": 20,
            "count": count,
            "timeout": 240,
        },
        {"warmup": 5, "count": 20},
        contenders=("floor", "ours", "ray"),
        scripts=SCRIPTS,
        needs_torch=True,
        timeout_s=300,
    )


QUESTION = Question(
    "grpo",
    "How fast does asynchronous reinforcement learning go, beside the same loop by hand and with Ray?",
    (
        run("4 digits, 58 k parameters, batches of 256", 200, digits=4, base=10, width=48, prompts=16, group=16),
        run("3 digits, 7 k parameters, batches of 16", 400, digits=3, base=6, width=16, prompts=4, group=4),
        run("3 digits, 3.1 M parameters, batches of 16", 100, digits=3, base=6, width=360, prompts=4, group=4),
    ),
)

if __name__ == "__main__":
    sys.exit(main(QUESTION))
