"""Tests of what can be an argument or a result, what it is on the other side, and what cannot."""

from __future__ import annotations

import dataclasses
import enum
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from monarch.actor import (
    Actor,
    ActorError,
    Channel,
    Extent,
    Port,
    ProcMesh,
    ValueMesh,
    context,
    current_rank,
    endpoint,
)
from tests.support.patience import TIMEOUT
from tests.support.tiers import first_of, full

pytestmark = pytest.mark.procs


@dataclasses.dataclass
class Record:
    name: str
    parts: list[Any]


class Color(enum.Enum):
    RED = 1


class Mirror(Actor):
    @endpoint
    async def echo(self, value: Any) -> Any:
        return value

    @endpoint
    async def length(self, value: Any) -> int:
        return len(value)

    @endpoint
    async def result(self, function: Any) -> Any:
        return function()

    @endpoint
    async def write_array(self, array: Any) -> Any:
        array[...] = 7
        return array

    @endpoint
    async def send_to(self, port: Port[Any], value: Any) -> None:
        port.send(value)

    @endpoint
    async def call_back(self, mesh: Any, value: Any) -> Any:
        return (await mesh.echo.call(value)).values()

    @endpoint
    async def point(self) -> Any:
        return current_rank()


@pytest.fixture(scope="module")
def mirror(proc: ProcMesh) -> Any:
    return proc.spawn("mirror", Mirror)


def echo(mirror: Any, value: Any) -> Any:
    return mirror.echo.call_one(value).get(timeout=TIMEOUT)


# --- plain values


def test_values_come_back_as_they_were(mirror: Any) -> None:
    """Passes values of every kind: tests/_wire/test_codec.py."""
    values = [{"a": (1, b"2")}, Color.RED, Record("r", [1, None]), Extent(["a"], [2]), b"x" * 3_000_000]
    assert echo(mirror, values) == values


def test_local_classes_travel_and_come_back_as_the_same_class(mirror: Any) -> None:
    class Local:
        def __init__(self, n: int) -> None:
            self.n = n

    result = echo(mirror, Local(4))
    assert type(result) is Local and result.n == 4


def test_exceptions_as_values_are_not_raised(mirror: Any) -> None:
    result = echo(mirror, ValueError("a value"))
    assert isinstance(result, ValueError) and result.args == ("a value",)


def test_value_meshes_and_points_travel(mirror: Any) -> None:
    values = ValueMesh(Extent(["g"], [2]).region.as_shape(), ["a", "b"])
    assert echo(mirror, values).values() == ["a", "b"]
    assert echo(mirror, current_rank()) == current_rank()
    assert mirror.point.call_one().get(timeout=TIMEOUT).extent == Extent([], [])


def test_meshes_and_ports_travel_inside_other_values(mirror: Any, procs2: ProcMesh) -> None:
    mesh = procs2.spawn("mirror", Mirror)
    port, receiver = Channel[Any].open()
    mirror.send_to.call_one(port, {"mesh": mesh.slice(gpus=1), "again": [port]}).get(timeout=TIMEOUT)
    got = receiver.recv().get(timeout=TIMEOUT)
    assert echo(got["mesh"], 1) == 1
    got["again"][0].send("through it")
    assert receiver.recv().get(timeout=TIMEOUT) == "through it"
    assert mirror.call_back.call_one(mesh, 2).get(timeout=TIMEOUT) == [2, 2]


# --- classes of __main__


def test_classes_of_the_script_travel_by_value_and_keep_their_identity(scripts: Any) -> None:
    scripts.run(
        """
        import dataclasses, enum, __main__
        from monarch.actor import Actor, ActorError, endpoint, this_host

        COUNT = 0

        @dataclasses.dataclass
        class Item:
            n: int

        class Kind(enum.Enum):
            A = 1

        class Trouble(Exception):
            pass

        class A(Actor):
            @endpoint
            def echo(self, value): return value
            @endpoint
            def check(self, item, kind): return type(item) is Item and kind is Kind.A
            @endpoint
            def make(self): return Item(7)
            @endpoint
            def fail(self): raise Trouble("own class")
            @endpoint
            def count(self):
                global COUNT
                COUNT += 1
                return COUNT

        procs = this_host().spawn_procs({"gpus": 2})
        a = procs.spawn("a", A)
        for value in a.echo.call(Item(1)).get(timeout=300).values():
            assert type(value) is Item and value == Item(1)
        assert a.check.call(Item(2), Kind.A).get(timeout=300).values() == [True, True]
        assert a.make.call().get(timeout=300).get(1) == Item(7)
        assert a.echo.call(Kind.A).get(timeout=300).get(0) is Kind.A
        assert procs.spawn("b", A).check.call(Item(2), Kind.A).get(timeout=300).values() == [True, True]
        try:
            a.fail.call().get(timeout=300)
        except ActorError as exc:
            assert type(exc.exception) is Trouble, type(exc.exception)
        a.count.call().get(timeout=300)
        assert a.count.call().get(timeout=300).values() == [2, 2] and COUNT == 0
        """
    )


def test_classes_of_an_importable_module_travel_by_reference(scripts: Any) -> None:
    (scripts.folder / "shared_module.py").write_text("class Thing:\n    made = []\n")
    scripts.run(
        """
        from monarch.actor import Actor, endpoint, this_host
        import shared_module

        class A(Actor):
            @endpoint
            def same(self, cls):
                import shared_module
                return cls is shared_module.Thing

        assert this_host().spawn_procs().spawn("a", A).same.call_one(shared_module.Thing).get(timeout=300)
        """
    )


# --- what cannot be sent


