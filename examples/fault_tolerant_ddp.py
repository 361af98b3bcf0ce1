"""DistributedDataParallel that goes on when its processes are killed: four trainers, one shot every few seconds.

    python examples/fault_tolerant_ddp.py            # about a minute on two cores; writes fault_tolerant_ddp.png
    python examples/fault_tolerant_ddp.py --steps 1000 --every 2 --seed 7

No checkpoint ever touches a disk. Data-parallel ranks hold the same state, so the survivors are the checkpoint: a new process
takes the place of the one that died, fetches the state from a survivor, and the training goes on from the last step that
every survivor has finished. The losses must be those of a run that nobody disturbed; this script trains once more without
the shots, compares the two curves, and plots them. Needs torch and, for the plot, matplotlib.
"""

import argparse
import asyncio
import os
import random
import signal
import time
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import monarch.actor
import monarch.metrics
from monarch.actor import (
    Actor,
    ActorError,
    MeshFailure,
    SupervisionError,
    current_rank,
    endpoint,
    setup_torch_distributed,
    this_host,
)

TOLERANCE = 1e-4  # largest difference of the two runs' losses at any step
STUCK = 5.0  # seconds until a collective that waits for a dead rank gives up, should the broken connection not end it

State = dict[str, Any]  # the net's state_dict, and the optimizer's moments of each parameter


def batch(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What rank `rank` learns from in step `step`: the same whenever it is asked for, so that a step can be repeated."""
    dice = torch.Generator().manual_seed(step * 1000 + rank)
    x = torch.rand(64, 2, generator=dice) * 6 - 3
    return x, torch.sin(x[:, :1] * x[:, 1:]) + 0.05 * torch.randn(64, 1, generator=dice)


class Trainer(Actor):
    """One rank. Keeps its state as it was after each of the last two steps: a rank may be one step ahead of another when
    a third dies, and then goes back."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.rank = current_rank().rank
        self.net = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=3e-3)
        self.kept = {0: self.state_now()}  # steps done -> state then
        self.fresh = False

    def __restarted__(self, failure: MeshFailure) -> None:
        self.fresh = True  # what `__init__` made is the state of step 0, and no rank is there any more

    def state_now(self) -> State:
        copy = {name: value.clone() for name, value in self.net.state_dict().items()}
        moments = [{k: v.clone() for k, v in self.optimizer.state[p].items()} for p in self.net.parameters()]
        return {"net": copy, "moments": moments}

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def knows(self, step: int) -> bool:
        """Whether this rank has the state after `step` steps."""
        return not self.fresh and step in self.kept

    @endpoint
    def state(self, step: int) -> State:
        return self.kept[step]

    @endpoint
    def go_to(self, step: int, source: "Trainer") -> None:
        """Takes the state after `step` steps: a survivor its own, a newcomer that of the trainer `source`."""
        state = source.state.call_one(step).get() if self.fresh else self.kept[step]
        self.net.load_state_dict(state["net"])
        for parameter, moments in zip(self.net.parameters(), state["moments"], strict=True):
            self.optimizer.state[parameter] = {name: value.clone() for name, value in moments.items()}
        self.optimizer.zero_grad()
        self.kept, self.fresh = {step: state}, False

    @endpoint
    def wrap(self) -> None:
        """In a new process group."""
        self.model = DDP(self.net)

    @endpoint
    def step(self, number: int) -> float:
        """One step; returns this rank's loss before it. Raises when another rank is lost meanwhile."""
        try:
            loss = self.gradients(*batch(number, self.rank))
        except RuntimeError as exc:
            lost = str(exc)
        else:
            lost = ""
        if lost:  # leave at once: those who wait for this rank notice by its connections
            self.leave()
            raise RuntimeError(f"rank {self.rank} lost another rank in step {number}: {lost}")
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.kept = {number: self.kept[number], number + 1: self.state_now()}
        monarch.metrics.log(step=number, loss=loss)
        return loss

    def gradients(self, x: torch.Tensor, y: torch.Tensor) -> float:
        assert self.model is not None, "join() comes first"
        loss = nn.functional.mse_loss(self.model(x), y)
        loss.backward()
        return float(loss.item())

    def leave(self) -> None:
        self.model = None
        if dist.is_initialized():
            dist.destroy_process_group()


