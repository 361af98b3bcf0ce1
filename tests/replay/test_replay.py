"""Actors that are recorded, and replayed alone: in memory, where the recording is as among processes."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from monarch._runtime import log_thread
from monarch.actor import Actor, Channel, Port, concurrent_endpoint, context, current_rank, endpoint, this_host
from monarch.replay import Outcome, RecordingError, recording, replay
from monarch.testing import InProcessCluster

GO_ON = threading.Event()


class Database(Actor):
    def __init__(self) -> None:
        self.rows = {number: f"row {number}" for number in range(10)}

    @endpoint
    def get(self, key: int) -> str:
        return self.rows[key]

    @endpoint
    def fail(self) -> None:
        raise RuntimeError("on purpose")

    @endpoint
    def hold(self) -> None:
        """Answers nothing until the test goes on."""
        GO_ON.wait(60)

    @endpoint
    def tell(self, port: Port[int], value: int) -> None:
        port.send(value)


class Trainer(Actor):
    def __init__(self, database: Any, start: int) -> None:
        self.database = database
        self.total = start
        self.seen: list[Any] = []

    @endpoint
    def step(self, key: int) -> int:
        row = self.database.get.call_one(key).get(timeout=300)
        self.seen.append((row, current_rank().rank, context().actor_instance.name))
        self.total += len(row)
        if key == 7:
            raise ValueError(f"rank {current_rank().rank} cannot train on {row!r}")
        return self.total

    @endpoint
    def by_chance(self) -> float:
        return random.random()

    @endpoint
    def over_channel(self) -> int:
        port, receiver = Channel[int].open()
        for value in (1, 2, 3):
            self.database.tell.broadcast(port, value)
        return sum(receiver.recv().get(timeout=300) for _ in range(3))

    @endpoint
    def survives(self) -> str:
        try:
            self.database.get.call_one(99).get(timeout=300)
        except Exception as exc:
            return type(exc).__name__
        return "nothing"

    @endpoint(explicit_response_port=True)
    def by_port(self, port: Port[int], value: int) -> None:
        port.send(value + self.total)


class Gatherer(Actor):
    """With an event loop: its calls overlap."""

    def __init__(self, database: Any) -> None:
        self.database = database
        self.order: list[int] = []

    @concurrent_endpoint
    async def fetch(self, key: int) -> str:
        row = await self.database.get.call_one(key)
        self.order.append(key)
        return str(row)

    @endpoint
    async def hold(self) -> None:
        self.database.hold.broadcast()

    @endpoint
    async def all(self, keys: list[int]) -> list[str]:
        return list(await asyncio.gather(*[_of(self.database.get.call_one(key)) for key in keys]))

    @endpoint
    def blocking(self, key: int) -> str:
        """Waits on the thread of the loop, as plain endpoints may."""
        return str(self.database.get.call_one(key).get(timeout=300))

    @endpoint
    async def in_order(self) -> list[int]:
        return self.order


class Owner(Actor):
    """Spawns others, and is told of their end."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.procs = this_host().spawn_procs(per_host={"gpus": 2})
        self.children: Any = self.procs.spawn("children", Database)

    @endpoint
    def ask(self) -> list[str]:
        return [str(row) for row in self.children.get.call(3).get(timeout=300).values()]

    @endpoint
    def lose(self) -> None:
        self.children.fail.broadcast()

    @endpoint
    def heard(self) -> list[str]:
        return self.told

    def __supervise__(self, failure: Any) -> bool:
        self.told.append(f"{failure.crashed_ranks}")
        return True


async def _of(future: Any) -> str:
    return str(await future)


def _record(folder: Path, run: Callable[[Any], Any], cls: Any = Trainer, *args: Any, ranks: int = 1) -> list[Path]:
    with InProcessCluster(), recording(cls, folder=folder):
        procs = this_host().spawn_procs(per_host={"gpus": ranks})
        database = this_host().spawn_procs(per_host={"gpus": 1}).spawn("db", Database)
        run(procs.spawn("actors", cls, database, *args))
    return sorted(folder.glob("actors-*.monarchrec"))


def _replay(path: Path, **how: Any) -> tuple[Outcome, list[str]]:
    said: list[str] = []
    return replay(path, say=said.append, patience=60.0, **how), said


