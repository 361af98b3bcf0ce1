"""References in memory: what they give, where they go, and that nothing is left."""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import threading
import weakref
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from monarch.actor import Actor, ActorError, Channel, ProcMesh, SupervisionError, ValueMesh, endpoint, this_host
from monarch.actor.lowlevel import PooledMemory
from monarch.config import configured
from monarch.references import ObjectRef, ReferenceLimitError, ReferenceLost, put, stored_value, values
from monarch.references import store as stores
from monarch.references.counting import RefId, Ticket
from monarch.references.mapping import MappedRegion, idle, map_region
from monarch.references.outcomes import KeptValue
from monarch.testing import InProcessCluster
from tests.references.actors import Maker
from tests.references.settling import until


@pytest.fixture
def procs(cluster: InProcessCluster) -> ProcMesh:
    return this_host().spawn_procs({"gpus": 2})


@pytest.fixture
def makers(procs: ProcMesh) -> Maker:
    return procs.spawn("makers", Maker)


@pytest.fixture(autouse=True)
def nothing_left(cluster: InProcessCluster) -> Iterator[None]:
    """No process keeps anything of a reference at the end of a test that has dropped its own."""
    yield
    living = {proc.address for proc in (cluster.proc, *cluster._all_procs()) if proc.killed is None}
    until(lambda: all(s.is_clean for s in list(stores._stores.values()) if s.process[0] in living))


def one(makers: Maker, rank: int) -> Maker:
    return makers.slice(gpus=rank)


def test_a_result_stays_where_it_was_made(makers: Maker) -> None:
    ref = one(makers, 0).squares.keep.call_one(4)
    assert ref.get(30) == [0, 1, 4, 9]
    assert ref.get(30) is not ref.get(30)  # each time anew
    assert ref.owner == makers._plan.addresses[0]
    assert repr(ref) == "<ObjectRef of makers.squares (rank 0)>"
    assert one(makers, 1).total.call_one(ref).get() == 14
    assert one(makers, 0).total.call_one(ref).get() == 14
    assert makers.total.call(ref).get().values() == [14, 14]


def test_it_is_awaited(makers: Maker) -> None:
    async def use() -> int:
        ref = one(makers, 0).squares.keep.call_one(4)
        return sum(await ref)

    assert asyncio.run(use()) == 14


def test_a_mesh_keeps_a_part_a_rank(makers: Maker) -> None:
    refs = makers.squares.keep.call(3)
    assert isinstance(refs, ValueMesh)
    assert [ref.owner for ref in refs.values()] == list(makers._plan.addresses)
    part = refs.slice(gpus=1)
    assert part.item().get(30) == [0, 1, 4]
    assert one(makers, 0).back.call_one(refs).get().slice(gpus=1).item() == part.item()


class Held(Actor):
    """An actor whose endpoint waits; all simulated processes share what for."""

    opened = threading.Event()

    @endpoint
    def held(self) -> int:
        assert self.opened.wait(60)
        return 1

    @endpoint
    def several(self) -> Iterator[int]:
        yield 1


def test_what_keep_has_not_says_what_it_has(makers: Maker, procs: ProcMesh) -> None:
    with pytest.raises(TypeError, match=r"does not call it: squares.keep.call_one\(...\) runs it on a mesh of one"):
        makers.squares.keep(3)  # type: ignore[operator]
    with pytest.raises(AttributeError, match=r"keep has no choose\(\): a result is kept by keep.call_one\(...\)"):
        makers.squares.keep.choose(3)  # type: ignore[attr-defined]
    with pytest.raises(
        NotImplementedError, match=r"keep of 'several', a generator, .* an endpoint that returns a list"
    ):
        procs.spawn("held", Held).several.keep.call()


