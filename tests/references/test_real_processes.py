"""References between real processes: memory that is mapped and not copied, deaths, and that nothing is left."""

from __future__ import annotations

import pytest

from monarch.actor import ActorError, MeshFailure, ProcMesh, this_host
from monarch.references import ReferenceLost, put
from monarch.references import store as stores
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
    finally:
        procs.stop().get()
