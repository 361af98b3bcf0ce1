"""A tree of actors, of which a branch is lost."""

import os

import ray


@ray.remote(num_cpus=0)
class Node:
    def __init__(self, depth):
        self.children = [Node.remote(depth - 1) for _ in range(2)] if depth else []

    def count(self):
        """Actors that are there, from here on down."""
        total = 1
        for child in [child.count.remote() for child in self.children]:
            try:
                total += ray.get(child)
            except ray.exceptions.RayActorError:
                pass
        return total

    def lose(self):
        try:
            ray.get(self.children[0].die.remote())
        except ray.exceptions.RayActorError:
            pass

    def die(self):
        os._exit(1)  # its children end too: nobody holds a handle any more


def main():
    ray.init()
    root = Node.remote(2)
    print(ray.get(root.count.remote()), "actors")  # 7 actors
    ray.get(root.lose.remote())
    print(ray.get(root.count.remote()), "actors")  # 4 actors
    ray.shutdown()


if __name__ == "__main__":
    main()
