"""GRPO with actors and a queue: generators go on sampling while the learner trains; nobody waits for a whole round.

    python examples/grpo/actors.py                      # 15 seconds on two idle cores
    python examples/grpo/actors.py --small --kill 2     # seconds; generators are killed on the way
    python examples/grpo/actors.py --learners 2         # the learner is two ranks of DDP

    generators --prompts, answers--> scorer --rewards--> generators --samples--> buffer --samples--> learner
         ^                                                                                              |
         +------------------------------ the newest weights, out of its memory -------------------------+

A generator reads the learner's weights before each batch, whole and without its help. The buffer holds few batches: when it
is full, generators wait; samples older than `--max-age` versions are refused. A generator that is killed is replaced by the
RestartPolicy, and goes on with the newest weights. The task is in task.py, the policy in policy.py, the loss in grpo.py.
Needs torch.
"""

import argparse
import asyncio
import os
import signal
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import torch
from grpo import Samples, advantages, clipped_share, policy_loss
from policy import logprobs, own_device
from progress import Progress
from settings import Settings
from task import Sorting
from torch.nn.parallel import DistributedDataParallel as DDP

import monarch
from monarch.actor import (
    Actor,
    Channel,
    Port,
    RestartPolicy,
    SupervisionError,
    concurrent_endpoint,
    current_rank,
    endpoint,
    setup_torch_distributed,
    this_host,
)
from monarch.rdma import StateDict, StateDictHandle


@dataclass(frozen=True)
class Step:
    """What the learner's first rank tells of a step."""

    number: int
    reward: float  # mean of its batch
    age: int  # of its batch, in versions
    clipped: float  # share of tokens
    waited: float  # seconds until there were samples


class Scorer(Actor):
    """The rule. For a real task: a reward model, a compiler, a sandbox; then a mesh of them."""

    def __init__(self, task: Sorting) -> None:
        self.task = task

    @endpoint
    def score(self, prompts: torch.Tensor, completions: torch.Tensor) -> torch.Tensor:
        return self.task.rewards(prompts, completions)


class Buffer(Actor):
    """A queue of batches that is bounded twice: in length, which makes generators wait, and in age."""

    def __init__(self, capacity: int, max_age: int) -> None:
        self.capacity, self.max_age = capacity, max_age
        self.batches: deque[Samples] = deque()
        self.changed = asyncio.Condition()
        self.refused = 0
        self.closed = False

    @concurrent_endpoint
    async def put(self, samples: Samples) -> bool:
        """Waits for room. False: nobody wants samples any more."""
        async with self.changed:
            await self.changed.wait_for(lambda: self.closed or len(self.batches) < self.capacity)
            self.batches.append(samples)
            self.changed.notify_all()
            return not self.closed

    @concurrent_endpoint
    async def get(self, version: int) -> Samples:
        """The oldest batch that a learner at `version` may use; waits for one."""
        async with self.changed:
            while True:
                await self.changed.wait_for(lambda: self.batches)
                samples = self.batches.popleft()
                self.changed.notify_all()
                if version - samples.version <= self.max_age:
                    return samples
                self.refused += 1

    @concurrent_endpoint
    async def close(self) -> int:
        """Lets everybody go who waits to put. How many batches were refused."""
        async with self.changed:
            self.closed = True
            self.changed.notify_all()
            return self.refused


