"""How long is a call? call_one round trip, with handles as arguments too, call on 8 and 32 processes."""

from __future__ import annotations

import sys

from _harness import main
from _question import Measure, Question, Run
from _stats import MICROSECONDS, MILLISECONDS, Aim

ALL = ("socket", "floor", "ours", "torchmonarch", "ray")
ONE_AIMS = (Aim(2.0, "floor"), Aim(6.0, "torchmonarch"))
ONE = {"procs": 1, "warmup": 300, "count": 3000}
ONE_QUICK = {"warmup": 100, "count": 500}

QUESTION = Question(
    "call",
    "How long is a call?",
    (
        Run(
            "call",
            (Measure("call_one, plain endpoint", "round_trip", MICROSECONDS, ONE_AIMS),),
            ONE,
            ONE_QUICK,
            contenders=ALL,
        ),
        Run(
            "call",
            (Measure("call_one, async endpoint", "round_trip", MICROSECONDS, ONE_AIMS),),
            {**ONE, "style": "async"},
            ONE_QUICK,
            contenders=("floor", "ours", "torchmonarch"),
        ),
        Run(
            "handles",
            (
                Measure("call_one with a number", "number", MICROSECONDS),
                Measure("... with a mesh of actors", "mesh", MICROSECONDS),
                Measure("... with a slice", "slice", MICROSECONDS),
                Measure("... with a list of two meshes", "list", MICROSECONDS),
                Measure("... with a mesh of processes", "procs", MICROSECONDS),
                Measure("... with a port", "port", MICROSECONDS),
            ),
            {**ONE, "count": 2000},
            ONE_QUICK,
            contenders=("ours", "torchmonarch"),
        ),
        Run(
            "call",
            (Measure("call on 8 procs", "round_trip", MILLISECONDS, (Aim(0.4e-3),)),),
            {"procs": 8, "warmup": 50, "count": 500},
            {"warmup": 20, "count": 100},
            contenders=ALL,
        ),
        Run(
            "call",
            (Measure("call on 32 procs", "round_trip", MILLISECONDS, (Aim(1.5e-3),)),),
            {"procs": 32, "warmup": 20, "count": 200},
            {"warmup": 10, "count": 50},
            contenders=("socket", "floor", "ours", "torchmonarch"),
        ),
    ),
)

if __name__ == "__main__":
    sys.exit(main(QUESTION))
