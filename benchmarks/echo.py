"""How fast do large payloads travel there and back, and does one of 1 GiB arrive? The floor is memcpy."""

from __future__ import annotations

import sys

from _harness import main
from _question import Measure, Question, Run
from _stats import GIGABYTES_PER_SECOND, SECONDS, Aim

MIB = 1 << 20


def echo(mib: int, kind: str, count: int, in_quick: bool) -> Run:
    """A run for payloads of `mib` MiB. Only arrays can travel beside the message: they have the aim."""
    aims = (Aim(8e9),) if kind == "array" else ()
    return Run(
        "echo",
        (Measure(f"echo of {mib} MiB ({kind}), one way", "one_way", GIGABYTES_PER_SECOND, aims),),
        {"procs": 1, "size": mib * MIB, "kind": kind, "warmup": 3, "count": count},
        {"count": 3},
        in_quick=in_quick,
    )


QUESTION = Question(
    "echo",
    "How fast do large payloads travel?",
    (
        echo(16, "array", 20, in_quick=True),
        echo(16, "bytes", 20, in_quick=True),
        echo(128, "array", 5, in_quick=True),
        echo(128, "bytes", 5, in_quick=False),
        Run(
            "argument",
            (Measure("argument of 1 GiB arrives (bytes)", "duration", SECONDS),),
            {"procs": 1, "size": 1024 * MIB, "kind": "bytes", "warmup": 0, "count": 1},
            contenders=("ours", "torchmonarch", "ray"),
            timeout_s=90,
        ),
    ),
)

if __name__ == "__main__":
    sys.exit(main(QUESTION))
