"""DistributedDataParallel over several hosts, one of which is killed in the middle and replaced by another.

    python examples/elastic_ddp.py                    # three hosts and a spare, simulated on this machine
    MONARCH_SECRET_FILE=~/.job-secret python examples/elastic_ddp.py --procs 4 \\
        --workers tcp://node1:26600 tcp://node2:26600 --spares tcp://node3:26600
    python examples/elastic_ddp.py --mesh trainers    # hosts and spares of a job that a project file describes: docs/jobs.md

No checkpoint touches a disk: data-parallel ranks hold the same state, so the survivors are the checkpoint. The spare takes
the place of the dead host, its processes are started and its actors constructed there, they fetch the state from a survivor,
and the training goes on from the last step that every survivor has finished. At the end its losses are compared with those
of one process that nobody disturbs. Needs torch.
"""

import argparse
import asyncio
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from statistics import fmean
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
    HostMesh,
    MeshFailure,
    SupervisionError,
    attach_to_workers,
    current_rank,
    endpoint,
    hosts_from_config,
    setup_torch_distributed,
)

STUCK = 10.0  # seconds until a collective that waits for a dead rank gives up, should the broken connection not end it
TOLERANCE = 1e-5  # largest difference of a loss from that of one process that nobody disturbs


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 1))


def loss_of(model: nn.Module, step: int, rank: int) -> torch.Tensor:
    """On what rank `rank` learns from in step `step`: the same whenever it is asked for, so that a step can be repeated."""
    dice = torch.Generator().manual_seed(step * 1000 + rank)
    x = torch.rand(64, 2, generator=dice) * 2 - 1
    return nn.functional.mse_loss(model(x), x[:, :1] * x[:, 1:])


class Trainer(Actor):
    """One rank. Keeps its state as it was after each of the last two steps: a rank may be one step ahead of another when
    a third dies, and then goes back."""

    def __init__(self) -> None:
        self.rank, self.net = current_rank().rank, network()
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.05)
        self.kept = {0: self.state_now()}  # steps done -> state then
        self.fresh = False

    def __restarted__(self, failure: MeshFailure) -> None:
        self.fresh = True  # what `__init__` made is the state of step 0, and no rank is there any more

    def state_now(self) -> dict[str, Any]:
        return {name: value.clone() for name, value in self.net.state_dict().items()}

    @endpoint
    def knows(self, step: int) -> bool:
        """Whether this rank has the state after `step` steps."""
        return not self.fresh and step in self.kept

    @endpoint
    def state(self, step: int) -> dict[str, Any]:
        return self.kept[step]

    @endpoint
    def go_to(self, step: int, source: "Trainer") -> None:
        """Takes the state after `step` steps: a survivor its own, a newcomer that of the trainer `source`."""
        state = source.state.call_one(step).get() if self.fresh else self.kept[step]
        self.net.load_state_dict(state)
        self.kept, self.fresh = {step: state}, False

    @endpoint
    def wrap(self) -> None:
        """In a new process group."""
        self.model = DDP(self.net)

    @endpoint
    def step(self, number: int) -> float:
        """One step; returns this rank's loss before it. Raises when another rank is lost meanwhile."""
        try:
            loss = loss_of(self.model, number, self.rank)
            self.optimizer.zero_grad()
            loss.backward()
        except RuntimeError as exc:
            lost = str(exc)
        else:
            self.optimizer.step()
            self.kept = {number: self.kept[number], number + 1: self.state_now()}
            monarch.metrics.log(step=number, loss=loss)
            return float(loss.item())
        del self.model  # leave at once: those who wait for this rank notice by its connections
        if dist.is_initialized():
            dist.destroy_process_group()
        raise RuntimeError(f"rank {self.rank} lost another rank in step {number}: {lost}")

    @endpoint
    def kill_host(self) -> None:
        """Its agent leads the session of every process on a host; with it, all of them die."""
        os.kill(os.getsid(0), signal.SIGKILL)


class Team:
    """The trainers, as the script sees them."""

    def __init__(self, hosts: HostMesh, procs: int) -> None:
        self.hosts = hosts
        self.procs = hosts.spawn_procs({"gpus": procs})
        self.trainers = self.procs.spawn("trainers", Trainer)

    async def assemble(self, step: int) -> None:
        """Replaces what is gone, brings all ranks to the state after `step` steps and into one process group."""
        replaced = await self.hosts.replace(failed=True)
        if replaced:
            print(f"  replaced: host {replaced[0]}", flush=True)
        await self.procs.restart(failed=True)
        await self.trainers.restart(failed=True)
        survivors = [point for point, knows in (await self.trainers.knows.call(step)).items() if knows]
        if not survivors:
            raise SystemExit(f"nobody is left who knows the state after {step} steps")
        source = self.trainers.slice(**{label: survivors[0][label] for label in ("hosts", "gpus")})
        await self.trainers.go_to.call(step, source)
        await setup_torch_distributed(self.procs, "gloo", timeout=STUCK)
        await self.trainers.wrap.call()

    async def recover(self, step: int) -> None:
        """`assemble`, again if something else dies meanwhile."""
        for _ in range(10):
            try:
                await self.assemble(step)
            except (SupervisionError, ActorError):
                continue
            return
        raise SystemExit("the trainers could not be assembled in 10 attempts")


