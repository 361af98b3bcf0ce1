"""Tests of what is said to a program that uses a class, an instance or a mesh for one of the others."""

from __future__ import annotations

import abc
import asyncio
import dataclasses
import inspect
import pickle
import traceback
from typing import Any, Generic, TypeVar

import cloudpickle
import pytest

from monarch._mesh.actors.adverbs import ADVERBS
from monarch.actor import Actor, ActorError, as_endpoint, endpoint
from monarch.testing import InProcessCluster

pytestmark = pytest.mark.usefixtures("no_leaks")
T = TypeVar("T")


class Counter(Actor):
    kind = "counter"

    def __init__(self, start: int = 0) -> None:
        self.value = start

    @endpoint
    def add(self, amount: int, twice: bool = False) -> int:
        self.value += amount
        return self.value

    @endpoint
    async def name(self) -> str:
        return "counter"

    @endpoint
    def add_to_self(self) -> int:
        return self.add.call_one(1).get()

    def helper(self, by: int) -> int:
        return self.value + by

    @property
    def shown(self) -> str:
        return str(self.value)


@pytest.fixture
def procs(cluster: InProcessCluster) -> Any:
    return cluster.this_host().spawn_procs({"gpus": 1})


@pytest.fixture
def counters(procs: Any) -> Any:
    return procs.spawn("counters", Counter, 10)


# --- adverbs in the wrong place


@pytest.mark.parametrize("adverb", sorted(ADVERBS))
def test_on_the_class(adverb: str) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(Counter.add, adverb)
    assert str(caught.value) == (
        f"Counter.add.{adverb}: Counter is the class, and only a mesh of its actors can be sent anything: "
        f'mesh = procs.spawn("counter", Counter, ...), then mesh.add.{adverb}(...)'
    )


@pytest.mark.parametrize("adverb", sorted(ADVERBS))
def test_on_an_instance(adverb: str) -> None:
    counter: Any = Counter()
    with pytest.raises(RuntimeError) as caught:
        getattr(counter.add, adverb)(1)
    assert str(caught.value) == (
        f"add.{adverb}(...) on an instance of Counter, where add is a plain method: call it as add(...). Only a mesh of "
        f'actors can be sent anything: mesh = procs.spawn("counter", Counter, ...), then mesh.add.{adverb}(...)'
    )
    assert counter.add(1) == 1


def test_on_self_in_an_endpoint(counters: Any) -> None:
    with pytest.raises(ActorError, match=r"add\.call_one\(\.\.\.\) on an instance of Counter"):
        counters.add_to_self.call_one().get(300)


def test_on_an_instance_it_is_an_ordinary_method() -> None:
    counter = Counter()
    assert inspect.ismethod(counter.add) and counter.add == counter.add and counter.add.__self__ is counter
    assert str(inspect.signature(counter.add)) == "(amount: 'int', twice: 'bool' = False) -> 'int'"
    assert inspect.iscoroutinefunction(counter.name) and asyncio.run(counter.name()) == "counter"
    assert Counter.add._method.__dict__ == {}  # the program's own function is as it was


def test_what_instances_have_does_not_travel_with_the_class() -> None:
    class Local(Actor):
        @endpoint
        def add(self, amount: int) -> int:
            return amount

    before = len(cloudpickle.dumps(vars(Local)["add"]))
    assert Local().add(1) == 1
    assert len(cloudpickle.dumps(vars(Local)["add"])) == before
    assert pickle.loads(cloudpickle.dumps(Local))().add(2) == 2


@pytest.mark.parametrize("adverb", sorted(ADVERBS))
def test_on_a_method_that_is_no_endpoint(counters: Any, adverb: str) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(counters.helper, adverb)
    assert str(caught.value) == (
        "Counter.helper is not annotated as an endpoint: decorate it with @endpoint, or call it as "
        f"as_endpoint(mesh.helper).{adverb}(...)"
    )
    assert as_endpoint(counters.helper).call_one(1).get(300) == 11


@pytest.mark.parametrize("name", ["kind", "shown"])
def test_on_an_attribute_that_is_no_method(counters: Any, name: str) -> None:
    with pytest.raises(AttributeError, match=f"Counter.{name} is not annotated as an endpoint, and is no method"):
        _ = getattr(counters, name).call
    with pytest.raises(RuntimeError, match="so read it through an endpoint that returns it"):
        getattr(counters, name)()


def test_no_adverb_at_all(counters: Any) -> None:
    with pytest.raises(AttributeError) as caught:
        counters.add.get()
    assert str(caught.value) == (
        "'Endpoint' object has no attribute 'get': say first how 'add' is called, as in .call(...) or .call_one(...)"
    )
    assert not hasattr(counters.add, "__array__")


