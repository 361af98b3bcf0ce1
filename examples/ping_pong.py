"""Two actors in two processes hit a ball back and forth, each holding a reference to the other.

    python examples/ping_pong.py --rallies 3

Nobody waits for an answer: a player sends the ball on with `broadcast` and is free again. A player that
waited (`await partner.hit.call_one(...)`) could not take the return, since an actor handles one message at a
time.
"""

import argparse
import asyncio
import random
from dataclasses import dataclass, field

from monarch.actor import Actor, Channel, Port, endpoint, this_host


@dataclass
class Ball:
    umpire: Port[tuple[str, list[str]]]  # where the rally is reported to when it is over
    story: list[str] = field(default_factory=list)  # the ball carries it, so it is in order


class Player(Actor):
    def __init__(self, name: str, skill: float, seed: int):
        self.name, self.skill = name, skill
        self.luck = random.Random(seed)

    @endpoint
    async def meet(self, partner: "Player") -> None:
        self.partner = partner

    @endpoint
    async def hit(self, ball: Ball) -> None:
        if ball.story and self.luck.random() > self.skill:
            ball.umpire.send((self.name, ball.story))
            return
        ball.story.append(self.name)
        self.partner.hit.broadcast(ball)


async def main() -> None:
    parser = argparse.ArgumentParser(description="Two actors play ping-pong.")
    parser.add_argument("--rallies", type=int, default=3, help="how many rallies (default %(default)s)")
    rallies = parser.parse_args().rallies

    procs = this_host().spawn_procs({"side": 2})
    ping = procs.slice(side=0).spawn("ping", Player, "ping", skill=0.8, seed=1)
    pong = procs.slice(side=1).spawn("pong", Player, "pong", skill=0.8, seed=9)
    await asyncio.gather(ping.meet.call_one(pong), pong.meet.call_one(ping))

    points = {"ping": 0, "pong": 0}
    umpire, whistle = Channel[tuple[str, list[str]]].open()
    for rally in range(1, rallies + 1):
        server = ping if rally % 2 else pong
        server.hit.broadcast(Ball(umpire))
        loser, story = await whistle.recv()
        winner = "pong" if loser == "ping" else "ping"
        points[winner] += 1
        print(f"rally {rally}: {' '.join(story)}, and {loser} misses: point for {winner}")
    print(f"after {rallies} rallies: ping {points['ping']}, pong {points['pong']}")
    await procs.stop()


if __name__ == "__main__":
    asyncio.run(main())
