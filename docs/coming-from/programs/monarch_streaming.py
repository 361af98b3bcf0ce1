"""Results while the work goes on, from two actors at once."""

from monarch.actor import Actor, Channel, Port, current_rank, endpoint, this_host


class Reader(Actor):
    def __init__(self) -> None:
        self.name = "ab"[current_rank().rank]

    @endpoint
    def lines(self, count: int, port: Port[str | None]) -> None:
        for number in range(count):
            port.send(f"{self.name}{number}")
        port.send(None)


def main() -> None:
    procs = this_host().spawn_procs({"readers": 2})
    readers = procs.spawn("readers", Reader)
    port, received = Channel[str | None].open()
    readers.lines.broadcast(3, port)  # both send to the same receiver
    lines, reading = [], len(readers)
    while reading:
        line = received.recv().get()
        if line is None:
            reading -= 1
        else:
            lines.append(line)
    print(sorted(lines))  # ['a0', 'a1', 'a2', 'b0', 'b1', 'b2']
    procs.stop().get()


if __name__ == "__main__":
    main()
