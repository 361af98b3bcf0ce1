"""What is a direct connection of two processes on different hosts worth, against the way through both agents?"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import replace

from _contender import BENCHMARKS, Contender, ours
from _harness import Options, about, parse, samples_of, status, take_turns
from _question import Measure, Question, Run
from _report import Result, record, table
from _stats import GIGABYTES_PER_SECOND, KILO_PER_SECOND, MICROSECONDS, Aim

MIB = 1 << 20
ROUNDS = 5
NAMES = ("ours", "relay", "same host")
SCRIPTS: Mapping[str, str] = dict.fromkeys(NAMES, "two_hosts.py")


def run(workload: str, measure: Measure, params: dict[str, int], quick: dict[str, int]) -> Run:
    return Run(workload, (measure,), params, quick, contenders=NAMES, scripts=SCRIPTS)


def echo(mib: int, count: int) -> Run:
    measure = Measure(f"echo of {mib} MiB (array), one way", "one_way", GIGABYTES_PER_SECOND)
    return run("echo", measure, {"size": mib * MIB, "warmup": 3, "count": count}, {"count": 3})


QUESTION = Question(
    "direct",
    "What is a direct connection between two hosts worth?",
    (
        run(
            "call",
            Measure("call_one to another host", "round_trip", MICROSECONDS, (Aim(1.3, "relay"),)),
            {"warmup": 300, "count": 3000},
            {"warmup": 100, "count": 500},
        ),
        run(
            "pipelining",
            Measure("call_one, batches of 2,000", "calls", KILO_PER_SECOND),
            {"batch": 2000, "warmup": 2, "count": 10},
            {"warmup": 1, "count": 3},
        ),
        echo(1, 100),
        echo(64, 8),
    ),
)


def contenders(names: tuple[str, ...]) -> dict[str, Contender]:
    """Three of this checkout. "ours" is the one with a direct connection."""
    checkout = ours()
    ways = {
        "ours": ("direct: over TCP on this machine, from process to process", "100"),
        "relay": ("process, agent, TCP, agent, process", "0"),
        "same host": ("a Unix socket", "0"),
    }
    return {
        name: replace(checkout, name=name, note=note, env={**checkout.env, "MONARCH_DIRECT_AFTER": after})
        for name, (note, after) in ways.items()
        if not names or name in names
    }


def main() -> int:
    """As `_harness.main`, with contenders of its own; `--only` takes ours and nothing else."""
    options: Options = parse(QUESTION.title)
    ready = contenders(options.only)
    rounds = options.rounds or (1 if options.quick else ROUNDS)
    results: list[Result] = []
    left = dict.fromkeys(ready, 0)
    for item in QUESTION.runs:
        outcomes, problems = take_turns(item, ready, options, rounds, "")
        for name, by_round in outcomes.items():
            left[name] += sum(outcome.left_behind for outcome in by_round.values())
        results += [Result(measure, samples_of(measure.key, outcomes), problems) for measure in item.measures]
    listed = list(ready.values())
    print(table(QUESTION.title, results, listed))
    left = {name: count for name, count in left.items() if count}
    line = json.dumps({**about(QUESTION, listed, options, left), "measures": record(results)})
    print(line, flush=True)
    out = BENCHMARKS / "out"
    out.mkdir(exist_ok=True)
    with open(out / f"{QUESTION.name}.jsonl", "a", encoding="utf-8") as file:
        file.write(line + "\n")
    return status(results, ready, options.strict)


if __name__ == "__main__":
    sys.exit(main())
