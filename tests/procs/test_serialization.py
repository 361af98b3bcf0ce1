"""What can be an argument or a result, what it is on the other side, and what cannot."""

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
from tests.support.tiers import full

pytestmark = pytest.mark.procs
TIMEOUT = 30


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
    async def types(self, *values: Any) -> list[str]:
        return [f"{type(v).__module__}.{type(v).__qualname__}" for v in values]

    @endpoint
    async def length(self, value: Any) -> int:
        return len(value)

    @endpoint
    async def is_same(self, a: Any, b: Any) -> bool:
        return a is b

    @endpoint
    async def result(self, function: Any) -> Any:
        return function()

    @endpoint
    async def kind_of_result(self, function: Any) -> str:
        return type(function()).__name__

    @endpoint
    async def write_array(self, array: Any) -> Any:
        array[...] = 7
        return array

    @endpoint
    async def tensor_facts(self, tensor: Any) -> dict[str, Any]:
        return {
            "shape": tuple(tensor.shape),
            "dtype": str(tensor.dtype),
            "grad": tensor.requires_grad,
            "leaf": tensor.is_leaf,
            "type": type(tensor).__name__,
            "sum": float(tensor.detach().float().sum()),
        }

    @endpoint
    async def share_storage(self, a: Any, b: Any) -> bool:
        return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()

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


@pytest.mark.parametrize(
    "value",
    [
        None,
        3,
        2**100,
        1.5,
        "text \N{SNOWMAN}",
        b"bytes",
        [1, [2]],
        {"a": {"b": (1, 2)}},
        {1, 2},
        frozenset({1}),
        complex(1, 2),
        range(3),
        Color.RED,
        Record("r", [1, None]),
        Extent(["a"], [2]),
        "",
        [],
        {},
    ],
    ids=repr,
)
def test_values_come_back_as_they_were(mirror: Any, value: Any) -> None:
    result = echo(mirror, value)
    assert result == value and type(result) is type(value)


def test_one_object_in_two_places_stays_one_object(mirror: Any) -> None:
    shared: list[int] = []
    assert mirror.is_same.call_one(shared, shared).get(timeout=TIMEOUT) is True
    a, b = echo(mirror, (shared, shared))
    assert a is b


def test_functions_lambdas_and_closures_travel(mirror: Any) -> None:
    outside = 5

    def inner() -> int:
        return outside + 1

    assert mirror.result.call_one(lambda: outside).get(timeout=TIMEOUT) == 5
    assert mirror.result.call_one(inner).get(timeout=TIMEOUT) == 6
    assert echo(mirror, inner)() == 6


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
        for value in a.echo.call(Item(1)).get(timeout=30).values():
            assert type(value) is Item and value == Item(1)
        assert a.check.call(Item(2), Kind.A).get(timeout=30).values() == [True, True]
        assert a.make.call().get(timeout=30).get(1) == Item(7)
        assert a.echo.call(Kind.A).get(timeout=30).get(0) is Kind.A
        assert procs.spawn("b", A).check.call(Item(2), Kind.A).get(timeout=30).values() == [True, True]
        try:
            a.fail.call().get(timeout=30)
        except ActorError as exc:
            assert type(exc.exception) is Trouble, type(exc.exception)
        a.count.call().get(timeout=30)
        assert a.count.call().get(timeout=30).values() == [2, 2] and COUNT == 0
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

        assert this_host().spawn_procs().spawn("a", A).same.call_one(shared_module.Thing).get(timeout=30)
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


@pytest.mark.parametrize("what", ["future", "receiver", "endpoint", "context", "lock", "generator", "socket"])
def test_what_belongs_to_a_process_is_refused_at_the_call(mirror: Any, unsendable: dict[str, Any], what: str) -> None:
    thing = unsendable[what]
    for argument in (thing, {"deep": [thing]}):
        with pytest.raises(TypeError):
            mirror.echo.call_one(argument)
    assert echo(mirror, "still here") == "still here"


@pytest.mark.parametrize(("what", "name"), [("future", "Future"), ("receiver", "PortReceiver"), ("endpoint", "echo")])
def test_the_error_names_what_cannot_be_sent(mirror: Any, unsendable: dict[str, Any], what: str, name: str) -> None:
    with pytest.raises(TypeError, match=name):
        mirror.echo.call_one(unsendable[what])


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