async def train(team: Team, steps: int, kill_at: int) -> list[float]:
    """The mean loss of each step. The last host is killed in step `kill_at`."""
    losses: list[float] = []
    await team.assemble(0)
    while len(losses) < steps:
        step = len(losses)
        if step == kill_at:
            kill_at = -1
            print(f"  step {step}: killing host {len(team.hosts) - 1}", flush=True)
            team.trainers.slice(hosts=len(team.hosts) - 1, gpus=0).kill_host.broadcast()
            killed = time.perf_counter()
        try:
            losses.append(fmean((await team.trainers.step.call(step)).values()))
        except (SupervisionError, ActorError) as exc:  # it died; or was in a collective with those that did
            print(f"  {type(exc).__name__} in step {step}", flush=True)
            await team.recover(step)
            print(f"  recovered in {time.perf_counter() - killed:.2f} s, on with step {step}", flush=True)
    return losses


def alone(ranks: int, steps: int) -> list[float]:
    """The mean losses of one process that does the work of all ranks."""
    net, means = network(), []
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for step in range(steps):
        loss = torch.stack([loss_of(net, step, rank) for rank in range(ranks)]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        means.append(loss.item())
    return means


def show(losses: list[float], ranks: int) -> None:
    print(f"trained: {len(losses)} steps, loss {losses[0]:.4f} -> {losses[-1]:.4f}")
    apart = max(abs(a - b) for a, b in zip(losses, alone(ranks, len(losses)), strict=True))
    print(f"largest difference of a loss from one process that nobody disturbs: {apart:.1e}")
    if apart > TOLERANCE:
        raise SystemExit("the training did not go on from where it was")


@contextmanager
def local_workers(count: int) -> Iterator[tuple[list[str], str]]:
    """Hosts simulated on this machine, as separate programs: their addresses, and the secret of their job."""
    secret = secrets.token_hex(32)
    with tempfile.TemporaryDirectory(prefix="elastic") as folder, ExitStack() as stack:
        addresses = [f"ipc://{folder}/host{number}" for number in range(count)]
        for address in addresses:
            command = [sys.executable, "-m", "monarch", "worker", "--address", address, "--lease", "10m"]
            environment = {**os.environ, "MONARCH_SECRET": secret}
            worker = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
            stack.callback(worker.wait)
            stack.callback(worker.terminate)
        yield addresses, secret


async def main() -> None:
    parser = argparse.ArgumentParser(description="DDP over hosts, one of which is killed and replaced.")
    parser.add_argument("--workers", nargs="+", metavar="URL", help="hosts; by default three are simulated here")
    parser.add_argument("--mesh", metavar="NAME", help="hosts of a job, described in monarch.toml or pyproject.toml")
    parser.add_argument("--spares", nargs="+", metavar="URL", default=[], help="hosts that take the place of dead ones")
    parser.add_argument("--procs", type=int, default=1, help="trainers on each host (default %(default)s)")
    parser.add_argument("--steps", type=int, default=200, help="steps (default %(default)s)")
    args = parser.parse_args()
    # `train` sees every failure as an exception and acts on it.
    monarch.actor.unhandled_fault_hook = lambda failure: None

    if args.mesh:
        hosts = hosts_from_config(args.mesh)
        print(f"{len(hosts)} hosts of a job, {args.procs} trainer(s) on each host, {args.steps} steps")
        show(await train(Team(hosts, args.procs), args.steps, args.steps // 2), len(hosts) * args.procs)
        return
    with ExitStack() as stack:
        workers, spares, secret = args.workers, args.spares, None
        if workers is None:
            started, secret = stack.enter_context(local_workers(4))
            workers, spares = started[:3], started[3:]
        async with attach_to_workers(workers=workers, spares=spares, secret=secret) as hosts:
            print(
                f"{len(workers)} hosts, {len(spares)} spare(s), {args.procs} trainer(s) on each host, {args.steps} steps"
            )
            show(await train(Team(hosts, args.procs), args.steps, args.steps // 2), len(hosts) * args.procs)


if __name__ == "__main__":
    asyncio.run(main())
