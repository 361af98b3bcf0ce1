"""Tasks, and their results as they are there."""

from monarch.actor import Actor, endpoint, this_host


class Worker(Actor):
    @endpoint
    def square(self, n: int) -> int:
        return n * n


def main() -> None:
    procs = this_host().spawn_procs({"workers": 2})
    workers = procs.spawn("workers", Worker)
    print(list(workers.square.map(range(8), retries=2)))  # [0, 1, 4, 9, 16, 25, 36, 49]
    print("total", sum(workers.square.map(range(8), retries=2, ordered=False)))  # total 140
    procs.stop().get()


if __name__ == "__main__":
    main()
