"""See the package for how to use this."""

from __future__ import annotations

import argparse
import sys
import time

from tests.soak.generate import generate
from tests.soak.run import run
from tests.soak.soak import BUDGET, check_faults, many, report


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description="Random programs against a model.")
    parser.add_argument("seed", nargs="?", type=int, help="run the program of this seed")
    parser.add_argument("--times", type=int, default=1, help="run it so often, or until it fails")
    parser.add_argument("--shrink", action="store_true", help="leave out of a program that fails what does not matter")
    parser.add_argument("--seeds", type=int, help="run so many seeds, several at a time")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--jobs", type=int, help="how many at a time (default: one a core)")
    parser.add_argument("--faults", action="store_true", help="over real sockets whose system calls fail now and then")
    asked = parser.parse_args()
    if asked.seeds is not None:
        return _soak(asked.first, asked.seeds, asked.jobs, asked.faults)
    if asked.seed is None:
        parser.error("a seed, or --seeds")
    if asked.faults:
        return _replay_faults(asked.seed, asked.times)
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


def _replay_faults(seed: int, times: int) -> int:
    for time_number in range(times):
        wrong = check_faults(seed)
        if wrong:
            print(f"run {time_number + 1} of {times}\n{wrong}")
            return 1
    print(f"seed {seed}: {times} run(s) with faults, nothing wrong")
    return 0


def _soak(first: int, count: int, jobs: int | None, faults: bool) -> int:
    began, failed = time.monotonic(), []
    for done, (seed, found) in enumerate(many(range(first, first + count), jobs, faults), 1):
        if found:
            failed.append(seed)
            print(f"\n{found}\n", flush=True)
        if done % 100 == 0 or done == count:
            print(f"{done} of {count} seeds in {time.monotonic() - began:.0f} s, {len(failed)} failed", flush=True)
    if failed:
        option = " --faults" if faults else ""
        print(f"failed: {' '.join(map(str, sorted(failed)))}; again: python -m tests.soak SEED --times 100{option}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
