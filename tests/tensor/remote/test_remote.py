"""Remote functions, without processes: what they give, what they change, what is sent, how errors are explained."""

from __future__ import annotations

import enum
import itertools
import logging
import math
import pickle
import queue
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils import _pytree as pytree

import monarch
from monarch.actor import Promise
from monarch.tensor import RemoteException, functions, inspect, no_mesh, worker_commands
from monarch.tensor.controller.engine import EngineEnded
from monarch.tensor.remote import function_arguments
from monarch.tensor.remote import remote_function as counters
from monarch.tensor.remote.remote_function import Remote, call_on_shard_and_fetch, remote
from monarch.tensor.worker import current, function_call

HELPERS = "monarch.worker._testing_function"


_sizes = {"n": 0}


class Pair(NamedTuple):
    left: Any
    right: Any


class Colour(enum.Enum):
    RED = 1


@remote(propagate=lambda x, y: x + y)
def add(x: Any, y: Any) -> Any:
    return x + y


@remote
def rank_of(x: Any) -> Any:
    return x + current.worker().executor.rank


@remote(propagate=lambda x: x)
def fails_on_rank_1(x: Any) -> Any:
    if current.worker().executor.rank == 1:
        raise ValueError("rank 1 refuses")
    return x + 1


def local(tensor: Any) -> Any:
    with no_mesh.activate():
        return tensor.mesh.client.local(tensor).clone()


# --- what comes out


def test_results_have_the_structure_of_what_the_function_returns(loop: Any) -> None:
    @remote
    def several(x: Any, *, scale: float) -> Any:
        return {"a": [x * scale, 7], "b": Pair(x + 1, "text")}

    found = several(torch.ones(3), scale=2.0)
    assert found["a"][1] == 7 and found["b"].right == "text"
    assert type(found["b"]) is Pair
    assert type(found["a"][0]) is monarch.Tensor
    values = inspect(found)
    assert values["a"][0].tolist() == [2, 2, 2] and values["b"].left.tolist() == [2, 2, 2]


def test_the_worker_decides_the_value_when_propagate_returns_an_input(loop: Any) -> None:
    plus_one = remote(lambda x: x + 1, propagate=lambda x: x)
    x = torch.zeros(2)
    y = plus_one(x)
    assert inspect([x, y])[0].tolist() == [0, 0]
    assert inspect(y).tolist() == [1, 1]


def test_arguments_are_trees_and_values_of_any_kind(loop: Any) -> None:
    @remote(propagate=lambda tree, colour, names: tree["x"][0])
    def weigh(tree: Any, colour: Any, names: Any) -> Any:
        assert colour is Colour.RED and names == {"p", "q"}
        return tree["x"][0] * tree["n"] + sum(tree["x"])

    found = weigh({"x": [torch.ones(2), torch.ones(2)], "n": 3}, Colour.RED, {"p", "q"})
    assert inspect(found).tolist() == [5, 5]


def test_a_device_mesh_arrives_as_the_workers_see_it(loop: Any) -> None:
    @remote(propagate=lambda mesh: torch.empty(3, dtype=torch.int64))
    def where(mesh: Any) -> Any:
        dim = mesh.dims["gpus"]
        return torch.tensor([dim.rank, dim.size, len(dim.members)])

    assert inspect(where(loop), gpus=1).tolist() == [1, 2, 2]


def test_numbers_of_every_size_arrive_as_they_are(loop: Any) -> None:
    @remote(propagate="inspect")
    def check(*values: Any) -> None:
        assert [repr(value) for value in values] == expected, values

    numbers = [
        0,
        -1,
        True,
        1.0,
        -0.0,
        1 << 61,
        1 << 63,
        -(1 << 200),
        float("inf"),
        1e-300,
        None,
        "s",
        b"b",
        1j,
        torch.float16,
    ]
    expected = [repr(number) for number in numbers]
    for _ in range(3):  # sent with the call, then by number
        check(*numbers)
    loop.client.exit()


