"""GRPO without batches between the actors: every sample travels alone, as soon as its last token is drawn.

    python examples/grpo/streaming.py                          # under a minute on two idle cores
    python examples/grpo/streaming.py --generators 3 --kill 3  # generators are killed on the way

    script --prompts--> router --groups--> learner
                        |    ^                |
           to the least |    | one sample     | its newest weights,
                   busy |    | after another  | out of its memory
                        v    |                |
                      generators <------------+

Answers have 2, 3 or 4 tokens. A generator draws for many at a time, and one that has ended makes place for another: nobody
waits for the longest. The learner takes the groups that are complete, few or many. Prompts flow in as it takes groups out,
and groups that are too old are dropped. At the end every prompt is accounted for: none is lost and none is used twice,
whichever generators were killed. The router is in pool.py, the task in task.py, the loss in grpo.py. Needs torch.
"""

import argparse
import asyncio
import os
import random
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import torch
from grpo import advantages, policy_loss
from policy import logprobs, own_device
from pool import Death, Generator, Group, Prompt, Router, Sample
from progress import Progress
from settings import Settings
from task import Sorting

import monarch
from monarch.actor import Actor, Channel, Port, PortReceiver, endpoint, this_host
from monarch.rdma import OwnerEndedError, StateDict, StateDictHandle

SLOTS = 64  # samples that a generator draws for at a time


@dataclass(frozen=True)
class Step:
    """What the learner tells of a step."""

    prompts: list[int]  # their numbers
    reward: float  # mean of the samples
    age: float  # mean, in versions


News = Step | Death | None  # None: there is nothing to learn from any more


def tasks_of(settings: Settings) -> list[Sorting]:
    """Numbers of 2 digits, of 3, and so on."""
    return [Sorting(digits, settings.base) for digits in range(2, settings.digits + 1)]


class PolicyGenerator(Generator):
    def __init__(self, weights: StateDictHandle, settings: Settings) -> None:
        super().__init__(SLOTS)
        torch.set_num_threads(1)
        self.device, self.model = own_device(), settings.policy()
        torch.manual_seed(settings.seed * 1000 + self.rank + 1)
        self.weights, self.reader, self.version = weights, weights.reader(self.model), -1

    async def refresh(self) -> int:
        with suppress(OwnerEndedError):  # of the learner's end the script is told: no need to say it from here
            if await self.weights.version() > self.version:
                self.version = await self.reader.read()
        return self.version

    async def draw(self, samples: list[Sample]) -> None:
        rows = [torch.tensor((*sample.prompt.tokens, *sample.tokens)) for sample in samples]
        tokens = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).to(self.device)
        last = torch.tensor([len(row) - 1 for row in rows], device=self.device)
        with torch.no_grad():
            logits = self.model(tokens)[torch.arange(len(rows), device=self.device), last]
        chances = logits.log_softmax(dim=1)
        drawn = chances.exp().multinomial(1)
        each = zip(samples, drawn.flatten().tolist(), chances.gather(1, drawn).flatten().tolist(), strict=True)
        for sample, token, logprob in each:
            sample.tokens.append(token)
            sample.logprobs.append(logprob)


class Learner(Actor):
    def __init__(self, settings: Settings, max_age: int) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(settings.seed)
        self.settings, self.max_age = settings, max_age
        self.device, self.model = own_device(), settings.policy()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=settings.rate)
        self.weights = StateDict(self.model)

    @endpoint
    async def handle(self) -> StateDictHandle:
        return self.weights.handle

    @endpoint
    async def train(self, router: Router, told: Port[News]) -> None:
        """Until there are no more groups."""
        least = self.settings.prompts
        while groups := await router.take.call_one(self.weights.version - self.max_age, least, 2 * least):
            version = self.weights.version
            samples = [sample for group in groups for sample in group]
            age = sum(version - sample.version for sample in samples) / len(samples)
            told.send(Step([group[0].prompt.number for group in groups], self.learn(groups), age))
        told.send(None)

    def learn(self, groups: list[Group]) -> float:
        """One step; the mean reward."""
        earned = 0.0
        self.optimizer.zero_grad()
        for length in {group[0].prompt.length for group in groups}:  # tensors of one shape each
            same = [group for group in groups if group[0].prompt.length == length]
            prompts = torch.tensor([group[0].prompt.tokens for group in same])
            completions = torch.tensor([[sample.tokens for sample in group] for group in same])
            drawn = torch.tensor([[sample.logprobs for sample in group] for group in same], device=self.device)
            rewards = Sorting(length, self.settings.base).rewards(prompts, completions)
            chances = logprobs(self.model, prompts.to(self.device), completions.to(self.device))
            share = len(same) / len(groups)
            (share * policy_loss(chances, drawn, advantages(rewards).to(self.device))).backward()
            earned += share * rewards.mean().item()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        with self.weights.updating():
            self.optimizer.step()
        return earned

    @endpoint
    async def evaluate(self) -> float:
        """What the most likely answers to prompts that are never trained on earn."""
        rewards = []
        for task in tasks_of(self.settings):
            prompts = task.held_out(100)
            answers, _ = self.model.sample(prompts.to(self.device), 1, task.digits, temperature=0)
            rewards.append(task.rewards(prompts, answers.cpu()).mean().item())
        return fmean(rewards)

    @endpoint
    async def close(self) -> None:
        await self.weights.drop()