def test_the_crash_of_one_rank_comes_again_alone(tmp_path: Path) -> None:
    def run(trainers: Any) -> None:
        trainers.step.call(1).get(timeout=300)
        trainers.step.call(2).get(timeout=300)
        with pytest.raises(Exception, match="cannot train"):
            trainers.slice(gpus=2).step.call_one(7).get(timeout=300)

    files = _record(tmp_path, run, Trainer, 100, ranks=3)
    assert [path.name.split("-")[1] for path in files] == ["0", "1", "2"]
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    outcome, said = _replay(files[2])
    assert outcome.divergence is None
    assert outcome.status == 1
    assert outcome.messages == 3
    assert outcome.failure.startswith("message 3, step(), raised:")
    assert "ValueError: rank 0 cannot train on 'row 7'" in outcome.failure
    assert said[0].startswith("replaying tests.replay.test_replay.Trainer actors[2], recorded on ")
    fine, _ = _replay(files[0])
    assert (fine.status, fine.messages, fine.failure) == (0, 2, "")


class Waits:
    """Another one each time, whose repr waits in a replay."""

    replayed = False

    def __init__(self) -> None:
        self.value = time.time_ns()

    def __repr__(self) -> str:
        if Waits.replayed:
            threading.Event().wait()
        return "waits"


class Odd(Actor):
    def __init__(self, database: Any) -> None:
        pass

    @endpoint
    def give(self) -> Waits:
        return Waits()


def test_a_repr_that_waits_ends_a_replay_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (file,) = _record(tmp_path, lambda odd: odd.give.call_one().get(timeout=300), Odd)
    monkeypatch.setattr(Waits, "replayed", True)
    outcome = replay(file, say=lambda _: None, patience=0.2)
    assert outcome.status == 3 and outcome.ended == "it stood still for 0.2 s"
    assert outcome.divergence is not None and "a repr() of it does not return" in outcome.divergence.then


def test_answers_channels_ports_and_chance_are_as_then(tmp_path: Path) -> None:
    said: dict[str, Any] = {}

    def run(trainers: Any) -> None:
        said["chance"] = trainers.by_chance.call_one().get(timeout=300)
        said["channel"] = trainers.over_channel.call_one().get(timeout=300)
        said["survives"] = trainers.survives.call_one().get(timeout=300)
        said["port"] = trainers.by_port.call_one(5).get(timeout=300)

    (file,) = _record(tmp_path, run, Trainer, 100)
    assert said["channel"] == 6
    outcome, _ = _replay(file)
    assert outcome.divergence is None, str(outcome.divergence)
    assert (outcome.status, outcome.messages) == (0, 4)


def test_an_actor_with_an_event_loop(tmp_path: Path) -> None:
    def run(gatherer: Any) -> None:
        # An answer that comes before it is awaited lets its task go on at once, which a replay does not know.
        gatherer.hold.call_one().get(timeout=300)
        waits = [gatherer.fetch.call_one(key) for key in range(6)]
        assert gatherer.in_order.call_one().get(timeout=300) == []
        GO_ON.set()
        assert [wait.get(timeout=300) for wait in waits] == [f"row {key}" for key in range(6)]
        assert gatherer.all.call_one([3, 1, 2]).get(timeout=300) == ["row 3", "row 1", "row 2"]
        gatherer.in_order.call_one().get(timeout=300)
        assert gatherer.blocking.call_one(4).get(timeout=300) == "row 4"

    GO_ON.clear()
    (file,) = _record(tmp_path, run, Gatherer)
    outcome, _ = _replay(file)
    assert outcome.divergence is None, str(outcome.divergence)
    assert (outcome.status, outcome.messages) == (0, 11)


def test_what_an_actor_spawns_and_what_it_is_told_of_it(tmp_path: Path) -> None:
    with InProcessCluster(), recording("owner", folder=tmp_path):
        owner: Any = this_host().spawn_procs(per_host={"gpus": 1}).spawn("owner", Owner)
        assert owner.ask.call_one().get(timeout=300) == ["row 3", "row 3"]
        owner.lose.call_one().get(timeout=300)
        deadline = time.monotonic() + 60
        while not owner.heard.call_one().get(timeout=300) and time.monotonic() < deadline:
            pass
        assert owner.heard.call_one().get(timeout=300)
    (file,) = tmp_path.iterdir()
    outcome, _ = _replay(file)
    assert outcome.divergence is None, str(outcome.divergence)
    assert outcome.status == 0
    assert outcome.messages >= 3


