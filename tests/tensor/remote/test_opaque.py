"""Objects that stay in the workers: references, objects, modules, autograd functions. Without processes."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch

from monarch.cached_remote_function import remote_autograd_function
from monarch.opaque_module import OpaqueModule
from monarch.opaque_object import OpaqueObject, opaque_method
from monarch.remote_class import ControllerRemoteClass
from monarch.tensor import RemoteException, inspect, no_mesh
from monarch.tensor.remote.opaque_ref import OpaqueRef
from monarch.tensor.remote.remote_function import remote

HELPERS = "monarch.worker._testing_function"

create = remote(f"{HELPERS}.create_opaque_ref_worker", propagate=lambda: OpaqueRef(None))
count = remote(f"{HELPERS}.opaque_ref_key_table_length_worker", propagate=lambda: torch.empty((), dtype=torch.int64))


@remote(propagate=lambda x: OpaqueRef(None))
def keep(x: Any) -> Any:
    return OpaqueRef({"x": x + 1})


@remote(propagate=lambda ref, n: torch.empty(2))
def grow(ref: Any, n: int) -> Any:
    ref.value = {"x": ref.value["x"] + n}
    return ref.value["x"]


# --- references


def test_an_object_stays_in_the_workers(loop: Any) -> None:
    ref = keep(torch.ones(2))
    assert inspect(grow(ref, 2)).tolist() == [4, 4]
    assert inspect(grow(ref, 3)).tolist() == [7, 7]


def test_it_goes_when_the_program_lets_go(loop: Any) -> None:
    refs = [create() for _ in range(3)]
    assert inspect(count()).item() == 3
    del refs[1]
    gc.collect()
    assert inspect(count()).item() == 2
    refs.clear()
    gc.collect()
    assert inspect(count()).item() == 0


def test_it_lives_as_long_as_a_reference_that_was_passed_on(loop: Any) -> None:
    same = remote(lambda ref: ref, propagate=lambda ref: ref)
    ref = keep(torch.ones(2))
    again = same(ref)
    del ref
    gc.collect()
    assert inspect(count()).item() == 1
    assert inspect(grow(again, 1)).tolist() == [3, 3]
    del again
    gc.collect()
    assert inspect(count()).item() == 0


def test_cached_functions_return_references_too(loop: Any) -> None:
    ref = remote(lambda: OpaqueRef(torch.ones(2)))()
    read = remote(lambda ref: ref.value * 2)
    assert inspect(read(ref)).tolist() == [2, 2]
    assert inspect(count()).item() == 1


def test_the_program_itself_has_no_value(loop: Any) -> None:
    ref = keep(torch.ones(2))
    with pytest.raises(RuntimeError, match="attempted to create"):
        OpaqueRef(1)
    with pytest.raises(RuntimeError, match="attempted to access"):
        _ = ref.value
    with pytest.raises(RuntimeError, match="attempted to set"):
        ref.value = 3


# --- objects


class Foo(OpaqueObject):
    @opaque_method
    def add(self, x: Any) -> Any:
        return torch.empty(self.shape, dtype=x.dtype)


def test_methods_of_an_object(loop: Any) -> None:
    foo = Foo(f"{HELPERS}.WorkerFoo", 4.0)
    foo.shape = (3, 4)
    assert inspect(foo.add(torch.ones(3, 4))).tolist() == [[5.0] * 4] * 3
    foo.call_method("set_value", "inspect", 7.0)
    assert foo.call_method_on_shard_and_fetch("get_value").get() == 7.0
    assert foo.call_method_on_shard_and_fetch("get_value", shard={"gpus": 1}).get() == 7.0
    found = foo.call_method("add", lambda x: x.clone(), torch.zeros(3, 4))
    assert inspect(found).tolist() == [[7.0] * 4] * 3
    foo.shape = (3, 1)
    assert foo.add(torch.ones(3, 4)).shape == (3, 1)  # asked each time


def test_an_object_that_cannot_be_made(loop: Any) -> None:
    foo = OpaqueObject("torch.no_such_thing")
    with pytest.raises(RemoteException, match="failed to resolve function"):
        foo.call_method_on_shard_and_fetch("anything").get()


def test_methods_that_return_nothing(loop: Any) -> None:
    class Controller(ControllerRemoteClass):
        @ControllerRemoteClass.remote_method
        def set_value(self, value: float) -> None: ...

    controller = Controller(f"{HELPERS}.WorkerFoo", 1.0)
    assert controller.set_value(3.0) is None
    assert controller._object.call_method_on_shard_and_fetch("get_value").get() == 3.0


# --- modules


def test_a_module_and_its_derivative(loop: Any) -> None:
    linear = OpaqueModule("torch.nn.Linear", 3, 5)
    weight, bias = linear.parameters()
    assert weight.requires_grad and weight.shape == (5, 3)
    with torch.no_grad():
        weight.fill_(0.5)
        bias.zero_()
    x = torch.ones(2, 3, requires_grad=True)
    y = linear(x, propagator=lambda x: torch.empty(x.shape[0], 5))
    assert inspect(y).tolist() == [[1.5] * 5] * 2
    y.sum().backward()
    assert inspect(x.grad).tolist() == [[2.5] * 3] * 2
    assert inspect(weight.grad).tolist() == [[2.0] * 3] * 5
    assert inspect(bias.grad).tolist() == [2.0] * 5
    with torch.no_grad():
        bias.add_(1)
        assert inspect(linear(x, propagator=lambda x: torch.empty(2, 5))).tolist() == [[2.5] * 5] * 2
    assert inspect(linear.call_method("extra_repr", "cached")) == "in_features=3, out_features=5, bias=True"


def test_two_derivatives_of_one_pass(loop: Any) -> None:
    linear = OpaqueModule(torch.nn.Linear, 2, 1)
    x = torch.ones(2)
    y = linear(x, propagator=lambda x: torch.empty(1))
    y.sum().backward(retain_graph=True)
    y.sum().backward()
    assert inspect(linear.parameters()[0].grad).tolist() == [[2.0, 2.0]]
    del y
    gc.collect()
    assert inspect(count()).item() == 1  # the module; the graph has gone


# --- autograd functions


def test_a_function_with_its_derivative(loop: Any) -> None:
    from monarch.worker._testing_function import TestRemoteAutogradFunction

    function = remote_autograd_function(TestRemoteAutogradFunction)
    x, y = torch.full((2,), 3.0, requires_grad=True), torch.full((2,), 2.0)
    plus, times, minus, number = function.apply(x, y)
    assert number == 4
    assert inspect([plus, times, minus])[1].tolist() == [6, 6]
    (plus.sum() + times.sum()).backward()
    assert inspect(x.grad).tolist() == [3, 3]
    assert y.grad is None
    with no_mesh.activate():
        expected = [torch.full((2,), 3.0, requires_grad=True), torch.full((2,), 2.0)]
        a, b, _, _ = TestRemoteAutogradFunction.apply(*expected)
        (a.sum() + b.sum()).backward()
        assert torch.equal(expected[0].grad, inspect(x.grad))


def test_without_gradients_there_is_no_graph(loop: Any) -> None:
    from monarch.worker._testing_function import TestRemoteAutogradFunction

    x, y = torch.ones(2), torch.ones(2)
    plus, *_ = remote_autograd_function(TestRemoteAutogradFunction).apply(x, y)
    assert not plus.requires_grad and inspect(plus).tolist() == [2, 2]
    gc.collect()
    assert inspect(count()).item() == 0
