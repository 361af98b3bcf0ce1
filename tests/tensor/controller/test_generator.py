"""torch.Generator on meshes: each process draws what plain torch draws from such a generator."""

from __future__ import annotations

import copy
import pickle
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn

import monarch.tensor as mt
from monarch.tensor.controller.generator import Generator
from tests.support.scripts import Scripts
from tests.support.tiers import full
from tests.tensor.loopback import loopback

DRAWS: dict[str, Callable[[Any], Any]] = {
    "rand": lambda g: torch.rand(2, generator=g),
    "randn": lambda g: torch.randn(2, 2, dtype=torch.float64, generator=g),
    "randint": lambda g: torch.randint(2, 9, (3,), generator=g),
    "randperm": lambda g: torch.randperm(5, generator=g),
    "normal": lambda g: torch.normal(0.0, 1.0, (2,), generator=g),
    "normal of means": lambda g: torch.normal(torch.zeros(3), 2.0, generator=g),
    "normal of deviations": lambda g: torch.normal(1.0, torch.ones(3), generator=g),
    "bernoulli": lambda g: torch.bernoulli(torch.full((8,), 0.5), generator=g),
    "bernoulli_": lambda g: torch.empty(8).bernoulli_(0.25, generator=g),
    "bernoulli_ of tensors": lambda g: torch.empty(8).bernoulli_(torch.full((8,), 0.5), generator=g),
    "multinomial": lambda g: torch.multinomial(torch.ones(5), 3, generator=g),
    "multinomial with replacement": lambda g: torch.multinomial(torch.ones(2, 5), 7, True, generator=g),
    "poisson": lambda g: torch.poisson(torch.full((3,), 4.0), generator=g),
    "binomial": lambda g: torch.binomial(torch.full((3,), 9.0), torch.full((3,), 0.5), generator=g),
    "normal_": lambda g: torch.ones(3).normal_(generator=g),
    "uniform_": lambda g: torch.ones(2, 3).t().uniform_(-1, 1, generator=g),
    "exponential_": lambda g: torch.ones(3).exponential_(generator=g),
    "random_": lambda g: torch.zeros(3, dtype=torch.int64).random_(generator=g),
    "random_ up to": lambda g: torch.zeros(3).random_(10, generator=g),
    "geometric_": lambda g: torch.ones(3).geometric_(0.5, generator=g),
    "cauchy_": lambda g: torch.ones(3).cauchy_(generator=g),
    "log_normal_": lambda g: torch.ones(3).log_normal_(generator=g),
    "rrelu": lambda g: torch.ops.aten.rrelu_with_noise(-torch.ones(3), torch.ones(3), 0.1, 0.9, True, g),
    "kaiming": lambda g: nn.init.kaiming_uniform_(torch.empty(3, 3), generator=g),
    "xavier": lambda g: nn.init.xavier_normal_(torch.empty(3, 3), generator=g),
}


def here(program: Callable[[], Any]) -> Any:
    with mt.no_mesh.activate():
        return program()


def same_as_plain(program: Callable[[], list[Any]]) -> None:
    """On both ranks of the active mesh."""
    expected, found = here(program), program()
    assert all(type(tensor) is mt.Tensor for tensor in found)
    for rank in range(2):
        there = mt.inspect(found, gpus=rank)
        with mt.no_mesh.activate():
            for number, (one, other) in enumerate(zip(there, expected, strict=True)):
                assert torch.equal(one, other), number


def test_every_operation_draws_what_plain_torch_draws(loop: Any) -> None:
    def program() -> list[Any]:
        generator = torch.Generator().manual_seed(7)
        drawn = [draw(generator) for draw in DRAWS.values() for _ in range(2)]
        return [tensor for value in drawn for tensor in (value if isinstance(value, tuple) else (value,))]

    same_as_plain(program)