@pytest.fixture
def unsendable(mirror: Any) -> Iterator[dict[str, Any]]:
    _port, receiver = Channel[Any].open()
    things = {
        "future": mirror.echo.call_one(1),
        "receiver": receiver,
        "endpoint": mirror.echo,
        "context": context(),
        "lock": threading.Lock(),
        "generator": (x for x in ()),
        "socket": socket.socket(),
    }
    yield things
    things["socket"].close()


@pytest.mark.parametrize(
    ("what", "name"),
    [
        ("future", "Future"),
        ("receiver", "PortReceiver"),
        ("endpoint", "echo"),
        ("context", "Context"),
        ("lock", "lock"),
        ("generator", "generator"),
        ("socket", "socket"),
    ],
)
def test_what_belongs_to_a_process_is_refused_at_the_call(
    mirror: Any, unsendable: dict[str, Any], what: str, name: str
) -> None:
    thing = unsendable[what]
    for argument in (thing, {"deep": [thing]}):
        with pytest.raises(TypeError, match=name):
            mirror.echo.call_one(argument)
    assert echo(mirror, "still here") == "still here"


def test_an_unpicklable_result_is_an_actor_error_and_the_actor_lives(mirror: Any) -> None:
    with pytest.raises(ActorError, match="lock") as caught:
        mirror.result.call_one(threading.Lock).get(timeout=TIMEOUT)
    assert isinstance(caught.value.exception, TypeError)
    assert echo(mirror, 1) == 1


def test_a_value_that_cannot_be_unpickled_there_is_an_actor_error(mirror: Any) -> None:
    class Refuses:
        def __reduce__(self) -> Any:
            return _refuse, ("unpickled",)

    with pytest.raises(ActorError, match="refused to be unpickled"):
        mirror.echo.call_one(Refuses()).get(timeout=TIMEOUT)
    assert echo(mirror, 1) == 1


def _refuse(what: str) -> None:
    raise ValueError(f"refused to be {what}")


def test_a_result_that_cannot_be_unpickled_here_raises_here(mirror: Any) -> None:
    def make() -> Any:
        class Refuses:
            def __reduce__(self) -> Any:
                return _refuse, ("unpickled",)

        return Refuses()

    future = mirror.result.call_one(make)
    with pytest.raises(Exception, match="refused to be unpickled"):
        future.get(timeout=TIMEOUT)
    assert echo(mirror, 1) == 1


# --- size


@full
def test_a_quarter_of_a_gibibyte_is_an_argument_like_any_other(mirror: Any) -> None:
    payload = bytes(256 * 1024 * 1024)
    assert mirror.length.call_one(payload).get(timeout=2 * TIMEOUT) == len(payload)
    assert echo(mirror, 1) == 1


def test_many_megabytes_come_back(procs2: ProcMesh) -> None:
    payload = bytes(range(256)) * (16 * 4096)
    mesh = procs2.spawn("mirror", Mirror)
    assert all(value == payload for value in mesh.echo.call(payload).get(timeout=TIMEOUT).values())


@full
def test_a_message_over_the_limit_is_refused_at_the_call(scripts: Any) -> None:
    scripts.run(
        """
        from monarch.actor import Actor, ActorError, endpoint, this_host
        from monarch.config import configure

        configure(codec_max_frame_length=1_000_000)

        class A(Actor):
            @endpoint
            def length(self, value): return len(value)
            @endpoint
            def make(self, n): return bytes(n)

        a = this_host().spawn_procs().spawn("a", A)
        assert a.length.call_one(bytes(500_000)).get(timeout=300) == 500_000
        for adverb in (a.length.call_one, a.length.broadcast, a.length.call):
            try:
                adverb(bytes(2_000_000))
            except ValueError as exc:
                text = str(exc)
                assert "codec_max_frame_length" in text, text
                assert "1000000" in text.replace("_", "").replace(",", ""), text
            else:
                raise SystemExit("accepted")
        try:
            a.make.call_one(2_000_000).get(timeout=300)
        except ActorError as exc:
            assert "codec_max_frame_length" in str(exc)
        else:
            raise SystemExit("a result over the limit came")
        assert a.length.call_one(b"alive").get(timeout=300) == 5
        """
    )


# --- numpy


def test_ranks_do_not_share_the_array_they_were_sent(procs2: ProcMesh) -> None:
    np = pytest.importorskip("numpy")
    mesh = procs2.slice(gpus=0).spawn("first", Mirror)
    array = np.zeros(1_000_000)
    unchanged, changed = mesh.echo.call_one(array), mesh.write_array.call_one(array)
    assert (changed.get(timeout=TIMEOUT) == 7).all() and (unchanged.get(timeout=TIMEOUT) == 0).all()


# --- torch


@pytest.fixture(scope="module")
def torch() -> Any:
    return pytest.importorskip("torch")


@pytest.mark.parametrize("count", first_of([100_000, 10, 10_000_000]))
def test_changing_a_tensor_after_the_call_changes_nothing_there(mirror: Any, torch: Any, count: int) -> None:
    tensor = torch.zeros(count)
    future = mirror.echo.call_one(tensor)
    tensor.add_(1)
    assert float(future.get(timeout=TIMEOUT).sum()) == 0
    assert float(tensor[0]) == 1


def test_torch_is_loaded_nowhere_when_nobody_uses_it(scripts: Any) -> None:
    scripts.run(
        """
        import sys
        from monarch.actor import Actor, endpoint, this_host

        class A(Actor):
            @endpoint
            def loaded(self, value): return [name for name in ("torch", "numpy") if name in sys.modules]

        assert this_host().spawn_procs().spawn("a", A).loaded.call_one([1]).get(timeout=300) == []
        assert "torch" not in sys.modules and "numpy" not in sys.modules
        """
    )
