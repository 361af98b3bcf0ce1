from __future__ import annotations

import array
import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import gc
import importlib.util
import json
import pathlib
import pickle
import socket
import subprocess
import sys
import textwrap
import threading
import types
import uuid
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from monarch._errors import NotSendableError
from monarch._wire import codec, frame


def there(value: Any) -> Any:
    """`value` as the other side gets it: its buffers in memory of their own."""
    body, buffers = codec.encode(value)
    return codec.decode(bytearray(body), [bytearray(buffer) for buffer in buffers])


def holding(value: Any) -> Callable[[], Any]:
    """A function that plain pickle cannot send, with `value` in its closure."""
    return lambda: value


# --- plain values


class Color(enum.Enum):
    RED = 1


@dataclasses.dataclass
class Record:
    name: str
    parts: list[Any]


Pair = collections.namedtuple("Pair", ["left", "right"])

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.complex_numbers(allow_nan=False),
    st.text(),
    st.binary(max_size=9000),
    st.datetimes(),
    st.decimals(allow_nan=False),
    st.fractions(),
    st.uuids(),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.text(max_size=5), inner, max_size=4),
        st.tuples(inner, inner),
        st.builds(Record, st.text(max_size=5), st.lists(inner, max_size=3)),
        st.builds(Pair, inner, inner),
    ),
    max_leaves=12,
)


@given(values)
def test_values_arrive_as_they_were(value: Any) -> None:
    assert there(value) == value


@given(scalars)
def test_the_fast_ways_give_the_same(value: Any) -> None:
    assert codec.decode(codec.encode_value(value)[0]) == value
    body, buffers = codec.encode_call((value, 1), {})
    assert codec.decode(body, buffers) == ((value, 1), {})
    body, buffers = codec.encode_call((), {"key": value})
    assert codec.decode(body, buffers) == ((), {"key": value})


@pytest.mark.parametrize(
    "value",
    [
        {1, 2},
        frozenset("ab"),
        bytearray(b"x" * 10_000),
        array.array("d", [1.0, 2.5]),
        collections.deque([1, 2], maxlen=5),
        collections.OrderedDict(a=1),
        collections.Counter("aab"),
        collections.defaultdict(list, {"a": [1]}),
        range(3, 9, 2),
        slice(1, None, 2),
        Ellipsis,
        NotImplemented,
        datetime.timedelta(days=1),
        decimal.Decimal("1.50"),
        fractions.Fraction(1, 3),
        pathlib.PurePosixPath("/a/b"),
        uuid.UUID(int=7),
        Color.RED,
        types.SimpleNamespace(a=1),
        int,
        len,
        json.dumps,
        Record,
        Color,
        2**200,
        "\ud800",
    ],
    ids=lambda value: type(value).__name__,
)
def test_types_that_programs_send(value: Any) -> None:
    arrived = there(value)
    assert arrived == value and type(arrived) is type(value)


def test_one_object_in_two_places_is_one_object_there() -> None:
    shared = [1]
    loop: list[Any] = [shared, shared]
    loop.append(loop)
    arrived = there(loop)
    assert arrived[0] is arrived[1] and arrived[2] is arrived


def test_exceptions_keep_type_arguments_and_notes() -> None:
    error = ValueError("bad", 3)
    error.add_note("while testing")
    arrived = there(error)
    assert (type(arrived), arrived.args, arrived.__notes__) == (ValueError, ("bad", 3), ["while testing"])


# --- memory beside the pickle


def test_large_memory_travels_beside_the_pickle_uncopied() -> None:
    data = numpy.arange(5000.0)
    body, buffers = codec.encode({"data": data, "small": numpy.arange(4)})
    assert [buffer.nbytes for buffer in buffers] == [40_000]
    assert len(body) < 1000
    data[0] = 17.0
    assert memoryview(buffers[0]).cast("B").cast("d")[0] == 17.0


