"""How long is an execution of a compiled graph? One actor, a chain of four, many at once, 64 MiB through the chain; then the
same over two hosts, by TCP and by TLS."""

from __future__ import annotations

import sys
from dataclasses import replace

from _harness import main
from _question import Measure, Question, Run
from _stats import KILO_PER_SECOND, MICROSECONDS, MILLISECONDS, Aim

SCRIPTS = {"floor": "graph_floor.py", "ours": "monarch_graph.py", "ray-graph": "ray_graph.py"}


def measures(aims: bool) -> tuple[Measure, ...]:
    """All of a workload, with aims against Ray's graphs and the floor where those run too."""

    def aim(ratio: float, other: str) -> tuple[Aim, ...]:
        return (Aim(ratio, other),) if aims else ()

    return (
        Measure("one actor", "one", MICROSECONDS, aim(2.5, "ray-graph"), tail=True),
        Measure("... by a call", "one by calls", MICROSECONDS),
        Measure("chain of four", "chain", MICROSECONDS, aim(2.5, "ray-graph"), tail=True),
        Measure("... by calls in turn", "chain by calls", MICROSECONDS),
        Measure("one actor, 8 at once", "rate", KILO_PER_SECOND, aim(2.0, "ray-graph")),
        Measure("... by calls", "rate by calls", KILO_PER_SECOND),
        Measure("64 MiB through the chain", "large", MILLISECONDS, aim(2.0, "floor")),
        Measure("... by calls in turn", "large by calls", MILLISECONDS),
    )


def on_two_hosts(workload: str, where: str) -> Run:
    """All of it once more, with two actors on each of two hosts."""
    named = (
        replace(measure, name=measure.name if measure.name.startswith("...") else f"{where}: {measure.name}")
        for measure in measures(False)
    )
    return Run(workload, tuple(named), PARAMS, QUICK, ("ours",), SCRIPTS, timeout_s=240.0)


PARAMS = {"warmup": 300, "count": 3000, "large": 64 << 20}
QUICK = {"warmup": 100, "count": 500}

QUESTION = Question(
    "compiled_graph",
    "How long is an execution of a compiled graph?",
    (
        Run("graph", measures(True), PARAMS, QUICK, contenders=tuple(SCRIPTS), scripts=SCRIPTS, timeout_s=240.0),
        on_two_hosts("hosts", "two hosts"),
        on_two_hosts("tls", "two hosts, TLS"),
    ),
)

if __name__ == "__main__":
    sys.exit(main(QUESTION))
