"""A parameter server: workers fetch weights from it and bring it gradients."""

import numpy as np
import ray

FEATURES = 100


@ray.remote
class Server:
    def __init__(self):
        self.weights = np.zeros(FEATURES)

    def read(self):
        return self.weights

    def apply(self, *gradients):
        self.weights = self.weights - 0.5 * np.mean(gradients, axis=0)
        return self.weights


@ray.remote
class Worker:
    def __init__(self, rank):
        dice = np.random.default_rng(rank)
        self.inputs = dice.normal(size=(400, FEATURES))
        self.outputs = self.inputs.sum(axis=1)  # so every weight is to become 1

    def gradient(self, weights):
        return self.inputs.T @ (self.inputs @ weights - self.outputs) / len(self.inputs)


def main():
    ray.init()
    server = Server.remote()
    workers = [Worker.remote(rank) for rank in range(2)]
    weights = server.read.remote()  # a reference: what it stands for stays in the object store
    for _ in range(50):
        gradients = [worker.gradient.remote(weights) for worker in workers]
        weights = server.apply.remote(*gradients)
    print("largest error:", round(float(abs(ray.get(weights) - 1).max()), 2))  # largest error: 0.0
    ray.shutdown()


if __name__ == "__main__":
    main()