def test_code_that_has_changed_leaves_the_recording_and_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (file,) = _record(tmp_path, lambda trainers: trainers.step.call(3).get(timeout=300), Trainer, 0)
    before = Trainer.step._method

    def changed(self: Any, key: int) -> Any:
        return before(self, key + 1)

    monkeypatch.setattr(Trainer.step, "_method", changed)
    monkeypatch.setattr(Trainer.step, "_local", None)
    outcome, _ = _replay(file)
    assert outcome.status == 3
    assert str(outcome.divergence).startswith(
        "replay has left the recording at message 1 (step): then it called db.get(3), now it called db.get(4)\n  File "
    )


def test_another_answer_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (file,) = _record(tmp_path, lambda trainers: trainers.step.call(3).get(timeout=300), Trainer, 0)
    monkeypatch.setattr(Trainer.step, "_method", lambda self, key: self.database.get.call_one(key).get() + "!")
    monkeypatch.setattr(Trainer.step, "_local", None)
    outcome, _ = _replay(file)
    assert "then message 1 returned 5, now message 1 returned 'row 3!'" in str(outcome.divergence)


def test_a_recording_that_reached_its_bound_is_replayed_up_to_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with InProcessCluster(), recording("actors", folder=tmp_path, most=60_000):
        database = this_host().spawn_procs(per_host={"gpus": 1}).spawn("db", Database)
        trainer: Any = this_host().spawn_procs(per_host={"gpus": 1}).spawn("actors", Trainer, database, 0)
        for _ in range(400):
            trainer.step.call_one(3).get(timeout=300)
    (file,) = tmp_path.iterdir()
    assert file.stat().st_size < 70_000
    outcome, _ = _replay(file)
    assert outcome.status == 0
    assert 0 < outcome.messages < 400
    assert outcome.ended.startswith("the recording ends here: the bound on its size is reached (setting record_bytes)")


def test_a_full_disk_ends_the_recording_and_not_the_actor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    written = []
    really = os.writev

    def full(descriptor: int, pieces: Any) -> int:
        written.append(pieces)
        if len(written) > 4:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return really(descriptor, pieces)

    monkeypatch.setattr("monarch.replay.actor_recorder.os.writev", full)

    def run(trainers: Any) -> None:
        for _ in range(5):
            trainers.step.call(3).get(timeout=300)

    (file,) = _record(tmp_path, run, Trainer, 0)
    monkeypatch.undo()
    assert log_thread.flush(60)
    assert "recording of actor actors[0] stopped after " in caplog.text
    assert "No space left on device. What is in " in caplog.text
    outcome, _ = _replay(file)
    assert outcome.divergence is None and outcome.failure == ""


def test_an_actor_whose_recording_cannot_begin_runs_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    with InProcessCluster(), recording("db", folder=tmp_path / "file"):
        database: Any = this_host().spawn_procs(per_host={"gpus": 1}).spawn("db", Database)
        assert database.get.call_one(1).get(timeout=300) == "row 1"
    assert log_thread.flush(60)
    assert "actor db[0] is not recorded: " in caplog.text


def test_a_file_cut_off_at_any_byte_is_replayed_up_to_there(tmp_path: Path) -> None:
    (file,) = _record(tmp_path / "whole", lambda trainers: trainers.step.call(3).get(timeout=300), Trainer, 0)
    data = file.read_bytes()
    for size in range(len(data) - 1, len(data) - 900, -97):
        cut = tmp_path / "cut"
        cut.write_bytes(data[:size])
        cut.chmod(0o600)
        outcome, _ = _replay(cut)
        assert outcome.divergence is None and outcome.failure == ""
    damaged = bytearray(data)
    damaged[-10] ^= 1
    cut.write_bytes(damaged)
    assert "damaged" in _replay(cut)[0].ended or _replay(cut)[0].status == 0


def test_what_others_may_have_written_needs_trust(tmp_path: Path) -> None:
    (file,) = _record(tmp_path / "mine", lambda trainers: trainers.step.call(3).get(timeout=300), Trainer, 0)
    file.chmod(0o666)
    with pytest.raises(RecordingError, match=r"may be written by others \(mode 0666\)\. A recording holds pickles"):
        replay(file)
    assert _replay(file, trust=True)[0].status == 0


def test_what_is_no_recording_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"hello")
    other.chmod(0o600)
    with pytest.raises(RecordingError, match="it is no recording of an actor"):
        replay(other)
    other.write_bytes(b"MONARCHREC1\n")
    with pytest.raises(RecordingError, match="nothing was recorded"):
        replay(other)
    other.write_bytes(b"MONARCHREC9\n")
    with pytest.raises(RecordingError, match="another version of pymonarch"):
        replay(other)
