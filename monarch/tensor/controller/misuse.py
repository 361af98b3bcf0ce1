"""Mistakes of programs with distributed tensors, explained: which argument, why, and what to do."""

from __future__ import annotations

import dis
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

from monarch.tensor.frames import PACKAGE, TORCH, internal

if TYPE_CHECKING:
    from types import FrameType

    from monarch.tensor.controller.tensor import Tensor
    from monarch.tensor.signature import Kwargs

_EXPLANATIONS = {
    "LOCAL_TENSOR": (
        "a tensor of this process alone. Operations on a mesh take distributed tensors and Python numbers: send it there "
        "with monarch.replicate(tensor) (the same in each process) or monarch.shard(tensor, dim) (a part each), make it "
        "under the mesh, return it from a remote function, or leave the mesh with monarch.no_mesh.activate() to work on it "
        "here. Parameters of a module that was made outside of `with mesh.activate():` are such tensors: make the module "
        "inside, or take monarch.replicate(module)"
    ),
    "NO_MESH": (
        "a tensor of this process, and there is no active device mesh: activate one with `with proc_mesh.activate():` before "
        "it is made"
    ),
    "WRONG_MESH": "lives on {mesh}, and the operation runs on another one: bring it there with .to_mesh(...)",
    "WRONG_STREAM": "belongs to {stream}, and another is active: borrow it with active_stream.borrow(tensor)",
    "DROPPED": "was dropped. It is dropped at:\n{why}",
    "BORROWED": "is borrowed by another stream that may change it, until that borrow is dropped. It was borrowed at:\n{why}",
    "MUTATING_BORROW": "would be mutated, and it is borrowed by another stream until that borrow is dropped. It was "
    "borrowed at:\n{why}",
    "REQUIRES_GRAD": (
        "requires grad, and this operation has no derivative: call it under torch.no_grad(), or detach() the tensor first"
    ),
}  # fmt: skip


class OperandProblem:
    """One argument and what is wrong with it."""

    __slots__ = ("code", "tensor", "text")

    def __init__(self, tensor: Tensor, code: str, **facts: object) -> None:
        self.tensor = tensor
        self.code = code
        self.text = _EXPLANATIONS[code].format(**facts)


class _Latest(threading.local):
    error: TypeError | None = None


_latest = _Latest()


def incorrect(
    name: object,
    args: Sequence[object],
    kwargs: Kwargs,
    problems: Sequence[OperandProblem],
    mesh: object,
    stream: object,
) -> TypeError:
    """The TypeError for a call of `name` with these arguments."""
    places = {id(problem.tensor): place for place, problem in reversed(list(enumerate(problems)))}

    shown = [_shown(arg, places) for arg in args]
    call = ", ".join([*shown, *(f"{key}={_shown(value, places)}" for key, value in kwargs.items())])
    lines = [
        f"Incorrect arguments to monarch operation:\n\n  {name}({call})\n",
        f"active_mesh = {mesh if mesh is not None else 'no active device mesh'}",
        f"active_stream = {stream}",
    ]
    lines += [f"ERROR_{place} {problem.code}: {problem.text}" for place, problem in enumerate(problems)]
    error = _latest.error = TypeError("\n".join(lines))
    return error


def _shown(value: Any, places: dict[int, int]) -> str:
    if id(value) in places:
        return f"ERROR_{places[id(value)]}"
    if isinstance(value, torch.Tensor):
        return f"Tensor{list(value.shape)}"
    if type(value) in (list, tuple):
        inner = ", ".join(_shown(item, places) for item in value)
        return f"[{inner}]" if type(value) is list else f"({inner})"
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def explained(operator: Callable[[Any, Any], Any], tensor: Tensor, other: object) -> Any:
    """Raises the explanation that torch's `operator` has swallowed when it gave NotImplemented for these operands; that
    again when nothing of ours stands in the way."""
    if hasattr(other, "__array_interface__") and not isinstance(other, torch.Tensor):
        raise not_an_operand(other)
    _latest.error = None
    result = operator(tensor, other)
    if _latest.error is not None:
        raise _latest.error
    return result


class LocalOperandsError(RuntimeError):
    """Local tensors alone are the operands of an operator while a mesh is active. No TypeError: torch makes NotImplemented of
    that, Python then says nothing of meshes, and `==` even gives False."""


def asked_by(file: str) -> bool:
    """True if the code that called torch, or this package, is in the file `file`, or in the folder, which ends in a slash."""
    frame = asking_frame()
    return frame is not None and frame.f_code.co_filename.startswith(file)


