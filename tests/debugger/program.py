"""A program for the debugger's tests: calls what its standard input says, a line each, and prints what came of it.

NAME ARGUMENT    calls that endpoint on all ranks
crash RANK       kills that rank's process
"""

from __future__ import annotations

import asyncio
import os
import pdb  # noqa: T100
import signal
import sys
from typing import Any

from monarch.actor import Actor, attach_to_workers, concurrent_endpoint, context, endpoint, this_host

# Since Python 3.13 pdb stops at the line that calls breakpoint(), before that at the next one.
STOPS_AT_THE_CALL = sys.version_info >= (3, 13)
FIRST_STOP = "breakpoint()  # noqa: T100" if STOPS_AT_THE_CALL else "total += 100"  # of Worker.add


class Worker(Actor):
    def __init__(self) -> None:
        self.value = 5

    @endpoint
    def add(self, number: int) -> int:
        total = self.value + number
        breakpoint()  # noqa: T100
        total += 100
        return double(total)

    @endpoint
    def by_pdb(self, number: int) -> int:
        pdb.set_trace(header="by pdb")  # noqa: T100
        number += 1
        return number

    @endpoint
    def fail(self, number: int) -> int:
        breakpoint()  # noqa: T100
        hidden = number * 2
        raise ValueError(f"number {hidden}")

    @endpoint
    def raises(self, number: int) -> int:
        local = number + 1
        raise KeyError(local)

    @endpoint
    def plain(self, number: int) -> int:
        seen = number * 3
        return seen  # an editor stops here

    @endpoint
    def pid(self, number: int) -> int:
        return os.getpid()

    @endpoint
    def die(self, number: int) -> None:
        if context().message_rank.rank == number:
            os.kill(os.getpid(), signal.SIGKILL)


class Looped(Actor):
    @endpoint
    async def wait(self, number: int) -> int:
        await asyncio.sleep(0)
        breakpoint()  # noqa: T100
        await asyncio.sleep(0)
        number += 1
        return number

    @concurrent_endpoint
    async def both(self, number: int) -> int:
        breakpoint()  # noqa: T100
        await asyncio.sleep(0)
        return number


def double(number: int) -> int:
    return 2 * number


def main() -> None:
    if len(sys.argv) > 1:  # addresses of other hosts
        hosts = attach_to_workers(workers=sys.argv[1:], ca="trust_all_connections")
        procs = hosts.spawn_procs(name="pair").flatten("gpus")
    else:
        procs = this_host().spawn_procs({"gpus": 2}, name="pair")
    meshes: list[Any] = [procs.spawn("worker", Worker), procs.spawn("looped", Looped)]
    print("ready", *[pid for _, pid in meshes[0].pid.call(0).get(300).items()], flush=True)
    for line in sys.stdin:
        name, _, number = line.strip().partition(" ")
        mesh = next(mesh for mesh in meshes if hasattr(mesh, name))
        try:
            answer = getattr(mesh, name).call(int(number)).get(120)
            print("answer", *[value for _, value in answer.items()], flush=True)
        except Exception as error:
            print("error", " | ".join(str(error).splitlines()), flush=True)


if __name__ == "__main__":
    main()
