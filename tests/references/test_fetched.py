"""Endpoints that take the values of references."""

from __future__ import annotations

import asyncio
import pickle
import threading
from typing import TYPE_CHECKING, Any, Optional, Union

import cloudpickle
import pytest

from monarch import references
from monarch._mesh.actors.arity import values_taken
from monarch.actor import Actor, ActorError, ProcMesh, concurrent_endpoint, endpoint, this_host
from monarch.references import Fetched, ReferenceLost, put, reader
from monarch.references import Fetched as Fetch
from monarch.references import store as stores
from monarch.testing import InProcessCluster
from tests.references.actors import AsyncTaker, Maker, Taker

if TYPE_CHECKING:
    from collections.abc import Sequence as OnlyForCheckers


@pytest.fixture
def procs(cluster: InProcessCluster) -> ProcMesh:
    return this_host().spawn_procs({"gpus": 2})


def test_a_reference_is_replaced_by_its_value(procs: ProcMesh) -> None:
    takers = procs.spawn("takers", Taker)
    made = procs.slice(gpus=0).spawn("makers", Maker).squares.keep.call_one(4)
    assert takers.total.call(made).get().values() == [14, 14]
    assert takers.total.call(numbers=made, factor=2).get().values() == [28, 28]
    assert takers.total.call([1, 2]).get().values() == [3, 3]  # a value is taken as it is


def test_which_parameters_take_values(procs: ProcMesh) -> None:
    taker = procs.slice(gpus=0).spawn("takers", Taker)
    ref = put([1])
    assert taker.kinds.call_one(ref, ref, ref, last=ref).get() == ["ObjectRef", "list", "list", "list"]
    assert taker.kinds.call_one(ref=ref, other=ref).get() == ["ObjectRef", "list"]
    assert taker.kinds.call_one(ref, [ref]).get() == ["ObjectRef", "list"]  # within an argument it stays


def test_actors_with_an_event_loop(procs: ProcMesh) -> None:
    takers = procs.spawn("takers", AsyncTaker)
    made = procs.slice(gpus=0).spawn("makers", Maker).squares.keep.call_one(4)
    assert takers.total.call(made).get().values() == [14, 14]
    assert takers.total_beside.call(made, put([1])).get().values() == [15, 15]
    assert takers.answered.call(made).get().values() == [14, 14]


class Slow(Actor):
    """Makes a value once it is let."""

    let = threading.Event()

    @endpoint
    def make(self) -> list[int]:
        assert Slow.let.wait(60)
        return [1, 2]


def test_what_is_not_made_yet_holds_up_its_own_call_only(procs: ProcMesh) -> None:
    Slow.let.clear()
    late = procs.slice(gpus=0).spawn("slow", Slow).make.keep.call_one()
    taker = procs.slice(gpus=1).spawn("takers", AsyncTaker)
    waiting = taker.total_beside.call_one(late)
    assert taker.here.call_one().get() == "here"
    Slow.let.set()
    assert waiting.get() == 3


class PlainOnLoop(Actor):
    """Has a loop, and an ordinary endpoint that takes values."""

    asked = threading.Event()

    @endpoint
    def total(self, numbers: Fetched[list[int]]) -> int:
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()
        return sum(numbers)

    @concurrent_endpoint
    async def let(self) -> None:
        while not PlainOnLoop.asked.is_set():
            await asyncio.sleep(0)
        Slow.let.set()


@pytest.mark.parametrize("chunksize", [1, 3])
def test_the_loop_runs_on_while_a_plain_endpoint_awaits_values(
    procs: ProcMesh, monkeypatch: pytest.MonkeyPatch, chunksize: int
) -> None:
    def asked(method: Any) -> Any:
        def ask(*args: Any) -> Any:
            PlainOnLoop.asked.set()
            return method(*args)

        return ask

    monkeypatch.setattr(reader.ValueReader, "fetch", asked(reader.ValueReader.fetch))
    monkeypatch.setattr(reader.ValueReader, "fetch_later", asked(reader.ValueReader.fetch_later))
    Slow.let.clear()
    PlainOnLoop.asked.clear()
    late = procs.slice(gpus=0).spawn("slow", Slow).make.keep.call_one()
    totals = procs.slice(gpus=1).spawn("totals", PlainOnLoop)
    let = totals.let.call_one()
    assert list(totals.total.map([late, put([5]), [7]], chunksize=chunksize)) == [3, 5, 7]
    let.get()


def test_calls_behind_it_keep_their_order(procs: ProcMesh) -> None:
    Slow.let.clear()
    late = procs.slice(gpus=0).spawn("slow", Slow).make.keep.call_one()
    taker = procs.slice(gpus=1).spawn("takers", Taker)
    first, second = taker.total.call_one(late), taker.before.call_one()
    Slow.let.set()
    assert (first.get(), second.get()) == (3, 1)


