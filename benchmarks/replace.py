"""How long from `kill -9` of a host's agent until the actor that was there has answered on the host in its place?"""

from __future__ import annotations

import sys

from _harness import main
from _question import Measure, Question, Run
from _stats import MILLISECONDS


def replace(count: int, quick: int, **params: object) -> Run:
    """One of two hosts is killed `count` times a round, with a spare for each time. Hosts are workers on this machine."""
    torch = ", torch imported" if params.get("torch") else ""
    return Run(
        "replace",
        (
            Measure(f"kill -9 of one of 2 hosts{torch}: until its end is known", "known", MILLISECONDS),
            Measure("until a spare has its place, and all know", "replaced", MILLISECONDS),
            Measure("until its actor has answered there", "answered", MILLISECONDS),
        ),
        {"warmup": 1, "count": count, **params},
        {"count": quick},
        contenders=("ours",),
        needs_torch=bool(params.get("torch")),
        scripts={"ours": "lost_hosts.py"},
        timeout_s=300,
    )


QUESTION = Question("replace", "How long until a lost host is replaced?", (replace(6, 2), replace(4, 2, torch=True)))

if __name__ == "__main__":
    sys.exit(main(QUESTION))
