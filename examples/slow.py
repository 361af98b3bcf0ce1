"""A straggler to find: eight ranks train in step, and every step takes as long as the slowest of them.

    python examples/slow.py --seconds 60 &
    monarch profile --flame 5s -o slow.svg

One rank reads its data from a slow disk. The step time alone does not say so: all ranks wait for each other. The flame graph
shows `read_slowly` in one process of nine, and says which. With `--telemetry`, `monarch profile 5s` shows it as a trace:
one long `load` beside seven short ones in each step.
"""

import argparse
import time

from monarch.actor import Actor, current_rank, endpoint, this_host

RANKS, SLOW = 8, 5


class Trainer(Actor):
    @endpoint
    def load(self, step: int) -> int:
        if current_rank().rank == SLOW:
            self.read_slowly()
        return step

    def read_slowly(self) -> None:
        time.sleep(0.2)

    @endpoint
    def compute(self, step: int) -> float:
        return self.multiply(step)

    def multiply(self, step: int) -> float:
        total = 0.0
        for number in range(200_000):
            total += (step + number) % 7
        return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--telemetry", action="store_true", help="record calls, for `monarch profile` without --flame")
    options = parser.parse_args()
    if options.telemetry:
        from monarch import telemetry

        telemetry.start()
    trainers = this_host().spawn_procs(per_host={"gpus": RANKS}).spawn("trainers", Trainer)
    began, steps = time.monotonic(), 0
    while time.monotonic() - began < options.seconds:
        trainers.load.call(steps).get()
        trainers.compute.call(steps).get()
        steps += 1
    print(f"{steps} steps, {(time.monotonic() - began) / steps:.3f} s each")


if __name__ == "__main__":
    main()