def test_seeds_and_states(loop: Any) -> None:
    def program() -> list[Any]:
        g = torch.Generator()
        assert g.manual_seed(3) is g and g.initial_seed() == 3
        drawn = [torch.rand(2, generator=g)]
        state = g.get_state()
        drawn += [torch.rand(2, generator=g), state]
        twin, deep = g.clone_state(), copy.deepcopy(g)
        assert g.set_state(state) is g
        drawn += [torch.rand(2, generator=one) for one in (g, twin, deep, g)]
        g.manual_seed(3)
        drawn.append(torch.rand(2, generator=g))
        seed = g.seed()
        assert g.initial_seed() == seed
        drawn.append(torch.rand(2, generator=g) - torch.rand(2, generator=torch.Generator().manual_seed(seed)))
        return [*drawn, torch.rand(2, generator=torch.manual_seed(4)), torch.rand(2, generator=torch.default_generator)]

    same_as_plain(program)


def test_it_begins_on_a_mesh_where_it_is_here(loop: Any) -> None:
    def program() -> list[Any]:
        g = torch.Generator().manual_seed(3)
        with mt.no_mesh.activate():
            torch.rand(5, generator=g)
        return [torch.rand(2, generator=g), torch.rand(2, generator=g)]

    same_as_plain(program)


def test_this_process_and_the_mesh_go_on_separately(loop: Any) -> None:
    g = torch.Generator().manual_seed(3)
    torch.rand(2, generator=g)
    local = here(lambda: torch.rand(2, generator=g))
    assert local.tolist() == here(lambda: torch.rand(2, generator=torch.Generator().manual_seed(3))).tolist()
    here(lambda: g.manual_seed(5))  # and now everywhere
    assert mt.inspect(torch.rand(2, generator=g)).tolist() == here(lambda: torch.rand(2, generator=g)).tolist()
    state = here(lambda: torch.Generator().manual_seed(6).get_state())
    g.set_state(state)
    assert mt.inspect(torch.rand(2, generator=g)).tolist() == here(lambda: torch.rand(2, generator=g)).tolist()


def test_slices_draw_from_the_generators_of_their_processes(loop: Any) -> None:
    g = torch.Generator().manual_seed(3)
    first = torch.rand(2, generator=g)
    with loop.slice(gpus=1).activate():
        second = torch.rand(2, generator=g)
    third = torch.rand(2, generator=g)

    def program() -> list[Any]:
        plain = torch.Generator().manual_seed(3)
        return [torch.rand(2, generator=plain).tolist() for _ in range(3)]

    expected = here(program)
    assert [mt.inspect(one, gpus=0).tolist() for one in (first, third)] == expected[:2]
    assert [mt.inspect(first, gpus=1).tolist(), mt.inspect(second).tolist()] == expected[:2]
    assert mt.inspect(third, gpus=1).tolist() == expected[2]
    with loop.slice(gpus=1).activate():
        g.manual_seed(3)
    fourth = torch.rand(2, generator=g)
    assert [mt.inspect(fourth, gpus=rank).tolist() for rank in range(2)] == [expected[2], expected[0]]


def test_two_meshes(loop: Any) -> None:
    g = torch.Generator().manual_seed(3)
    first = mt.inspect(torch.rand(2, generator=g)).tolist()
    with loopback(gpus=1):
        assert mt.inspect(torch.rand(2, generator=g)).tolist() == first
        g.manual_seed(4)
        other = mt.inspect(torch.rand(2, generator=g)).tolist()
    assert mt.inspect(torch.rand(2, generator=g)).tolist() == other
    assert len(g._states) == 2
    loop.client.end("a test")
    with loopback(gpus=1):
        torch.rand(2, generator=g)
        assert len(g._states) == 2  # the ended one is forgotten


def test_a_generator_belongs_to_a_stream(loop: Any) -> None:
    g = torch.Generator().manual_seed(3)
    torch.rand(2, generator=g)
    with mt.Stream("other").activate(), pytest.raises(TypeError, match="WRONG_STREAM"):
        torch.rand(2, generator=g)


def test_nothing_is_left_of_it(loop: Any) -> None:
    g = torch.Generator().manual_seed(3)
    torch.rand(2, generator=g)
    with loop.slice(gpus=0).activate():
        torch.rand(2, generator=g)
    assert any(loop.client.living())
    weak = weakref.ref(g)
    del g
    assert weak() is None and loop.client.living() == [[], []]


