"""See the package."""

from __future__ import annotations

import argparse
import importlib
import random
import sys
import time

from tests.fuzz import TARGETS
from tests.fuzz.targets import run, running_program


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description="Hostile input at the doors of a program that runs."
    )
    parser.add_argument("targets", nargs="*", metavar="|".join(TARGETS), help="default: all, one after the other")
    parser.add_argument("--minutes", type=float, default=60.0, help="for all of them together")
    parser.add_argument("--rounds", type=int, help="of each, instead of a time")
    parser.add_argument("--seed", type=int, help="default: any")
    asked = parser.parse_args()
    names = asked.targets or TARGETS
    if not set(names) <= set(TARGETS):
        parser.error(f"targets are {', '.join(TARGETS)}")
    seed = random.SystemRandom().randrange(1 << 32) if asked.seed is None else asked.seed
    print(f"seed {seed}", flush=True)
    failed = 0
    for name in names:
        with running_program() as program:
            try:
                target = importlib.import_module(f"tests.fuzz.{name}").target(program)
                run(name, target, seed, asked.rounds, time.monotonic() + 60 * asked.minutes / len(names))
            except AssertionError as exc:
                failed += 1
                print(f"{exc}\nagain: python -m tests.fuzz {name} --seed {seed}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
