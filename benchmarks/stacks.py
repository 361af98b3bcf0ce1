"""How long it takes to see where all ranks are, and what the last resort costs a process when it begins.

    python benchmarks/stacks.py                  # 32 processes
    python benchmarks/stacks.py --procs 128 --depth 30 --json

`stacks()`: every process tells the stack of an actor that is `depth` calls deep, folded and made a page. `folding`: 512
ranks that are at two places, from what they answered to the page. `collect`: one process, on its I/O thread. `listen`: the
note, the file and the handler, once a process.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

from monarch._mesh.inspection import folding, thread_stacks
from monarch._mesh.inspection.stack_records import ProcessStacks, StackFrame, ThreadStack
from monarch._runtime.context import home
from monarch.actor import Actor, endpoint, this_host

_LISTEN = """
import faulthandler, os, sys, threading, time
from monarch._mesh.inspection import fault_signal
times = []
for number in range(200):
    began = time.perf_counter()
    fault_signal.listen(sys.argv[1], f"unix:/x/p.{number}", threading.get_native_id())
    times.append(time.perf_counter() - began)
    faulthandler.unregister(50)
print(sorted(times)[100])
"""


class Deep(Actor):
    """Stands still, so many calls deep."""

    @endpoint
    def stand(self, depth: int) -> None:
        self._deeper(depth)

    def _deeper(self, depth: int) -> None:
        if depth:
            self._deeper(depth - 1)
        threading.Event().wait()

    @endpoint
    def collect(self, rounds: int) -> float:
        """Seconds that this process takes to tell its stacks."""
        proc: Any = home()
        return middle(lambda: thread_stacks.answer(proc, b""), rounds)


def middle(run: Callable[[], object], rounds: int) -> float:
    """The median of so many runs, in seconds."""
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def many(ranks: int, depth: int) -> list[ProcessStacks]:
    """What so many processes answer."""
    frames = [StackFrame("/srv/train.py", line, "Trainer.step") for line in range(depth)]
    other = [*frames[:-1], StackFrame("/srv/data.py", 31, "load")]
    return [
        ProcessStacks(
            f"unix:/x/uid.{rank}",
            "node",
            rank,
            "workers",
            rank,
            [ThreadStack("t", rank, other if rank == 17 else frames, "t", "k", rank, "step", 1.0)],
        )
        for rank in range(ranks)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--procs", type=int, default=32)
    parser.add_argument("--depth", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    procs = this_host().spawn_procs({"gpus": options.procs}, name="workers")
    deep = procs.spawn("deep", Deep)
    collect = deep.slice(gpus=0).collect.call_one(200).get()
    deep.stand.broadcast(options.depth)
    while len(str(deep.stacks().get())) < 100:
        pass
    with tempfile.TemporaryDirectory() as folder:
        listen = float(subprocess.check_output([sys.executable, "-c", _LISTEN, folder]))
    ranks = many(512, options.depth)
    found = {
        "stacks_s": middle(lambda: str(deep.stacks(timeout=30).get()), options.rounds),
        "folding_512_s": middle(lambda: folding.page(ranks, {}), options.rounds),
        "collect_s": collect,
        "listen_s": listen,
    }
    if options.json:
        print(json.dumps({"procs": options.procs, "depth": options.depth, **found}))
    else:
        print(f"stacks() of {options.procs} processes  {found['stacks_s'] * 1e3:8.2f} ms")
        print(f"folding of 512 ranks       {found['folding_512_s'] * 1e3:8.2f} ms")
        print(f"collect in one process     {found['collect_s'] * 1e6:8.1f} us")
        print(f"listen at a process's start{found['listen_s'] * 1e6:8.1f} us")


if __name__ == "__main__":
    import os

    main()
    sys.stdout.flush()
    os._exit(0)  # the processes stand still for ever