class Team:
    """The trainers, as the script sees them: it keeps them going and knows where they are."""

    def __init__(self, ranks: int):
        self.ranks = ranks
        self.procs = this_host().spawn_procs({"gpus": ranks})
        self.trainers = self.procs.spawn("trainers", Trainer)
        self.pids: list[int] = []
        self.whole = False
        self.recoveries: list[tuple[int, float]] = []  # in which step, and how many seconds it took

    async def assemble(self, step: int) -> None:
        """Replaces whoever is gone, brings all to the state after `step` steps and into one process group."""
        await self.procs.restart(failed=True)
        await self.trainers.restart(failed=True)
        survivors = [rank for rank, knows in enumerate((await self.trainers.knows.call(step)).values()) if knows]
        if not survivors:
            raise SystemExit(f"every trainer died at once: nobody is left who knows the state after {step} steps")
        await self.trainers.go_to.call(step, self.trainers.slice(gpus=survivors[0]))
        await setup_torch_distributed(self.procs, "gloo", timeout=STUCK)
        await self.trainers.wrap.call()
        self.pids = (await self.trainers.pid.call()).values()
        self.whole = True

    async def recover(self, step: int) -> None:
        """`assemble`, again and again if somebody dies meanwhile."""
        start = time.perf_counter()
        for _ in range(20):
            try:
                await self.assemble(step)
            except (SupervisionError, ActorError):
                continue
            self.recoveries.append((step, time.perf_counter() - start))
            return
        raise SystemExit("the trainers could not be assembled in 20 attempts")


async def shoot(team: Team, every: float, dice: random.Random) -> None:
    """Kills a random trainer's process every few seconds; never two before the first is replaced, for the last survivor
    is the last one who knows the state."""
    while True:
        await asyncio.sleep(every * dice.uniform(0.7, 1.3))
        if not team.whole:
            continue
        team.whole = False
        victim = dice.randrange(team.ranks)
        os.kill(team.pids[victim], signal.SIGKILL)
        print(f"  killed rank {victim} (pid {team.pids[victim]})", flush=True)


async def train(ranks: int, steps: int, every: float, seed: int) -> tuple[list[float], Team]:
    """The mean loss of each step, in a run in which somebody is shot `every` seconds (0: nobody)."""
    team = Team(ranks)
    losses = [0.0] * steps
    number = 0
    await team.assemble(number)
    shooting = asyncio.create_task(shoot(team, every, random.Random(seed))) if every else None
    while number < steps:
        try:
            losses[number] = fmean((await team.trainers.step.call(number)).values())
            number += 1
        except (SupervisionError, ActorError) as exc:  # a trainer died; or it was in a collective with the one that did
            await team.recover(number)  # every survivor has the state before this step, those too that had finished it
            _, seconds = team.recoveries[-1]
            print(f"  {type(exc).__name__}: recovered in {seconds:.2f} s, on with step {number}", flush=True)
    if shooting is not None:
        shooting.cancel()
    await team.procs.stop()
    return losses, team


def plot(file: Path, calm: list[float], shot: list[float], recoveries: list[tuple[int, float]]) -> None:
    try:
        import matplotlib
    except ImportError:
        print("no plot: matplotlib is not installed")
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (above, below) = pyplot.subplots(2, 1, figsize=(8, 6), sharex=True, height_ratios=(3, 1))
    above.semilogy(calm, color="tab:blue", linewidth=3, alpha=0.5, label="undisturbed")
    above.semilogy(shot, color="tab:red", linewidth=0.8, label="trainers killed at random")
    for step, _seconds in recoveries:
        above.axvline(step, color="black", linewidth=0.8, linestyle=":")
    above.set_ylabel("mean loss")
    above.legend()
    below.plot([abs(a - b) for a, b in zip(calm, shot, strict=True)], color="black", linewidth=0.8)
    below.set_ylabel("difference")
    below.set_xlabel("step")
    figure.tight_layout()
    figure.savefig(file, dpi=120)
    print(f"plot: {file}")


async def main() -> None:
    parser = argparse.ArgumentParser(description="DDP whose processes are killed while it trains.")
    parser.add_argument("--ranks", type=int, default=4, help="trainers (default %(default)s)")
    parser.add_argument("--steps", type=int, default=1500, help="steps (default %(default)s)")
    parser.add_argument("--every", type=float, default=3.0, help="seconds between two shots (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the shots (default %(default)s)")
    parser.add_argument("--plot", type=Path, default=Path("fault_tolerant_ddp.png"), help="file (default %(default)s)")
    args = parser.parse_args()
    monarch.actor.unhandled_fault_hook = lambda failure: (
        None
    )  # `train` sees every failure as an exception and acts on it

    print(f"{args.ranks} trainers, {args.steps} steps, somebody is killed every {args.every:g} s or so")
    shot, team = await train(args.ranks, args.steps, args.every, args.seed)
    print("once more, undisturbed")
    calm, _ = await train(args.ranks, args.steps, 0, args.seed)
    worst = max(abs(a - b) for a, b in zip(calm, shot, strict=True))
    print(f"loss {calm[0]:.4f} -> {shot[-1]:.4f} (undisturbed {calm[-1]:.4f})")
    if team.recoveries:
        times = sorted(seconds for _, seconds in team.recoveries)
        print(f"{len(times)} recoveries: median {median(times):.2f} s, longest {times[-1]:.2f} s")
    print(f"largest difference of the two loss curves: {worst:.2e} (tolerance {TOLERANCE:g})")
    plot(args.plot, calm, shot, team.recoveries)
    if worst > TOLERANCE:
        raise SystemExit("the disturbed run did not learn what the undisturbed one did")


if __name__ == "__main__":
    asyncio.run(main())
