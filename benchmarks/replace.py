"""How long from `kill -9` of hosts' agents until the actors that were there have answered on the hosts in their places?"""

from __future__ import annotations

import sys

from _harness import main
from _question import Measure, Question, Run
from _stats import MILLISECONDS


def replace(count: int, quick: int, lost: int = 1, **params: object) -> Run:
    """`lost` of one host more are killed `count` times a round, with as many spares for each time. Hosts are workers on this
    machine."""
    torch = ", torch imported" if params.get("torch") else ""
    return Run(
        "replace",
        (
            Measure(f"kill -9 of {lost} of {lost + 1} hosts{torch}: until its end is known", "known", MILLISECONDS),
            Measure("until spares have their places, and all know", "replaced", MILLISECONDS),
            Measure("until the actors have answered there", "answered", MILLISECONDS),
        ),
        {"warmup": 1, "count": count, "lost": lost, **params},
        {"count": quick},
        contenders=("ours",),
        needs_torch=bool(params.get("torch")),
        scripts={"ours": "lost_hosts.py"},
        timeout_s=300,
    )


QUESTION = Question(
    "replace",
    "How long until lost hosts are replaced?",
    (replace(6, 2), replace(4, 1, 2), replace(3, 1, 4), replace(4, 2, torch=True)),
)

if __name__ == "__main__":
    sys.exit(main(QUESTION))
