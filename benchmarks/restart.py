"""How long from `kill -9` of an actor's process until its successor, restarted by policy, has answered?"""

from __future__ import annotations

import sys

from _harness import main
from _question import Measure, Question, Run
from _stats import MILLISECONDS


def restart(procs: int, count: int, quick: int, **params: object) -> Run:
    """One of `procs` processes is killed `count` times a round."""
    torch = ", torch imported" if params.get("torch") else ""
    return Run(
        "restart",
        (Measure(f"kill -9 of one of {procs}{torch}", "answered", MILLISECONDS),),
        {"procs": procs, "warmup": 2, "count": count, **params},
        {"count": quick},
        contenders=("floor", "ours", "ray"),  # torchmonarch does not restart
        needs_torch=bool(params.get("torch")),
        timeout_s=300,
    )


def recovery(ranks: int, count: int, quick: int) -> Run:
    """One of `ranks` that train with DDP is killed `count` times a round; the program imports nothing for speed's sake."""
    return Run(
        "recovery",
        (Measure(f"kill -9 of one of {ranks} with DDP, until all have done a step", "trained", MILLISECONDS),),
        {"ranks": ranks, "warmup": 2, "count": count},
        {"count": quick},
        contenders=("ours",),
        needs_torch=True,
        scripts={"ours": "monarch_ddp.py"},
        timeout_s=300,
    )


QUESTION = Question(
    "restart",
    "How long until a killed actor is back?",
    (restart(1, 30, 5), restart(8, 30, 5), restart(1, 10, 3, torch=True), recovery(4, 10, 3)),
)

if __name__ == "__main__":
    sys.exit(main(QUESTION))
