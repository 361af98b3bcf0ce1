"""How long does a trainer mesh take to bring new weights to a generator mesh that is sharded otherwise?"""

from __future__ import annotations

import sys

from _harness import main
from _question import Measure, Question, Run
from _stats import MILLISECONDS, Aim

SCRIPTS = {"floor": "weight_sync_floor.py", "ours": "monarch_weight_sync.py"}

QUESTION = Question(
    "weight_sync",
    "How long does a trainer mesh take to bring new weights to a generator mesh that is sharded otherwise?",
    (
        Run(
            "sync",
            (
                Measure("1 GiB, 2 ranks to 2, StateDict", "state_dict", MILLISECONDS, (Aim(2, against="floor"),)),
                Measure("the same, shards whole by way of a store", "store", MILLISECONDS),
                Measure("the same, torch.save in /dev/shm", "saved", MILLISECONDS),
            ),
            {"layers": 8, "side": 4096, "warmup": 1, "count": 5},
            {"layers": 1, "count": 2},
            contenders=("floor", "ours"),
            scripts=SCRIPTS,
            needs_torch=True,
            timeout_s=300,
        ),
    ),
)

if __name__ == "__main__":
    sys.exit(main(QUESTION))
