"""How fast does a process read the weights of another? The floors are process_vm_readv with many vectors, and memcpy."""

from __future__ import annotations

import sys

from _harness import main
from _question import Measure, Question, Run
from _stats import GIGABYTES_PER_SECOND, MILLISECONDS, Aim

MIB = 1 << 20
SCRIPTS = {
    "floor": "weights_floor.py",
    "ours": "monarch_weights.py",
    "torchmonarch": "monarch_weights_by_hand.py",
}

QUESTION = Question(
    "weights",
    "How fast does a process read the weights of another?",
    (
        Run(
            "whole",
            (
                Measure(
                    "1 GiB in 16 tensors, reader.read", "reader", GIGABYTES_PER_SECOND, (Aim(1 / 0.9, against="floor"),)
                ),
                Measure("1 GiB in 16 tensors, read_into", "read_into", GIGABYTES_PER_SECOND),
                Measure("1 GiB in 16 tensors, memcpy", "memcpy", GIGABYTES_PER_SECOND),
            ),
            {"tensors": 16, "size": 64 * MIB, "warmup": 1, "count": 5},
            {"count": 2},
            contenders=("floor", "ours", "torchmonarch"),
            scripts=SCRIPTS,
        ),
        Run(
            "many",
            (
                Measure("2,000 tensors of 4 KiB, reader.read", "reader", MILLISECONDS),
                Measure("2,000 tensors of 4 KiB, read_into", "read_into", MILLISECONDS),
                Measure("2,000 tensors of 4 KiB, memcpy", "memcpy", MILLISECONDS),
            ),
            {"tensors": 2000, "size": 4096, "warmup": 3, "count": 30},
            {"count": 10},
            contenders=("floor", "ours", "torchmonarch"),
            scripts=SCRIPTS,
        ),
        Run(
            "columns",
            (
                Measure("512 of 4,096 columns, reader.read", "reader", MILLISECONDS),
                Measure("512 of 4,096 columns, read_into", "read_into", MILLISECONDS),
                Measure("all 4,096 columns", "everything", MILLISECONDS),
            ),
            {"side": 4096, "columns": 512, "warmup": 3, "count": 30},
            {"count": 10},
            contenders=("floor", "ours"),
            scripts=SCRIPTS,
        ),
    ),
)

if __name__ == "__main__":
    sys.exit(main(QUESTION))
