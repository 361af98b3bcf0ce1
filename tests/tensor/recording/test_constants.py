"""Tests that what a recording took as constant and has changed is found, and recorded again: nothing stays as it was in
silence."""

from __future__ import annotations

import functools
import itertools
import random
import re
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from monarch.tensor import function
from monarch.tensor.controller.activation import no_modes
from tests.tensor.recording.looked_at import local, number

SCALE = 1.0
TABLE = {"scale": 1.0, "unused": 0}


# --- what is found: (a function, what changes something that it reads) ----------------------------------------


class Config:
    shared = 1.0

    def __init__(self) -> None:
        self.scale = 1.0
        self.inner = types.SimpleNamespace(scale=1.0)
        self.parts = [1.0, 1.0]
        self.table = {"scale": 1.0, "other": 1.0}
        self.unused = 0

    @property
    def doubled(self) -> float:
        return self.scale * 2

    def applied(self, x: Any) -> Any:
        return x * self.scale


@dataclass
class Options:
    scale: float = 1.0
    parts: list[float] = field(default_factory=lambda: [1.0])


@dataclass(slots=True)
class Slotted:
    scale: float = 1.0


class Scaled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = 1.0
        self.steps = 0
        self.linear = torch.nn.Linear(1, 1)

    def forward(self, x: Any) -> Any:
        return self.linear(x) * self.scale


def helper(x: Any) -> Any:
    return x * SCALE


def helped(x: Any, config: Any) -> Any:
    return x * config.scale


def a_closure() -> Any:
    scale = 1.0

    def change() -> None:
        nonlocal scale
        scale += 1

    return (lambda x: x * scale), change


def an_attribute() -> Any:
    config = Config()

    def change() -> None:
        config.scale += 1

    return (lambda x: x * config.scale), change


def a_nested_attribute() -> Any:
    config = Config()

    def change() -> None:
        config.inner.scale += 1

    def call(x: Any) -> Any:
        inner = config.inner
        return x * inner.scale

    return call, change


def a_property() -> Any:
    config = Config()

    def change() -> None:
        config.scale += 1

    return (lambda x: x * config.doubled), change


def a_method() -> Any:
    config = Config()

    def change() -> None:
        config.scale += 1

    return config.applied, change


def what_a_helper_reads() -> Any:
    config = Config()

    def change() -> None:
        config.scale += 1

    return (lambda x: helped(x, config)), change


def a_class_attribute() -> Any:
    class Own(Config):
        shared = 1.0

    config = Own()

    def change() -> None:
        Own.shared += 1

    return (lambda x: x * config.shared), change


def an_attribute_over_that_of_the_class() -> Any:
    config = Config()

    def change() -> None:
        config.shared = config.shared + 1

    return (lambda x: x * config.shared), change


def getattr_by_name() -> Any:
    config = Config()

    def change() -> None:
        config.scale += 1

    return (lambda x: x * getattr(config, "scale")), change  # noqa: B009  # as programs do


def a_list() -> Any:
    config = Config()

    def change() -> None:
        config.parts[1] += 1

    return (lambda x: x * config.parts[1]), change


def a_longer_list() -> Any:
    config = Config()

    def change() -> None:
        config.parts.append(2.0)

    return (lambda x: x * sum(config.parts)), change


def an_entry() -> Any:
    config = Config()

    def change() -> None:
        config.table["scale"] += 1

    return (lambda x: x * config.table["scale"]), change


def an_entry_that_a_loop_meets() -> Any:
    config = Config()

    def change() -> None:
        config.table["other"] += 1

    def call(x: Any) -> Any:
        for value in config.table.values():
            x = x * value
        return x

    return call, change


def a_dataclass() -> Any:
    options = Options()

    def change() -> None:
        options.parts[0] += 1

    return (lambda x: x * options.scale * options.parts[0]), change


def a_dataclass_with_slots() -> Any:
    options = Slotted()

    def change() -> None:
        options.scale += 1

    return (lambda x: x * options.scale), change


def a_replaced_object() -> Any:
    holder = types.SimpleNamespace(config=Config())

    def change() -> None:
        before, holder.config = holder.config, Config()
        holder.config.scale = before.scale + 1

    return (lambda x: x * holder.config.scale), change


def a_global() -> Any:
    def change() -> None:
        global SCALE
        SCALE += 1

    return (lambda x: x * SCALE), change


def a_global_that_a_helper_reads() -> Any:
    def change() -> None:
        global SCALE
        SCALE += 1

    return (lambda x: helper(x) + 0), change


def an_entry_of_a_global() -> Any:
    def change() -> None:
        TABLE["scale"] += 1

    return (lambda x: x * TABLE["scale"]), change


def a_default() -> Any:
    parts = [1.0]

    def call(x: Any, parts: list[float] = parts) -> Any:
        return x * parts[0]

    def change() -> None:
        parts[0] += 1

    return call, change


def a_partial() -> Any:
    config = Config()

    def change() -> None:
        config.scale += 1

    return functools.partial(lambda config, x: x * config.scale, config), change


