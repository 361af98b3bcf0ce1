"""What does pip download and unpack for the core, and how many other distributions does it bring?"""

from __future__ import annotations

import sys

from _harness import main
from _question import Measure, Question, Run
from _stats import COUNT, MEGABYTES, Aim

CONTENDERS = ("ours", "torchmonarch", "ray")

QUESTION = Question(
    "install_size",
    "What does pip install?",
    (
        Run(
            "installed",
            (
                Measure("wheel", "wheel", MEGABYTES, (Aim(0.5e6),)),
                Measure("wheel, unpacked", "unpacked", MEGABYTES),
                Measure("dependencies", "dependencies", COUNT, (Aim(2),)),
                Measure("unpacked with dependencies", "total", MEGABYTES),
            ),
            contenders=CONTENDERS,
            scripts=dict.fromkeys(CONTENDERS, "installed.py"),
            timeout_s=600,
        ),
    ),
    rounds=1,
)

if __name__ == "__main__":
    sys.exit(main(QUESTION))
