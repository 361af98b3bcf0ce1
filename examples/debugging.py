"""A loss that is no number, on one rank of four: the rank stops where it is, and you look at it.

python examples/debugging.py           plays both parts: the program, and you at `monarch debug`
python examples/debugging.py --wait    waits for you; in another terminal:

monarch debug                          a prompt; `list`, `attach trainers 2`, then pdb as everywhere
monarch debug --dap 2 --mesh trainers  or VS Code on that rank (pip install 'pymonarch[debug]')
"""

from __future__ import annotations

import math
import os
import subprocess
import sys

from monarch.actor import Actor, current_rank, debug_controller, endpoint, this_host

TYPED = """\
list
attach trainers 2
p step, batch
p [math.log(x) if x > 0 else "no logarithm" for x in batch]
!loss = 0.0
continue
quit
"""


class Trainer(Actor):
    """Trains, and stops at the first loss that is no number."""

    @endpoint
    def train(self, steps: int) -> float:
        """The sum of all losses."""
        total = 0.0
        for step in range(steps):
            batch = read_batch(current_rank().rank, step)
            loss = loss_of(batch)
            if math.isnan(loss):
                breakpoint()  # noqa: T100
            total += loss
        return round(total, 3)


def read_batch(rank: int, step: int) -> list[float]:
    """Three samples; one of them is broken."""
    broken = (rank, step) == (2, 3)
    return [1.0 + rank, 2.0 + step, -1.0 if broken else 3.0]


def loss_of(batch: list[float]) -> float:
    """The mean of the logarithms."""
    return sum(math.log(x) if x > 0 else math.nan for x in batch) / len(batch)


def main() -> None:
    """Trains on four ranks, and talks to the one that stops."""
    trainers = this_host().spawn_procs({"gpus": 4}, name="workers").spawn("trainers", Trainer)
    training = trainers.train.call(5)
    debug_controller().wait_pending_session.call_one().get()
    if "--wait" not in sys.argv:
        subprocess.run(
            [sys.executable, "-m", "monarch", "debug", "--pid", str(os.getpid())], input=TYPED, text=True, check=True
        )
    print([loss for _, loss in training.get().items()])


if __name__ == "__main__":
    main()
