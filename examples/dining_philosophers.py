"""Five philosophers and five forks: calls that wait for each other, to look at with `monarch tui`, `stacks`, or a trace.

    python examples/dining_philosophers.py --seconds 60 &
    monarch tui
    monarch profile --flame 5s -o philosophers.svg

Forks are given by a waiter, one actor, which answers through ports when both are free: it holds no thread while it has to
wait, and gives forks in the order in which they were asked for. Nobody starves, and nobody waits in a circle.
"""

import argparse
import random
import time
from collections import deque

from monarch.actor import Actor, Port, context, current_rank, endpoint, this_host

PHILOSOPHERS = 5


class Waiter(Actor):
    """Has the forks. Fork n lies between philosopher n and the next."""

    def __init__(self) -> None:
        self.free = [True] * PHILOSOPHERS
        self.hungry: deque[tuple[int, Port[int]]] = deque()
        self.meals = [0] * PHILOSOPHERS

    @endpoint(explicit_response_port=True)
    def ask(self, port: Port[int], philosopher: int) -> None:
        """Answers when both forks are the philosopher's."""
        self.hungry.append((philosopher, port))
        self.serve()

    @endpoint
    def give_back(self, philosopher: int) -> None:
        for fork in forks(philosopher):
            self.free[fork] = True
        self.serve()

    @endpoint
    def eaten(self) -> list[int]:
        return self.meals

    def serve(self) -> None:
        wanted: set[int] = set()  # by those who came first: nobody gets in before them
        for philosopher, port in list(self.hungry):
            both = forks(philosopher)
            if all(self.free[fork] and fork not in wanted for fork in both):
                for fork in both:
                    self.free[fork] = False
                self.meals[philosopher] += 1
                self.hungry.remove((philosopher, port))
                port.send(self.meals[philosopher])
            wanted.update(both)


def forks(philosopher: int) -> tuple[int, int]:
    return philosopher, (philosopher + 1) % PHILOSOPHERS


class Philosopher(Actor):
    def __init__(self, waiter: Waiter) -> None:
        self.waiter = waiter
        self.random = random.Random(context().actor_instance.rank.rank)

    @endpoint
    def live(self, seconds: float) -> int:
        """Thinks, waits, eats; how many meals it had."""
        me, meals, end = current_rank().rank, 0, time.monotonic() + seconds
        while time.monotonic() < end:
            self.think()
            meals = self.waiter.ask.call_one(me).get()
            self.eat()
            self.waiter.give_back.call_one(me).get()
        return meals

    def think(self) -> None:
        time.sleep(self.random.uniform(0.0, 0.05))

    def eat(self) -> None:
        time.sleep(self.random.uniform(0.01, 0.05))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--telemetry", action="store_true", help="record calls, for SQL, traces and the dashboard")
    options = parser.parse_args()
    if options.telemetry:
        from monarch import telemetry

        telemetry.start()
    waiter = this_host().spawn_procs().spawn("waiter", Waiter)
    philosophers = this_host().spawn_procs(per_host={"seats": PHILOSOPHERS}).spawn("philosophers", Philosopher, waiter)
    meals = philosophers.live.call(options.seconds).get()
    print("meals:", *meals.values())
    assert list(meals.values()) == waiter.eaten.call_one().get()


if __name__ == "__main__":
    main()