def test_inspect_has_no_result_whatever_is_returned(loop: Any) -> None:
    assert remote(lambda x: [x, x, 3], propagate="inspect")(torch.ones(1)) is None
    loop.client.exit()


# --- autograd, aliases, changes in place


def test_graphs_end_with_the_call(loop: Any) -> None:
    @remote(propagate=lambda x: (x, x))
    def square(x: Any) -> Any:
        assert torch.is_grad_enabled() and not x.requires_grad
        x = x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad((x * x).sum(), x)
        return x * x, gradient

    x = torch.full((2,), 3.0, requires_grad=True)
    value, gradient = square(x)
    assert not value.requires_grad
    assert not loop.client.local(value).requires_grad
    assert inspect(gradient).tolist() == [6, 6]


@pytest.mark.parametrize("propagate", [None, lambda x: (x[0], x.t(), x + 1)])
def test_views_stay_views(loop: Any, propagate: Any) -> None:
    views = remote(lambda x: (x[0], x.t(), x + 1), propagate=propagate)
    x = torch.zeros(2, 3)
    row, transposed, other = views(x)
    assert transposed.shape == (3, 2) and row.stride() == (1,)
    x.add_(5)
    assert inspect(row).tolist() == [5, 5, 5]
    assert inspect(transposed).tolist() == [[5, 5]] * 3
    assert inspect(other).tolist() == [[1, 1, 1]] * 2
    row.drop()
    with pytest.raises(TypeError, match="DROPPED"):
        x.add(1)
    assert inspect(other).tolist() == [[1, 1, 1]] * 2


def test_chunks_know_their_offsets(loop: Any) -> None:
    chunks = remote(f"{HELPERS}.remote_chunk")(torch.zeros(16, 5))
    assert [chunk.storage_offset() for chunk in chunks] == [0, 20, 40, 60]


@pytest.mark.parametrize("propagate", [None, lambda x, y: y.add_(1)])
def test_what_a_function_writes_to_is_known(loop: Any, propagate: Any) -> None:
    @remote(propagate=propagate)
    def write(x: Any, y: Any) -> Any:
        return y.add_(1)

    x, y = torch.zeros(2, requires_grad=True), torch.zeros(2)
    product = (x * y).sum()
    assert inspect(write(x.detach(), y)).tolist() == [1, 1]
    assert inspect(y).tolist() == [1, 1]  # once, although the function has run twice on a rank
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


def test_a_known_scalar_that_a_function_writes_to_is_known_no_more(loop: Any) -> None:
    scalar = torch.tensor(1.0)
    assert scalar.item() == 1.0
    remote(lambda x: x.add_(1), propagate=lambda x: x.add_(1))(scalar)
    with pytest.raises(RuntimeError, match="inspect"):
        scalar.item()


def test_a_failed_write_loses_what_was_to_be_written(loop: Any) -> None:
    @remote(propagate=lambda x: x.add_(1))
    def write(x: Any) -> Any:
        raise ValueError("half done")

    x = torch.zeros(4)
    view, other = x[1:], torch.ones(2)
    write(x)
    for lost in (x, view):
        with pytest.raises(RemoteException, match="half done"):
            inspect(lost)
    assert inspect(other).tolist() == [1, 1]


def test_inputs_in_shared_memory_are_another_pattern(loop: Any) -> None:
    @remote
    def first(x: Any, y: Any) -> Any:
        y.add_(1)
        return x * 1

    a, b = torch.zeros(2), torch.zeros(2)
    assert inspect(first(a, b)).tolist() == [0, 0]
    assert inspect(first(a, a)).tolist() == [1, 1]
    assert inspect(a).tolist() == [1, 1] and inspect(b).tolist() == [1, 1]


# --- how often what is sent


