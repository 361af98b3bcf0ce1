"""Endpoints on the class: decorators, descriptors and the check of arguments. Calls are in tests/procs."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._errors import BackpressureTimeout
from monarch._mesh.actors.arity import Arity
from monarch._mesh.actors.endpoint import Endpoint, EndpointProperty, ValueStream, concurrent_endpoint, endpoint, send
from monarch._mesh.casts.plan import ViewReceivers
from monarch._mesh.meshes.actor_mesh import NotAnEndpoint
from monarch._runtime.context import Current, current
from monarch._runtime.incarnations import Incarnations
from monarch._runtime.ordering import Numbering
from monarch._runtime.queue import Queue
from monarch._runtime.replies import Ports, Target
from monarch._wire.message import Call, Failure


class Worker:
    def __init__(self, x: int) -> None:
        self.x = x

    @endpoint
    def plus(self, y: int, z: int = 0) -> int:
        """Adds numbers."""
        return self.x + y + z

    @endpoint(explicit_response_port=True)
    def answer(self, port: Any, y: int) -> None: ...

    @concurrent_endpoint
    async def overlap(self, y: int) -> None: ...


def prop(name: str) -> EndpointProperty[Any, Any]:
    found = vars(Worker)[name]
    assert isinstance(found, EndpointProperty)
    return found


# --- on the class


def test_on_self_an_endpoint_is_the_plain_method() -> None:
    assert Worker(1).plus(2, z=3) == 6


def test_on_the_class_it_is_its_description() -> None:
    assert Worker.plus is prop("plus")
    assert (prop("plus").__name__, prop("plus").__doc__) == ("plus", "Adds numbers.")
    assert repr(prop("plus")) == "<endpoint Worker.plus>"


def test_options() -> None:
    assert prop("answer")._explicit_response_port and not prop("plus")._explicit_response_port
    assert prop("overlap")._concurrent


@pytest.mark.parametrize("thing", [3, "method", None])
def test_only_methods_are_endpoints(thing: Any) -> None:
    with pytest.raises(TypeError, match="@endpoint decorates a method"):
        endpoint(instrument=False)(thing)


def test_concurrent_endpoints_are_async_and_stand_alone() -> None:
    with pytest.raises(ValueError, match="can only wrap async endpoints"):
        concurrent_endpoint(lambda self: None)
    with pytest.raises(ValueError, match="use it alone"):
        concurrent_endpoint(prop("plus"))


# --- the check of arguments


def plain(self: Any, a: Any, b: Any) -> None: ...
def default(self: Any, a: Any, b: Any = 1) -> None: ...
def nothing(self: Any) -> None: ...
def many(self: Any, a: Any, *rest: Any) -> None: ...
def keyword(self: Any, a: Any, *, k: Any) -> None: ...
def positional(self: Any, a: Any, /, b: Any = 2) -> None: ...
def anything(self: Any, *args: Any, **kwargs: Any) -> None: ...


@pytest.mark.parametrize("method", [plain, default, nothing, many, keyword, positional, anything])
@given(
    args=st.lists(st.none(), max_size=4).map(tuple),
    kwargs=st.dictionaries(st.sampled_from(["a", "b", "k", "z"]), st.none()),
)
def test_arguments_are_refused_exactly_when_python_would(
    method: Callable[..., None], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    try:
        method(None, *args, **kwargs)
    except TypeError:
        with pytest.raises(TypeError):
            Arity(method, 1).check(args, kwargs)
    else:
        Arity(method, 1).check(args, kwargs)


# --- on the mesh


def iter_of_nothing() -> Iterator[int]:
    yield from ()


class FakeProc:
    """Records what is sent; has no room at `full`."""

    address = "unix:/h/client"
    host = "unix:/h"
    checked_from = sys.maxsize

    def __init__(self) -> None:
        self.ports = Ports()
        self.closed = None
        self.incarnations = Incarnations()
        self.hooks = SimpleNamespace(check=lambda key, receivers: None)
        self.sent: list[tuple[str, Call]] = []
        self.full = ""
        self.backpressure = self
        self.filled: list[tuple[str, int]] = []

    def check_size(self, body: Any, buffers: Any) -> int:
        return 0

    def post_alike(self, call: Call, receivers: Any, body: bytes, coalesce_within: float) -> Any:
        return receivers

    def fill_place(self, address: str, call: Call) -> None:
        self.filled.append((address, call.seq))

    def must_wait(self, address: str, key: str) -> bool:
        return address == self.full

    def wait_room(self, address: str, key: str) -> None:
        raise BackpressureTimeout(address)

    def post(
        self, address: str, call: Call, body: bytes, buffers: Any, coalesce_within: float, placement: Any = None
    ) -> None:
        self.sent.append((address, call))


@pytest.fixture
def proc() -> Any:
    proc = FakeProc()
    sender = SimpleNamespace(proc=proc, key="client", unique="client.0", numbering=Numbering(), watcher=None)
    token = current.set(Current(sender, 0, b""))  # type: ignore[arg-type]
    yield proc
    current.reset(token)


class Mesh:
    def __init__(self, count: int) -> None:
        addresses = [f"unix:/h/m.{rank}" for rank in range(count)]
        self._plan = ViewReceivers(("x",), (count,), range(count), addresses)
        self._spec = SimpleNamespace(key="key", name="worker")
        self._class = Worker
        self._gathered = list

    def __len__(self) -> int:
        return len(self._plan)

    def _target(self, name: str) -> Target:
        return Target(f"worker.{name}", self._plan.addresses, lambda address, ended: Failure("gone"))


def on_mesh(count: int = 3, name: str = "plus") -> Endpoint[Any, Any]:
    return Endpoint(Mesh(count), name, prop(name))  # type: ignore[arg-type]


def test_every_rank_gets_its_message(proc: Any) -> None:
    future = on_mesh().call(1)
    assert [(address, call.to, call.method, call.rank) for address, call in proc.sent] == [
        (f"unix:/h/m.{rank}", "key", "plus", rank) for rank in range(3)
    ]
    assert len({call.port for _, call in proc.sent}) == 1 and len(proc.ports) == 1
    del future
    assert len(proc.ports) == 0  # nobody will observe it


def test_nobody_waits_for_a_broadcast(proc: Any) -> None:
    on_mesh().broadcast(1)
    assert [call.port for _, call in proc.sent] == [0, 0, 0] and len(proc.ports) == 0


def test_choose_asks_one_of_them(proc: Any) -> None:
    on_mesh().choose(1)
    assert len(proc.sent) == 1


@pytest.mark.parametrize("adverb", ["call", "choose", "stream", "broadcast"])
def test_nothing_is_sent_with_arguments_that_do_not_fit_or_cannot_travel(proc: Any, adverb: str) -> None:
    for args, text in (((), "'y'"), ((1, 2, 3), "too many"), ((iter_of_nothing(),), "generator")):
        with pytest.raises(TypeError, match=text):
            getattr(on_mesh(), adverb)(*args)
    assert proc.sent == [] and len(proc.ports) == 0


@pytest.mark.parametrize("adverb", ["call", "stream"])
def test_a_call_that_found_no_room_leaves_nothing_behind(proc: Any, adverb: str) -> None:
    proc.full = "unix:/h/m.1"
    with pytest.raises(BackpressureTimeout):
        getattr(on_mesh(), adverb)(1)
    assert len(proc.sent) == 1 and len(proc.ports) == 0
    assert {("unix:/h/m.1", 1), ("unix:/h/m.2", 1)} < set(proc.filled)  # nobody waits for what was not sent


def test_call_one_needs_a_mesh_of_one(proc: Any) -> None:
    with pytest.raises(ValueError, match="call_one requires exactly 1 actor, but mesh has 3"):
        on_mesh(3).call_one(1)
    on_mesh(1).call_one(1)
    assert len(proc.sent) == 1


def test_send_knows_two_selections(proc: Any) -> None:
    with pytest.raises(ValueError, match="Invalid selection: 'some'"):
        send(on_mesh(), (1,), {}, selection="some")
    send(on_mesh(), (1,), {}, selection="choose")
    send(on_mesh(), (1,), {})
    assert len(proc.sent) == 4


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf")])
def test_with_timeout_checks_its_seconds(seconds: float) -> None:
    with pytest.raises(ValueError, match="invalid timeout"):
        on_mesh().with_timeout(seconds)


def test_what_an_endpoint_is_not() -> None:
    with pytest.raises(TypeError, match=r"say how, with \.call"):
        on_mesh()(1)
    with pytest.raises(TypeError, match="send the mesh and take its endpoint there"):
        pickle.dumps(on_mesh())
    with pytest.raises(NotImplementedError, match="its propagate is None"):
        on_mesh().rref(1)
    assert repr(on_mesh()) == "<Endpoint worker.plus(y: int, z: int = 0) -> int of 3 actors>"
    plain_method = NotAnEndpoint(Mesh(1), "helper")  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match=r"Worker\.helper is not annotated as an endpoint.*as_endpoint"):
        plain_method(1)
    assert repr(plain_method) == "<Worker.helper, not an endpoint>"


def test_a_stream_has_as_many_futures_as_ranks() -> None:
    stream: ValueStream[Any] = ValueStream(Queue(None, 3), 3)
    assert len(stream) == 3 and len(list(stream)) == 3
    assert len(stream) == 0 and list(stream) == []