def test_more_buffers_than_a_frame_carries_stay_in_the_pickle() -> None:
    one = memoryview(bytearray(codec.OUT_OF_BAND))
    value = [pickle.PickleBuffer(one) for _ in range(frame.BUFFERS_LIMIT + 3)]
    body, buffers = codec.encode(value)
    assert len(buffers) == frame.BUFFERS_LIMIT
    assert len(codec.decode(body, [bytearray(4096)] * len(buffers))) == len(value)


ARRAYS = {
    "float32": numpy.linspace(0, 1, 3000, dtype="f4"),
    "int8 small": numpy.arange(5, dtype="i1"),
    "bool": numpy.arange(9000) % 2 == 0,
    "complex": numpy.arange(2000) * 1j,
    "fortran": numpy.asfortranarray(numpy.arange(2400.0).reshape(40, 60)),
    "view": numpy.arange(20_000)[3:15_000:2],
    "reversed": numpy.arange(9000)[::-1],
    "transposed": numpy.arange(2400.0).reshape(40, 60).T,
    "zero size": numpy.empty((0, 3)),
    "scalar": numpy.array(3.5),
    "broadcast": numpy.broadcast_to(numpy.arange(5000), (2, 5000)),
    "record": numpy.zeros(900, dtype=[("a", "i4"), ("b", "f8")]),
    "text": numpy.array(["a", "bcd"]),
    "object": numpy.array([1, "a", None], dtype=object),
    "date": numpy.array(["2026-01-01"], dtype="M8[D]"),
    "big endian": numpy.arange(3000, dtype=">i4"),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_numpy_arrays(name: str) -> None:
    value = ARRAYS[name]
    arrived = there(value)
    assert arrived.dtype == value.dtype and arrived.shape == value.shape
    assert numpy.array_equal(arrived, value)
    assert arrived.size == 0 or not numpy.shares_memory(arrived, value)


def test_numpy_arrays_can_be_written_there() -> None:
    for size in (4, 4000):
        arrived = there(numpy.zeros(size))
        arrived[0] = 1
        assert arrived[0] == 1


# --- tensors

KINDS = [
    *(
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.complex64,
        torch.complex128,
        torch.bool,
    ),
    *(
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.uint8,
        torch.uint16,
        torch.uint32,
        torch.uint64,
    ),
    *(
        torch.float8_e4m3fn,
        torch.float8_e4m3fnuz,
        torch.float8_e5m2,
        torch.float8_e5m2fnuz,
        torch.float8_e8m0fnu,
    ),
]


def same(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Equal dtype, shape and bytes: torch compares no float8, and NaN is not NaN."""
    return (left.dtype, left.shape) == (right.dtype, right.shape) and (
        left.detach().contiguous().view(-1).view(torch.uint8).tolist()
        == right.detach().contiguous().view(-1).view(torch.uint8).tolist()
        if left.numel()
        else True
    )


def of_dtype(dtype: torch.dtype, count: int) -> torch.Tensor:
    raw = torch.arange(count * dtype.itemsize, dtype=torch.int64) % (2 if dtype is torch.bool else 251)
    return raw.to(torch.uint8).view(dtype)


@pytest.mark.parametrize("dtype", KINDS, ids=str)
@pytest.mark.parametrize("count", [0, 3, 5000])
def test_tensors_of_every_kind(dtype: torch.dtype, count: int) -> None:
    tensor = of_dtype(dtype, count) if count else torch.empty(0, dtype=dtype)
    arrived = there(tensor)
    assert same(arrived, tensor) and arrived.stride() == tensor.stride()


@pytest.mark.parametrize("count", [0, 3, 500_000])
def test_tensors_without_numpy(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def unavailable(self: torch.Tensor) -> None:
        raise RuntimeError("Numpy is not available")  # as torch says it

    monkeypatch.setattr(torch.Tensor, "numpy", unavailable)
    tensors = [of_dtype(dtype, count) if count else torch.empty(0, dtype=dtype) for dtype in KINDS]
    body, buffers = codec.encode(tensors)
    expected = [tensor.clone() for tensor in tensors]
    del tensors  # the message keeps their memory
    gc.collect()
    again = torch.ones(count)  # which would lie in it
    for arrived, tensor in zip(codec.decode(body, buffers), expected, strict=True):
        assert same(arrived, tensor)
    assert again.sum() == count


base = torch.arange(24_000, dtype=torch.float32).reshape(40, 600)
VIEWS: dict[str, Callable[[], torch.Tensor]] = {
    "scalar": lambda: torch.tensor(3.5),
    "rows": lambda: base[3:9],
    "column": lambda: base[:, 7],
    "block": lambda: base[2:30, 100:500],
    "every other": lambda: base[::2, ::3],
    "transposed": base.t,
    "permuted": lambda: base.reshape(10, 40, 60).permute(2, 0, 1),
    "expanded": lambda: base[0].expand(50, 600),
    "expanded scalar": lambda: torch.tensor(1.0).expand(3, 3),
    "flipped": lambda: base.flip(0),
    "channels last": lambda: torch.rand(2, 3, 40, 40).to(memory_format=torch.channels_last),
    "empty rows": lambda: base[5:5],
    "zero in the middle": lambda: torch.empty(3, 0, 2),
    "overlapping": lambda: base.as_strided((100, 100), (1, 1), 5),
    "conjugate": lambda: torch.complex(base[:5], base[5:10]).conj(),
    "negative bit": lambda: torch.complex(base[:5], base[5:10]).conj().imag,
    "one element": lambda: base[3:4, 5:6],
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_arrive_with_their_values(name: str) -> None:
    view = VIEWS[name]()
    arrived = there(view)
    assert arrived.shape == view.shape and torch.equal(arrived.resolve_conj().resolve_neg(), view)


@pytest.mark.parametrize("name", ["rows", "transposed", "permuted", "expanded", "channels last"])
def test_dense_views_keep_their_strides(name: str) -> None:
    view = VIEWS[name]()
    assert there(view).stride() == view.stride()


def test_a_small_part_of_a_large_tensor_costs_what_it_is() -> None:
    large = torch.zeros(4_000_000)
    for part in (large[5:10], large.view(2000, 2000)[:, 3]):
        body, buffers = codec.encode(part)
        assert len(body) + sum(buffer.nbytes for buffer in buffers) < 20_000


def test_the_memory_of_a_tensor_is_not_copied_by_encoding() -> None:
    tensor = torch.zeros(5000)
    _, buffers = codec.encode(tensor)
    tensor[0] = 1.0
    assert [bytes(buffer[:4]) for buffer in buffers] == [b"\0\0\x80\x3f"]


@pytest.mark.parametrize("size", [3, 5000])
def test_tensors_that_share_memory_share_it_there(size: int) -> None:
    tensor = torch.zeros(size)
    a, b, other = there([tensor, tensor.view(1, size), torch.zeros(size)])
    a[0] = 5.0
    assert b[0, 0] == 5.0 and other[0] == 0.0


@pytest.mark.parametrize("size", [3, 5000])
def test_tensors_can_be_written_and_grow_gradients_there(size: int) -> None:
    tensor = torch.ones(size, requires_grad=True)
    arrived = there(tensor)
    assert arrived.requires_grad and arrived.is_leaf
    (arrived * 2).sum().backward()
    assert torch.equal(arrived.grad, torch.full((size,), 2.0))
    plain = there(tensor.detach())
    plain.add_(1)
    assert not plain.requires_grad and torch.equal(plain, torch.full((size,), 2.0))
    assert there(tensor * 2).requires_grad  # the graph stays here, the wish for gradients travels


def test_parameters_and_modules() -> None:
    parameter = torch.nn.Parameter(torch.rand(50, 50), requires_grad=True)
    arrived = there(parameter)
    assert type(arrived) is torch.nn.Parameter and arrived.requires_grad and torch.equal(arrived, parameter)
    layer = torch.nn.Linear(40, 40)
    state = there(layer).state_dict()
    assert all(torch.equal(state[name], value) for name, value in layer.state_dict().items())
    tied = torch.nn.ModuleList([layer, layer])
    first, second = there(tied)
    assert first is second and first.weight.data_ptr() == second.weight.data_ptr()


def test_tensors_with_attributes_and_special_layouts_go_the_way_of_torch() -> None:
    marked = torch.ones(3)
    marked.mark = "x"  # type: ignore[attr-defined]
    assert there(marked).mark == "x"
    sparse = torch.eye(3).to_sparse()
    assert torch.equal(there(sparse).to_dense(), torch.eye(3))
    assert there(torch.empty(2, 3, device="meta")).device.type == "meta"
    assert there([torch.float16, torch.device("cpu"), torch.Size([1, 2])]) == [
        torch.float16,
        torch.device("cpu"),
        torch.Size([1, 2]),
    ]


def test_what_a_collective_of_torchs_gives_travels_as_the_tensor_it_is() -> None:
    """Takes it as tensor parallel layers give it: its memory is written to until it is waited for."""
    from torch.distributed._functional_collectives import AsyncCollectiveTensor

    class Late(AsyncCollectiveTensor):  # type: ignore[misc]
        def trigger_wait(self) -> torch.Tensor:
            self.elem.fill_(7.0)
            return super().trigger_wait()  # type: ignore[no-any-return]

    Late.__name__ = "AsyncCollectiveTensor"
    found = there([Late(torch.zeros(3)), Late(torch.zeros(2, 2))[0]])
    assert [type(one) for one in found] == [torch.Tensor] * 2
    assert found[0].tolist() == [7.0] * 3


def test_a_dispatch_mode_of_the_program_does_not_see_decoding() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Count(TorchDispatchMode):
        seen = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.seen += 1
            return func(*args, **(kwargs or {}))

    body, buffers = codec.encode([torch.zeros(5000), torch.zeros(2)])
    with Count() as count:
        codec.decode(body, buffers)
        assert count.seen == 0
        torch.zeros(1)
        assert count.seen > 0


def test_decoding_while_another_thread_is_still_importing_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))
    body, buffers = codec.encode([1, "a"])
    assert codec.decode(body, buffers) == [1, "a"]


# --- code that the other process cannot import


def elsewhere(program: str, *args: str) -> str:
    """Runs `program` in a fresh interpreter; returns what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), *args],
        capture_output=True, text=True, timeout=60, check=False, cwd="/",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


