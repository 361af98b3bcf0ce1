"""What do 256 and 1,024 processes of one machine cost: until they are up, a call, their end, memory, who computes?

Aims of time are for two cores at rest, those of memory hold at any load. `--quick --strict` fails where 256 miss theirs.
"""

from __future__ import annotations

import sys

from _harness import main
from _question import Measure, Question, Run
from _stats import MEGABYTES, MILLISECONDS, SECONDS, Aim

SCRIPTS = {"socket": "floor.py", "floor": "floor.py", "ours": "large_mesh.py"}


def mesh(procs: int, up: float, call: float, stop: float, client: float, agent: float, in_quick: bool) -> Run:
    """A run for so many processes, with its aims in seconds and in bytes."""
    measures = (
        Measure(f"{procs} processes, up", "up", SECONDS, (Aim(up),)),
        Measure("... a call", "call", MILLISECONDS, (Aim(call),)),
        Measure("... stopped", "stop", SECONDS, (Aim(stop),)),
        Measure("... the client, private", "memory client", MEGABYTES, (Aim(client),)),
        Measure("... the host agent, private", "memory host agent", MEGABYTES, (Aim(agent),)),
        Measure("... a process, private", "memory process", MEGABYTES),
        *(
            Measure(f"... processor time of a call: {who}", f"cpu {who}", MILLISECONDS)
            for who in ("thread", "I/O", "agent", "processes")
        ),
    )
    params = {"procs": procs, "warmup": 3, "count": 20}
    return Run("mesh", measures, params, {"count": 10}, tuple(SCRIPTS), SCRIPTS, in_quick=in_quick, timeout_s=120)


QUESTION = Question(
    "large_mesh",
    "What does a large mesh on one machine cost?",
    (mesh(256, 2.5, 0.05, 1.5, 40e6, 25e6, in_quick=True), mesh(1024, 7.0, 0.08, 4.0, 120e6, 60e6, in_quick=False)),
)

if __name__ == "__main__":
    sys.exit(main(QUESTION))