class Run:
    """What the script does: prompts in, news out."""

    def __init__(self, settings: Settings, args: argparse.Namespace) -> None:
        self.settings, self.total, self.kills = settings, args.total, args.kill
        self.learner_procs = this_host().spawn_procs({"gpus": 1}, name="learner")
        self.router_procs = this_host().spawn_procs(name="router")
        self.learner = self.learner_procs.spawn("learner", Learner, settings, args.max_age)
        made_with = (self.learner.handle.call_one().get(), settings)
        self.router = self.router_procs.spawn(
            "router", Router, PolicyGenerator, made_with, args.generators, settings.group, args.under_way
        )
        self.progress = Progress(args.total, "prompt")
        self.steps: list[Step] = []
        self.trained: list[int] = []
        self.deaths: list[Death] = []

    async def train(self) -> None:
        """Until every prompt is trained on, or too old. What goes wrong in one of them ends this."""
        told, heard = Channel[News].open()
        await asyncio.gather(
            self.feed(),
            self.listen(heard),
            self.router.run.call_one(told),
            self.learner.train.call_one(self.router, told),
        )

    async def feed(self) -> None:
        tasks, draws = tasks_of(self.settings), torch.Generator().manual_seed(self.settings.seed)
        kill_at, dice = {self.total * (i + 1) // (self.kills + 1) for i in range(self.kills)}, random.Random(0)
        for number in range(self.total):
            task = tasks[number % len(tasks)]
            tokens = tuple(task.prompts(1, draws)[0].tolist())
            await self.router.ask.call_one(Prompt(number, tokens, task.digits))  # waits while many are under way
            if number in kill_at:
                rank, pid = dice.choice(list((await self.router.processes.call_one()).items()))
                self.progress.note(f"killed generator {rank} (pid {pid})", mark="generator killed")
                os.kill(pid, signal.SIGKILL)
        await self.router.close.call_one()

    async def listen(self, heard: PortReceiver[News]) -> None:
        while (news := await heard.recv()) is not None:
            if isinstance(news, Death):
                self.deaths.append(news)
                self.progress.note(f"generator {news.generator} has ended: {news.asked_again} samples are asked again")
                continue
            self.steps.append(news)
            self.trained += news.prompts
            self.progress.add(mean_reward=news.reward, age_of_the_weights=news.age, groups=len(news.prompts))
            reward, groups = self.progress.recent("mean reward"), self.progress.recent("groups")
            speed = len(self.trained) * self.settings.group / self.progress.seconds
            self.progress.show(
                len(self.trained), f"reward {reward:.2f}  {groups:.0f} groups a step  {speed:,.0f} samples/s"
            )

    def account(self) -> None:
        """Says where every prompt has gone."""
        asked, too_old = set(range(self.total)), self.router.dropped.call_one().get()
        used = self.trained + too_old
        lost, twice = len(asked - set(used)), len(used) - len(set(used))
        print(
            f"{len(asked)} prompts: {len(self.trained)} trained on, {len(too_old)} too old, {lost} lost, {twice} twice"
        )
        again = sum(death.asked_again for death in self.deaths)
        print(f"{len(self.deaths)} generators were killed; {again} of their samples were asked again")

    def stop(self) -> None:
        self.learner.close.call_one().get()
        for procs in (self.router_procs, self.learner_procs):  # with the router, the generators that it owns
            procs.stop().get()


def main() -> None:
    parser = argparse.ArgumentParser(description="GRPO by streaming: a router, a pool of generators, a learner.")
    parser.add_argument("--generators", type=int, default=2, help="processes that sample (default %(default)s)")
    parser.add_argument("--total", type=int, default=7200, help="prompts to train on in all (default %(default)s)")
    parser.add_argument("--kill", type=int, default=0, metavar="N", help="kill -9 of a generator, N times on the way")
    parser.add_argument("--under-way", type=int, default=48, help="prompts asked at a time (default %(default)s)")
    parser.add_argument("--max-age", type=int, default=4, help="versions; older is dropped (default %(default)s)")
    parser.add_argument("--record", type=Path, help="write the curves there, for docs/training/curves/plot.py")
    Settings.add_flags(parser)
    args = parser.parse_args()
    if min(args.generators, args.total, args.under_way) < 1:
        parser.error("--generators, --total and --under-way must be at least 1")
    settings = Settings.of(args)
    if settings.digits < 2:
        parser.error("--digits must be at least 2: prompts have 2 digits, 3, and so on up to that many")

    monarch.configure(slow_handler_after="0s")  # some endpoints run as long as the program: that is no news
    run = Run(settings, args)
    print(f"sort 2 to {settings.digits} digits; a pool of {args.generators} generators", flush=True)
    before = run.learner.evaluate.call_one().get()
    asyncio.run(run.train())
    seconds = run.progress.seconds
    after = run.learner.evaluate.call_one().get()

    run.account()
    tenth = max(1, len(run.steps) // 10)
    first, last = run.steps[:tenth], run.steps[-tenth:]
    print(f"mean reward {fmean(s.reward for s in first):.2f} -> {fmean(s.reward for s in last):.2f}")
    print(f"held-out prompts, most likely answers: {before:.2f} -> {after:.2f}")
    age = fmean(step.age for step in run.steps)
    print(f"{len(run.steps)} steps of {len(run.trained) / len(run.steps):.0f} groups; samples {age:.1f} versions old")
    print(f"{len(run.steps) / seconds:.1f} steps/s, {args.total * settings.group / seconds:,.0f} samples/s")
    if args.record:
        panels = {"mean reward": ["mean reward"], "versions": ["age of the weights"], "groups a step": ["groups"]}
        run.progress.save(args.record, panels)
    run.stop()


if __name__ == "__main__":
    main()
