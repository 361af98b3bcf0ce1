"""See the package for how to use this."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time

from tests.soak.soak import BUDGET, CHECKS, PROGRAMS, busy, check, many


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description="Random programs against a model.")
    parser.add_argument("seed", nargs="?", type=int, help="run the program of this seed")
    parser.add_argument("--times", type=int, default=1, help="run it so often, or until it fails")
    parser.add_argument("--shrink", action="store_true", help="leave out of a program that fails what does not matter")
    parser.add_argument("--seeds", type=int, help="run so many seeds, several at a time")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--jobs", type=int, help="how many at a time (default: one a core)")
    parser.add_argument("--faults", action="store_true", help="over real sockets whose system calls fail now and then")
    parser.add_argument("--processes", action="store_true", help="in real processes, which are stopped for moments")
    parser.add_argument("--load", action="store_true", help="beside two busy loops, with threads switched more often")
    asked = parser.parse_args()
    if asked.seed is None and asked.seeds is None:
        parser.error("a seed, or --seeds")
    with busy() if asked.load else contextlib.nullcontext():
        return _soak(asked) if asked.seeds is not None else _replay(asked)


def _replay(asked: argparse.Namespace) -> int:
    kind = _kind(asked)
    for time_number in range(asked.times):
        if kind:
            wrong = CHECKS[kind](asked.seed, asked.load)
        else:
            wrong = check(asked.seed, BUDGET if asked.shrink else 0.0, asked.load)
        if wrong:
            print(f"run {time_number + 1} of {asked.times}\n{wrong}")
            return 1
    print(f"seed {asked.seed}:\n{PROGRAMS[kind](asked.seed)}\n{asked.times} run(s), nothing wrong")
    return 0


def _kind(asked: argparse.Namespace) -> str:
    return next((kind for kind in CHECKS if kind and getattr(asked, kind)), "")


def _soak(asked: argparse.Namespace) -> int:
    began, failed = time.monotonic(), []
    seeds = range(asked.first, asked.first + asked.seeds)
    for done, (seed, found) in enumerate(many(seeds, asked.jobs, _kind(asked), asked.load), 1):
        if found:
            failed.append(seed)
            print(f"\n{found}\n", flush=True)
        if done % 100 == 0 or done == asked.seeds:
            print(
                f"{done} of {asked.seeds} seeds in {time.monotonic() - began:.0f} s, {len(failed)} failed", flush=True
            )
    if failed:
        options = "".join(f" --{name}" for name in ("faults", "processes", "load") if getattr(asked, name))
        print(f"failed: {' '.join(map(str, sorted(failed)))}; again: python -m tests.soak SEED --times 100{options}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