def asking_frame() -> FrameType | None:
    """Returns the frame of the code that called torch, or this package."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(PACKAGE):
        frame = frame.f_back
    return frame


def no_value(what: str) -> Exception:
    """The error for `what`, which asks for the value of a distributed scalar."""
    if asked_by(_DATA):
        return DataLoaderError(
            "a DataLoader of this process works on local tensors, and a mesh is active: iterate over it with `for batch in "
            "monarch.no_mesh.iterate(loader):`, and send the batches with monarch.replicate(batch) or monarch.shard(batch, "
            "dim); or let each process have a loader of its own, with monarch.DataLoaders"
        )
    return data_dependent(what)


_DATA = TORCH + "utils/data/"


_SUBSCRIPT = 26  # of BINARY_OP, which `t[0]` is from Python 3.14 on; before, no operator had that number


def in_operator() -> bool:
    """True if the program's own line, which called torch, is at an operator such as `+` or `==` and not at a call."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith((TORCH, PACKAGE)):
        frame = frame.f_back
    code, at = frame.f_code.co_code, frame.f_lasti
    name = dis.opname[code[at]]
    return name == "COMPARE_OP" or (name == "BINARY_OP" and code[at + 1] != _SUBSCRIPT)


class DataDependentError(DataDependentOutputException):
    """The program asked for a value that only the processes of the mesh have."""

    def __init__(self, what: str) -> None:
        self.what = what
        Exception.__init__(self, what)
        self.func = what

    def __str__(self) -> str:
        return _values_elsewhere(self.what)


class DataLoaderError(DataDependentError):
    """A DataLoader of this process was iterated over while a mesh is active."""

    def __str__(self) -> str:
        return self.what


class DynamicShapeError(DynamicOutputShapeException):
    """The shape of what an operation gives depends on values that only the processes of the mesh have."""

    def __init__(self, what: str) -> None:
        Exception.__init__(self, what)
        self.func = what

    def __str__(self) -> str:
        return (
            f"the shape of what {self.func} gives depends on values, which are in the processes of the mesh: "
            f"call it inside a "
            f"monarch.remote function, or fetch its inputs with monarch.inspect first. In place of t[mask], "
            f"torch.where(mask, t, 0) "
            f"has a shape that is known; t[mask] = number works. In `with monarch.agreed_values():` the program waits for "
            f"the values, which have to be the same in every process"
        )


def no_prediction(what: str) -> NotImplementedError:
    """The error for an operation of which torch cannot tell what it gives without running it."""
    return NotImplementedError(
        f"torch does not know what {what} returns without running it, so it cannot be issued here: call it inside a "
        f"monarch.remote "
        f"function, or, if it is an operation of yours, give it a fake implementation (torch.library.register_fake)"
    )


def not_an_operand(array: object) -> TypeError:
    """The error for an array among the operands of a distributed tensor."""
    return TypeError(
        f"a distributed tensor and a {type(array).__name__} of this process: operations on a mesh take distributed "
        f"tensors and Python "
        f"numbers, so make it one first, with torch.as_tensor(array) inside `with mesh.activate():`"
    )


def no_memory(what: str) -> RuntimeError:
    """The error for `what`, which needs the memory behind a tensor."""
    return RuntimeError(
        f"{what} needs the memory of a tensor, and that of a distributed tensor is in the processes of its mesh: "
        f"monarch.inspect(tensor) gives a local tensor of one rank, and monarch.remote functions get each rank's own"
    )


def _values_elsewhere(what: str) -> str:
    return (
        f"{what} needs the values of a distributed tensor, which are in the processes of its mesh: "
        f"`monarch.inspect(tensor)` waits for them and gives a local tensor of one rank, `monarch.fetch_shard(tensor)` "
        f"gives a Future of it; work that depends on values belongs in a `monarch.remote` function. In "
        f"`with monarch.agreed_values():` the program waits here for values, which have to be the same in every process. "
        f"Without it only scalars made from "
        f"constants alone (torch.tensor(1.0), and arithmetic on it) are known here, and masks and counts "
        f"(torch.arange(8) < 5) of up to 32 KiB"
    )


def data_dependent(what: str, kind: type[Exception] = DataDependentError) -> Exception:
    """The error for `what`, a method or operation that needs values."""
    return kind(what) if kind is DataDependentError else kind(_values_elsewhere(what))


def not_sendable(tensor: Tensor) -> TypeError:
    return TypeError(
        f"a distributed tensor cannot be pickled here ({tensor!r}): it can be an argument of remote functions, and "
        f"of endpoints "
        f"and constructors of actors in the same processes; monarch.inspect(tensor) gives a local tensor that can "
        f"be saved or sent"
    )


def line_of_program() -> str:
    """The program's own line, or that of a library of its own, which called torch or this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and internal(frame.f_code.co_filename):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def here(skip: int = 1) -> str:
    """The program's own last lines, as text: where something was done that an error may have to name later."""
    frames = traceback.extract_stack(limit=24)[: -1 - skip]
    return "".join(traceback.format_list(frames[-6:]))