def a_wrapped_function() -> Any:
    config = Config()

    def change() -> None:
        config.scale += 1

    return torch.no_grad()(lambda x: x * config.scale), change


def a_function_in_the_function() -> Any:
    config = Config()

    def call(x: Any) -> Any:
        def inner(y: Any) -> Any:
            return y * config.scale

        return inner(x)

    def change() -> None:
        config.scale += 1

    return call, change


def a_replaced_function() -> Any:
    holder = types.SimpleNamespace(call=lambda x: x * 1)

    def change() -> None:
        holder.call = lambda x: x * 2

    return (lambda x: holder.call(x) + 0), change


def a_flag() -> Any:
    config = Config()

    def change() -> None:
        config.scale = not config.scale

    return (lambda x: x + 1 if config.scale else x), change


def another_type() -> Any:
    """1.0 to 1: equal, and of another type."""
    holder = types.SimpleNamespace(scale=1.0)

    def change() -> None:
        holder.scale = 1

    return (lambda x: (x.to(torch.int64) * holder.scale).to(torch.float64) / 3), change


def a_module() -> Any:
    module = Scaled()

    def change() -> None:
        module.scale += 1

    return module, change


def a_dropout() -> Any:
    module = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Dropout(0.0))

    def change() -> None:
        module[1].p = 1.0

    return module, change


def a_deep_training_flag() -> Any:
    module = torch.nn.Sequential(torch.nn.Sequential(torch.nn.Dropout(1.0)))

    def change() -> None:
        module[0][0].eval()

    return (lambda x: module(x) + 0), change


def a_hook() -> Any:
    module = Scaled()

    def change() -> None:
        module.linear.register_forward_hook(lambda module, args, result: result * 2)

    return module, change


def a_weight_that_is_replaced_and_kept() -> Any:
    module = Scaled()
    kept = []

    def change() -> None:
        kept.append(module.linear.weight)
        module.linear.weight = torch.nn.Parameter(torch.full((1, 1), 7.0))

    return module, change


def an_array() -> Any:
    numpy = pytest.importorskip("numpy")
    scales = numpy.ones(3)

    def change() -> None:
        scales[1] += 1

    return (lambda x: x * float(scales[1])), change


def a_local_tensor() -> Any:
    with no_modes():
        scale = torch.ones(())

    def change() -> None:
        with no_modes():
            scale.add_(1)

    def call(x: Any) -> Any:
        with no_modes():
            by = float(scale)
        return x * by

    return call, change


def an_environment_variable() -> Any:
    import os

    holder = {"n": 1}
    os.environ["MONARCH_TEST_SCALE"] = "1"

    def change() -> None:
        holder["n"] += 1
        os.environ["MONARCH_TEST_SCALE"] = str(holder["n"])

    settings = types.SimpleNamespace(environment=os.environ)
    return (lambda x: x * float(settings.environment.copy()["MONARCH_TEST_SCALE"]) * holder["n"]), change


FOUND = [
    a_closure, an_attribute, a_nested_attribute, a_property, a_method, what_a_helper_reads, a_class_attribute,
    an_attribute_over_that_of_the_class, getattr_by_name, a_list, a_longer_list, an_entry, an_entry_that_a_loop_meets,
    a_dataclass, a_dataclass_with_slots, a_replaced_object, a_global, a_global_that_a_helper_reads,
    an_entry_of_a_global, a_default, a_partial, a_wrapped_function, a_function_in_the_function, a_replaced_function,
    a_flag, another_type, a_module, a_dropout, a_deep_training_flag, a_hook, a_weight_that_is_replaced_and_kept,
    an_environment_variable, an_array, a_local_tensor,
]  # fmt: skip


@pytest.mark.parametrize("made", FOUND, ids=lambda made: made.__name__)
def test_a_change_is_found(loop: Any, made: Callable[[], Any]) -> None:
    call, change = made()
    recorded = function(call)
    x = torch.full((2, 1), 3.0)
    for _ in range(4):
        assert number(loop, recorded(x)) == number(loop, call(x))
    assert recorded.traces == 1
    change()
    for _ in range(4):
        assert number(loop, recorded(x)) == number(loop, call(x))
    assert "op by op" not in repr(recorded)


def test_what_the_function_does_not_read_may_change(loop: Any) -> None:
    config, module = Config(), Scaled()

    def call(x: Any) -> Any:
        return module(x) * config.scale * TABLE["scale"]

    recorded = function(call)
    x = torch.ones(1, 1)
    for count in range(10):
        config.unused = count
        config.parts.append(1.0)
        config.table["new"] = float(count)
        module.steps = count
        TABLE["unused"] = count
        recorded(x)
        assert recorded.traces == (count > 0)
        if count > 1:
            before = len(loop.client.runs())
            recorded(x)
            assert len(loop.client.runs()) == before + 1


def test_values_that_come_again_are_not_recorded_again(loop: Any) -> None:
    config = Config()
    recorded = function(lambda x: x * config.scale)
    x = torch.ones(1)
    for round_ in range(6):
        for scale in (1.0, 2.0, 3.0):
            config.scale = scale + 0.0  # another object each time
            before = len(loop.client.runs())
            assert number(loop, recorded(x)) == scale
            assert round_ < 2 or len(loop.client.runs()) == before + 1
    assert recorded.traces == 3


