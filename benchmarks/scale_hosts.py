"""How do messages, memory and time grow with the hosts? The real code on simulated hosts of one interpreter, in virtual time.

`--hosts 100,300,1000` says how many; `--losses` adds what is lost: a process, a host with those below it in the tree, 1 % of
hosts at once (a minute of heartbeats of all hosts, so it takes long). Prints the tables of docs/scale.md. A size that does
not fit into `--seconds` shows as far as it came. `--plot docs/scale_hosts.svg` measures nothing and draws the tables of
docs/scale.md (needs matplotlib).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from _contender import BENCHMARKS, WORKLOADS, ours
from _process import run_workload
from _scale_plot import plot

COLUMNS = ("between hosts", "inside", "client's agent", "virtual", "processor", "memory")
HEAD = (
    "| hosts | | messages between hosts, a host | within hosts, a host | at the client's agent | virtual time, ms "
    "| processor, ms a host | memory, KB a host |"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 1 when nothing was measured."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--hosts", default="100,300,1000", help="numbers of hosts, comma-separated")
    parser.add_argument("--losses", action="store_true", help="also what is lost")
    parser.add_argument("--seconds", type=float, default=600.0, help="at most, for each number of hosts")
    parser.add_argument("--plot", type=Path, help="draw the tables of docs/scale.md there, measure nothing")
    options = parser.parse_args(argv)
    if options.plot:
        plot((BENCHMARKS.parent / "docs" / "scale.md").read_text(), options.plot)
        return 0
    found: dict[int, dict[str, Any]] = {}
    contender = ours()
    for hosts in map(int, options.hosts.split(",")):
        params = json.dumps({"hosts": hosts, "losses": options.losses})
        command = [contender.python, str(WORKLOADS / "simulated_hosts.py"), "hosts", params]
        outcome = run_workload(command, contender.environment(), WORKLOADS, options.seconds)
        if outcome.failure:
            print(f"{hosts} hosts: {outcome.failure}", file=sys.stderr)
        found[hosts] = dict(outcome.samples.get("steps", {}))  # type: ignore[call-overload]
    print(f"load {os.getloadavg()[0]:.1f}", HEAD, "|---" * 8 + "|", sep="\n")
    for step in dict.fromkeys(step for steps in found.values() for step in steps):
        for hosts, steps in found.items():
            if step in steps:
                print(row(hosts, step, steps[step]))
    print(json.dumps(found))
    return 0 if any(found.values()) else 1


def row(hosts: int, step: str, point: dict[str, float]) -> str:
    scales = (1, 1, 1, 1e3, 1e3, 1e-3)
    figures = [f"{point[column] * scale:,.3g}" for column, scale in zip(COLUMNS, scales, strict=True)]
    figures[2] = f"{point[COLUMNS[2]]:,.0f}"
    return f"| {hosts:,} | {step} | {' | '.join(figures)} |"


if __name__ == "__main__":
    sys.exit(main())
