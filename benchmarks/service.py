"""What does a service cost: an empty request from 1, 8 and 64 callers, by handle and by HTTP, and one in batches; how many
fail when a replica is killed, and how long is nothing answered?
"""

from __future__ import annotations

import sys

from _harness import main
from _question import Measure, Question, Run
from _stats import COUNT, KILO_PER_SECOND, MICROSECONDS, MILLISECONDS, Aim

SCRIPTS = {"ours": "monarch_service.py", "ray": "ray_service.py"}  # Ray Serve: its interpreter needs ray[serve]


def callers_of(what: str, workload: str, callers: int, count: int) -> Run:
    shown = f"{callers} caller{'s' * (callers > 1)}"
    return Run(
        workload,
        (
            Measure(f"{what}, {shown}", "latency", MICROSECONDS, tail=True),
            Measure(f"{what}, a second, {shown}", "rate", KILO_PER_SECOND, (Aim(5, against="ray"),)),
        ),
        {"callers": callers, "replicas": 2, "warmup": 200, "count": count},
        {"count": min(count, 300)},
        contenders=("ours", "ray"),
        scripts=SCRIPTS,
        timeout_s=300,
    )


QUESTION = Question(
    "service",
    "What does a service cost, and what does the death of a replica?",
    (
        callers_of("an empty request", "empty", 1, 1_000),
        callers_of("an empty request", "empty", 8, 4_000),
        callers_of("an empty request", "empty", 64, 8_000),
        callers_of("a request that takes 5 ms in batches of up to 16", "batch", 64, 8_000),
        callers_of("an empty request by HTTP", "http", 1, 1_000),
        callers_of("an empty request by HTTP", "http", 8, 4_000),
        callers_of("an empty request by HTTP", "http", 64, 8_000),
        Run(
            "death",
            (
                Measure("requests that failed when one of 2 replicas was killed, 8 callers", "failed", COUNT),
                Measure("the longest time without an answer then", "gap", MILLISECONDS),
            ),
            {"callers": 8, "replicas": 2, "warmup": 200, "count": 4_000},
            {"count": 1_000},
            contenders=("ours", "ray"),
            scripts=SCRIPTS,
            timeout_s=300,
        ),
    ),
)

if __name__ == "__main__":
    sys.exit(main(QUESTION))
