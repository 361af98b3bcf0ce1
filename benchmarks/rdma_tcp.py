"""How fast does one process read and write the memory of one on another host? The floors are raw sockets over loopback."""

from __future__ import annotations

import sys

from _harness import main
from _question import Measure, Question, Run
from _stats import GIGABYTES_PER_SECOND, MICROSECONDS, Aim

MIB = 1 << 20
CONTENDERS = ("floor", "ours")
SCRIPTS = dict.fromkeys(CONTENDERS, "rdma_tcp.py")


def large(sockets: int, aims: tuple[Aim, ...] = ()) -> Run:
    """Bytes a second of one transfer of 64 MiB at a time over so many sockets."""
    over = f"64 MiB, {sockets} socket{'s' if sockets > 1 else ''}"
    return Run(
        "throughput",
        (
            Measure(f"read_into of {over}", "read", GIGABYTES_PER_SECOND, aims),
            Measure(f"write_from of {over}", "write", GIGABYTES_PER_SECOND, aims),
        ),
        {"size": 64 * MIB, "sockets": sockets, "warmup": 3, "count": 20},
        {"count": 8},
        contenders=CONTENDERS,
        scripts=SCRIPTS,
    )


QUESTION = Question(
    "rdma_tcp",
    "How fast does one process read and write the memory of one on another host?",
    (
        Run(
            "transfer",
            (
                Measure("read_into of 4 KiB", "read", MICROSECONDS),
                Measure("write_from of 4 KiB", "write", MICROSECONDS),
            ),
            {"size": 4096, "sockets": 1, "warmup": 100, "count": 1000},
            {"count": 300},
            contenders=CONTENDERS,
            scripts=SCRIPTS,
        ),
        large(1, (Aim(1 / 0.8, against="floor"),)),
        large(2),
        large(4),
    ),
)

if __name__ == "__main__":
    sys.exit(main(QUESTION))
