"""What do 256 and 1,024 processes of one machine cost: until they are up, a call, their end, memory, who computes?"""

from __future__ import annotations

import sys

from _harness import main
from _question import Measure, Question, Run
from _stats import MEGABYTES, MILLISECONDS, SECONDS, Aim

SCRIPTS = {"ours": "large_mesh.py"}


def mesh(procs: int, up: float | None, call: float | None, stop: float | None, in_quick: bool) -> Run:
    """A run for so many processes; `up`, `call` and `stop` are aims in seconds."""

    def aims(bound: float | None) -> tuple[Aim, ...]:
        return () if bound is None else (Aim(bound),)

    large = up is not None
    measures = (
        Measure(f"{procs} processes, up", "up", SECONDS, aims(up)),
        Measure("... a call", "call", MILLISECONDS, aims(call)),
        Measure("... stopped", "stop", SECONDS, aims(stop)),
        Measure("... the client, private", "memory client", MEGABYTES, aims(120e6 if large else None)),
        Measure("... the host agent, private", "memory host agent", MEGABYTES, aims(60e6 if large else None)),
        Measure("... a process, private", "memory process", MEGABYTES),
        *(
            Measure(f"... processor time of a call: {who}", f"cpu {who}", MILLISECONDS)
            for who in ("thread", "I/O", "agent", "processes")
        ),
    )
    params = {"procs": procs, "warmup": 3, "count": 20}
    return Run("mesh", measures, params, {"count": 10}, ("ours",), SCRIPTS, in_quick=in_quick, timeout_s=120)


QUESTION = Question(
    "large_mesh",
    "What does a large mesh on one machine cost?",
    (mesh(256, None, None, None, in_quick=True), mesh(1024, 7.0, 0.08, 4.0, in_quick=False)),
)

if __name__ == "__main__":
    sys.exit(main(QUESTION))