def test_cached_patterns_hit_and_miss(loop: Any) -> None:
    many = remote(f"{HELPERS}.how_many_of_these_do_you_want")
    before = counters._hit, counters._miss
    assert len(many(3, torch.ones(2))) == 3
    assert len(many(3, torch.zeros(2))) == 3
    assert len(many(3, torch.zeros(2, dtype=torch.int32))) == 3
    assert len(many(4, torch.zeros(2))) == 4
    assert (counters._hit - before[0], counters._miss - before[1]) == (1, 3)


def test_a_function_is_defined_once_for_all_numbers(loop: Any) -> None:
    x = torch.ones(2)
    for number in range(5):
        y = add(x, float(number))
    z = add(torch.ones(3), 4.0)
    assert inspect(y).tolist() == [5, 5] and inspect(z).tolist() == [5, 5, 5]
    sent = [command for batch in loop.client.batches for command in batch]
    runs = [command for command in sent if type(command) is worker_commands.Run and command.scalars]
    assert [run.scalars for run in runs] == [(0.0,), (1.0,), (2.0,), (3.0,), (4.0,), (4.0,)]
    assert len({run.signature for run in runs[:-1]}) == 1
    assert runs[-1].signature != runs[0].signature  # it has to give a tensor of another shape


def test_a_function_that_is_called_once_leaves_nothing(loop: Any) -> None:
    x = torch.ones(1)
    inspect(x * 2)
    engine = loop.client
    before = len(engine.entries), len(engine._signatures)
    for number in range(20):
        assert inspect(remote(lambda x: x * number)(x)).tolist() == [number]  # noqa: B023  called here
    assert (len(engine.entries), len(engine._signatures)) == before
    again = remote(lambda x: x + 1)
    for _ in range(3):
        again(x)
    assert (len(engine.entries), len(engine._signatures)) == (before[0] + 1, before[1] + 1)


def test_what_may_change_under_its_name_is_sent_each_time(loop: Any) -> None:
    class Config:
        factor = 1.0

    scale = remote(lambda x, config: x * config.factor, propagate=lambda x, config: x)
    config, x, found = Config(), torch.ones(1), []
    for factor in (1.0, 2.0, 3.0):
        config.factor = factor
        found.append(scale(x, config))
    assert [value.item() for value in inspect(found)] == [1, 2, 3]


def test_a_propagator_that_has_captured_what_changes_is_asked_each_time(loop: Any) -> None:
    size = 1
    fill = remote(lambda n: torch.ones(int(n)), propagate=lambda n: torch.empty(size))
    assert fill(1.0).shape == (1,)
    size = 2
    assert fill(1.0).shape == (2,)
    _sizes["n"] = 3
    by_global = remote(lambda n: torch.ones(int(n)), propagate=lambda n: torch.empty(_sizes["n"]))
    assert by_global(1.0).shape == (3,)
    _sizes["n"] = 4
    assert by_global(1.0).shape == (4,)
    sizes = [3]
    several = remote(lambda n: torch.ones(int(n)), propagate=lambda n: torch.empty(sizes[0]))
    assert several(3.0).shape == (3,)
    sizes[0] = 4
    assert several(4.0).shape == (4,)
    assert inspect(several(4.0)).shape == (4,)


def test_random_numbers_of_the_first_rank_do_not_get_ahead(loop: Any) -> None:
    torch.manual_seed(3)
    expected = torch.Generator().manual_seed(3)
    drawn = remote(lambda: torch.rand(4))()
    with no_mesh.activate():
        on_rank_0 = loop.client.local(drawn, 0)
        assert torch.equal(on_rank_0, torch.rand(4, generator=expected))


_values = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=3), st.binary(max_size=3)
)
_trees = st.recursive(
    _values,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.dictionaries(st.text(max_size=3), inner, max_size=3),
        st.builds(Pair, inner, inner),
    ),
    max_leaves=8,
)


