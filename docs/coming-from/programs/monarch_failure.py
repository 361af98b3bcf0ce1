"""An actor with state, whose process dies."""

import os

from monarch.actor import Actor, ActorError, RestartPolicy, SupervisionError, endpoint, this_host


class Counter(Actor):
    def __init__(self, start: int) -> None:
        self.value = start

    @endpoint
    def add(self, n: int) -> int:
        self.value += n
        return self.value

    @endpoint
    def fail(self) -> None:
        raise ValueError("no such thing")

    @endpoint
    def die(self) -> None:
        os._exit(1)


def main() -> None:
    procs = this_host().spawn_procs()
    with RestartPolicy(max_restarts=3):
        counter = procs.spawn("counter", Counter, 10)
    print(counter.add.call_one(1).get())  # 11

    try:
        counter.fail.call_one().get()
    except ActorError as error:  # with the remote traceback, and the exception
        print("raised:", error.exception)  # raised: no such thing

    try:
        counter.die.call_one().get()
    except SupervisionError:  # with rank, pid, exit status, and what it wrote last
        print("the actor is gone")  # the actor is gone

    counter.healthy(timeout=60).get()  # until the policy has restarted it
    print(counter.add.call_one(1).get())  # 11
    procs.stop().get()


if __name__ == "__main__":
    main()