def test_it_is_a_generator(loop: Any) -> None:
    g = torch.Generator()
    assert isinstance(g, torch.Generator) and isinstance(torch.default_generator, torch.Generator)
    assert issubclass(type(g), torch._C.Generator) and issubclass(torch._C.Generator, torch.Generator)
    assert not isinstance(3, torch.Generator) and g.device == torch.device("cpu")
    with mt.no_mesh.activate():
        assert type(torch.Generator()) is torch._C.Generator
    with mt.no_mesh.activate():
        twin = pickle.loads(pickle.dumps(g.manual_seed(9)))
        assert torch.rand(2, generator=twin).tolist() == torch.rand(2, generator=g).tolist()
    with pytest.raises(RuntimeError, match=r"get_offset\(\) is a number of each process"):
        g.get_offset()
    with pytest.raises(TypeError, match="ByteTensor"):
        g.set_state([1, 2])


def test_without_a_mesh_it_is_torchs_own() -> None:
    """torch.compile knows no other, and the processes of a mesh have none active."""
    before = torch.Generator
    with loopback(gpus=1) as mesh:
        assert torch.Generator is Generator
        with mesh.activate():
            pass
        assert type(torch.Generator()) is Generator
        with ThreadPoolExecutor(1) as other:
            assert type(other.submit(torch.Generator).result(60)) is torch._C.Generator
    assert torch.Generator is before


@full
def test_compiled_functions_with_generators_are_as_ever(scripts: Scripts) -> None:
    source = """
        import torch

        import monarch.tensor
        from torch.utils.checkpoint import checkpoint


        def noisy(x):
            torch.manual_seed(2)
            noise = torch.rand(2, generator=torch.Generator().manual_seed(3))
            return checkpoint(torch.nn.functional.dropout, x + noise, use_reentrant=False) + torch.rand(2)


        x = torch.ones(2)
        assert torch.compile(noisy, backend="eager")(x).tolist() == noisy(x).tolist()
        print("as ever")
    """
    assert "as ever" in scripts.run(source).stdout


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without CUDA")
def test_a_device_that_only_the_processes_have(loop: Any) -> None:
    g = torch.Generator("cuda").manual_seed(2)
    assert g.device == torch.device("cuda") and g.initial_seed() == 2
    with pytest.raises(RuntimeError, match="Expected a 'cpu' device type for generator but found 'cuda'"):
        torch.ones(3).normal_(generator=g)
    drawn = torch.rand(2, device="cuda", generator=g)
    assert drawn.device.type == "cuda"
    with pytest.raises(mt.RemoteException, match="in a process that has no accelerator"):
        mt.inspect(drawn)
    with pytest.raises(RuntimeError, match="Expected a 'cuda' device type for generator but found 'cpu'"):
        torch.rand(2, device="cuda", generator=torch.Generator())
    with mt.no_mesh.activate(), pytest.raises(RuntimeError):
        torch.Generator("cuda")


def test_what_fails_loses_the_state_as_anything_that_it_changes(loop: Any) -> None:
    g = torch.Generator().manual_seed(3)
    wrong = torch.multinomial(-torch.ones(3), 1, generator=g)
    drawn = torch.rand(2, generator=g)
    for tensor in (wrong, drawn):
        with pytest.raises(mt.RemoteException, match="multinomial"):
            mt.inspect(tensor)


@pytest.mark.parametrize("wrapped", [mt.function, mt.compile])
@pytest.mark.parametrize("reseed", [False, True])
@pytest.mark.parametrize("inside", [False, True])
def test_recorded(loop: Any, wrapped: Any, reseed: bool, inside: bool) -> None:
    def calls(wrap: Callable[[Any], Any]) -> list[Any]:
        outer = torch.Generator().manual_seed(3)

        def draw(x: Any) -> Any:
            g = torch.Generator().manual_seed(8) if inside else outer
            first = x + torch.rand(2, generator=g)
            if reseed:
                g.manual_seed(5)
            return first * torch.rand(2, generator=g)

        call = wrap(draw)
        x = torch.ones(2)
        found = [call(x) for _ in range(4)]
        outer.manual_seed(6)
        found += [call(x), torch.rand(2, generator=outer), call(x)]
        if wrap is not plain:
            assert "1 traces" in repr(call) or getattr(call, "_kept", None)
        return found

    def plain(fn: Any) -> Any:
        return fn

    found = calls(wrapped)
    expected = here(lambda: calls(plain))
    for rank in range(2):
        assert [one.tolist() for one in mt.inspect(found, gpus=rank)] == [one.tolist() for one in expected]
