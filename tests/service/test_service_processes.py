"""Services of real processes, killed under load."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import pytest

from monarch.actor import Actor, ActorError, endpoint, this_host
from monarch.service import ReplicaLostError, Service, retried, serve
from tests.support.tiers import full, slow

pytestmark = [full, pytest.mark.procs]


class Counter(Actor):
    """Counts what it was asked."""

    def __init__(self) -> None:
        self.version = 0

    @endpoint
    @retried(10)
    async def double(self, number: int) -> int:
        await asyncio.sleep(0.001)
        return 2 * number

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def end(self, status: int) -> None:
        os._exit(status)

    @endpoint
    def load(self, version: int) -> None:
        self.version = version

    @endpoint
    @retried(10)
    def tell(self) -> int:
        return self.version


async def under_load(service: Service, kills: int) -> dict[str, Any]:
    """Makes requests from eight places while replicas are killed and the version is raised; counts what came of them."""
    going, found = True, {"answers": 0, "versions": set()}

    async def ask(place: int) -> None:
        number = place
        while going:
            number += 8
            assert await service.options(wait=True).double.route(number) == 2 * number
            answer = await service.options(wait=True).tell.answer()
            assert answer.value == answer.version, "an answer of another version than it says"
            found["answers"] += 2
            found["versions"].add(answer.version)

    asking = [asyncio.create_task(ask(place)) for place in range(8)]
    for kill in range(kills):
        try:
            os.kill(await service.options(wait=True, retries=10).pid.route(), signal.SIGKILL)
        except ProcessLookupError:
            pass
        assert await service.update("load", kill + 1) == kill + 1
    going = False
    await asyncio.gather(*asking)
    return found


@pytest.mark.parametrize("kills", [4, pytest.param(300, marks=slow)])
def test_no_request_is_lost_when_replicas_are_killed(kills: int) -> None:
    with serve(this_host(), Counter, replicas=3, concurrency=2, restarts=1000, within=2, backoff=0.01) as service:
        found = asyncio.run(under_load(service, kills))
        status = service.status().get()
        assert found["answers"] >= 8 and found["versions"] <= set(range(kills + 1))
        assert sum(one.restarts for one in status.replicas) >= 1
        assert status.outstanding == 0 and status.died == 0 and status.refused == 0


def test_the_cause_of_a_death_is_told() -> None:
    with serve(this_host(), Counter, backoff=0.01) as service:
        with pytest.raises(
            ReplicaLostError,
            match=r"counter.end\(\) ran at replica 0, which died: .*exited with non-zero code 7 \(rank",
        ) as caught:
            service.end.route(7).get()
        assert os.uname().nodename in str(caught.value)
        assert service.options(wait=True).double.route(4).get() == 8
        assert isinstance(service.end.route("x").exception(), ActorError)
