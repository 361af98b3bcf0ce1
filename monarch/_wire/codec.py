"""User objects <-> bytes plus out-of-band buffers.

Plain pickle serves first (ten times faster); cloudpickle takes over where plain pickle would name something the other
process cannot import: classes and functions of `__main__`, lambdas, local definitions, modules that no `sys.path`
lookup finds. Large buffers (arrays, tensors) travel beside the pickle, uncopied here and writable there.

A type that must not leave its process is registered with `forbid`, one that needs care with `reduce_as`. Torch is never
imported here: its rules apply once the program has imported it, on the receiving side when a tensor arrives.
"""

from __future__ import annotations

import functools
import importlib
import importlib.machinery
import io
import pickle
import socket
import sys
import types
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from monarch._errors import NotSendableError
from monarch._text import text_of
from monarch._wire.copies import as_bytes
from monarch._wire.frame import BUFFERS_LIMIT, Buffer
from monarch._wire.unpickling import UnreadBody, loads

OUT_OF_BAND = 4096  # bytes; smaller buffers are cheaper inside the pickle
_PROTOCOL = 5
_PLAIN = frozenset({int, float, str, bool, type(None), bytes, complex})

_forbidden: dict[type, str] = {}
_reducers: dict[type, Callable[[Any], Any]] = {}
_importable: dict[str, bool] = {}


class _NotPlain(Exception):
    """Plain pickle met something that only cloudpickle can ship."""


def forbid(cls: type, why: str) -> None:
    """Objects of exactly this type cannot be sent; `why` says what to do in their place."""
    _forbidden[cls] = why


def is_forbidden(cls: type) -> bool:
    return cls in _forbidden


def reduce_as(cls: type, reduce: Callable[[Any], Any]) -> None:
    """Objects of exactly this type are pickled as `reduce(obj)`, a tuple as from `__reduce__`."""
    _reducers[cls] = reduce


def encode(value: Any) -> tuple[bytes, list[memoryview]]:
    """The pickle of `value` and its out-of-band buffers, which alias the value's own memory.

    Raises NotSendableError for what must not leave this process, and whatever pickling raises.
    """
    buffers: list[memoryview] = []

    def out_of_band(buffer: pickle.PickleBuffer) -> bool:
        try:
            raw = buffer.raw()
        except BufferError:  # not contiguous: in the pickle it goes
            return True
        if raw.nbytes < OUT_OF_BAND or len(buffers) >= BUFFERS_LIMIT:
            return True
        buffers.append(raw)
        return False

    file = io.BytesIO()
    try:
        _Pickler(file, _PROTOCOL, buffer_callback=out_of_band).dump(value)
        return file.getvalue(), buffers
    except NotSendableError:
        raise
    except (_NotPlain, pickle.PicklingError, AttributeError, TypeError) as exc:
        plain: BaseException = exc
    buffers.clear()
    file = io.BytesIO()
    try:
        _cloud_pickler()(file, _PROTOCOL, buffer_callback=out_of_band).dump(value)
    except NotSendableError:
        raise
    except Exception as exc:
        exc.__context__ = None if isinstance(plain, _NotPlain) or str(plain) == str(exc) else plain
        raise
    finally:
        del plain  # its traceback has this frame: a circle, which would keep the value until it is collected
    return file.getvalue(), buffers


def encode_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[bytes, Sequence[memoryview]]:
    """`encode((args, kwargs))`, faster when every argument is a plain scalar."""
    if not kwargs:
        large = False
        for arg in args:
            if type(arg) not in _PLAIN:
                break
            large = large or (type(arg) is bytes and len(arg) >= _LARGE)
        else:
            if large:
                return encode((tuple(map(_lift, args)), kwargs))
            return pickle.dumps((args, kwargs), _PROTOCOL), ()
    return encode((args, kwargs))


def encode_value(value: Any) -> tuple[bytes, Sequence[memoryview]]:
    if type(value) in _PLAIN:
        if type(value) is bytes and len(value) >= _LARGE:
            return encode(_lift(value))
        return pickle.dumps(value, _PROTOCOL), ()
    return encode(value)


_LARGE = 1 << 18  # bytes of a `bytes` argument or result from which it travels out of band


