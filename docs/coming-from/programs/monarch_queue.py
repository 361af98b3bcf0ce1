"""Producers that fill a bounded queue, and a variable that all can read."""

import asyncio

from monarch.actor import Actor, concurrent_endpoint, current_rank, endpoint, this_host


class Board(Actor):
    """What the others share."""

    def __init__(self, size: int, factor: int) -> None:
        self.queue: asyncio.Queue[str] = asyncio.Queue(size)
        self.factor = factor

    @endpoint
    async def read(self) -> int:
        return self.factor

    @concurrent_endpoint
    async def put(self, item: str) -> None:
        await self.queue.put(item)

    @concurrent_endpoint
    async def take(self) -> str:
        return await self.queue.get()


class Producer(Actor):
    @endpoint
    def produce(self, board: Board, count: int) -> None:
        name, factor = "ab"[current_rank().rank], board.read.call_one().get()
        for number in range(count):
            board.put.call_one(f"{name}{factor * number}").get()  # waits while the queue is full


def main() -> None:
    procs = this_host().spawn_procs({"producers": 2})
    board = this_host().spawn_procs().spawn("board", Board, 2, 10)
    produced = procs.spawn("producers", Producer).produce.call(board, 3)
    print(sorted(board.take.call_one().get() for _ in range(6)))  # ['a0', 'a10', 'a20', 'b0', 'b10', 'b20']
    produced.get()
    procs.stop().get()


if __name__ == "__main__":
    main()
