"""GRPO with the learner on distributed tensors: one script computes the step, all processes of a mesh execute it.

    python examples/grpo/tensors.py                  # 20 seconds on two idle cores
    python examples/grpo/tensors.py --learners 4     # the batch is divided among four processes

    generators --prompts, answers, rewards--> script --some of the prompts to each--> learner processes
         ^                                                                                 |
         +---------------------- the newest weights, out of their memory ------------------+

There is no actor that learns. Model, loss and optimizer are in the script, as in a program for one process.
`monarch.function` records a step of theirs; from then on a step is one small message to every process. Generators are
actors; they read the weights that those processes publish after each step. Task, policy and loss are those of actors.py and
streaming.py. Needs torch.
"""

import argparse
from collections import deque
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from grpo import Samples, advantages, clipped_share, policy_loss
from policy import logprobs, own_device
from progress import Progress
from settings import Settings

import monarch
from monarch.actor import Actor, Future, ProcMesh, current_rank, endpoint, this_host
from monarch.rdma import StateDict, StateDictHandle


class Generator(Actor):
    def __init__(self, settings: Settings, weights: StateDictHandle) -> None:
        torch.set_num_threads(1)
        self.settings, self.device, self.policy = settings, own_device(), settings.policy()
        self.weights = weights.reader(self.policy)
        seed = settings.seed * 1000 + current_rank().rank + 1
        torch.manual_seed(seed)
        self.dice = torch.Generator().manual_seed(seed)

    @endpoint
    async def generate(self, count: int) -> Samples:
        """Answers to `count` prompts, by the newest weights there are."""
        version = await self.weights.read()
        task = self.settings.task
        prompts = task.prompts(count, self.dice)
        drawn = self.policy.sample(prompts.to(self.device), self.settings.group, task.digits)
        completions, chances = (tensor.cpu() for tensor in drawn)
        return Samples(version, prompts, completions, chances, task.rewards(prompts, completions))

    @endpoint
    async def evaluate(self) -> float:
        """The mean reward of the most likely answers to prompts that are never trained on."""
        await self.weights.read()
        task = self.settings.task
        prompts = task.held_out(500)
        answers, _ = self.policy.sample(prompts.to(self.device), 1, task.digits, temperature=0)
        return float(task.rewards(prompts, answers.cpu()).mean())


@monarch.remote(propagate=lambda state: monarch.OpaqueRef(None))
def register(state: Any) -> Any:
    """In each learner process: its copy of the weights, for others to read."""
    return monarch.OpaqueRef(StateDict(state, double_buffer=True))


@monarch.remote
def handle_of(weights: Any) -> Any:
    return weights.value.handle


@monarch.remote(propagate="inspect")
def publish(weights: Any) -> None:
    weights.value.publish()


class Learner:
    """No actor: it is in the script, and computes with distributed tensors."""

    def __init__(self, procs: ProcMesh, settings: Settings) -> None:
        self.device = own_device()
        with procs.activate() as self.mesh:  # in here torch is that of the processes
            torch.manual_seed(settings.seed)  # the same weights in each
            self.policy = settings.policy()
            self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=settings.rate, fused=True)
            self.weights = register(self.policy.state_dict())
            self.handle = StateDictHandle.combine(handle_of.call(self.weights).get())
        self.recorded = monarch.function(self.step)

    def step(self, prompts: Any, completions: Any, drawn: Any, rewards: Any) -> Any:
        new = logprobs(self.policy, prompts, completions)
        loss = policy_loss(new, drawn, advantages(rewards))
        self.optimizer.zero_grad()
        loss.backward()
        monarch.reduce_([p.grad for p in self.policy.parameters()], "gpus", "avg")
        torch.nn.utils.clip_grad_norm_(self.policy.parameters(), 1.0)
        self.optimizer.step()
        return clipped_share(new.detach(), drawn).reduce("gpus", "avg")

    def learn(self, samples: Samples) -> Future[Any]:
        """Issues a step and the new version of the weights, and waits for neither."""
        whole = (samples.prompts, samples.completions, samples.logprobs, samples.rewards)
        with self.mesh.activate():
            parts = [
                part.to(self.device) for part in monarch.shard(whole, "gpus")
            ]  # some of the prompts to each process
            clipped = self.recorded(*parts)
            publish(self.weights)  # runs behind the step, in each process
            return monarch.fetch_shard(clipped)


def train(settings: Settings, steps: int, learners: int, generators: int, record: Path | None) -> None:
    learner_procs = this_host().spawn_procs({"gpus": learners}, name="learner")
    generator_procs = this_host().spawn_procs({"gpus": generators}, name="generators")
    learner = Learner(learner_procs, settings)
    pool = generator_procs.spawn("generators", Generator, settings, learner.handle)
    first = pool.slice(gpus=0)
    print(f"sort {settings.digits} digits; {generators} generators, {learners} learner processes", flush=True)
    before = first.evaluate.call_one().get()

    progress, rewards = Progress(steps), list[float]()
    each = settings.prompts // generators
    sampling = deque(pool.generate.call(each) for _ in range(2))  # one batch is drawn while another is learned from
    learning: deque[Future[Any]] = deque()
    for step in range(1, steps + 1):
        samples = Samples.join(sampling.popleft().get().values())
        sampling.append(pool.generate.call(each))
        learning.append(learner.learn(samples))
        if len(learning) > 1:
            clipped = learning.popleft().get().item()  # of the step before: so far the script is ahead, and no further
            progress.add(clipped=clipped)
        rewards.append(samples.rewards.mean().item())
        progress.add(mean_reward=rewards[-1], age_of_the_weights=step - 1 - samples.version)
        speed = step * settings.prompts * settings.group / progress.seconds
        progress.show(step, f"reward {progress.recent('mean reward'):.2f}  {speed:,.0f} samples/s")
    learner.handle.wait_newer(steps - 1).get()  # the last step is done, and its weights are there to read
    seconds = progress.seconds
    after = first.evaluate.call_one().get()

    tenth = max(1, steps // 10)
    print(f"mean reward {fmean(rewards[:tenth]):.2f} -> {fmean(rewards[-tenth:]):.2f}")
    print(f"held-out prompts, most likely answers: {before:.2f} -> {after:.2f}")
    age = fmean(progress.values["age of the weights"][1])
    print(f"weights of the samples: {age:.1f} versions old; {learner.handle.nbytes // learners:,} bytes a version")
    print(f"{steps / seconds:.1f} steps/s; {learner.recorded}")
    if record:
        progress.save(record, {"mean reward": ["mean reward"], "versions": ["age of the weights"]})
    for procs in (generator_procs, learner_procs):
        procs.stop().get()


def main() -> None:
    parser = argparse.ArgumentParser(description="GRPO with the learner on distributed tensors, generators as actors.")
    parser.add_argument("--learners", type=int, default=2, help="processes of the learner (default %(default)s)")
    parser.add_argument("--generators", type=int, default=2, help="processes that sample (default %(default)s)")
    parser.add_argument("--steps", type=int, default=300, help="of the learner (default %(default)s)")
    parser.add_argument("--record", type=Path, help="write the curve there, for docs/training/curves/plot.py")
    Settings.add_flags(parser)
    args = parser.parse_args()
    settings = Settings.of(args)
    if min(args.learners, args.generators, args.steps) < 1:
        parser.error("--learners, --generators and --steps must be at least 1")
    if settings.prompts % args.learners or settings.prompts % args.generators:
        parser.error(f"{settings.prompts} prompts cannot be shared out evenly among the learners, or the generators")
    train(settings, args.steps, args.learners, args.generators, args.record)


if __name__ == "__main__":
    main()