class _Lifted:
    """Large `bytes` on their way: written from where they are, not copied into a pickle first."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data

    def __reduce__(self) -> tuple[Any, ...]:
        return as_bytes, (pickle.PickleBuffer(self.data),)


def _lift(value: Any) -> Any:
    return _Lifted(value) if type(value) is bytes and len(value) >= _LARGE else value


def decode(body: Buffer, buffers: Sequence[Buffer] = ()) -> Any:
    """The object `encode` was given. Runs the sender's pickle: only for bytes of an authenticated peer.

    Raises whatever unpickling raises, as an Exception: nobody ends because of a value that raises SystemExit. A module
    missing here says so and what to do.
    """
    if type(body) is UnreadBody:
        body.was_read = True
    try:
        if "torch" in sys.modules:
            return _decode_without_modes(body, buffers)
        return loads(body, buffers)
    except ModuleNotFoundError as exc:
        exc.msg = (
            f"{exc.msg}: the message names something from module {exc.name!r}, which this process cannot import (host "
            f"{socket.gethostname()}, interpreter {sys.executable}). Install it here, put its folder on PYTHONPATH (of the "
            f"worker, when this is another host), bring your files along with host_mesh.sync_workspace(...), or send the "
            f"class by value with cloudpickle.register_pickle_by_value(module)"
        )
        raise
    except Exception:
        raise
    except BaseException as exc:
        from monarch._wire.interrupts import is_interrupt

        if is_interrupt(exc):
            raise
        raise pickle.UnpicklingError(
            f"unpickling raised {type(exc).__name__} ({text_of(exc)}), which would end who receives it"
        ) from exc


def _locally(function: Callable[..., Any]) -> Callable[..., Any]:
    """`monarch._devices.modes.locally`, imported by the first tensor: without any, nothing of devices is loaded."""
    made: Callable[..., Any] | None = None

    @functools.wraps(function)
    def without_modes(*args: Any) -> Any:
        nonlocal made
        if made is None:
            from monarch._devices.modes import locally

            made = locally(function)
        return made(*args)

    return without_modes


@_locally
def _decode_without_modes(body: Buffer, buffers: Sequence[Buffer]) -> Any:
    """A dispatch mode of the program must not see the tensors that unpickling makes."""
    return loads(body, buffers)


# --- pickling -----------------------------------------------------------------------------------------------


def _override(self: Any, obj: Any) -> Any:
    kind = type(obj)
    reduce = _reducers.get(kind)
    if reduce is not None:
        return reduce(obj)
    if kind in _forbidden:
        raise NotSendableError(f"a {kind.__name__} cannot be sent to another process: {_forbidden[kind]}")
    torch = sys.modules.get("torch")
    if torch is not None:
        tensor = getattr(torch, "Tensor", None)  # absent while torch is still being imported
        if tensor is not None and isinstance(obj, tensor):
            return _reduce_tensor(self, torch, obj)
    return None


class _Pickler(pickle.Pickler):
    """Plain pickle that gives up early (_NotPlain) where cloudpickle is needed."""

    spans: dict[Any, Any] | None = None

    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        if kind is not types.FunctionType:  # nothing is registered for those, and every handle names one
            reduced = _override(self, obj)
            if reduced is not None:
                return reduced
        if kind is types.FunctionType or isinstance(obj, type):
            module = obj.__module__
            if "<" in obj.__qualname__ or not importable(module):
                raise _NotPlain
        elif kind is types.ModuleType:
            raise _NotPlain
        return NotImplemented


_cloud: type[pickle.Pickler] | None = None


def _cloud_pickler() -> type[pickle.Pickler]:
    global _cloud
    if _cloud is None:
        import cloudpickle  # costs a noticeable part of importing the package, and many programs never need it

        class CloudPickler(cloudpickle.Pickler):  # type: ignore[misc]
            spans: dict[Any, Any] | None = None

            def reducer_override(self, obj: Any) -> Any:
                reduced = _override(self, obj)
                if reduced is not None:
                    return reduced
                kind = type(obj)
                if kind is types.FunctionType or isinstance(obj, type):
                    _ship_unimportable(cloudpickle, obj.__module__)
                elif kind is types.CodeType:
                    return _with_its_file(obj, self.dispatch_table[kind](obj))
                return super().reducer_override(obj)

        _cloud = CloudPickler
    return _cloud


def _with_its_file(code: types.CodeType, reduced: tuple[Any, tuple[Any, ...]]) -> tuple[Any, tuple[Any, ...]]:
    """Returns what code is made of, with the file it came from: cloudpickle 3.1.3 leaves that out, and tracebacks,
    breakpoints and flame graphs need it."""
    make, parts = reduced
    return make, (*parts[:_FILE], code.co_filename, *parts[_FILE + 1 :])


_FILE = 10  # its place among the arguments of CodeType, from Python 3.11 on


def _ship_unimportable(cloudpickle: Any, name: str) -> None:
    """Modules that no lookup finds elsewhere (loaded from a file by hand, by a test runner) go by value."""
    module = sys.modules.get(name)
    if module is None or name == "__main__" or _found(name):
        return
    if name not in cloudpickle.list_registry_pickle_by_value():
        cloudpickle.register_pickle_by_value(module)


def importable(name: str) -> bool:
    """Returns whether to send names of module `name`: a fresh interpreter with this `sys.path` would import the one
    loaded here, and the program did not ask to send it by value."""
    return _found(name) and not ("cloudpickle" in sys.modules and _by_value(name))


def _found(name: str) -> bool:
    known = _importable.get(name)
    if known is None:
        known = _importable[name] = name != "__main__" and _find(name)
    return known


def _by_value(name: str) -> bool:
    """Returns whether the program registered the module, or a package it is in, with
    cloudpickle.register_pickle_by_value."""
    registered = sys.modules["cloudpickle"].list_registry_pickle_by_value()
    while name and registered:
        if name in registered:
            return True
        name = name.rpartition(".")[0]
    return False


def _find(name: str) -> bool:
    top = name.partition(".")[0]
    # Our own package is everywhere, and has modules in a folder that only its import adds to its path.
    if name in sys.builtin_module_names or top in sys.stdlib_module_names or top == "monarch":
        return True
    path: Any = list(sys.path)  # a copy: another thread that takes an entry out would make the search skip one
    spec: importlib.machinery.ModuleSpec | None = None
    parts = name.split(".")
    for index in range(len(parts)):
        try:
            spec = importlib.machinery.PathFinder.find_spec(".".join(parts[: index + 1]), path)
        except (ImportError, AttributeError, ValueError):
            return _loaded_by_a_finder(name)
        if spec is None:
            return _loaded_by_a_finder(name)
        path = spec.submodule_search_locations
    module = sys.modules.get(name)
    origin = getattr(module, "__file__", None)
    return module is None or origin is None or spec is None or spec.origin in (origin, None)


def _loaded_by_a_finder(name: str) -> bool:
    """Editable installs and vendored packages come through other finders that a fresh interpreter has as well."""
    for finder in sys.meta_path:
        if finder is importlib.machinery.PathFinder:
            continue
        try:
            if finder.find_spec(name, None) is not None and getattr(finder, "__module__", "").startswith(
                "__editable__"
            ):
                return True
        except (ImportError, AttributeError, ValueError):
            continue
    # Made at run time by an importable parent (six.moves, torch.ops): the parent will make it there too.
    parent = name.rpartition(".")[0]
    return bool(parent) and getattr(sys.modules.get(name), "__file__", None) is None and importable(parent)


# --- tensors ------------------------------------------------------------------------------------------------


@_locally
def _reduce_tensor(pickler: Any, torch: Any, tensor: Any) -> Any:
    """A dense tensor as the span of bytes it covers; anything special as torch itself reduces it. One on a device is copied
    to the host here and put on a device of that type there: see `_rebuild_on_device`.

    Tensors of one message that view one storage still share it there, unless it is large and they cover little of it.
    """
    if type(tensor).__name__ == "AsyncCollectiveTensor" and hasattr(tensor, "trigger_wait"):
        tensor = (
            tensor.trigger_wait()
        )  # what a collective of torch's gives, tensor parallel layers too: still on its way
    if (
        type(tensor) is not torch.Tensor
        or tensor.layout is not torch.strided
        or tensor.is_quantized
        or tensor.device.type == "meta"
        or tensor.is_conj()
        or tensor.is_neg()
        or tensor.__dict__
    ):
        return None
    data = tensor.detach()
    on_cpu = data.device.type == "cpu"
    if any(stride < 0 for stride in data.stride()):
        data = data.contiguous()
    offset = data.storage_offset()
    storage = data.untyped_storage()
    needed = data.numel() * data.element_size()
    if storage.nbytes() > _SHARED_UP_TO and 2 * needed < storage.nbytes():
        # A small part of a large storage travels alone: sending all of it would send mostly other data.
        count = _reach(data)
        if count > 2 * data.numel():  # scattered (a column, say)
            data = data.contiguous()
            count = data.numel()
        part, offset = _elements(torch, data, count), 0
    elif on_cpu:
        part = torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage)
    else:
        part = _storage_on_device(storage)
    key = (part.data_ptr(), part.numel())
    if pickler.spans is None:
        pickler.spans = {}
    span = pickler.spans.get(key)
    if span is None:
        span = pickler.spans[key] = _Span(_memory_of(part)) if on_cpu else _DeviceSpan(part)
    return _rebuild_tensor, (
        span,
        str(data.dtype).removeprefix("torch."),
        tuple(data.shape),
        tuple(data.stride()),
        offset,
        tensor.requires_grad,
    )


_SHARED_UP_TO = 1 << 20  # bytes of a storage that is always sent whole, so that its views stay views of one storage


def _reach(data: Any) -> int:
    """Elements from the first of a tensor to the last, in memory."""
    if not data.numel():
        return 0
    return 1 + int(sum((size - 1) * stride for size, stride in zip(data.shape, data.stride(), strict=True)))


def _elements(torch: Any, data: Any, count: int) -> Any:
    """The memory of `count` elements from the first of `data` on, as bytes; not copied."""
    flat = torch.as_strided(data, (count,), (1,), data.storage_offset())
    return flat if flat.dtype is torch.bool else flat.view(torch.uint8)


def _memory_of(part: Any) -> Any:
    """The bytes of a flat CPU tensor, not copied. Torch gives them by way of numpy, which it does without."""
    try:
        return part.numpy()
    except RuntimeError:
        import ctypes

        memory = (ctypes.c_ubyte * part.numel()).from_address(part.data_ptr())
        memory.part = part
        return pickle.PickleBuffer(memory).raw()  # ctypes' own format is not that of bytes


class _Span:
    """Memory that one or more tensors of a message view. Arrives as the storage itself."""

    __slots__ = ("memory",)

    def __init__(self, memory: Any) -> None:
        self.memory = memory

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild_span, (pickle.PickleBuffer(self.memory),)


@_locally
def _rebuild_span(memory: Any) -> Any:
    import torch

    view = memoryview(memory)
    if not view.nbytes:
        return torch.empty(0, dtype=torch.uint8, device="cpu")
    if view.readonly:  # in-band bytes
        view = memoryview(bytearray(view))
    return torch.frombuffer(view, dtype=torch.uint8)


def _storage_on_device(storage: Any) -> Any:
    from monarch._devices.memory import interface

    return interface().whole(storage)


class _DeviceSpan:
    """A span of a device's memory: what it held when the message was made, on the host. Arrives on a device."""

    __slots__ = ("card", "host", "part")

    def __init__(self, part: Any) -> None:
        import torch

        from monarch._devices import pinned
        from monarch._devices.memory import interface

        self.part = part  # its address must stay its own while the message is made: tensors are known by it
        self.card = interface().card(part)
        self.host = torch.empty(part.numel(), dtype=torch.uint8, device="cpu")
        pinned.to_host(part, self.host.data_ptr(), interface().mark(part))

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild_on_device, (pickle.PickleBuffer(_memory_of(self.host)), *self.card)


