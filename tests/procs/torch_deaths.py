"""kill -9 of ranks of a torch group, at any place and in any phase of training: every other rank's call raises an error that
names the dead, and training goes on after `healthy()` and `setup_torch_distributed()`. As a program, many rounds of it:

    python -m tests.procs.torch_deaths --rounds 200 --seed 1
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import threading
import time
from collections.abc import Collection
from typing import Any

from monarch.actor import ProcMesh, RestartPolicy, endpoint, setup_torch_distributed, this_host
from tests.support.process_actors import Pid

PHASES = ("forward", "backward", "optimizer", "checkpoint", "setup")
TIMEOUT = 120
_AT = 3  # the step in which it dies


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    threading.Event().wait()


class Trainer(Pid):
    @endpoint
    def train(self, phase: str, dies: bool, steps: int, after: float = 0.0) -> float:
        """So many steps of training with DDP. If it `dies`, it does so in that phase of one of them, so many seconds into
        it."""
        import torch
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel

        def enters(entered: str) -> None:
            if dies and step == _AT and entered == phase:
                if after:
                    threading.Timer(after, die).start()
                else:
                    die()

        step = 0
        model = DistributedDataParallel(torch.nn.Linear(8, 8))
        model.module.weight.register_hook(lambda grad: enters("backward"))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        while step < steps:
            step += 1
            enters("forward")
            loss = model(torch.ones(4, 8)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            enters("optimizer")
            optimizer.step()
            enters("checkpoint")
            dist.barrier()
            enters("setup")
            group = dist.new_group(list(range(dist.get_world_size())))
            dist.barrier(group)  # else one may close its connections while another still makes its own
            dist.destroy_process_group(group)
        return float(loss.item())


def trainers_on(procs: ProcMesh) -> Any:
    with RestartPolicy(max_restarts=10_000):
        trainers: Any = procs.spawn("trainers", Trainer)
    trainers.healthy().get(TIMEOUT)
    return trainers


def round_of(procs: ProcMesh, trainers: Any, victims: Collection[int], phase: str, after: float = 0.0) -> float:
    """Sets the group up, has `victims` die, and trains on. Returns how many seconds after the first call of a dead rank had
    failed that of the last survivor did. AssertionError for an error that names no dead rank."""
    count = len(trainers)
    setup_torch_distributed(procs).get(TIMEOUT)
    ranks = [trainers.flatten("rank").slice(rank=rank) for rank in range(count)]
    calls = [one.train.call_one(phase, rank in victims, 10_000, after) for rank, one in enumerate(ranks)]
    texts = {}
    for rank in [*sorted(victims), *(rank for rank in range(count) if rank not in victims)]:
        try:
            calls[rank].get(TIMEOUT)
            raise AssertionError(f"rank {rank} has trained on")
        except Exception as exc:
            texts[rank] = str(exc)
        if rank == max(victims):
            died = time.monotonic()
    late = time.monotonic() - died
    named = [f"rank {rank} of this process's torch group of {count} ranks has died" for rank in victims]
    named.append(f"of this process's torch group of {count} ranks have died")
    for rank, text in texts.items():
        if rank not in victims:
            assert any(part in text for part in named), f"rank {rank} says: {text}"
    trainers.healthy().get(TIMEOUT)
    setup_torch_distributed(procs).get(TIMEOUT)
    trained = trainers.train.call("", False, 2).get(TIMEOUT).values()
    assert len(trained) == count
    return late


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ranks", type=int, nargs="*", default=[2, 3, 4, 8])
    given = parser.parse_args()
    chance = random.Random(given.seed)
    late, recovered = [], []
    for number, count in enumerate(given.ranks):
        procs = this_host().spawn_procs({"gpus": count})
        trainers = trainers_on(procs)
        for one in range(number, given.rounds, len(given.ranks)):
            phase = PHASES[one // len(given.ranks) % len(PHASES)]
            victims = chance.sample(range(count), chance.randrange(1, max(2, count // 2 + 1)))
            after = chance.choice([0.0, chance.uniform(0.0, 0.02)])
            began = time.monotonic()
            late.append(round_of(procs, trainers, victims, phase, after))
            recovered.append(time.monotonic() - began)
            print(f"{one}: {count} ranks, {victims} in {phase} +{after:.3f}: {late[-1]:.3f} s", flush=True)
        procs.stop().get(TIMEOUT)
    last = sorted(late)[int(0.95 * len(late))]
    print(f"{len(late)} rounds, seed {given.seed}: survivors {statistics.median(late):.3f} s after, 95 % {last:.3f} s, "
          f"at most {max(late):.3f} s; a round {statistics.median(recovered):.1f} s")  # fmt: skip


if __name__ == "__main__":
    main()
