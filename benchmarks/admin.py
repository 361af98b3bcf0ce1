"""How long until a face has the tree of a program with 1,000 actors, and what does it cost the program?"""

from __future__ import annotations

import sys

from _harness import main
from _question import Measure, Question, Run
from _stats import MICROSECONDS, MILLISECONDS, Aim

AIMS = (Aim(100e-3, statistic="p99"),)


def look(procs: int, actors: int) -> Run:
    """`actors` actors in `procs` processes; looked at from outside through the program's door."""
    name = f"{actors} actors in {procs} processes"
    return Run(
        "admin",
        (
            Measure(f"{name}: the tree, asked and put together", "tree", MILLISECONDS, AIMS),
            Measure("the same as JSON", "json", MILLISECONDS, AIMS),
            Measure("a call, while another process asks for the tree without a pause", "call", MICROSECONDS),
            Measure("a call, nobody asking", "alone", MICROSECONDS),
        ),
        {"procs": procs, "actors": actors, "warmup": 3, "count": 50, "calls": 2000},
        {"count": 5, "calls": 100},
        contenders=("ours",),
        scripts={"ours": "looked_at.py"},
        timeout_s=300,
    )


QUESTION = Question("admin", "How long until the tree is there?", (look(4, 1000), look(16, 1000)))

if __name__ == "__main__":
    sys.exit(main(QUESTION))
