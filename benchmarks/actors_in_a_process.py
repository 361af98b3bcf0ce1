"""What are several busy actors of one process to each other? 1, 2 and 8 of them, each called by a thread of its own; then
one that is called while another computes.
"""

from __future__ import annotations

import sys

from _harness import main
from _question import CALL_COLUMNS, Measure, Question, Run
from _stats import MICROSECONDS

SCRIPTS = {"floor": "latency_floor.py", "ours": "monarch_latency.py", "torchmonarch": "monarch_latency.py"}
ACTORS = (1, 2, 8)


def measure(name: str, key: str) -> Measure:
    return Measure(name, key, MICROSECONDS, tail=True, columns=CALL_COLUMNS)


QUESTION = Question(
    "actors_in_a_process",
    "How long is a call to one of several actors of a process?",
    (
        Run(
            "actors_in_a_process",
            tuple(
                measure(name, key)
                for style in ("sync", "async")
                for name, key in (
                    *((f"{count} busy, {style} endpoints", f"{count} {style}") for count in ACTORS),
                    (f"beside one that computes, {style} endpoints", f"beside {style}"),
                )
            ),
            {"actors": ACTORS, "warmup_s": 0.2, "count_s": 1.0, "beside_s": 2.0},
            {"warmup_s": 0.1, "count_s": 0.3, "beside_s": 0.6},
            contenders=tuple(SCRIPTS),
            scripts=SCRIPTS,
        ),
    ),
)

if __name__ == "__main__":
    sys.exit(main(QUESTION))