def test_a_timeout_names_who_makes_the_value(procs: ProcMesh) -> None:
    refs = procs.spawn("makers", Held).held.keep.call()
    named = stores.store().named("task sum")
    for get in (refs.slice(gpus=1).item().get, refs.slice(gpus=1).item().pin):
        with pytest.raises(
            TimeoutError, match=r"no result after 0.001 s from makers.held \(rank 1\), whose result is kept; "
        ):
            get(timeout=0.001)
    with pytest.raises(TimeoutError, match=r"from makers.held \(rank 0\), whose result is kept; "):
        values(refs, timeout=0.001)
    with pytest.raises(TimeoutError, match=r"no result after 0.001 s from task sum, whose result is kept; "):
        named.get(timeout=0.001)
    stores.store().forward(named._facts.ref, put(1))
    Held.opened.set()
    assert values(refs).values() == [1, 1]


def test_keep_call_one_takes_a_mesh_of_one(makers: Maker) -> None:
    with pytest.raises(ValueError, match=r"keep.call_one requires exactly 1 actor, but mesh has 2: use keep.call\(\)"):
        makers.squares.keep.call_one(3)


def test_values_are_put(makers: Maker) -> None:
    ref = put([1, 2, 3])
    assert ref.get() == [1, 2, 3]
    assert makers.total.call(ref).get().values() == [6, 6]
    theirs = one(makers, 1).put.call_one([4, 5]).get()
    assert theirs.get() == [4, 5]
    assert one(makers, 0).total.call_one(theirs).get() == 9


def test_references_go_within_values(makers: Maker) -> None:
    inside = one(makers, 0).put.call_one([1, 2]).get()
    outside = put({"inside": inside})
    del inside
    again = one(makers, 1).back.call_one(outside).get()
    del outside
    found = one(makers, 1).back.call_one(again.get()).get()
    del again
    assert found["inside"].get() == [1, 2]


def test_a_reference_to_what_an_actor_keeps_outlives_the_senders(makers: Maker) -> None:
    ref = put(list(range(5)))
    one(makers, 1).keep_it.call_one(ref).get()
    del ref
    gc.collect()
    own = stores.store()
    assert own.number == 1
    one(makers, 1).forget.call_one().get()


def test_a_large_value_is_not_copied_for_who_reads_it(makers: Maker) -> None:
    numpy = pytest.importorskip("numpy")
    ref = put(numpy.arange(1 << 16))
    one_, other = ref.get(), ref.get()
    assert (one_ == numpy.arange(1 << 16)).all()
    assert one_.ctypes.data == other.ctypes.data
    with pytest.raises(ValueError, match="read-only"):
        one_[0] = 1
    assert one(makers, 0).back.call_one(ref).get().get()[-1] == (1 << 16) - 1
    del ref
    gc.collect()
    assert one_[5] == 5  # views live as long as they are held


def in_memory(value: Any) -> tuple[ObjectRef[Any], PooledMemory]:
    """Puts a value, and returns where it is: the memory goes a moment later than the value is counted no more."""
    ref = put(value)
    kept = stores.store()._kept[ref._facts.ref]
    assert isinstance(kept, KeptValue) and kept.stored._memory is not None
    return ref, kept.stored._memory


def gone(memory: weakref.ref[PooledMemory]) -> None:
    until(lambda: memory() is None)


def test_memory_is_used_again_once_nobody_views_it(makers: Maker) -> None:
    numpy = pytest.importorskip("numpy")
    size = 1 << 20
    own = stores.store()

    def filled(number: int) -> tuple[ObjectRef[object], int, weakref.ref[PooledMemory]]:
        ref, memory = in_memory(numpy.full(size, number, dtype=numpy.uint8))
        return ref, os.fstat(memory.fd).st_ino, weakref.ref(memory)

    ref, first, one_memory = filled(1)
    one(makers, 0).keep_value.call_one(ref).get()
    del ref
    other, second, other_memory = filled(2)  # the actor views the first
    assert second != first
    assert one(makers, 0).sum_of_kept.call_one().get() == size
    view = other.get()
    del other
    until(lambda: own.number == 1)
    third_ref, third, third_memory = filled(3)  # this process views the second
    assert third not in (first, second)
    assert (view == 2).all()
    del third_ref, view
    one(makers, 0).forget.call_one().get()
    for memory in (one_memory, other_memory, third_memory):
        gone(memory)
    refs = [filled(4) for _ in range(3)]
    assert {place for _, place, _ in refs} == {first, second, third}


