"""An object with state that lives in another process."""

from monarch.actor import Actor, endpoint, this_host


class Counter(Actor):
    def __init__(self, start: int) -> None:
        self.value = start

    @endpoint
    def add(self, n: int) -> int:
        self.value += n
        return self.value

    @endpoint
    def read(self) -> int:
        return self.value


def main() -> None:
    procs = this_host().spawn_procs()
    counter = procs.spawn("counter", Counter, 10)
    print(counter.add.call_one(1).get())  # 11
    print([future.get() for future in [counter.add.call_one(1) for _ in range(3)]])  # [12, 13, 14]
    print(counter.read.call_one().get())  # 14
    procs.stop().get()


if __name__ == "__main__":
    main()