@pytest.mark.parametrize("Class", [Taker, AsyncTaker])
def test_an_error_says_which_argument_and_that_nothing_ran(procs: ProcMesh, Class: Any) -> None:
    taker = procs.slice(gpus=1).spawn("takers", Class)
    broken = procs.slice(gpus=0).spawn("makers", Maker).fail.keep.call_one()
    said = r"total did not run: its argument numbers, <ObjectRef of makers.fail \(rank 0\)>, could not be fetched"
    with pytest.raises(ActorError, match=f"(?s)no value today.*{Class.__name__}.{said}"):
        taker.total.call_one(broken).get()
    assert taker.total.call_one([3]).get() == 3  # the actor goes on


def test_a_lost_value(cluster: InProcessCluster, procs: ProcMesh) -> None:
    others = this_host().spawn_procs({"gpus": 1})
    lost = others.spawn("makers", Maker).squares.keep.call_one(3)
    assert lost.get(30) == [0, 1, 4]
    cluster.proc.mesh.owners.fault = lambda failure: (
        None
    )  # the caller hears of it, if its own answer was still under way
    cluster.kill(others)
    with pytest.raises(ActorError) as caught:
        procs.slice(gpus=0).spawn("takers", Taker).total.call_one(lost).get()
    assert isinstance(caught.value.exception, ReferenceLost)
    said = str(caught.value)
    assert "total did not run: its argument numbers" in said
    assert "File " not in said and "SupervisionError" not in said and "references@" not in said  # nothing of ours


@pytest.mark.parametrize("Class", [Taker, AsyncTaker])
def test_what_cannot_be_mapped_comes_once_a_process(
    procs: ProcMesh, Class: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []
    ask = stores.ReferenceStore.ask

    def counted(self: Any, owner: str, endpoint: str, *facts: Any) -> Any:
        if endpoint == "fetch" and facts[-1]:
            sent.append(self.process[0])
        return ask(self, owner, endpoint, *facts)

    monkeypatch.setattr(reader, "mapped", lambda *place: None)
    monkeypatch.setattr(stores.ReferenceStore, "ask", counted)
    first, second = procs.spawn("first", Class), procs.spawn("second", Class)
    ref = put([bytearray(100_000)])
    procs.spawn("holders", Maker).keep_it.call(ref).get()  # with the last handle of a process the bytes go
    calls = [taker.bytes_of.call(ref) for taker in (first, second, first)]
    assert [call.get().values() for call in calls] == [[100_000] * 2] * 3
    assert sorted(sent) == sorted(set(sent)) == sorted(first._plan.addresses)


def test_a_kept_call_takes_values_as_well(procs: ProcMesh) -> None:
    takers = procs.spawn("takers", Taker)
    assert takers.slice(gpus=1).total.keep.call_one(put([2, 3])).get(60) == 5


def test_which_annotations_say_so() -> None:
    def plain(self: Any, numbers: list[int], other: OnlyForCheckers[int]) -> Fetched[int]: ...

    def texts(
        self: Any, a: Fetched[OnlyForCheckers[int]], b: Any, *c: references.Fetched[int], d: Fetch[int]
    ) -> None: ...

    def real(self: Any, numbers: Any, other: int) -> None: ...

    real.__annotations__ = {"numbers": Fetched[list[int]], "other": int, "return": Fetched[int]}

    def unions(
        self: Any,
        a: Fetched[list[int]] | None,
        b: None | Fetch[int],  # noqa: RUF036
        c: Optional[references.Fetched[int]],  # noqa: UP045
        d: Union[int, Fetched[dict[str, int]]],  # noqa: UP007
        e: list[Fetched[int]] | None,
        f: Optional[list[Fetched[int]]],  # noqa: UP045
    ) -> None: ...

    assert values_taken(plain) == ()
    assert values_taken(unions) == ("a", "b", "c", "d")
    unions.__annotations__ = {name: eval(text) for name, text in unions.__annotations__.items()}
    assert values_taken(unions) == ("a", "b", "c", "d")
    assert values_taken(texts) == ("a", "c", "d")
    assert values_taken(real) == ("numbers",)
    assert values_taken(pickle.loads(cloudpickle.dumps(real))) == ("numbers",)


def test_a_class_of_the_program_s_own_file_takes_them_along(procs: ProcMesh) -> None:
    prop = pickle.loads(cloudpickle.dumps(Taker.__dict__["total"]))
    assert prop._values == ("numbers",)