@pytest.mark.parametrize("kind", [bytes, bytearray])
def test_bytes_keep_their_type(mirror: Any, kind: type) -> None:
    value = kind(b"x" * 3_000_000)
    result = echo(mirror, value)
    assert type(result) is kind and result == value


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
        assert a.length.call_one(bytes(500_000)).get(timeout=30) == 500_000
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
            a.make.call_one(2_000_000).get(timeout=30)
        except ActorError as exc:
            assert "codec_max_frame_length" in str(exc)
        else:
            raise SystemExit("a result over the limit came")
        assert a.length.call_one(b"alive").get(timeout=30) == 5
        """
    )


# --- numpy


def test_arrays_come_back_as_they_were(mirror: Any) -> None:
    np = pytest.importorskip("numpy")
    arrays = [
        np.arange(12.0).reshape(3, 4),
        np.arange(12).reshape(3, 4)[:, 1:3],
        np.asfortranarray(np.arange(6).reshape(2, 3)),
        np.array(5),
        np.empty((0, 3)),
        np.array(["a", "bc"]),
        np.array([{"any": "object"}, None], dtype=object),
        np.zeros(2, dtype=[("a", "i4"), ("b", "f8")]),
        np.arange(500_000),
    ]
    for array, result in zip(arrays, echo(mirror, arrays), strict=True):
        assert result.dtype == array.dtype and result.shape == array.shape
        assert (result == array).all()


def test_a_received_array_can_be_written_to(mirror: Any) -> None:
    np = pytest.importorskip("numpy")
    for count in (4, 1_000_000):
        mine = np.zeros(count)
        result = mirror.write_array.call_one(mine).get(timeout=TIMEOUT)
        assert (result == 7).all() and (mine == 0).all()
        result[0] = 1
        assert result[0] == 1


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


def test_tensors_come_back_as_they_were(mirror: Any, torch: Any) -> None:
    tensors = [
        torch.arange(6.0).reshape(2, 3),
        torch.arange(6.0).reshape(2, 3).t(),
        torch.arange(10)[2:8:2],
        torch.zeros(0, 3),
        torch.tensor(4),
        torch.ones(3, dtype=torch.bfloat16) * 1.5,
        torch.tensor([True, False]),
        torch.ones(2, dtype=torch.complex64),
        torch.ones(3, dtype=torch.float16),
        torch.randn(600, 600),
        torch.randn(600, 600).to(torch.bfloat16),
        torch.eye(3).expand(4, 3, 3),
    ]
    for tensor, result in zip(tensors, echo(mirror, tensors), strict=True):
        assert type(result) is torch.Tensor
        assert result.dtype == tensor.dtype and torch.equal(result, tensor)


def test_requires_grad_and_parameters_survive(mirror: Any, torch: Any) -> None:
    tensor = torch.ones(3, requires_grad=True)
    assert mirror.tensor_facts.call_one(tensor).get(timeout=TIMEOUT) == {
        "shape": (3,),
        "dtype": "torch.float32",
        "grad": True,
        "leaf": True,
        "type": "Tensor",
        "sum": 3.0,
    }
    parameter = torch.nn.Parameter(torch.ones(2, 2))
    facts = mirror.tensor_facts.call_one(parameter).get(timeout=TIMEOUT)
    assert facts["type"] == "Parameter" and facts["grad"] is True
    frozen = echo(mirror, torch.nn.Parameter(torch.ones(1), requires_grad=False))
    assert type(frozen) is torch.nn.Parameter and frozen.requires_grad is False


def test_views_of_one_storage_stay_views_of_one_storage(mirror: Any, torch: Any) -> None:
    base = torch.zeros(1000)
    assert mirror.share_storage.call_one(base[:500], base[500:]).get(timeout=TIMEOUT) is True
    left, right = echo(mirror, (base, base[10:20]))
    left[10] = 5
    assert right[0] == 5


def test_a_received_tensor_can_be_written_to(mirror: Any, torch: Any) -> None:
    for count in (4, 1_000_000):
        mine = torch.zeros(count)
        result = mirror.write_array.call_one(mine).get(timeout=TIMEOUT)
        assert bool((result == 7).all()) and bool((mine == 0).all())
        result += 1
        assert bool((result == 8).all())


def test_modules_and_optimizers_travel(mirror: Any, torch: Any) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    again = echo(mirror, model)
    x = torch.ones(1, 4)
    assert torch.equal(again(x), model(x))
    state = echo(mirror, model.state_dict())
    assert list(state) == list(model.state_dict())
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())


@pytest.mark.parametrize("count", [10, 100_000, 10_000_000])
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

        assert this_host().spawn_procs().spawn("a", A).loaded.call_one([1]).get(timeout=30) == []
        assert "torch" not in sys.modules and "numpy" not in sys.modules
        """
    )