def test_spawn_without_a_name(procs: Any) -> None:
    with pytest.raises(TypeError, match=r'it is called as in procs\.spawn\("counters", Counter, \.\.\.\)'):
        procs.spawn(Counter)


# --- names


@pytest.mark.parametrize(
    ("wrong", "meant"), [("ad", "add"), ("nam", "name"), ("flaten", "flatten"), ("stopp", "stop"), ("add_", "add")]
)
def test_a_typo_is_told_what_was_meant(counters: Any, wrong: str, meant: str) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(counters, wrong)
    assert str(caught.value) == f"actor class Counter has no endpoint {wrong!r}. Did you mean: {meant!r}?"
    # Once: Python itself adds a guess to tracebacks.
    assert "".join(traceback.format_exception(caught.value)).count("Did you mean") == 1


def test_a_name_like_no_other_is_told_what_there_is(counters: Any, procs: Any) -> None:
    with pytest.raises(AttributeError, match=r"no endpoint 'value'; it has add, add_to_self, name \(attributes set in"):
        _ = counters.value

    class Empty(Actor): ...

    with pytest.raises(AttributeError, match="it has none: decorate methods with @endpoint"):
        _ = procs.spawn("empty", Empty).work


# --- classes


def test_an_instance_is_no_class(procs: Any, counters: Any) -> None:
    with pytest.raises(
        ValueError, match=r'got an instance of Counter: give the class.* spawn\("counter", Counter, ...\)'
    ):
        procs.spawn("b", Counter(1))
    with pytest.raises(ValueError, match="is a mesh of actors already"):
        procs.spawn("b", counters)
    with pytest.raises(ValueError, match=r"Plain must subclass monarch.actor.Actor.*class Plain\(Actor\)"):
        procs.spawn("b", type("Plain", (), {}))
    for odd in (None, 3, "Counter", Counter.add, lambda: Counter(1)):
        with pytest.raises(ValueError, match=r"must subclass.*takes a class"):
            procs.spawn("b", odd)


def test_a_constructor_cannot_be_async(procs: Any) -> None:
    class Async(Actor):
        async def __init__(self) -> None: ...

    with pytest.raises(
        ValueError, match=r"Async.__init__ is `async def`, and nobody awaits a constructor: make it `def`"
    ):
        procs.spawn("a", Async)


def test_an_abstract_class_says_what_it_lacks(procs: Any) -> None:
    class Base(Actor):
        @abc.abstractmethod
        def work(self) -> None: ...

    with pytest.raises(ValueError, match="Base is abstract and cannot be spawned: a subclass has to define work"):
        procs.spawn("a", Base)


def test_arguments_for_a_class_without_a_constructor(procs: Any) -> None:
    class NoInit(Actor):
        @endpoint
        def one(self) -> int:
            return 1

    with pytest.raises(TypeError, match="NoInit has no __init__ that takes arguments, and spawn was given some"):
        procs.spawn("a", NoInit, 1)
    assert procs.spawn("a", NoInit).one.call_one().get(300) == 1


class Box(Actor, Generic[T]):
    def __init__(self, content: T) -> None:
        self.content = content

    @endpoint
    def take(self) -> T:
        return self.content


@dataclasses.dataclass
class Data(Actor):
    """Equal by its fields, and so without a hash."""

    number: int = 1

    @endpoint
    def take(self) -> int:
        return self.number


class Unhashable(type(Actor)):  # type: ignore[misc]
    def __eq__(cls, other: object) -> bool:
        return cls is other

    __hash__ = None  # type: ignore[assignment]


class Slotted(Actor):
    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    @endpoint
    def take(self) -> int:
        return self.number


class Odd(Actor, metaclass=Unhashable):
    def __init__(self, number: int) -> None:
        self.number = number

    @endpoint
    def take(self) -> int:
        return self.number


class Made(Actor):
    number: int

    def __new__(cls, number: int) -> Made:
        made = super().__new__(cls)
        made.number = number
        return made

    @endpoint
    def take(self) -> int:
        return self.number


@pytest.mark.parametrize("cls", [Box, Box[int], Data, Slotted, Odd, Made], ids=str)
def test_unusual_classes_are_actors_like_others(procs: Any, cls: Any) -> None:
    mesh = procs.spawn("odd", cls, 7)
    assert mesh.take.call_one().get(300) == 7
    if cls is not Odd:
        assert pickle.loads(pickle.dumps(mesh)).take.call_one().get(300) == 7