DECODE = """
import sys
from monarch._wire import codec
value = codec.decode(open(sys.argv[1], "rb").read())
print({})
"""


def test_what_main_defines_runs_elsewhere(tmp_path: pathlib.Path) -> None:
    program = """
    import sys
    from monarch._wire import codec

    FACTOR = 3

    def triple(x):
        return x * FACTOR

    class Base:
        def value(self):
            return triple(self.x)

    class Thing(Base):
        def __init__(self, x):
            self.x = x

    open(sys.argv[1], "wb").write(codec.encode((Thing(2), Thing, triple, lambda x: triple(x) + 1))[0])
    """
    path = str(tmp_path / "message")
    elsewhere(program, path)
    shown = "value[0].value(), value[1](5).value(), value[2](1), value[3](1), type(value[0]) is value[1]"
    assert elsewhere(DECODE.format(shown), path) == "6 15 3 4 True\n"


def test_code_that_is_sent_keeps_its_file() -> None:
    def outer() -> Callable[[], int]:
        return lambda: 1 // 0

    arrived = codec.decode(*codec.encode(outer))
    assert arrived is not outer
    for sent, here in ((arrived, outer), (arrived(), outer())):
        assert sent.__code__.co_filename == here.__code__.co_filename == __file__
        assert sent.__code__.co_firstlineno == here.__code__.co_firstlineno