@given(st.lists(_trees, max_size=4), st.dictionaries(st.text(max_size=4), _trees, max_size=3))
def test_any_arguments_arrive_as_they_were(args: list[Any], kwargs: dict[str, Any]) -> None:
    leaves, spec = pytree.tree_flatten((tuple(args), kwargs))
    tree, numbers = function_arguments.template(tuple(args), kwargs, leaves, spec)
    shown = repr((tuple(args), kwargs))
    collect = function_call.applier(lambda *args, **kwargs: repr((args, kwargs)), pickle.loads(pickle.dumps(tree)))
    assert collect([], numbers) == shown
    assert repr(function_arguments.with_numbers(tree, numbers)) == shown
    flat = [*args, *kwargs.values()]
    if all(type(leaf) in function_arguments.LEAVES for leaf in flat):
        tree, numbers = function_arguments.template(tuple(args), kwargs, flat, (len(args), *kwargs))
        assert function_call.applier(lambda *args, **kwargs: repr((args, kwargs)), tree)([], numbers) == shown


# --- how functions get there


def test_functions_are_found_by_name_or_sent(loop: Any) -> None:
    x = torch.full((2,), 4.0)
    captured = 3
    assert inspect(remote("torch.sqrt")(x)).tolist() == [2, 2]
    assert inspect(remote(torch.ops.aten.add.Tensor)(x, 1)).tolist() == [5, 5]
    assert inspect(remote("torch.ops.aten.add.Tensor")(x, 1)).tolist() == [5, 5]
    assert inspect(remote(torch.neg)(x)).tolist() == [-4, -4]
    assert inspect(remote(lambda t: t * captured)(x)).tolist() == [12, 12]
    assert call_on_shard_and_fetch(remote(math.sqrt), 9).get() == 3


def test_an_importable_function_travels_by_name_without_its_decorator(loop: Any) -> None:
    found = functions.importable_function(monarch.builtins.log.log_remote._function)
    assert isinstance(found, functions.Named)
    assert repr(found) == '<function "monarch.builtins.log.log_remote">'
    assert found.resolve() is monarch.builtins.log.log_remote._function
    assert functions.importable_function(lambda: 1) is None


def test_state_of_a_function_stays_in_the_worker(loop: Any) -> None:
    seen: list[int] = []

    @remote(propagate="inspect")
    def note(number: int, text: str) -> None:
        seen.append(number)

    count = remote(lambda: len(seen))
    for number in range(3):
        note(number, str(number))
    assert seen == []
    assert call_on_shard_and_fetch(count).get() == 0  # a function of its own, with a list of its own
    loop.client.exit()


def test_programs_add_resolvers(loop: Any) -> None:
    class Known:
        def resolve(self) -> Any:
            return torch.neg

    class Target:
        pass

    target = Target()
    with pytest.raises(ValueError, match="Unsupported target for a remote call"):
        remote(target)(torch.ones(1))
    monarch.function_resolvers.insert(0, lambda arg: functions.TorchOp("aten.neg.default") if arg is target else None)
    try:
        assert inspect(remote(target)(torch.ones(1))).tolist() == [-1]
    finally:
        monarch.function_resolvers.pop(0)


def test_a_remote_function_calls_another(loop: Any) -> None:
    both = remote(lambda x: add(x, add(x, 1.0)), propagate=lambda x: add(x, add(x, 1.0)))
    assert inspect(both(torch.ones(1))).tolist() == [3]


# --- errors


def test_what_cannot_be_resolved_says_so_in_one_line(loop: Any) -> None:
    x = torch.ones(1)
    for path, reason in [
        ("nomod.foo", "ModuleNotFoundError: No module named 'nomod'"),
        ("torch.nothing", "AttributeError: module 'torch' has no attribute 'nothing'"),
    ]:
        with pytest.raises(RemoteException) as caught:
            inspect(remote(path, propagate=lambda x: x)(x))
        assert caught.value.worker_error_string.startswith(
            f'invalid remote function: failed to resolve function <function "{path}">: {reason}'
        )
        assert "\n" not in caught.value.worker_error_string
    with pytest.raises(RemoteException, match="'str' object is not callable"):
        inspect(remote("foo", propagate=lambda x: x)(x))