_told_of_no_device = False


@_locally
def _rebuild_on_device(memory: Any, kind: str, uuid: str) -> Any:
    """On the device of its type that this thread uses, whichever it came from: what rank 0 broadcasts is not to fill rank 0's
    device once for each rank.

    Without a device of that type it stays on the CPU, which the user is warned of, once.
    """
    from monarch._devices import pinned
    from monarch._devices.memory import interface

    host = _rebuild_span(memory)
    device = interface().current(kind)
    if not device:
        _tell_of_no_device(kind)
        return host
    flat = interface().empty(host.numel(), device)
    pinned.to_device(
        flat, host.data_ptr(), interface().mark(flat)
    )  # memory that was in use a moment ago may be so still
    return flat


def _tell_of_no_device(kind: str) -> None:
    global _told_of_no_device
    if _told_of_no_device:
        return
    _told_of_no_device = True
    warnings.warn(
        f"a tensor on a {kind} device was sent to a process that has none (host {socket.gethostname()}): it and those to "
        "come are on the CPU here. Send tensor.cpu() if that is what you want",
        UserWarning,
        stacklevel=2,
    )


@_locally
def _rebuild_tensor(
    span: Any, dtype: str, shape: tuple[int, ...], stride: tuple[int, ...], offset: int, requires_grad: bool
) -> Any:
    import torch

    kind = getattr(torch, dtype)
    size = kind.itemsize
    elements = span[: span.numel() // size * size].view(kind)
    tensor = elements.as_strided(shape, stride, offset)
    if requires_grad:
        tensor.requires_grad_()
    return tensor


def _forbid_builtins() -> None:
    for kind, why in (
        (types.GeneratorType, "a generator runs where it was made; send a list of its values"),
        (types.CoroutineType, "a coroutine runs where it was made; await it and send its result"),
    ):
        forbid(kind, why)
    reduce_as(io.TextIOWrapper, _reduce_file)


def _reduce_file(file: io.TextIOWrapper) -> Any:
    """cloudpickle would send what a file holds, as one in memory, and does send stdout and stderr as those there."""
    if file is sys.stdout or file is sys.stderr:
        return getattr, (sys, "stdout" if file is sys.stdout else "stderr")
    name = getattr(file, "name", None)
    raise NotSendableError(
        f"an open file ({name!r}) cannot be sent to another process: send its path, and open it there, or what it holds, "
        f"file.read()"
    )


_forbid_builtins()
