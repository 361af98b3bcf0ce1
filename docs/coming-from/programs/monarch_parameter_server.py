"""A parameter server: workers fetch weights from it and bring it gradients."""

import numpy as np

from monarch.actor import Actor, current_rank, endpoint, this_host
from monarch.rdma import RDMABuffer

FEATURES = 100


class Server(Actor):
    def __init__(self, workers: int) -> None:
        self.weights = np.zeros(FEATURES)
        self.gradients = np.zeros((workers, FEATURES))

    @endpoint
    def buffers(self, rank: int) -> tuple[RDMABuffer, RDMABuffer]:
        """Handles of the weights, and of where this worker's gradient goes: small, and good anywhere."""
        return RDMABuffer(self.weights), RDMABuffer(self.gradients[rank])

    @endpoint
    def apply(self) -> float:
        """The largest error after a step."""
        self.weights -= 0.5 * self.gradients.mean(axis=0)  # in place: this memory is what workers read
        return float(abs(self.weights - 1).max())


class Worker(Actor):
    def __init__(self, server: Server) -> None:
        rank = current_rank().rank
        self.remote_weights, self.remote_gradient = server.buffers.call_one(rank).get()
        dice = np.random.default_rng(rank)
        self.inputs = dice.normal(size=(400, FEATURES))
        self.outputs = self.inputs.sum(axis=1)  # so every weight is to become 1

    @endpoint
    def step(self) -> None:
        weights = np.empty(FEATURES)
        self.remote_weights.read_into(weights).get()  # the server's Python takes no part in it
        gradient = self.inputs.T @ (self.inputs @ weights - self.outputs) / len(self.inputs)
        self.remote_gradient.write_from(gradient).get()


def main() -> None:
    procs = this_host().spawn_procs({"procs": 3})
    server = procs.slice(procs=0).spawn("server", Server, 2)
    workers = procs.slice(procs=slice(1, 3)).spawn("workers", Worker, server)
    for _ in range(50):
        workers.step.call().get()
        error = server.apply.call_one().get()
    print("largest error:", round(error, 2))  # largest error: 0.0
    procs.stop().get()


if __name__ == "__main__":
    main()