def test_another_number_of_results_is_a_failure(loop: Any) -> None:
    two = remote(lambda x: (x,), propagate=lambda x: (x, x))
    with pytest.raises(RemoteException, match="unexpected number of returns from op, expected 2, got 1"):
        inspect(two(torch.ones(1))[0])
    with pytest.raises(RemoteException, match=r"returned int where its `propagate` has a tensor"):
        inspect(remote(lambda x: 3, propagate=lambda x: x)(torch.ones(1)))


def test_failures_show_every_frame_of_the_program(loop: Any) -> None:
    outer = remote(f"{HELPERS}.outer_remote_function_that_calls_inner", propagate=lambda: torch.ones(1))
    with pytest.raises(RemoteException) as caught:
        inspect(outer())
    text = caught.value.worker_error_string
    assert "in outer_remote_function_that_calls_inner" in text and "in inner_remote_function_that_fails" in text
    assert "function_call.py" not in text and "<string>" not in text
    assert "outer_remote_function_that_calls_inner" in str(caught.value)


def test_cached_calls_fail_at_once(loop: Any) -> None:
    with pytest.raises(RemoteException, match="inner remote function has failed"):
        remote(f"{HELPERS}.outer_remote_function_that_calls_inner")()


def test_what_depends_on_a_failure_does_not_run(loop: Any) -> None:
    ran = loop.client.executors[0].extras.setdefault("ran", [])

    @remote(propagate=lambda x: x)
    def note(x: Any) -> Any:
        current.worker().executor.extras.setdefault("ran", []).append(current.worker().executor.rank)
        return x

    after = note(fails_on_rank_1(torch.ones(1)))
    with pytest.raises(RemoteException, match="rank 1 refuses") as caught:
        inspect(after)
    assert caught.value.rank == 1
    assert ran == [0]
    assert loop.client.executors[1].extras.get("ran", []) == []


def test_wrong_tensors_are_explained(loop: Any) -> None:
    with no_mesh.activate():
        here = torch.ones(2)
    with pytest.raises(TypeError, match="LOCAL_TENSOR"):
        add(here, 1.0)
    with pytest.raises(TypeError, match="LOCAL_TENSOR"):
        add(torch.ones(2), here)
    x = torch.ones(2)
    x.drop()
    with pytest.raises(TypeError, match="DROPPED"):
        add(x, 1.0)
    with pytest.raises(TypeError, match="WRONG_MESH"):
        with loop.slice(gpus=0).activate():
            y = torch.ones(2)
        add(torch.ones(2), y)


def test_without_a_mesh_it_says_what_to_do() -> None:
    for call in (add.call, add.call_one, add.choose, add.stream, add.broadcast, add):
        with pytest.raises(ValueError, match="requires an active proc_mesh"):
            call(1, 2)
    with pytest.raises(TypeError, match="active device mesh"):
        add(torch.ones(2), 1)


def test_propagation_that_is_not_possible() -> None:
    with pytest.raises(NotImplementedError):
        remote(lambda: 1, propagate="mocked")
    with pytest.raises(ValueError, match="'cached', 'inspect'"):
        remote(lambda: 1, propagate="guess")


def test_a_function_cannot_bring_a_distributed_tensor_along(loop: Any) -> None:
    x = torch.ones(1)
    with pytest.raises(TypeError, match="cannot be sent here"):
        remote(lambda: x + 1, propagate="inspect")()


def test_cached_arguments_have_to_be_hashable(loop: Any) -> None:
    with pytest.raises(TypeError, match="cannot be hashed"):
        remote(lambda values: 1)({1, 2})


def test_shapes_that_do_not_fit_are_raised_here(loop: Any) -> None:
    with pytest.raises(RuntimeError, match="broadcast"):
        add(torch.ones(2), torch.ones(3))


# --- adverbs


