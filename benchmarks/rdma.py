"""How fast does one process read and write another's memory? The floors are process_vm_readv itself and memcpy."""

from __future__ import annotations

import sys

from _harness import main
from _question import Measure, Question, Run
from _stats import GIGABYTES_PER_SECOND, MICROSECONDS, Aim

KIB, MIB = 1 << 10, 1 << 20
SCRIPTS = {
    "socket": "rdma_floor.py",
    "floor": "rdma_floor.py",
    "ours": "monarch_rdma.py",
    "torchmonarch": "monarch_rdma.py",
}
CONTENDERS = ("floor", "ours", "torchmonarch")


def small(size: int, aim: float, in_quick: bool) -> Run:
    """Latency of one transfer at a time, until its result is there."""
    return Run(
        "transfer",
        (
            Measure(f"read_into of {size // KIB} KiB", "read", MICROSECONDS, (Aim(aim),)),
            Measure(f"write_from of {size // KIB} KiB", "write", MICROSECONDS, (Aim(2 * aim),)),
        ),
        {"size": size, "warmup": 100, "count": 1000},
        {"count": 300},
        contenders=CONTENDERS,
        scripts=SCRIPTS,
        in_quick=in_quick,
    )


def large(mib: int, in_quick: bool, aims: tuple[Aim, ...] = ()) -> Run:
    """Bytes a second of one transfer at a time, beside memcpy within one process."""
    return Run(
        "throughput",
        (
            Measure(f"read_into of {mib} MiB", "read", GIGABYTES_PER_SECOND, aims),
            Measure(f"write_from of {mib} MiB", "write", GIGABYTES_PER_SECOND),
            Measure(f"memcpy of {mib} MiB", "memcpy", GIGABYTES_PER_SECOND),
        ),
        {"size": mib * MIB, "warmup": 5, "count": 20},
        {"count": 8},
        contenders=CONTENDERS,
        scripts=SCRIPTS,
        in_quick=in_quick,
    )


QUESTION = Question(
    "rdma",
    "How fast does one process read and write another's memory?",
    (
        small(4 * KIB, 30e-6, in_quick=True),
        small(64 * KIB, 60e-6, in_quick=False),
        large(1, in_quick=True),
        large(16, in_quick=False),
        large(64, in_quick=True, aims=(Aim(1 / 0.9, against="floor"),)),
    ),
)

if __name__ == "__main__":
    sys.exit(main(QUESTION))
