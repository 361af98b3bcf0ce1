"""See the package for how to use this."""

from __future__ import annotations

import argparse
import sys
import time

from tests.soak.generate import generate
from tests.soak.run import run
from tests.soak.soak import BUDGET, many, report


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description="Random programs against a model.")
    parser.add_argument("seed", nargs="?", type=int, help="run the program of this seed")
    parser.add_argument("--times", type=int, default=1, help="run it so often, or until it fails")
    parser.add_argument("--shrink", action="store_true", help="leave out of a program that fails what does not matter")
    parser.add_argument("--seeds", type=int, help="run so many seeds, several at a time")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--jobs", type=int, help="how many at a time (default: one a core)")
    asked = parser.parse_args()
    if asked.seeds is not None:
        return _soak(asked.first, asked.seeds, asked.jobs)
    if asked.seed is None:
        parser.error("a seed, or --seeds")
    return _replay(asked.seed, asked.times, asked.shrink)


def _replay(seed: int, times: int, cut_down: bool) -> int:
    program = generate(seed)
    for time_number in range(times):
        wrong = run(program)
        if wrong:
            print(f"run {time_number + 1} of {times}")
            print(report(program, wrong, BUDGET if cut_down else 0.0))
            return 1
    print(f"seed {seed}:\n{program}\n{times} run(s), nothing wrong")
    return 0


def _soak(first: int, count: int, jobs: int | None) -> int:
    began, failed = time.monotonic(), []
    for done, (seed, found) in enumerate(many(range(first, first + count), jobs), 1):
        if found:
            failed.append(seed)
            print(f"\n{found}\n", flush=True)
        if done % 100 == 0 or done == count:
            print(f"{done} of {count} seeds in {time.monotonic() - began:.0f} s, {len(failed)} failed", flush=True)
    if failed:
        print(f"failed: {' '.join(map(str, sorted(failed)))}; again: python -m tests.soak SEED --times 100")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