def test_call_gives_what_every_rank_returned(loop: Any) -> None:
    x = torch.zeros(2)
    found = remote(lambda x: (x + current.worker().executor.rank, "text")).call(x).get()
    assert found.sizes == {"gpus": 2}
    assert [(point["gpus"], value[0].tolist(), value[1]) for point, value in found] == [
        (0, [0, 0], "text"),
        (1, [1, 1], "text"),
    ]
    assert type(found.get(0)[0]) is torch.Tensor


def test_call_one_wants_one_rank(loop: Any) -> None:
    x = torch.zeros(2)
    with pytest.raises(ValueError, match="call_one requires exactly 1 actor, but mesh has 2"):
        rank_of.call_one(x)
    with loop.slice(gpus=1).activate():
        assert rank_of.call_one(x).get().tolist() == [1, 1]


def test_choose_and_stream(loop: Any) -> None:
    x = torch.zeros(1)
    assert rank_of.choose(x).get().tolist() in ([0], [1])
    assert sorted(future.get().tolist() for future in rank_of.stream(x)) == [[0], [1]]
    with loop.slice(gpus=slice(1, 2)).activate():
        assert [future.get().tolist() for future in rank_of.stream(x)] == [[1]]
    assert rank_of.rref(x).shape == (1,)


def test_a_failure_of_one_rank_is_raised_by_call(loop: Any) -> None:
    x = torch.zeros(1)
    with pytest.raises(RemoteException, match="rank 1 refuses") as caught:
        fails_on_rank_1.call(x).get()
    assert caught.value.rank == 1
    futures = list(fails_on_rank_1.stream(x))
    assert futures[0].get().tolist() == [1]
    with pytest.raises(RemoteException, match="rank 1 refuses"):
        futures[1].get()
    bad = fails_on_rank_1(x)
    with pytest.raises(RemoteException, match="rank 1 refuses"):
        call_on_shard_and_fetch(rank_of, bad).get()  # though rank 0 has it
    loop.client.exit()  # everything has been told