def test_who_reads_the_next_value_in_a_memory_has_it_mapped_already(makers: Maker) -> None:
    numpy = pytest.importorskip("numpy")
    maps = 0
    idle.clear()  # of tests before, in memory that is used again
    stored_value.memory._pool.trim(float("inf"), 0)

    def read(number: int, how: Any) -> Any:
        ref, memory = in_memory(numpy.full(1 << 20, number, dtype=numpy.uint8))
        was = weakref.ref(memory)
        del memory
        answer = how.call_one(ref).get()
        del ref
        gone(was)
        return answer

    def mapped(*args: Any) -> MappedRegion:
        nonlocal maps
        maps += 1
        return map_region(*args)

    maker = one(makers, 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("monarch.references.stored_value.map_region", mapped)
        assert [read(number, maker.read)[1] for number in (1, 2, 3)] == [1 << 20, 2 << 20, 3 << 20]
        assert maps == 1
        read(4, maker.write)
        assert read(5, maker.read)[1] == 5 << 20  # what was written to is not used again
        assert maps == 2


def test_pages_that_are_given_back_are_so_where_they_are_mapped_too(makers: Maker) -> None:
    numpy = pytest.importorskip("numpy")
    ref, memory = in_memory(numpy.ones(1 << 20, dtype=numpy.uint8))
    file, was = os.dup(memory.fd), weakref.ref(memory)
    assert one(makers, 0).read.call_one(ref).get()[1] == 1 << 20
    assert os.fstat(file).st_blocks >= (1 << 20) // 512
    del ref, memory
    gone(was)
    stored_value.memory._pool.trim(float("inf"), 0)
    assert os.fstat(file).st_blocks == 0
    os.close(file)


def test_what_several_threads_copy_is_whole(makers: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("monarch._wire.shared_memory._LARGE", 1 << 16)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1, 2})
    for size in (1 << 18, (1 << 18) + 1, 300_007):
        value = bytes(range(251)) * (size // 251 + 1)
        assert put([bytearray(value[:size])]).get() == [value[:size]]


def test_tensors_view_the_memory(makers: Maker) -> None:
    torch = pytest.importorskip("torch")
    ref = one(makers, 0).put.call_one(torch.arange(1 << 16)).get()
    first, second = ref.get(), ref.get()
    assert torch.equal(first, torch.arange(1 << 16))
    assert first.data_ptr() == second.data_ptr()
    first[0] = 7  # a copy of that page, for this process
    assert one(makers, 1).back.call_one(ref).get() == ref


def test_an_error_is_kept_as_well(makers: Maker) -> None:
    ref = one(makers, 0).fail.keep.call_one()
    with pytest.raises(ActorError, match=r"makers.fail \(rank 0\), whose result was kept, failed") as caught:
        ref.get(30)
    assert isinstance(caught.value.exception, ValueError)
    assert "no value today" in str(caught.value)
    assert "in fail" in str(caught.value) and f"{os.sep}monarch{os.sep}" not in str(caught.value)


def test_pickling_elsewhere_says_where_it_goes(makers: Maker) -> None:
    ref = put(1)
    with pytest.raises(TypeError, match="an ObjectRef is counted, and can be pickled in messages to actors only"):
        pickle.dumps(ref)
    with pytest.raises(TypeError, match="made by put"):
        ObjectRef()


def test_references_go_through_ports(makers: Maker) -> None:
    port, receiver = Channel[dict[str, ObjectRef[int]]].open()
    mine = put(1)
    port.send({"a": mine, "b": mine})
    assert [ref.get(60) for ref in receiver.recv().get(60).values()] == [1, 1]
    one(makers, 0).tell.call_one(port, 3).get(60)
    one(makers, 1).tell.call_one(port, mine).get(60)
    first, second = receiver.recv().get(60), receiver.recv().get(60)
    assert first["a"].get(60) == 3 and second["a"] == mine
    with pytest.raises(TypeError, match="cannot pickle"):
        port.send({"a": mine, "b": threading.Lock()})


def test_what_nobody_reads_is_freed(makers: Maker) -> None:
    first, own = one(makers, 0), stores.store()
    here = {*makers._plan.addresses, own.process[0]}  # others are of clusters that have ended
    first.put.call_one([1])  # dropped before it comes
    makers.put.call([1])
    came = [first.put.call_one([2])]
    until(lambda: "ready" in repr(came))
    assert sum(kept.number for kept in list(stores._stores.values()) if kept.process[0] in here) >= 1
    came.clear()
    port, receiver = Channel[Any].open()
    first.tell.call_one(port, 1).get(60)
    first.tell.call_one(port, 2).get(60)
    assert receiver.recv().get(60)["a"].get(60) == 1
    del receiver  # with one message
    first.tell.call_one(port, 3).get(60)  # to nobody
    large = first.put.call_one({"ref": put(4), "bytes": bytes(1 << 20)}).get(60)
    with suppress(TimeoutError):  # its answer comes later, or is here already: threads of this process bring it
        large.get(timeout=0)
    del large
    until(lambda: not any(kept.number for kept in list(stores._stores.values()) if kept.process[0] in here))


def test_messages_that_an_actor_never_handled_give_up_what_they_hold(makers: Maker, procs: ProcMesh) -> None:
    other = procs.slice(gpus=1).spawn("other", Holder)
    waits = other.wait.call_one()
    assert _waiting.wait(60)
    lost = other.keep_it.call_one({"in": put([1]), "large": pickle.PickleBuffer(bytearray(1 << 20))})
    other.keep_it.broadcast(put([2]))
    many = makers.keep_it.call(put([3]))
    stopped = other.stop()
    try:
        with pytest.raises(SupervisionError):
            lost.get(60)
    finally:
        _go_on.set()
    stopped.get(60)
    waits.get(60)
    many.get(60)
    makers.forget.call().get()
    with pytest.raises(SupervisionError):
        other.keep_it.call_one(put([4])).get(60)  # it is not there any more
    until(lambda: not stores.store().number)


_waiting, _go_on = threading.Event(), threading.Event()


class Holder(Maker):
    """One that is at something."""

    @endpoint
    def wait(self) -> None:
        _waiting.set()
        assert _go_on.wait(60)


def test_two_handles_of_one_reference_go_in_one_message(makers: Maker) -> None:
    ref = put([1])
    other = makers.slice(gpus=0).back.call_one(ref).get()
    assert other is not ref
    first, second = makers.slice(gpus=1).back.call_one([ref, other]).get()
    assert first == second == ref


def test_a_process_that_was_stopped_is_no_failure_of_who_tells_it(makers: Maker, procs: ProcMesh) -> None:
    others = this_host().spawn_procs({"gpus": 1})
    ref = others.spawn("others", Maker).squares.keep.call_one(3)
    assert ref.get(30) == [0, 1, 4]
    others.stop().get()
    del ref
    gc.collect()
    assert put(5).get(30) == 5
    assert makers.back.call(put(6)).get().slice(gpus=0).item().get(30) == 6


def test_a_message_that_cannot_be_pickled_lends_nothing(makers: Maker) -> None:
    ref = put(1)
    with pytest.raises(TypeError):
        makers.back.call([ref, threading.Lock()])


def test_the_bound_of_bytes_is_said(makers: Maker) -> None:
    with configured(reference_bytes=100_000):
        first = put(bytearray(70_000))
        with pytest.raises(ReferenceLimitError, match=r"pid \d+ keeps .* for references already, and .* is the most"):
            put(bytearray(70_000))
        del first
        until(lambda: not stores.store().nbytes)
        put(bytearray(70_000))


@pytest.mark.parametrize("value", [bytearray(200_000), memoryview(bytes(200_000))], ids=["bytes", "nbytes"])
def test_what_is_too_large_is_refused_before_it_is_copied(
    makers: Maker, monkeypatch: pytest.MonkeyPatch, value: object
) -> None:
    monkeypatch.setattr(stores, "encode_for", None)
    with (
        configured(reference_bytes=100_000),
        pytest.raises(ReferenceLimitError, match=r"a value of 19\d.* is not kept"),
    ):
        put(value)


def test_references_to_nothing_are_bounded(makers: Maker) -> None:
    with configured(reference_bytes=20_000):
        refs: list[object] = []
        with pytest.raises(ReferenceLimitError):
            for _ in range(100):
                refs.append(put(None))
        assert 10 < len(refs) < 20


def test_a_value_is_lost_with_its_process(cluster: InProcessCluster) -> None:
    procs = this_host().spawn_procs({"gpus": 2})
    makers = procs.spawn("makers", Maker)
    ref = one(makers, 0).squares.keep.call_one(4)
    read = one(makers, 0).zeros.keep.call_one(1 << 17)
    assert len(read.get(30)) == 1 << 17
    cluster.proc.mesh.owners.fault = lambda failure: (
        None
    )  # the caller hears of it, if its own answer was still under way
    cluster.kill(procs.slice(gpus=0))
    lost = r"makers.squares \(rank 0\) made is lost with its process, inproc.*: the process .* failed: Killed\(sig=9\). Make"
    with pytest.raises(ReferenceLost, match=lost):
        ref.get(30)
    assert len(read.get(30)) == 1 << 17  # it was here already


def test_a_pinned_value_outlives_its_maker(cluster: InProcessCluster) -> None:
    cluster.proc.mesh.owners.fault = lambda failure: None
    procs = this_host().spawn_procs({"gpus": 3})
    makers = procs.spawn("makers", Maker)
    inside = put([7])
    ref = one(makers, 0).back.keep.call_one([inside, bytearray(100_000)])
    pinned = ref.pin(copies=2, on=procs)
    assert pinned == ref
    assert tuple(copy.owner for copy in pinned._copies) == makers._plan.addresses[:2]
    sent = one(makers, 2).back.call_one(pinned).get()
    nested = put({"pinned": pinned})
    cluster.kill(procs.slice(gpus=0))
    for handle in (pinned, sent, nested.get()["pinned"]):
        found = handle.get(30)
        assert (found[0].get(30), len(found[1])) == ([7], 100_000)
    assert asyncio.run(later(pinned))[0].get(30) == [7]
    assert one(makers, 2).first_of.call_one(pinned).get() == [7]
    again = pinned.pin(copies=3)
    assert again.get(30)[0].get(30) == [7]
    cluster.kill(procs.slice(gpus=1))
    assert len(again.get(30)[1]) == 100_000


async def later(ref: ObjectRef[list[ObjectRef[list[int]]]]) -> list[ObjectRef[list[int]]]:
    return await ref


def test_pin_says_what_it_needs(makers: Maker, procs: ProcMesh) -> None:
    ref = one(makers, 0).squares.keep.call_one(3)
    assert ref.pin().get(30) == [0, 1, 4]  # this process has the copy
    assert ref.pin(copies=1).get(30) == [0, 1, 4]
    with pytest.raises(
        ValueError, match=r"pin\(copies=2\) needs 1 processes .* and this process offers 0: say on=procs"
    ):
        put(1).pin()
    with pytest.raises(ValueError, match=r"needs 3 processes .* and the 2 of the mesh offers 1"):
        ref.pin(copies=4, on=procs)
    with pytest.raises(ValueError, match="copies is how many processes"):
        ref.pin(copies=0)
    with pytest.raises(
        TypeError, match=r"pin\(on=\.\.\.\) takes a mesh of processes, such as spawn_procs\(\) gives, got ActorMesh"
    ):
        ref.pin(on=procs.spawn("makers", Maker))  # type: ignore[arg-type]
    with pytest.raises(ActorError, match="no value today"):
        one(makers, 0).fail.keep.call_one().pin()


def test_what_a_dead_process_held_is_freed(cluster: InProcessCluster) -> None:
    procs = this_host().spawn_procs({"gpus": 2})
    makers = procs.spawn("makers", Maker)
    one(makers, 1).keep_it.call_one(put([1])).get()
    assert stores.store().number == 1
    cluster.kill(procs.slice(gpus=1))
    cluster.next_failure()


def test_who_waits_for_a_value_of_an_actor_that_ended_is_told(makers: Maker) -> None:
    ref = one(makers, 0).back.keep.call_one(Fatal())
    waiting = one(makers, 1).total.call_one(ref)
    with pytest.raises(ActorError, match="whose result was kept, failed"):
        ref.get(30)
    with pytest.raises(ActorError):
        waiting.get()


class Fatal:
    """Cannot be pickled where it is to be kept."""

    def __init__(self, armed: bool = False) -> None:
        self.armed = armed

    def __reduce__(self) -> object:
        if self.armed:
            raise ValueError("cannot be pickled twice")
        return Fatal, (True,)


def test_a_reference_that_is_taken_for_its_value_says_how_to_get_it(makers: Maker) -> None:
    ref = put([1])
    for mistake in ("ref + 1", "1 < ref", "ref[0]", "[*ref]"):
        with pytest.raises(TypeError, match=r"'ObjectRef'.*: it is <ObjectRef of put\(\).*>, and not the value, which"):
            eval(mistake, {"ref": ref})
    assert ref == ref and bool(ref)


WRONG = [
    ("claim", RefId("p", "", 1, 0), "no ticket"),
    ("claim", RefId("p", "", 1, 0), ["unhashable"]),
    ("claim", RefId("p", "", 1, 0), Ticket(("p", 0), [1])),  # type: ignore[arg-type]
    ("claim", RefId("p", "", 1, 0), Ticket("p", 1)),  # type: ignore[arg-type]
    ("claim", RefId("p", "", 1, 0)),
    ("lend", RefId("p", "", 1, 0), Ticket(("p", 0), 1), 3),
    ("lend", RefId("p", "", 1, 0), Ticket(("p", 0), 1), [3]),
    ("create", "no reference"),
    ("more", RefId("p", "", 1, 0)),
    (),
    None,
]


def test_who_tells_what_cannot_be_understood_does_not_end_the_owners_references(
    makers: Maker, caplog: pytest.LogCaptureFixture
) -> None:
    ref = one(makers, 0).squares.keep.call_one(4)
    assert ref.get(30) == [0, 1, 4, 9]
    mine = stores.store()
    for told in WRONG:
        mine._service(ref.owner).tell.broadcast(mine.process, [told])
    assert ref.get(30) == [0, 1, 4, 9]
    until(lambda: caplog.text.count("cannot be understood, and it was left out") == len(WRONG))
    assert ref.get(30) == [0, 1, 4, 9]


def test_a_reference_without_a_claim_is_refused_where_it_arrives(makers: Maker) -> None:
    ref = one(makers, 0).squares.keep.call_one(4)
    with pytest.raises(
        TypeError, match=r"squares.* comes with no claim on it \('no ticket'\): send the ObjectRef itself"
    ):
        stores.store().arrived(ref._facts, "no ticket")  # type: ignore[arg-type]
    assert ref.get(30) == [0, 1, 4, 9]


def test_what_was_put_says_in_which_rank_of_which_actor(procs: ProcMesh) -> None:
    class Putting(Actor):
        @endpoint
        def put(self) -> ObjectRef[int]:
            return put(1)

    putting = procs.spawn("putting", Putting)
    refs = putting.put.call().get().values()
    assert [repr(ref) for ref in refs] == [f"<ObjectRef of put() in putting (rank {rank})>" for rank in (0, 1)]
    assert repr(put(1)) == "<ObjectRef of put() in the client>"
