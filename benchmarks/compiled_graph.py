"""How long is an execution of a compiled graph? One actor, a chain of four, many at once, 64 MiB through the chain."""

from __future__ import annotations

import sys

from _harness import main
from _question import Measure, Question, Run
from _stats import KILO_PER_SECOND, MICROSECONDS, MILLISECONDS, Aim

SCRIPTS = {"floor": "graph_floor.py", "ours": "monarch_graph.py", "ray-graph": "ray_graph.py"}

QUESTION = Question(
    "compiled_graph",
    "How long is an execution of a compiled graph?",
    (
        Run(
            "graph",
            (
                Measure("one actor", "one", MICROSECONDS, (Aim(2.5, "ray-graph"),), tail=True),
                Measure("... by a call", "one by calls", MICROSECONDS),
                Measure("chain of four", "chain", MICROSECONDS, (Aim(2.5, "ray-graph"),), tail=True),
                Measure("... by calls in turn", "chain by calls", MICROSECONDS),
                Measure("one actor, 8 at once", "rate", KILO_PER_SECOND, (Aim(2.0, "ray-graph"),)),
                Measure("... by calls", "rate by calls", KILO_PER_SECOND),
                Measure("64 MiB through the chain", "large", MILLISECONDS, (Aim(2.0, "floor"),)),
                Measure("... by calls in turn", "large by calls", MILLISECONDS),
            ),
            {"warmup": 300, "count": 3000, "large": 64 << 20},
            {"warmup": 100, "count": 500},
            contenders=tuple(SCRIPTS),
            scripts=SCRIPTS,
            timeout_s=240.0,
        ),
    ),
)

if __name__ == "__main__":
    sys.exit(main(QUESTION))
