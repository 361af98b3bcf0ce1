"""An actor with state, whose process dies."""

import os

import ray


@ray.remote(max_restarts=3)
class Counter:
    def __init__(self, start):
        self.value = start

    @ray.method(max_task_retries=-1)  # while it is restarted, calls wait
    def add(self, n):
        self.value += n
        return self.value

    def fail(self):
        raise ValueError("no such thing")

    def die(self):
        os._exit(1)


def main():
    ray.init()
    counter = Counter.remote(10)
    print(ray.get(counter.add.remote(1)))  # 11

    try:
        ray.get(counter.fail.remote())
    except ValueError as error:  # made from the class that was raised, and RayTaskError
        print("raised:", error.cause)  # raised: no such thing

    try:
        ray.get(counter.die.remote())
    except ray.exceptions.RayActorError:
        print("the actor is gone")  # the actor is gone

    print(ray.get(counter.add.remote(1)))  # 11
    ray.shutdown()


if __name__ == "__main__":
    main()
