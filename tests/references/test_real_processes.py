"""References between real processes: memory that is mapped and not copied, deaths, and that nothing is left."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from monarch.actor import Actor, ActorError, Channel, MeshFailure, ProcMesh, endpoint, this_host
from monarch.references import ObjectRef, ReferenceLost, put
from monarch.references import store as stores
from monarch.service import serve
from tests.references.actors import Maker
from tests.references.settling import until
from tests.support.tiers import full

pytestmark = [full, pytest.mark.procs]


def test_one_memory_for_all_processes_of_a_host() -> None:
    procs: ProcMesh = this_host().spawn_procs({"gpus": 3})
    makers = procs.spawn("makers", Maker)
    try:
        ref = makers.slice(gpus=0).zeros.keep.call_one(1 << 22)
        value = ref.get(60)
        assert len(value) == 1 << 22
        makers.slice(gpus=slice(1, 3)).keep_it.call(ref).get()
        ours = put([b"x" * (1 << 20)])
        assert makers.total_size.call(ours).get().values() == [1 << 20] * 3
        del ref
        makers.forget.call().get()
        del ours
        until(lambda: stores.store().is_clean)
        until(lambda: makers.left.call().get().values() == [0] * 3)
    finally:
        procs.stop().get()


def test_kill_9(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[MeshFailure] = []
    monkeypatch.setattr("monarch.actor.unhandled_fault_hook", told.append)
    procs: ProcMesh = this_host().spawn_procs({"gpus": 2})
    makers = procs.spawn("makers", Maker)
    try:
        ref = makers.slice(gpus=0).squares.keep.call_one(5)
        makers.slice(gpus=0).keep_it.call_one(put(bytearray(1 << 20))).get()
        assert stores.store().number == 1
        assert ref.get(60) == [0, 1, 4, 9, 16]
        again = makers.slice(gpus=0).squares.keep.call_one(6)
        assert again.get(60)[-1] == 25
        theirs = makers.slice(gpus=1).back.call_one(again).get()
        makers.slice(gpus=0).end.broadcast()
        until(lambda: stores.store().number == 0)
        with pytest.raises(ActorError) as caught:
            makers.slice(gpus=1).total.call_one(theirs).get()
        assert isinstance(caught.value.exception, ReferenceLost)
        until(lambda: told)
        del ref, again, theirs, caught  # after who made them
        until(lambda: stores.store().is_clean)
        until(lambda: makers.slice(gpus=1).left.call_one().get() == 0)
    finally:
        procs.stop().get()


PROGRAM = """
import builtins
import numpy
from monarch.actor import this_host
from monarch.references import put
from tests.references.actors import Maker

if __name__ == "__main__":
    makers = this_host().spawn_procs().spawn("makers", Maker)
    value = numpy.ones(1 << 20)
    builtins.held = [makers.put.call_one(value).get().get(), put(value).get()]
    builtins.held.append(builtins.held)
"""


def test_a_program_that_ends_with_views_says_nothing_of_them(tmp_path: Path) -> None:
    pytest.importorskip("numpy")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, str(program)], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


class Giver(Actor):
    """Gives references away, as a replica."""

    @endpoint
    def give(self, size: int) -> ObjectRef[bytes]:
        return put(bytes(size))

    @endpoint
    def left(self) -> int:
        return stores.store().number


def test_references_come_through_ports_and_from_services() -> None:
    procs: ProcMesh = this_host().spawn_procs({"gpus": 2})
    makers = procs.spawn("makers", Maker)
    port, receiver = Channel[dict[str, ObjectRef[bytes]]].open()
    try:
        mine = put(b"x" * (1 << 20))
        makers.tell.call(port, mine).get()
        assert [len(receiver.recv().get(60)["a"].get(60)) for _ in range(2)] == [1 << 20] * 2
        makers.tell.call(port, b"y" * (1 << 20)).get()
        assert [receiver.recv().get(60)["a"].get(60)[:1] for _ in range(2)] == [b"y"] * 2
        with serve(this_host(), Giver, replicas=2) as service:
            assert [len(one.get(60)) for one in [service.give.route(1 << 20).get(60) for _ in range(6)]] == [
                1 << 20
            ] * 6
            until(lambda: service.left.fanout().get() == [0, 0])
            service.give.route(1 << 20)  # and nobody reads it
            unread = service.give.route(1 << 20)
            until(lambda: sum(service.left.fanout().get()) == 1)
            del unread
            until(lambda: service.left.fanout().get() == [0, 0])
        makers.tell.call(port, b"z").get()
        del receiver, mine
        until(lambda: stores.store().is_clean)
        until(lambda: makers.left.call().get().values() == [0] * 2)
    finally:
        procs.stop().get()
