"""How fast do large payloads travel there and back, and does one of 1 GiB arrive? The floor is memcpy."""

from __future__ import annotations

import sys

from _harness import main
from _question import Measure, Question, Run
from _stats import GIGABYTES_PER_SECOND, SECONDS, Aim

MIB = 1 << 20


def name(size: int) -> str:
    return f"{size // MIB} MiB" if size >= MIB else f"{size // 1024} KiB"


def echo(size: int, kind: str, count: int, in_quick: bool = False) -> Run:
    """A run for payloads of `size` bytes. Only arrays can travel beside the message: large ones have the aim."""
    aims = (Aim(8e9),) if kind == "array" and size >= 16 * MIB else ()
    return Run(
        "echo",
        (Measure(f"echo of {name(size)} ({kind}), one way", "one_way", GIGABYTES_PER_SECOND, aims),),
        {"procs": 1, "size": size, "kind": kind, "warmup": 5, "count": count},
        {"count": 3},
        in_quick=in_quick,
    )


def spread(size: int, procs: int, count: int) -> Run:
    """An array that `procs` actors are called with, which answer with its length. Its bytes count once."""
    aims = (Aim(8e9),) if procs == 1 and size >= 16 * MIB else ()
    return Run(
        "spread",
        (Measure(f"array of {name(size)} to {procs} proc(s)", "arrived", GIGABYTES_PER_SECOND, aims),),
        {"procs": procs, "size": size, "kind": "array", "warmup": 5, "count": count},
        {"count": 3},
        in_quick=size == 64 * MIB,
    )


QUESTION = Question(
    "echo",
    "How fast do large payloads travel?",
    (
        echo(64 * 1024, "array", 200),
        echo(1 * MIB, "array", 100),
        echo(16 * MIB, "array", 20, in_quick=True),
        echo(16 * MIB, "bytes", 20, in_quick=True),
        echo(64 * MIB, "array", 10),
        echo(128 * MIB, "array", 5, in_quick=True),
        echo(128 * MIB, "bytes", 5),
        spread(1 * MIB, 1, 100),
        spread(16 * MIB, 1, 20),
        spread(64 * MIB, 1, 10),
        spread(128 * MIB, 1, 5),
        spread(64 * MIB, 8, 10),
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