class Learner(Actor):
    def __init__(self, settings: Settings) -> None:
        torch.manual_seed(settings.seed)  # the same weights on all ranks
        torch.set_num_threads(1)  # the model is tiny
        self.settings = settings
        self.device = own_device()
        self.policy = settings.policy()
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=settings.rate)
        self.weights = StateDict(self.policy)

    @endpoint
    def handle(self) -> StateDictHandle:
        """Where the weights are: small, and good for the whole run."""
        return self.weights.handle

    @endpoint
    async def train(self, steps: int, buffer: Buffer, told: Port[Step]) -> None:
        """Each rank takes batches of its own; DDP averages the gradients."""
        model = DDP(self.policy) if torch.distributed.is_initialized() else self.policy
        coming = buffer.get.call_one(self.weights.version)
        for number in range(1, steps + 1):
            start = time.perf_counter()
            samples = await coming
            waited = time.perf_counter() - start
            if number < steps:  # the next batch comes while this one is computed; its turn is at the next version
                coming = buffer.get.call_one(self.weights.version + 1)
            age = self.weights.version - samples.version
            samples = samples.to(self.device)
            new = logprobs(model, samples.prompts, samples.completions)
            loss = policy_loss(new, samples.logprobs, advantages(samples.rewards))
            self.optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.policy.parameters(), 1.0)
            with self.weights.updating():  # readers get the weights before this, or after it
                self.optimizer.step()
            if current_rank().rank == 0:
                clipped = clipped_share(new.detach(), samples.logprobs)
                told.send(Step(number, samples.rewards.mean().item(), age, clipped.item(), waited))

    @endpoint
    def evaluate(self) -> float:
        """The mean reward of the most likely answers to prompts that are never trained on."""
        prompts = self.settings.task.held_out(500).to(self.device)
        answers, _ = self.policy.sample(prompts, 1, self.settings.task.digits, temperature=0)
        return float(self.settings.task.rewards(prompts.cpu(), answers.cpu()).mean())

    @endpoint
    def close(self) -> None:
        self.weights.drop().get()


class Generator(Actor):
    def __init__(self, settings: Settings) -> None:
        torch.set_num_threads(1)
        self.settings = settings
        self.device = own_device()
        self.policy = settings.policy()
        seed = settings.seed * 1000 + current_rank().rank + 1  # each generator draws prompts and answers of its own
        torch.manual_seed(seed)
        self.dice = torch.Generator().manual_seed(seed)

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    async def generate(self, weights: StateDictHandle, scorer: Scorer, buffer: Buffer) -> None:
        """Until nobody wants samples any more."""
        settings, reader = self.settings, weights.reader(self.policy)
        wanted = True
        while wanted:
            version = await reader.read()
            prompts = settings.task.prompts(settings.prompts, self.dice)
            drawn = self.policy.sample(prompts.to(self.device), settings.group, settings.task.digits)
            completions, chances = (tensor.cpu() for tensor in drawn)
            rewards = await scorer.score.call_one(prompts, completions)
            wanted = await buffer.put.call_one(Samples(version, prompts, completions, chances, rewards))


