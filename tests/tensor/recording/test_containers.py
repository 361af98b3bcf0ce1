"""Tests that containers whose classes have methods of their own are compared by what is in them: no method of the program is
called for it, and what changes is found."""

from __future__ import annotations

import collections
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from monarch.tensor import function
from tests.tensor.recording.looked_at import number


class Output(OrderedDict[str, Any]):
    """Like the outputs of libraries of models: entries are attributes too, and numbers index them."""

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(key) if isinstance(key, str) else list(self.values())[key]

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setitem__(name, value)

    def __getattr__(self, name: str) -> Any:
        return super().__getitem__(name)

    def get(self, *_: object) -> Any:
        raise AssertionError("called")

    keys = values_list = get  # type: ignore[assignment]


class Classes(dict[str, Any]):
    """A table of classes, which makes one of its entries."""

    def __getitem__(self, key: str) -> Any:
        return super().__getitem__(key)()

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("called")

    __len__ = __contains__ = get = items = values = __iter__  # type: ignore[assignment]


class Values(list[float]):
    def __iter__(self) -> Iterator[float]:
        return iter(())

    def __len__(self) -> int:
        return 0


class Odd(dict[str, float]):
    def __missing__(self, key: str) -> float:
        self[key] = 1.0
        return 1.0


OUTPUT = Output(scale=1.0, other=2)
ONE, TWO = (lambda: 1.0), (lambda: 2.0)
CLASSES = Classes(scale=ONE)
VALUES = Values([1.0])
ODD = Odd()
DEFAULT: collections.defaultdict[str, float] = collections.defaultdict(lambda: 1.0)
USER = collections.UserDict({"scale": 1.0})
CHAIN = collections.ChainMap({}, {"scale": 1.0})
ORDER = OrderedDict(one=1.0, two=2.0)


def put(where: Any, key: Any) -> Callable[[float], object]:
    base = next(kind for kind in (OrderedDict, dict, list, object) if isinstance(where, kind))
    setter = base.__setitem__ if base is not object else type(where).__setitem__
    return lambda value: setter(where, key, value)


CASES: dict[str, tuple[Callable[[], float], Callable[[float], object]]] = {
    "a key of an output": (lambda: OUTPUT["scale"], put(OUTPUT, "scale")),
    "an attribute of an output": (lambda: OUTPUT.scale, put(OUTPUT, "scale")),
    "a number of an output": (lambda: OUTPUT[0], put(OUTPUT, "scale")),
    "a table of classes": (
        lambda: CLASSES["scale"],
        lambda value: dict.__setitem__(CLASSES, "scale", ONE if value == 1.0 else TWO),
    ),
    "a list": (lambda: VALUES[0], put(VALUES, 0)),
    "a dict that makes what is missing": (lambda: ODD["scale"], put(ODD, "scale")),
    "a defaultdict": (lambda: DEFAULT["scale"], put(DEFAULT, "scale")),
    "a UserDict": (lambda: USER["scale"], put(USER, "scale")),
    "a ChainMap": (lambda: CHAIN["scale"], put(CHAIN, "scale")),
    "an order": (
        lambda: next(iter(ORDER.values())),
        lambda value: ORDER.move_to_end("one" if value == 1.0 else "two", last=False),
    ),
}


@pytest.mark.parametrize(("read", "change"), CASES.values(), ids=CASES)
def test_changes_in_containers_are_found(loop: Any, read: Any, change: Any) -> None:
    def call(x: Any) -> Any:
        return x * read()

    recorded = function(call)
    for value in (1.0, 1.0, 1.0, 2.0, 2.0, 2.0):
        change(value)
        assert number(loop, recorded(torch.ones(1))) == value
    assert recorded.traces == 2


def test_an_output_as_result_and_argument(loop: Any) -> None:
    """A model's output that goes from one function of the program to another, inside a recorded one."""

    def model(x: Any) -> Output:
        return Output(loss=(x * x).sum(), last=x + 1)

    class Holder:
        def __init__(self) -> None:
            self.output = Output()

        def step(self, x: Any) -> Any:
            self.output = model(x)
            return self.output.loss + self.output["last"].sum() + self.output[0]

    held = Holder()
    recorded = function(held.step)
    for _ in range(4):
        assert number(loop, recorded(torch.ones(2))) == 8.0
    assert recorded.traces == 1