def test_lambdas_local_functions_and_classes() -> None:
    offset = 10

    class Local:
        def __init__(self, x: int) -> None:
            self.x = x

        def plus(self) -> int:
            return self.x + offset

    def local(x: int) -> int:
        return x + offset

    assert there(lambda x: x + offset)(1) == 11
    assert there(local)(2) == 12
    assert there(Local(3)).plus() == 13
    assert there({"deep": [Local(4).plus]})["deep"][0]() == 14


def test_a_module_is_sent_by_its_name() -> None:
    assert there(textwrap) is textwrap


@pytest.fixture
def handmade(tmp_path: pathlib.Path) -> Iterator[types.ModuleType]:
    """A module loaded from a file by hand, as test runners and plugins do: nobody else can import it."""
    path = tmp_path / "handmade_by_path.py"
    path.write_text(
        "class Thing:\n    def __init__(self, x):\n        self.x = x\n\ndef double(x):\n    return 2 * x\n"
    )
    spec = importlib.util.spec_from_file_location("handmade_by_path", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["handmade_by_path"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["handmade_by_path"]
    codec._importable.pop("handmade_by_path", None)
    if "handmade_by_path" in cloudpickle.list_registry_pickle_by_value():
        cloudpickle.unregister_pickle_by_value(module)


def test_a_module_loaded_by_hand_goes_by_value(handmade: types.ModuleType, tmp_path: pathlib.Path) -> None:
    assert not codec.importable("handmade_by_path")
    path = tmp_path / "message"
    path.write_bytes(codec.encode((handmade.Thing(4), handmade.double))[0])
    assert elsewhere(DECODE.format("value[1](value[0].x)"), str(path)) == "8\n"


def test_a_module_on_the_path_goes_by_name(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "found_on_path.py").write_text("class Thing: pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("found_on_path")
    try:
        body, _ = codec.encode(module.Thing)
        assert len(body) < 100 and pickle.loads(body) is module.Thing
    finally:
        del sys.modules["found_on_path"]
        del codec._importable["found_on_path"]


def test_a_module_of_an_older_path_goes_by_name() -> None:
    assert (
        importlib.import_module("monarch.experimental.thread_timeout").__name__ == "monarch.experimental.thread_timeout"
    )
    assert codec.importable("monarch.experimental.thread_timeout")


def test_another_module_of_the_same_name_goes_by_value(
    handmade: types.ModuleType, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "handmade_by_path.py").write_text("")  # what an import elsewhere would find
    monkeypatch.syspath_prepend(str(other))
    assert not codec.importable("handmade_by_path")


@pytest.mark.parametrize("registered", ["pack", "pack.part"])
def test_register_pickle_by_value_is_respected(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, registered: str
) -> None:
    folder = tmp_path / "pack"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "part.py").write_text("class Thing: pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    part = importlib.import_module("pack.part")
    try:
        by_name = codec.encode(part.Thing)[0]  # also remembers that the module can be imported
        cloudpickle.register_pickle_by_value(sys.modules[registered])
        by_value = codec.encode(part.Thing)[0]
        cloudpickle.unregister_pickle_by_value(sys.modules[registered])
        assert codec.encode(part.Thing)[0] == by_name
        assert len(by_value) > len(by_name) + 100
        path = tmp_path / "message"
        path.write_bytes(by_value)
        assert elsewhere(DECODE.format("value.__name__"), str(path)) == "Thing\n"
    finally:
        for name in ("pack", "pack.part"):
            sys.modules.pop(name)
            codec._importable.pop(name, None)


def test_a_module_missing_there_is_named_with_what_to_do() -> None:
    body = b"\x80\x05cnot_installed_here\nThing\n."
    with pytest.raises(ModuleNotFoundError) as caught:
        codec.decode(body)
    assert caught.value.name == "not_installed_here"
    for part in ("'not_installed_here'", "Install it here", "PYTHONPATH", "register_pickle_by_value"):
        assert part in str(caught.value)


# --- what must not leave


def a_generator() -> Iterator[int]:
    yield 1


class Mine:
    pass


def test_a_forbidden_type_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "_forbidden", dict(codec._forbidden))
    codec.forbid(Mine, "send its name")
    for value in (Mine(), [Mine()], {"a": (Mine(),)}, holding(Mine())):
        with pytest.raises(NotSendableError, match="a Mine cannot be sent to another process: send its name"):
            codec.encode(value)
    assert there(type("Other", (Mine,), {})())  # exactly this type


@pytest.mark.parametrize("value", [a_generator(), [a_generator()], holding(a_generator())])
def test_generators_cannot_be_sent(value: Any) -> None:
    with pytest.raises(NotSendableError, match=r"a generator cannot be sent .* send a list of its values"):
        codec.encode(value)


def test_coroutines_cannot_be_sent() -> None:
    async def later() -> None: ...

    coroutine = later()
    with pytest.raises(NotSendableError, match="await it and send its result"):
        codec.encode(coroutine)
    coroutine.close()


def test_what_pickle_refuses_is_refused_with_its_reason() -> None:
    with pytest.raises(TypeError, match=r"cannot pickle '_thread\.lock' object"):
        codec.encode(threading.Lock())
    with pytest.raises(TypeError, match="socket"), socket.socket() as sock:
        codec.encode(holding(sock))


def test_a_reduction_of_ours_goes_before_the_types_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "_reducers", dict(codec._reducers))
    codec.reduce_as(Mine, lambda obj: (complex, (1, 2)))
    assert there([Mine(), holding(Mine())])[0] == 1 + 2j
    assert there(holding(Mine()))() == 1 + 2j


# --- what it costs


def test_plain_values_load_neither_torch_nor_numpy_nor_cloudpickle() -> None:
    program = """
    import sys
    from monarch._wire import codec
    for value in (1, "a", [1, {"b": 2.0}], bytes(9000), bytearray(9000), ValueError("x"), {1, 2}):
        body, buffers = codec.encode(value)
        codec.decode(body, buffers)
        codec.encode_call((value,), {}), codec.encode_value(value)
    print(*sorted({"torch", "numpy", "cloudpickle"} & set(sys.modules)))
    """
    assert elsewhere(program) == "\n"


def test_a_tensor_loads_torch_only_where_it_arrives(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "message"
    path.write_bytes(codec.encode(torch.arange(3))[0])
    assert elsewhere(DECODE.format("value.tolist()"), str(path)) == "[0, 1, 2]\n"


def test_open_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    for mode in ("w", "r", "a+"):
        with (
            path.open(mode) as file,
            pytest.raises(NotSendableError, match=r"log\.txt'\) cannot be sent .* send its path"),
        ):
            codec.encode({"file": file})
    with path.open() as file, pytest.raises(NotSendableError, match="what it holds"):
        codec.encode(lambda: file)
    with pytest.raises(NotSendableError):
        codec.encode(file)


STREAMS = """
import sys
from monarch._wire import codec

out, err = sys.stdout, sys.stderr
again = codec.decode(*codec.encode((sys.stdout, sys.stderr, lambda: out.write("written"))))
assert again[0] is sys.stdout and again[1] is sys.stderr
again[2]()
try:
    codec.encode(sys.stdin)
except TypeError as error:
    print(":", error)
"""


def test_the_standard_streams_are_those_there() -> None:
    done = subprocess.run(
        [sys.executable, "-c", STREAMS], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, check=True, text=True
    )
    assert done.stdout.startswith("written: an open file ('<stdin>') cannot be sent to another process")


def test_what_only_cloudpickle_can_send_is_freed_without_the_collector() -> None:
    value = Color
    held = numpy.zeros(1 << 16, dtype=numpy.uint8)
    gone = weakref.ref(held)
    gc.disable()
    try:
        codec.encode((lambda: value, held))
        del held
        assert gone() is None
    finally:
        gc.enable()
