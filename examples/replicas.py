"""Replicas that come and go: training goes on with those that are alive, and those that were lost come back and join.

    python examples/replicas.py                              # three replicas of two ranks, two of which are killed on the way
    python examples/replicas.py --replicas 4 --shards 1 --deaths 5 --record run.json

A replica is a slice of the mesh whose ranks share the model (FSDP2). In every step each replica that is alive computes
gradients on a batch of its own; its ranks read the gradients of the same rank of the others (RDMA) and average them; then
all take the step. A replica that dies meanwhile is left out, and its batch goes back to be read again. Its RestartPolicy
starts it anew beside the training; it copies weights and moments out of the memory of another one, and is in the next
step. No process group spans the replicas, so none has to be made again. Needs torch >= 2.6.
"""

import argparse
import asyncio
import hashlib
import json
import os
import signal
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from char_gpt import GPT, LEARNING_RATE, Settings, Text, loss_of, losses_alone

import monarch.actor
from monarch.actor import (
    Actor,
    ActorError,
    Future,
    ProcMesh,
    RestartPolicy,
    SupervisionError,
    current_rank,
    endpoint,
    setup_torch_distributed,
    this_host,
)
from monarch.rdma import RDMABuffer, StateDict, StateDictHandle
from monarch.spmd import torch_device_mesh

BATCH = 8  # sequences a step of each replica
TOLERANCE = 1e-2  # largest difference of a loss; sums in another order make some, which grow with the steps
STUCK = 30.0  # seconds until a collective that waits for a dead rank gives up, should the broken connection not end it


def sequences(batch: int) -> range:
    return range(batch * BATCH, (batch + 1) * BATCH)


class Built(NamedTuple):
    """What the script knows of a rank: its process, and where others read its gradients, and its weights and moments."""

    pid: int
    gradients: RDMABuffer
    weights: StateDictHandle


class Trainer(Actor):
    """One rank of one replica."""

    def __init__(self, settings: Settings, device: str) -> None:
        self.settings, self.device = settings, device
        self.text = Text(settings.context)
        self.published: list[Any] = []

    @endpoint
    def build(self) -> Built:
        """This rank's shard of the model, as it is at the very beginning."""
        from torch.distributed.checkpoint.state_dict import get_state_dict
        from torch.distributed.fsdp import fully_shard

        self.drop()
        self.model = GPT(self.settings).to(self.device)
        for part in (*self.model.blocks.values(), self.model):
            fully_shard(part, mesh=torch_device_mesh())
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=LEARNING_RATE)
        model, optimizer = get_state_dict(self.model, self.optimizer)  # the optimizer makes its moments for it
        for moments in self.optimizer.state.values():
            moments["step"].zero_()  # to make them it has taken a step
        for parameter in self.model.parameters():
            parameter.grad = torch.zeros_like(parameter)  # a replica may be there for a step without a batch for it
        self.state = {"model": model, "moments": optimizer["state"]}
        self.weights = StateDict(self.state)
        sizes = [parameter.to_local().numel() for parameter in self.model.parameters()]
        self.mine, self.mean = torch.zeros(2, sum(sizes), device=self.device)
        self.parts = list(zip(self.model.parameters(), self.mean.split(sizes), strict=True))
        gradients = RDMABuffer(self.mine)
        self.published = [self.weights, gradients]
        return Built(os.getpid(), gradients, self.weights.handle)

    @endpoint
    def catch_up(self, other: StateDictHandle) -> None:
        """Takes weights and moments of another replica."""
        with self.weights.updating():
            other.read_into(self.state).get()

    @endpoint
    def gradients(self, batch: int) -> float:
        """Computes them on this rank's share of the batch; FSDP averages over the replica. Returns the loss."""
        share = BATCH // dist.get_world_size()
        mine = sequences(batch)[current_rank().rank * share :][:share]
        text, wanted = (part.to(self.device) for part in self.text.batch(mine))
        self.optimizer.zero_grad(set_to_none=False)
        loss = loss_of(self.model(text), wanted)
        loss.backward()
        torch.cat([parameter.grad.to_local().flatten() for parameter, _ in self.parts], out=self.mine)
        return float(loss.item())  # on a GPU this waits until the gradients are there to be read

    @endpoint
    def average(self, replicas: list[list[RDMABuffer]]) -> None:
        """Reads the gradients of this rank in each of the replicas: in the same order on all, so that all get the same bits.
        Changes nothing that counts: it can be done again without one of them."""
        theirs = [torch.empty_like(self.mine) for _ in replicas]
        reads = [ranks[current_rank().rank].read_into(to) for ranks, to in zip(replicas, theirs, strict=True)]
        for read in reads:
            read.get()
        torch.mean(torch.stack(theirs), 0, out=self.mean)

    @endpoint
    def update(self) -> None:
        """The step itself."""
        for parameter, mean in self.parts:
            local = parameter.grad.to_local()
            local.copy_(mean.view(local.shape))
        with self.weights.updating():
            self.optimizer.step()

    @endpoint
    def fingerprint(self) -> str:
        shards = [parameter.to_local().flatten().cpu() for parameter in self.model.parameters()]
        return hashlib.sha256(repr(torch.cat(shards).tolist()).encode()).hexdigest()[:16]

    def drop(self) -> None:
        for published in self.published:
            published.drop().get()
        self.published = []

    def __cleanup__(self, exc: Exception | None) -> None:
        self.drop()  # when a rank dies, the policy restarts the others of its replica in their processes


