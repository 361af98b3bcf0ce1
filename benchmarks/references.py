"""What do references cost: a value put, read again here, and put and read by eight processes; beside Ray's object store?"""

from __future__ import annotations

import sys

from _harness import main
from _question import Measure, Question, Run
from _stats import MICROSECONDS, MILLISECONDS, Aim, Unit

SCRIPTS = {"ours": "monarch_references.py", "ray": "ray_references.py"}


def values_of(shown: str, size: int, count: int, unit: Unit) -> Run:
    aims = (Aim(1, against="ray"),)
    return Run(
        "references",
        (
            Measure(f"put {shown}", "put", unit, aims),
            Measure(f"get {shown} in the same process", "get", MICROSECONDS, aims),
            Measure(f"put {shown}, and 8 processes read every page", "fan out", unit, aims),
        ),
        {"size": size, "readers": 8, "warmup": 2, "count": count},
        {"count": max(3, count // 10)},
        contenders=("ours", "ray"),
        scripts=SCRIPTS,
        timeout_s=300,
    )


QUESTION = Question(
    "references",
    "What do references cost?",
    (
        values_of("1 KiB", 1 << 10, 100, MICROSECONDS),
        values_of("1 MiB", 1 << 20, 50, MICROSECONDS),
        values_of("1 GiB", 1 << 30, 5, MILLISECONDS),
    ),
)

if __name__ == "__main__":
    sys.exit(main(QUESTION))