class Lines(logging.Handler):
    """The lines that are logged at ERROR on `monarch`."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.put(record.getMessage())

    def next(self) -> str:
        return self._lines.get(timeout=300)

    def none_left(self) -> bool:
        return self._lines.empty()


@pytest.fixture
def lines() -> Any:
    handler = Lines()
    logging.getLogger("monarch").addHandler(handler)
    yield handler
    logging.getLogger("monarch").removeHandler(handler)


def test_a_failure_whose_future_is_dropped_is_logged_once_with_the_line_that_called(loop: Any, lines: Lines) -> None:
    x = torch.zeros(1)
    fails_on_rank_1.call(x)
    said = lines.next()
    assert "dropped without a look" in said and "ValueError: rank 1 refuses" in said
    assert f'File "{__file__}"' in said and "fails_on_rank_1.call(x)" in said
    kept = fails_on_rank_1.call(x)
    assert isinstance(kept.exception(), RemoteException)
    del kept  # it was looked at
    rank_of.call(x)  # nothing has failed
    del x
    loop.client.exit()
    assert lines.none_left()


class LastWords:
    """The receiving end to which workers that end in order tell what no answer has told of."""

    def __init__(self) -> None:
        self.sent, self.received = itertools.tee(Promise[Any]() for _ in range(2))

    def recv(self) -> Any:
        return next(self.received).future

    def send(self, failures: list[Any]) -> None:
        next(self.sent).set(failures)


@pytest.mark.parametrize("killed", [False, True])
def test_a_failure_that_nobody_fetched_is_told_when_the_processes_are_stopped(
    loop: Any, lines: Lines, killed: bool
) -> None:
    engine, words = loop.client, LastWords()
    engine.unfetched.listen(words)
    torch.zeros(2)[torch.tensor([5])]  # fails in the workers
    fine = torch.ones(2)
    told = torch.zeros(2)[torch.tensor([6])]
    with pytest.raises(RemoteException, match="index 6"):
        monarch.inspect(told)  # which tells of the first as well, and it is still not raised
    wrong = torch.zeros(2)[torch.tensor([7])] + fine
    engine.flush()
    if killed:
        engine.end("rank 1 was killed")
        assert "index 5 is out of bounds" in lines.next()
    words.send(engine.executors[0].told())
    if not killed:
        assert not engine.ended and lines.none_left()
        words.send(engine.executors[1].told())
        said = lines.next()
        assert "its processes were stopped" in said and "index 5 is out of bounds" in said
    said = lines.next()
    assert "index 7 is out of bounds" in said and "wrong = torch.zeros(2)[torch.tensor([7])] + fine" in said
    assert ("rank 1 was killed" if killed else "its processes were stopped") in said
    assert "monarch.inspect" in said
    with pytest.raises(
        EngineEnded, match="rank 1 was killed" if killed else "(?s)stopped after .*: .*index 5 is out of"
    ):
        monarch.inspect(wrong)
    assert lines.none_left()


def test_a_dropped_fetch_is_logged(loop: Any, lines: Lines) -> None:
    bad = fails_on_rank_1(torch.zeros(1))
    monarch.fetch_shard(bad, gpus=1)
    assert "ValueError: rank 1 refuses" in lines.next()
    del bad
    loop.client.exit()
    assert lines.none_left()


def test_of_failures_that_nobody_fetched_exit_raises_the_first_and_logs_the_others(loop: Any, lines: Lines) -> None:
    fails_on_rank_1.broadcast(torch.zeros(1))
    fails_on_rank_1.broadcast(torch.zeros(1))
    with pytest.raises(RemoteException, match="rank 1 refuses"):
        loop.client.exit()
    assert "exit() was called" in lines.next() and lines.none_left()


def test_failures_that_nobody_fetched_are_logged_when_the_engine_ends(loop: Any, lines: Lines) -> None:
    for _ in range(25):
        fails_on_rank_1.broadcast(torch.zeros(1))
    loop.client.sync()
    loop.client.end("its processes have ended")
    said = [lines.next() for _ in range(21)]
    assert all("ValueError: rank 1 refuses" in each and __file__ in each for each in said[:20])
    assert "5 more operations" in said[20] and lines.none_left()


def test_broadcast_fails_at_exit(loop: Any) -> None:
    fails_on_rank_1.broadcast(torch.zeros(1))
    with pytest.raises(RemoteException, match="rank 1 refuses"):
        loop.client.exit()


def test_tensors_of_another_mesh_are_refused(loop: Any) -> None:
    with loop.slice(gpus=0).activate():
        x = torch.zeros(1)
    with pytest.raises(ValueError, match="not a subset"):
        rank_of.call(x)


def test_an_exception_is_a_value_too(loop: Any) -> None:
    found = call_on_shard_and_fetch(remote(lambda: ValueError("just a value"))).get()
    assert isinstance(found, ValueError)
    assert (
        call_on_shard_and_fetch(remote(f"{HELPERS}.do_some_processing"), "an argument").get() == "an argument processed"
    )


def test_results_that_cannot_be_sent_are_failures(loop: Any) -> None:
    with pytest.raises(RemoteException, match="generator"):
        call_on_shard_and_fetch(remote(lambda: (n for n in range(3)))).get()


def test_one_shard_is_chosen_by_coordinate(loop: Any) -> None:
    x = torch.zeros(1)
    assert call_on_shard_and_fetch(rank_of, x, shard={"gpus": 1}).get().tolist() == [1]
    with pytest.raises(ValueError, match="outside the mesh"):
        call_on_shard_and_fetch(rank_of, x, shard={"gpus": 5})
    with pytest.raises(KeyError):
        call_on_shard_and_fetch(rank_of, x, shard={"gpus": 0, "nope": 1})


def test_a_remote_is_what_it_wraps() -> None:
    assert add.__name__ == "add" and repr(add) == "<remote function add>"
    assert isinstance(remote(add), Remote) and remote(add)._function is add._function
