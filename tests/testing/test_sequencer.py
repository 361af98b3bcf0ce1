from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from monarch.actor import Actor, endpoint, this_host
from monarch.testing import InProcessCluster, Local, SequenceBroken, Sequencer
from tests.support.patience import TIMEOUT
from tests.support.threads import together


def test_blocks_of_threads_run_in_the_order_of_their_numbers() -> None:
    seq, order = Sequencer(), list[int]()

    def block(*positions: int) -> Callable[[], None]:
        def run() -> None:
            for position in positions:
                with seq(position):
                    order.append(position)

        return run

    together(block(2, 5), block(3), block(1, 4, 6))
    assert order == [1, 2, 3, 4, 5, 6]


async def _tasks() -> list[int]:
    seq, order = Sequencer(), list[int]()

    async def block(*positions: int) -> None:
        for position in positions:
            async with seq(position):
                order.append(position)

    await asyncio.gather(block(3), block(2, 4), block(1))
    return order


def test_blocks_of_tasks_run_in_the_order_of_their_numbers() -> None:
    assert asyncio.run(_tasks()) == [1, 2, 3, 4]


def test_threads_and_tasks_take_turns() -> None:
    seq, order = Sequencer(), list[str]()

    def thread() -> None:
        for position in (1, 3):
            with seq(position):
                order.append(f"thread {position}")

    async def tasks() -> None:
        for position in (2, 4):
            async with seq(position):
                order.append(f"task {position}")

    together(lambda: asyncio.run(tasks()), thread)
    assert order == ["thread 1", "task 2", "thread 3", "task 4"]


def test_a_block_that_raises_breaks_the_sequence_for_all_behind_it() -> None:
    seq = Sequencer()
    seen: list[str] = []

    def behind() -> None:
        with pytest.raises(SequenceBroken) as caught, seq(2):
            seen.append("entered")
        seen.append(str(caught.value))

    def first() -> None:
        with pytest.raises(KeyError), seq(1):
            raise KeyError("lost")

    together(behind, first)
    assert seen == ["block 2 never has its turn: block 1 raised KeyError: 'lost'"]
    with pytest.raises(SequenceBroken), seq(3):
        pass


def test_a_turn_that_does_not_come_is_an_error_and_no_hang() -> None:
    seq = Sequencer(timeout=0)
    with pytest.raises(TimeoutError, match="block 1 has not been reached by anybody"), seq(2):
        pass
    with pytest.raises(SequenceBroken, match="block 2 waited"), seq(1):
        pass


def test_a_turn_that_does_not_come_is_an_error_in_tasks_as_well() -> None:
    async def run() -> None:
        async with Sequencer(timeout=0)(2):
            pass

    with pytest.raises(TimeoutError, match="block 1 has not been reached by anybody"):
        asyncio.run(run())


def test_a_cancelled_wait_breaks_the_sequence() -> None:
    seq = Sequencer()

    async def run() -> None:
        async def second() -> None:
            async with seq(2):
                pass

        task = asyncio.create_task(second())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])

    asyncio.run(run())
    with pytest.raises(SequenceBroken, match="block 2 was cancelled before its turn"), seq(1):
        pass


@pytest.mark.parametrize("position", [0, -1, 1.5, "1", True])
def test_positions_are_whole_numbers_from_one_on(position: Any) -> None:
    with pytest.raises(ValueError, match="whole numbers of 1 or more"):
        Sequencer()(position)


def test_a_position_is_used_once() -> None:
    seq = Sequencer()
    with seq(1):
        pass
    with pytest.raises(RuntimeError, match="position 1 of the sequence is used twice"):
        seq(1)


class Player(Actor):
    @endpoint
    def play(self, seq: Sequencer, position: int, played: Local[list[int]]) -> None:
        with seq(position):
            played.value.append(position)


def test_actors_of_a_cluster_share_a_sequencer(cluster: InProcessCluster) -> None:
    players = this_host().spawn_procs({"gpus": 3}).spawn("players", Player)
    seq, played = Sequencer(), Local[list[int]]([])
    futures = [players.slice(gpus=rank).play.call_one(seq, position, played) for rank, position in enumerate((3, 1, 2))]
    for future in futures:
        future.get(TIMEOUT)
    assert played.value == [1, 2, 3]