def test_what_changes_with_each_call_is_named(loop: Any) -> None:
    config = Config()
    recorded = function(lambda x: x * config.scale)
    told_of = r"config\.scale \(from \d\.0 to \d\.0\) changes again and again: keep it in a tensor"
    with pytest.warns(RuntimeWarning, match=told_of) as told:
        for count in range(20):
            config.scale = float(count)
            assert number(loop, recorded(torch.ones(1))) == count
    assert len(told) == 1
    assert recorded.traces <= 8


@pytest.mark.parametrize("every", [2, 3])
def test_what_changes_too_often_is_named_too(loop: Any, every: int) -> None:
    config = Config()
    recorded = function(lambda x: x * config.scale)
    with pytest.warns(RuntimeWarning, match="changes again and again"):
        for count in range(60):
            config.scale = float(count // every)
            assert number(loop, recorded(torch.ones(1))) == count // every


# --- what the function itself changes -------------------------------------------------------------------------


def counting(config: Any) -> Callable[[Any], Any]:
    def call(x: Any) -> Any:
        config.scale += 1
        return x * config.scale

    return call


def appending(config: Any) -> Callable[[Any], Any]:
    def call(x: Any) -> Any:
        config.parts.append(x * 2)
        return x * len(config.parts)

    return call


def noting(config: Any) -> Callable[[Any], Any]:
    noted: set[float] = set()

    def call(x: Any) -> Any:
        noted.add(len(noted) + 1.0)
        config.scale = len(noted) + 1.0
        return x * len(noted)

    return call


def counting_in_a_variable(config: Any) -> Callable[[Any], Any]:
    count = 0

    def call(x: Any) -> Any:
        nonlocal count
        count += 1
        return x * count

    return call


CHANGING = {counting: "config.scale", appending: "config.parts", noting: "noted", counting_in_a_variable: "count"}


@pytest.mark.parametrize(("made", "name"), CHANGING.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_state_in_python_that_it_changes_itself(loop: Any, made: Any, name: str) -> None:
    plain, config = Config(), Config()
    call, recorded = made(plain), function(made(config))
    with pytest.warns(RuntimeWarning, match=rf"operation by operation .*it changes {re.escape(name)}.* itself") as told:
        for _ in range(6):
            assert number(loop, recorded(torch.ones(1))) == number(loop, call(torch.ones(1)))
    assert len(told) == 1
    assert (config.scale, len(config.parts)) == (plain.scale, len(plain.parts))


def test_an_iterator(loop: Any) -> None:
    batches = iter(range(100))
    recorded = function(lambda x: x * next(batches))
    with pytest.warns(RuntimeWarning, match="it uses the iterator batches, and a replay would not go on with it: pass"):
        found = [number(loop, recorded(torch.ones(1))) for _ in range(6)]
    assert found == [0, 1, 2, 3, 4, 5]


def test_numbers_that_python_draws(loop: Any) -> None:
    recorded = function(lambda x: x * random.random())
    with pytest.warns(RuntimeWarning, match="draws numbers with Python's random"):
        found = [number(loop, recorded(torch.ones(1))) for _ in range(8)]
    assert all(one != other for one, other in itertools.pairwise(found))


def test_what_it_puts_back_is_no_change(loop: Any) -> None:
    model = torch.nn.Dropout(0.5)

    def call(x: Any) -> Any:
        model.eval()
        try:
            return model(x)
        finally:
            model.train()

    recorded = function(call)
    for _ in range(4):
        assert number(loop, recorded(torch.ones(1))) == 1.0
    assert recorded.traces == 1


# --- tensors and modes ----------------------------------------------------------------------------------------


def test_a_layer_that_is_frozen(loop: Any) -> None:
    weights = [torch.nn.Parameter(torch.ones(1)) for _ in range(2)]

    @function
    def step() -> None:
        for weight in weights:
            weight.grad = None
        (weights[0] * weights[1]).sum().backward()

    for _ in range(3):
        step()
    weights[0].requires_grad_(False)
    for _ in range(3):
        step()
        assert weights[0].grad is None
        assert weights[1].grad is not None


def test_a_variable_that_gets_another_shape(loop: Any) -> None:
    held = torch.arange(6.0).reshape(2, 3)
    recorded = function(lambda: held + 0)
    for _ in range(3):
        assert recorded().shape == (2, 3)
    held.t_()
    for _ in range(3):
        assert recorded().shape == (3, 2)
        assert local(loop, recorded()).tolist() == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]


def test_deterministic_mode_is_part_of_the_kind(loop: Any) -> None:
    recorded = function(lambda x: x + torch.are_deterministic_algorithms_enabled())
    x = torch.zeros(1)
    for _ in range(3):
        assert number(loop, recorded(x)) == 0.0
    torch.use_deterministic_algorithms(True)
    try:
        for _ in range(3):
            assert number(loop, recorded(x)) == 1.0
    finally:
        torch.use_deterministic_algorithms(False)
