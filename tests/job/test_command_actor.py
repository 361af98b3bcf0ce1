"""Failures to follow a command, as who reads it hears of them."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import ActorError, this_host
from monarch.job.commands import command_actor
from monarch.job.commands.command_actor import CommandActor, CommandEnded, OutputPiece
from monarch.job.commands.command_plan import RankCommand, Sink
from monarch.job.commands.loop_queue import put_from_thread
from monarch.testing import InProcessCluster
from tests.support.patience import TIMEOUT


def read_all(actor: Any) -> list[Any]:
    found = []
    while not (found and isinstance(found[-1], CommandEnded)):
        found += actor.read.call_one().get(TIMEOUT)
    return found


@pytest.fixture
def actor() -> Iterator[Any]:
    with InProcessCluster():
        yield this_host().spawn_procs().spawn("command", CommandActor)


def test_a_disk_that_is_full_ends_it(actor: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "out.log"
    written = []

    def write(descriptor: int, data: bytes) -> None:
        if os.path.realpath(f"/proc/self/fd/{descriptor}") == str(file):
            if written:
                raise OSError(errno.ENOSPC, "No space left on device")
            written.append(data)

    monkeypatch.setattr(command_actor, "_write", write)
    actor.start.call_one(RankCommand(["yes"], {}, stdout=Sink(str(file)))).get(TIMEOUT)
    with pytest.raises(ActorError, match=f"No space left on device: '{file}'") as caught:
        read_all(actor)
    assert isinstance(caught.value.exception, OSError) and written


def test_a_command_that_cannot_be_waited_for(actor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(child: subprocess.Popen[bytes], *given: object) -> int:
        child.wait()
        raise RuntimeError("as it may be")

    monkeypatch.setattr(command_actor, "wait_unless_stopped", fails)
    actor.start.call_one(RankCommand(["echo", "said"], {})).get(TIMEOUT)
    found = actor.read.call_one().get(TIMEOUT)
    assert found == [OutputPiece(1, b"said\n")]
    with pytest.raises(ActorError, match="as it may be"):
        read_all(actor)


@pytest.mark.parametrize("end", ["cancelled", "closed"])
def test_a_thread_that_waits_to_hand_something_out_goes_on_when_the_actor_stops(end: str) -> None:
    loop, raised = asyncio.new_event_loop(), []
    queue: asyncio.Queue[int] = asyncio.Queue(1)
    queue.put_nowait(0)

    def put() -> None:
        try:
            put_from_thread(queue, loop, 1)
        except BaseException as exc:
            raised.append(exc)

    async def cancelled() -> None:
        thread.start()
        while not (waiting := asyncio.all_tasks() - {asyncio.current_task()}):
            await asyncio.sleep(0)
        for task in waiting:
            task.cancel()

    thread = threading.Thread(target=put)
    if end == "cancelled":
        loop.run_until_complete(cancelled())
        loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    if end == "closed":
        thread.start()
    thread.join(TIMEOUT)
    assert not thread.is_alive() and raised == []
