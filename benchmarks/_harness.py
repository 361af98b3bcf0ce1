"""Runs a question: every contender in turn, round after round, and reports ratios taken side by side.

A contender's turn is a fresh process with the contender's own interpreter running one file of workloads/,
which warms up, measures and prints its samples. Turns of one round follow each other directly, so that a
ratio compares figures taken under the same conditions. The table and one JSON line go to stdout, progress
to stderr; the JSON line is also appended to out/<question>.jsonl.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import platform
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import peers.ray
import peers.torchmonarch
from _contender import BENCHMARKS, WORKLOADS, Contender, base, floors, ours, torch_site
from _process import Outcome, run_workload
from _question import Measure, Question, Run
from _report import Result, record, table

ROUNDS = 3
Outcomes = dict[str, dict[int, Outcome]]  # by contender, by round
PEERS: Mapping[str, Callable[[], Contender]] = {
    "torchmonarch": peers.torchmonarch.contender,
    "ray": peers.ray.contender,
    "ray-graph": peers.ray.compiled_graph,
}


@dataclass(frozen=True)
class Options:
    """What the command line asked for. `only` empty means every contender. `plot` is where to draw, `earlier` a record to
    draw instead of measuring.
    """

    quick: bool = False
    rounds: int | None = None
    only: tuple[str, ...] = ()
    strict: bool = False
    params: Mapping[str, Any] = field(default_factory=dict)
    base: Path | None = None
    plot: Path | None = None
    earlier: Path | None = None


Draw = Callable[[Mapping[str, Any], Path], None]


def main(question: Question, argv: Sequence[str] | None = None, draw: Draw | None = None) -> int:
    """Runs `question` as the command line says. Returns the exit status: 1 when one of our own runs failed
    (or, with --strict, when an aim was missed or could not be judged), else 0. A missing or failing peer is
    only reported. `draw` makes a picture of a record for those who ask for it.
    """
    options = parse(question.title, argv, drawable=draw is not None)
    if draw and options.plot and options.earlier:
        draw(json.loads(options.earlier.read_text().splitlines()[-1]), options.plot)
        return 0
    question = with_base(question) if options.base else question
    contenders = gather(question, options)
    results, left = measure(question, contenders, options)
    listed = list(contenders.values())
    print(table(question.title, results, listed))
    for name, count in left.items():
        print(f"  {name} left {count} processes behind")
    line = json.dumps({**about(question, listed, options, left), "measures": record(results)})
    print(line, flush=True)
    out = BENCHMARKS / "out"
    out.mkdir(exist_ok=True)
    with open(out / f"{question.name}.jsonl", "a", encoding="utf-8") as file:
        file.write(line + "\n")
    if draw and options.plot:
        draw(json.loads(line), options.plot)
    return status(results, contenders, options.strict)


def parse(title: str, argv: Sequence[str] | None = None, drawable: bool = False) -> Options:
    """The options every benchmark script takes, and those of one that can draw what it measured."""
    parser = argparse.ArgumentParser(description=title)
    parser.add_argument("--quick", action="store_true", help="one round, few repetitions, only the runs with an aim")
    parser.add_argument("--rounds", type=int, help=f"rounds of all contenders in turn (default {ROUNDS}; quick 1)")
    known = {"socket", "floor", "ours", "base", *PEERS}
    parser.add_argument("--only", "--contenders", default="", help=f"comma-separated, of {', '.join(sorted(known))}")
    parser.add_argument("--strict", action="store_true", help="exit 1 when an aim is missed or cannot be judged")
    parser.add_argument("--param", action="append", default=[], metavar="NAME=JSON", help="override a parameter")
    parser.add_argument("--base", type=Path, metavar="FOLDER", help="another checkout of ours, to compare with")
    if drawable:
        parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the figures there (needs matplotlib)")
        parser.add_argument(
            "--from", type=Path, metavar="RECORD", dest="earlier", help="draw its last run, measure nothing"
        )
    given = parser.parse_args(argv)
    only = tuple(name for name in given.only.split(",") if name)
    params = {name: json.loads(value) for name, _, value in (item.partition("=") for item in given.param)}
    if not known.issuperset(only):
        parser.error(f"unknown contenders {sorted(set(only) - known)}; known: {sorted(known)}")
    if "base" in only and not given.base:
        parser.error("contender base: say with --base which checkout that is")
    if given.base and only:
        only = tuple(dict.fromkeys((*only, "base")))
    if given.base and not (given.base / "monarch").is_dir():
        parser.error(f"--base: there is no folder 'monarch' in {given.base}; name the root of a checkout")
    if drawable and given.earlier and not given.plot:
        parser.error("--from: say with --plot where to draw")
    picture = (given.plot, given.earlier) if drawable else (None, None)
    return Options(given.quick, given.rounds, only, given.strict, params, given.base, *picture)


def with_base(question: Question) -> Question:
    """The question asked of a second checkout, too, which takes its turns after ours."""
    runs = [
        replace(
            run, contenders=tuple(chain.from_iterable((n, "base") if n == "ours" else (n,) for n in run.contenders))
        )
        for run in question.runs
    ]
    return replace(question, runs=tuple(runs))


def gather(question: Question, options: Options) -> dict[str, Contender]:
    """The contenders the question names, in order, made ready (a peer's environment is installed here)."""
    named = [name for run in question.runs for name in run.contenders]
    wanted = [name for name in dict.fromkeys(named) if not options.only or name in options.only]
    makers = {**PEERS, "ours": ours}
    if options.base:
        makers["base"] = functools.partial(base, options.base)
    ready: dict[str, Contender] = {floor.name: floor for floor in floors()}
    for name in wanted:
        if name not in ready:
            ready[name] = makers[name]()
            if ready[name].skip:
                say(f"skipping {name}: {ready[name].skip}")
    return {name: ready[name] for name in wanted}


def measure(
    question: Question, contenders: Mapping[str, Contender], options: Options
) -> tuple[list[Result], dict[str, int]]:
    """All results of the question, and how many processes each contender left behind, if any."""
    rounds = question.rounds or options.rounds or (1 if options.quick else ROUNDS)
    runs = [run for run in question.runs if run.in_quick or not options.quick]
    site = torch_site() if any(run.needs_torch for run in runs) else ""
    results: list[Result] = []
    left: Counter[str] = Counter()
    for run in runs:
        outcomes, problems = take_turns(run, contenders, options, rounds, site)
        for name, by_round in outcomes.items():
            left[name] += sum(outcome.left_behind for outcome in by_round.values())
        results += [result(item, outcomes, problems) for item in run.measures]
    return results, dict(+left)


def take_turns(
    run: Run, contenders: Mapping[str, Contender], options: Options, rounds: int, site: str
) -> tuple[Outcomes, dict[str, str]]:
    """Every contender's outcome by round, and why those that have none have none."""
    outcomes: Outcomes = {name: {} for name in run.contenders if name in contenders}
    problems = {name: reason for name in outcomes if (reason := obstacle(run, contenders[name], site))}
    for round_ in range(rounds):
        for name in outcomes:
            if name in problems:
                continue
            outcome = outcomes[name][round_] = turn(run, contenders[name], options, site)
            if outcome.failure:
                problems[name] = outcome.failure  # it would only fail again, slowly
            about = f"{run.measures[0].name}, round {round_ + 1} of {rounds}: {name}"
            say(f"{about} failed: {outcome.failure}" if outcome.failure else about)
    return outcomes, problems


def result(measure: Measure, outcomes: Outcomes, problems: Mapping[str, str]) -> Result:
    """What one measure's table and record are made of."""
    suffixes = [suffix for column in measure.columns for suffix in column.suffixes]
    beside = {suffix: samples_of(f"{measure.key} {suffix}", outcomes) for suffix in suffixes}
    return Result(measure, samples_of(measure.key, outcomes), problems, beside)


def samples_of(key: str, outcomes: Outcomes) -> dict[str, dict[int, Sequence[float]]]:
    """The samples of one measure, by contender and round."""
    return {
        name: {round_: outcome.samples.get(key, []) for round_, outcome in by_round.items()}
        for name, by_round in outcomes.items()
    }


def obstacle(run: Run, contender: Contender, site: str) -> str:
    """Why this contender cannot do this run, or ""."""
    if contender.skip:
        return "skipped"
    if run.needs_torch and not site:
        return "skipped: this interpreter has no torch"
    return ""


def turn(run: Run, contender: Contender, options: Options, site: str) -> Outcome:
    """One contender's turn in one round."""
    params = {**run.params, **(run.quick if options.quick else {}), **dict(options.params)}
    role = contender.role or contender.name
    params |= {"contender": role, "quick": options.quick, "root": str(contender.root)}
    env = contender.environment()
    if run.needs_torch:
        env["MONARCH_BENCH_TORCH"] = site
    command = [
        contender.python,
        str(WORKLOADS / run.scripts[role]),
        run.workload,
        json.dumps(params),
    ]
    return run_workload(command, env, WORKLOADS, run.timeout_s)


def about(
    question: Question, contenders: Sequence[Contender], options: Options, left: Mapping[str, int]
) -> dict[str, Any]:
    """What a reader of the record must know to compare it with another."""
    return {
        "question": question.name,
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "quick": options.quick,
        "params": dict(options.params),
        "machine": {
            "cores": os.cpu_count(),
            "arch": platform.machine(),
            "system": platform.platform(terse=True),
        },
        "python": platform.python_version(),
        "contenders": {c.name: c.skip or c.version or c.note for c in contenders},
        "left_behind": dict(left),
    }


def status(results: Sequence[Result], contenders: Mapping[str, Contender], strict: bool) -> int:
    """0 when our runs worked (and, with `strict`, every aim was met)."""
    if any("ours" in result.problems for result in results if "ours" in contenders):
        return 1
    if strict and any(verdict["pass"] is not True for result in results for verdict in result.verdicts()):
        return 1
    return 0


def say(text: str) -> None:
    """A line of progress."""
    print(text, file=sys.stderr, flush=True)
