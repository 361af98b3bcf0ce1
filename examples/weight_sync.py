"""Weights from a trainer whose model FSDP2 shards to generators that hold it tensor-parallel, with nothing gathered anywhere.

    python examples/weight_sync.py --trainers 2 --generators 2 --steps 8

Every trainer rank has a part of each parameter, every generator rank another part. Each trainer rank registers what it has;
the client puts their handles together and gives the result to the generators. A generator rank then reads out of the
trainers' memory the bytes that belong into its own parameters, each once, all of one version. At the end a plain model
reads all of it, and says whether the generators computed what it computes. Needs torch >= 2.6.
"""

import argparse

import torch

from monarch.actor import Actor, endpoint, setup_torch_distributed, this_host
from monarch.rdma import StateDict, StateDictHandle
from monarch.spmd import torch_device_mesh

WIDTH, HIDDEN, BATCH = 16, 50, 64


def network() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(WIDTH, HIDDEN), torch.nn.Tanh(), torch.nn.Linear(HIDDEN, 1))


def wanted(x: torch.Tensor) -> torch.Tensor:
    return x.mean(1, keepdim=True)


class Trainer(Actor):
    @endpoint
    def publish(self) -> StateDictHandle:
        """This rank's part of every parameter: small, and good for the whole run."""
        from torch.distributed.fsdp import fully_shard

        torch.manual_seed(0)  # the same weights on all ranks, before they are sharded
        self.model = network()
        fully_shard(self.model, mesh=torch_device_mesh())
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.02, foreach=False)
        self.weights = StateDict(self.model)
        return self.weights.handle

    @endpoint
    def step(self) -> float:
        x = torch.randn(BATCH, WIDTH)
        loss = (self.model(x) - wanted(x)).square().mean()
        loss.backward()
        with self.weights.updating():
            self.optimizer.step()
        self.optimizer.zero_grad()
        return float(loss.item())


class Generator(Actor):
    @endpoint
    def prepare(self, handle: StateDictHandle) -> None:
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        self.model = network()
        parallelize_module(self.model, torch_device_mesh(), {"0": ColwiseParallel(), "2": RowwiseParallel()})
        self.reader = handle.reader(self.model)  # planned once: which trainer rank has which of these bytes

    @endpoint
    async def pull(self) -> int:
        return await self.reader.read()

    @endpoint
    def answer(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return self.model(x) + 0.0  # what a tensor parallel layer returns may still be on its way


def main(trainers: int, generators: int, steps: int) -> None:
    training = this_host().spawn_procs(per_host={"dp": trainers}, name="training")
    serving = this_host().spawn_procs(per_host={"tp": generators}, name="serving")
    for procs in (training, serving):
        setup_torch_distributed(procs, "gloo").get()
    trainer, generator = training.spawn("trainer", Trainer), serving.spawn("generator", Generator)

    handle = StateDictHandle.combine(trainer.publish.call().get())
    print(f"{len(handle.shapes)} tensors, {handle.nbytes} bytes, of {trainers} trainers")
    generator.prepare.call(handle).get()
    for _ in range(steps):
        losses = list(trainer.step.call().get().values())
        versions = sorted(set(generator.pull.call().get().values()))
        print(f"loss {sum(losses) / trainers:.3f}, generators have version {versions}")

    x, plain = torch.randn(BATCH, WIDTH), network()
    handle.read_into(plain).get()
    with torch.no_grad():
        expected = plain(x)
    answers = generator.answer.call(x).get().values()
    print("the same answers:", all(torch.allclose(one, expected, atol=1e-5) for one in answers))
    for procs in (serving, training):
        procs.stop().get()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainers", type=int, default=2)
    parser.add_argument("--generators", type=int, default=2)
    parser.add_argument("--steps", type=int, default=8)
    arguments = parser.parse_args()
    main(arguments.trainers, arguments.generators, arguments.steps)
