"""Services of real processes, killed under load."""

from __future__ import annotations

import asyncio
import os
import signal
import time
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
    def fetch(self, version: int) -> int:
        return version

    @endpoint
    @retried(10)
    def tell(self) -> int:
        return self.version


async def under_load(service: Service, seconds: float) -> dict[str, Any]:
    """Makes requests from eight places while replicas are killed and the version is raised, four times and for so long;
    counts what came of them."""
    going, found = True, {"answers": 0, "versions": set(), "kills": 0}
    end = time.monotonic() + seconds

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
    while found["kills"] < 4 or time.monotonic() < end:
        found["kills"] += 1
        try:
            os.kill(await service.options(wait=True, retries=10).pid.route(), signal.SIGKILL)
        except ProcessLookupError:
            pass
        version = found["kills"]
        if version % 2:
            assert await service.update("load", version) == version
        else:
            assert await service.update_in_place("fetch", version, then="load") == version
    going = False
    await asyncio.gather(*asking)
    return found


@pytest.mark.parametrize("seconds", [0, pytest.param(300, marks=slow)])
def test_no_request_is_lost_when_replicas_are_killed(seconds: int) -> None:
    with serve(this_host(), Counter, replicas=3, concurrency=2, restarts=1000, within=2, backoff=0.01) as service:
        found = asyncio.run(under_load(service, seconds))
        status = service.status().get()
        assert found["answers"] >= 8 and found["versions"] <= set(range(found["kills"] + 1))
        print({**found, "versions": len(found["versions"]), "retried": status.retried})
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