async def train(
    steps: int, kills: int, learner: Learner, generators: Generator, scorer: Scorer, buffer: Buffer, progress: Progress
) -> tuple[list[Step], int]:
    """All of them at work until the learner has made its steps. Each step, and how many batches were refused."""
    weights = StateDictHandle.combine(await learner.handle.call())
    told, heard = Channel[Step].open()
    running: dict[int, int] = {}  # by rank: the pids of generators
    kill_at = [steps * (i + 1) // (kills + 1) for i in range(kills)]

    async def keep_generating(rank: int) -> None:
        """Sets a generator to work, and its successor when it dies."""
        generator = generators.slice(gpus=rank)
        while True:
            try:
                running[rank] = await generator.pid.call_one()
                return await generator.generate.call_one(weights, scorer, buffer)
            except SupervisionError:
                lost = time.perf_counter()
                running.pop(rank, None)
                await generator.healthy(timeout=60)  # the policy has put another process in its place
                progress.note(f"generator {rank} is back after {time.perf_counter() - lost:.2f} s")

    async def listen() -> list[Step]:
        """Shows how it goes, and kills a generator now and then."""
        known: list[Step] = []
        while len(known) < steps:
            known.append(step := await heard.recv())
            progress.add(mean_reward=step.reward, age_of_the_weights=step.age)
            reward, age = progress.recent("mean reward"), progress.recent("age of the weights")
            speed = step.number / progress.seconds
            progress.show(step.number, f"reward {reward:.2f}  weights {age:.1f} versions old  {speed:.1f} steps/s")
            if kill_at and step.number >= kill_at[0] and running:
                kill_at.pop(0)
                victim, pid = running.popitem()
                progress.note(f"kill -9 of generator {victim} (pid {pid})", mark="generator killed")
                os.kill(pid, signal.SIGKILL)
        return known

    async with asyncio.TaskGroup() as group:  # what goes wrong in one of them ends the others
        for rank in range(len(generators)):
            group.create_task(keep_generating(rank))
        listening = group.create_task(listen())
        await learner.train.call(steps, buffer, told)
        refused = await buffer.close.call_one()
    return listening.result(), refused


async def main() -> None:
    parser = argparse.ArgumentParser(
        description="Asynchronous GRPO: generators, a scorer, a bounded buffer, a learner."
    )
    parser.add_argument("--generators", type=int, default=2, help="processes that sample (default %(default)s)")
    parser.add_argument("--learners", type=int, default=1, help="ranks that train, by DDP (default %(default)s)")
    parser.add_argument("--steps", type=int, default=400, help="of the learner (default %(default)s)")
    parser.add_argument("--kill", type=int, default=0, metavar="N", help="kill -9 of a generator, N times on the way")
    parser.add_argument("--capacity", type=int, default=1, help="batches in the buffer (default %(default)s)")
    parser.add_argument(
        "--max-age", type=int, default=4, help="versions; older samples are refused (default %(default)s)"
    )
    parser.add_argument("--record", type=Path, help="write the curve there, for docs/training/curves/plot.py")
    Settings.add_flags(parser)
    args = parser.parse_args()
    settings = Settings.of(args)
    monarch.configure(slow_handler_after="0s")  # endpoints that run as long as the program does are no news

    learner_procs = this_host().spawn_procs({"gpus": args.learners}, name="learner")
    generator_procs = this_host().spawn_procs({"gpus": args.generators}, name="generators")
    helper_procs = this_host().spawn_procs(name="helpers")
    if args.learners > 1:
        await setup_torch_distributed(learner_procs)
    learner = learner_procs.spawn("learner", Learner, settings)
    scorer = helper_procs.spawn("scorer", Scorer, settings.task)
    buffer = helper_procs.spawn("buffer", Buffer, args.capacity, args.max_age)
    with RestartPolicy(max_restarts=args.kill + 3):
        generators = generator_procs.spawn("generators", Generator, settings)

    before = (await learner.evaluate.call()).values()[0]
    progress = Progress(args.steps)
    steps, refused = await train(args.steps, args.kill, learner, generators, scorer, buffer, progress)
    seconds = progress.seconds
    after = (await learner.evaluate.call()).values()[0]

    tenth = max(1, args.steps // 10)
    start, end = (fmean(step.reward for step in part) for part in (steps[:tenth], steps[-tenth:]))
    print(f"mean reward {start:.2f} -> {end:.2f}; of prompts held out {before:.2f} -> {after:.2f}")
    ages = [step.age for step in steps]
    print(
        f"samples were {fmean(ages):.1f} versions old, {max(ages)} at most; {refused} batches were refused as too old"
    )
    speed, waited = args.steps / seconds, sum(step.waited for step in steps) / seconds
    samples = speed * settings.prompts * settings.group * args.learners
    print(f"{speed:.1f} steps/s, {samples:,.0f} samples/s; the learner waited for samples {waited:.0%} of the time")
    if args.record:
        progress.save(args.record, {"mean reward": ["mean reward"], "versions": ["age of the weights"]})
    await learner.close.call()
    for procs in (generator_procs, learner_procs, helper_procs):
        await procs.stop()


if __name__ == "__main__":
    asyncio.run(main())
