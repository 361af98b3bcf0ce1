"""A program for PyTorch Monarch, which runs here without an edit."""

from monarch.actor import Actor, ActorError, Channel, Port, current_rank, endpoint, this_host


class Counter(Actor):
    def __init__(self, start: int) -> None:
        self.value = start

    @endpoint
    def add(self, n: int) -> int:
        self.value += n * current_rank().rank
        return self.value

    @endpoint
    def divide(self, n: int) -> float:
        return self.value / n

    @endpoint
    def report(self, port: Port[int]) -> None:
        port.send(self.value)


def main() -> None:
    procs = this_host().spawn_procs(per_host={"gpus": 4})
    counters = procs.spawn("counters", Counter, 10)

    print(counters.add.call(1).get().values())  # [10, 11, 12, 13]
    print(counters.slice(gpus=slice(2, 4)).add.call(10).get().item(gpus=1))  # 23
    print(sorted(future.get() for future in counters.add.stream(0)))  # [10, 11, 12, 23]
    print(counters.slice(gpus=3).add.call_one(1).get())  # 23

    try:
        counters.slice(gpus=0).divide.call_one(0).get()
    except ActorError as error:
        print(repr(error.exception))  # ZeroDivisionError('division by zero')

    port, receiver = Channel[int].open()
    counters.report.broadcast(port)
    print(sorted(receiver.recv().get() for _ in range(4)))  # [10, 11, 12, 23]
    procs.stop().get()


if __name__ == "__main__":
    main()
