"""A parameter server: workers read its weights and write their gradients straight into its memory.

    python examples/parameter_server.py --workers 3 --rounds 40

Messages carry handles and say "go on"; the tensors move beside them, one-sidedly: the server's Python code takes no part in a
read or a write. Who may touch which bytes when is the program's business. Here the server updates its weights only
while every worker waits for the next round, and each worker has a row of gradients of its own.
"""

import argparse
import asyncio

import torch

from monarch.actor import Actor, current_rank, endpoint, this_host
from monarch.rdma import RDMAAction, RDMABuffer

FEATURES = 1000
SAMPLES = 400  # of each worker
TRUTH = torch.linspace(-1, 1, FEATURES)  # what the workers' data was made with


class Server(Actor):
    def __init__(self, workers: int):
        self.weights = torch.zeros(FEATURES)
        self.gradients = torch.zeros(workers, FEATURES)
        self.shown = RDMABuffer(self.weights)
        self.slots = [RDMABuffer(row) for row in self.gradients]

    @endpoint
    def buffers(self, rank: int) -> tuple[RDMABuffer, RDMABuffer]:
        """The weights, and where the gradient of worker `rank` goes. Handles are small and can be sent anywhere."""
        return self.shown, self.slots[rank]

    @endpoint
    def update(self, rate: float) -> float:
        """One step; how far the weights are from the truth then."""
        self.weights -= rate * self.gradients.mean(0)  # in place: the buffer is this very memory
        return float((self.weights - TRUTH).norm())

    @endpoint
    def close(self) -> None:
        for buffer in (self.shown, *self.slots):
            buffer.drop().get()


class Worker(Actor):
    @endpoint
    async def join(self, server: Server) -> str:
        """Fetches the handles, once. The path that transfers from here will take."""
        rank = current_rank().rank
        self.remote_weights, self.remote_gradient = await server.buffers.call_one(rank)
        self.weights = torch.empty(FEATURES)
        self.gradient = torch.empty(FEATURES)
        self.pull = RDMAAction().read_remote(self.weights, self.remote_weights)
        self.push = RDMAAction().write_remote(self.remote_gradient, self.gradient)
        luck = torch.Generator().manual_seed(rank)
        self.inputs = torch.randn(SAMPLES, FEATURES, generator=luck)
        self.outputs = self.inputs @ TRUTH
        return self.remote_weights.path

    @endpoint
    async def step(self) -> float:
        """Pulls the weights, pushes the gradient of the squared error; the error."""
        await self.pull.submit()
        difference = self.inputs @ self.weights - self.outputs
        torch.matmul(self.inputs.T, difference / SAMPLES, out=self.gradient)
        await self.push.submit()
        return float(difference.square().mean())


async def main(workers: int, rounds: int) -> None:
    server_proc = this_host().spawn_procs()
    worker_procs = this_host().spawn_procs(per_host={"workers": workers})
    server = server_proc.spawn("server", Server, workers)
    mesh = worker_procs.spawn("workers", Worker)
    paths = set((await mesh.join.call(server)).values())
    print(f"{workers} workers, {4 * FEATURES} bytes of weights, path: {', '.join(sorted(paths))}")
    for number in range(1, rounds + 1):
        errors = (await mesh.step.call()).values()
        distance = await server.update.call_one(0.25)
        if number in (1, rounds):
            print(f"round {number}: mean error {sum(errors) / workers:.2f}, distance {distance:.2f}")
    await server.close.call_one()
    await worker_procs.stop()
    await server_proc.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=40)
    arguments = parser.parse_args()
    asyncio.run(main(arguments.workers, arguments.rounds))