class Replica:
    def __init__(self, number: int, procs: ProcMesh, settings: Settings, device: str) -> None:
        self.number, self.procs = number, procs
        with RestartPolicy(strategy="all_for_one", max_restarts=10):
            self.trainers = self.procs.spawn("trainers", Trainer, settings, device)
        self.lost_at = 0.0

    async def start(self) -> None:
        """Until it is built; again, if somebody dies meanwhile."""
        for _ in range(10):
            try:
                await self.trainers.healthy(timeout=120)  # what the policy restarts is there
                await setup_torch_distributed(self.procs, timeout=STUCK)
                built = (await self.trainers.build.call()).values()
            except (SupervisionError, ActorError):
                continue
            self.pids = [rank.pid for rank in built]
            self.gradients = [rank.gradients for rank in built]
            self.weights = StateDictHandle.combine([rank.weights for rank in built])
            return
        raise SystemExit(f"replica {self.number} could not be started in 10 attempts")


class Training:
    """Who takes part in which step. `batches` are the numbers of those still to be read; `shots` say from which step on,
    and in which part of one, somebody is killed."""

    def __init__(self, replicas: list[Replica], batches: int, shots: list[tuple[int, str]]) -> None:
        self.members, self.shots = replicas, deque(shots)
        self.waiting: dict[Replica, asyncio.Task[None]] = {}  # to join, when this is done
        self.batches, self.averaged = deque(range(batches)), list[list[int]]()  # those averaged, by step
        self.steps: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []
        self.error: ActorError | None = None  # the last that a rank raised

    async def run(self) -> None:
        await asyncio.gather(*(replica.start() for replica in self.members))
        while self.batches:
            await self.join()
            began = time.perf_counter()
            losses = await self.step()
            self.note(losses, time.perf_counter() - began)
        while self.waiting:  # those that died last come back too
            await asyncio.wait(self.waiting.values())
            await self.join()

    async def step(self) -> list[float]:
        """One step of those that are alive, on a batch each. The losses of those that are so to its end."""
        dealt = {replica: self.batches.popleft() for replica in self.members[: len(self.batches)]}
        losses = await self.each(
            "gradients", {replica: replica.trainers.gradients.call(dealt[replica]) for replica in dealt}
        )
        while True:
            for replica in [replica for replica in dealt if replica not in losses or replica not in self.members]:
                self.leave(replica)
                self.batches.appendleft(dealt.pop(replica))
            if not dealt:
                return []
            before, gradients = len(self.members), [replica.gradients for replica in dealt]
            calls = {replica: replica.trainers.average.call(gradients) for replica in self.members}
            done = await self.each("average", calls)
            if len(done) == len(self.members) == before:
                break  # all have the same average; otherwise once more, of those that are left
            if len(self.members) == before:
                raise SystemExit(f"gradients could not be averaged, though nobody died: {self.error}")
        self.averaged.append(list(dealt.values()))
        await self.each("update", {replica: replica.trainers.update.call() for replica in self.members})
        return [loss for replica in dealt for loss in losses[replica].values()]

    async def each(self, phase: str, calls: Mapping[Replica, Future[Any]]) -> dict[Replica, Any]:
        """What each of them answers. One that dies is left out; one whose call raises just has no answer."""
        done: dict[Replica, Any] = {}
        if len(calls) > 1 and self.shots and self.shots[0][0] <= len(self.steps) and self.shots[0][1] == phase:
            self.shots.popleft()  # never the only one that is left, who alone has the weights
            os.kill(list(calls)[len(self.shots) % len(calls)].pids[-1], signal.SIGKILL)
        for replica, call in calls.items():
            try:
                done[replica] = await call
            except SupervisionError:
                self.leave(replica)
            except ActorError as error:
                self.error = error
        return done

    def leave(self, replica: Replica) -> None:
        """Left out from now on, and started anew beside the training."""
        if replica not in self.members:
            return
        self.members.remove(replica)
        replica.lost_at = time.perf_counter()
        print(f"step {len(self.steps)}: replica {replica.number} is lost; on with {self.names()}", flush=True)
        self.events.append({"step": len(self.steps), "replica": replica.number, "what": "lost"})
        if not self.members:
            raise SystemExit(f"no replica is left, so nobody has the weights: {self.error or 'all have died'}")
        self.waiting[replica] = asyncio.create_task(replica.start())

    async def join(self) -> None:
        """Those that are built again take the weights of one that has them, between two steps."""
        for replica in [replica for replica, task in self.waiting.items() if task.done()]:
            self.waiting.pop(replica).result()
            source, began = self.members[0], time.perf_counter()
            self.members.append(replica)
            done = await self.each("join", {replica: replica.trainers.catch_up.call(source.weights)})
            if replica not in done:
                self.leave(replica)  # it, or the one that it read from, has died
                continue
            self.members.sort(key=lambda replica: replica.number)
            now = time.perf_counter()
            print(
                f"step {len(self.steps)}: replica {replica.number} is back after {now - replica.lost_at:.1f} s; it took the "
                f"weights of replica {source.number} in {1000 * (now - began):.0f} ms; on with {self.names()}",
                flush=True,
            )
            self.events.append({"step": len(self.steps), "replica": replica.number, "what": "back"})

    def note(self, losses: list[float], seconds: float) -> None:
        if not losses:
            return
        number, tokens = len(self.steps), sum(map(len, self.averaged)) * BATCH * Settings.context
        self.steps.append(
            {"members": len(self.averaged[-1]), "tokens": tokens, "loss": fmean(losses), "seconds": seconds}
        )
        if any(event["step"] == number and event["what"] == "lost" for event in self.events):
            usual = median(step["seconds"] for step in self.steps)
            print(f"step {number}: took {seconds:.3f} s, where {usual:.3f} s are usual", flush=True)
        if number % 20 == 0 or not self.batches:
            print(f"step {number}: {self.names()}, loss {fmean(losses):.3f}, {tokens:,} tokens", flush=True)

    def names(self) -> str:
        return f"replica{'s' * (len(self.members) > 1)} {', '.join(str(replica.number) for replica in self.members)}"


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicas", type=int, default=3, help="replicas (default %(default)s)")
    parser.add_argument("--shards", type=int, default=2, help="ranks of each (default %(default)s)")
    parser.add_argument("--batches", type=int, default=600, help=f"of {BATCH} sequences (default %(default)s)")
    parser.add_argument("--deaths", type=int, default=2, help="kill -9 of a rank, so often (default %(default)s)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default %(default)s)")
    parser.add_argument("--record", type=Path, metavar="FILE", help="steps and events as JSON")
    args = parser.parse_args()
    if args.shards < 1 or BATCH % args.shards:
        parser.error(f"--shards has to divide the {BATCH} sequences of a batch")
    if args.replicas < 2:
        parser.error("--replicas is at least 2: a replica that is lost takes the weights of another one")
    monarch.actor.unhandled_fault_hook = lambda failure: None  # a replica that dies is seen where it is called

    # In steps that divide the training evenly; in turn while gradients are computed, and while they are averaged.
    every = args.batches // args.replicas // (args.deaths + 1)
    shots = [(every * (n + 1), ("gradients", "average")[n % 2]) for n in range(args.deaths)]
    procs = this_host().spawn_procs({"replicas": args.replicas, "shards": args.shards})
    replicas = [Replica(n, procs.slice(replicas=n), Settings(), args.device) for n in range(args.replicas)]
    training = Training(replicas, args.batches, shots)
    await training.run()

    averaged = [batch for step in training.averaged for batch in step]
    once = sorted(averaged) == list(range(args.batches))
    print(f"{len(averaged)} batches averaged, each once: {once}")
    equal = {tuple((await replica.trainers.fingerprint.call()).values()) for replica in training.members}
    print(f"{len(training.members)} replicas, equal parameters: {len(equal) == 1}")
    losses = [step["loss"] for step in training.steps]
    print(f"loss {losses[0]:.3f} -> {fmean(losses[-10:]):.3f}")
    alone = losses_alone(Settings(), ([n for batch in step for n in sequences(batch)] for step in training.averaged))
    apart = max(abs(a - b) for a, b in zip(losses, alone, strict=True))
    print(f"losses differ by {apart:.1e} at most from one process that reads the same in each step")
    if args.record:
        args.record.write_text(json.dumps({"steps": training.steps, "events": training.events}))
    await procs.stop()
    if not once or len(equal) != 1 or apart > TOLERANCE:
        raise SystemExit("this is not the training of one process")


if __name__ == "__main__":
    asyncio.run(main())
