"""Functions for tests of remote functions, found in the workers by their dotted path.

The collectives come with functions of the same name and `_prop` that say what they give (`propagate=`).
"""

from __future__ import annotations

import pdb  # noqa: T100  for `gonna_pdb`
import threading
import time
from typing import Any

import torch
import torch.distributed as dist

from monarch._linux.locks import Lock
from monarch.tensor.remote.opaque_ref import OpaqueRef, table
from monarch.tensor.worker import current


def _rank() -> int:
    return int(current.worker().executor.rank)


def do_bogus_tensor_work(x: torch.Tensor, y: torch.Tensor, fail_rank: int | None = None) -> torch.Tensor:
    """`x @ y`, on rank `fail_rank` (on all without one) whether or not the shapes fit; elsewhere something of `x`'s shape."""
    if fail_rank is not None and _rank() != fail_rank:
        return torch.zeros_like(x)
    return x @ y


def set_device_udf_worker(device: int) -> None:
    torch.accelerator.set_device_index(device)


def remote_sleep(seconds: float) -> None:
    time.sleep(seconds)


def do_some_processing(value: str) -> str:
    return f"{value} processed"


def how_many_of_these_do_you_want(n: int, t: torch.Tensor) -> list[torch.Tensor]:
    return [t for _ in range(n)]


def remote_chunk(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Returns four views."""
    return tuple(torch.chunk(x, 4, dim=0))


def new_barrier_hackery(threads: int) -> torch.Tensor:
    """A barrier for as many streams of this process, by a number; `wait_barrier_hackery` waits at it."""
    with _lock:
        _barriers.append(threading.Barrier(threads))
        return torch.tensor(len(_barriers) - 1)


def wait_barrier_hackery(t: torch.Tensor) -> None:
    _barriers[int(t)].wait(timeout=60)


_lock = Lock()
_barriers: list[threading.Barrier] = []


def gonna_pdb() -> None:
    pdb.set_trace()  # noqa: T100  what this function is for


def outer_remote_function_that_calls_inner() -> None:
    inner_remote_function_that_fails()


def inner_remote_function_that_fails() -> None:
    raise Exception("the inner remote function has failed")


class WorkerFoo:
    """An object for OpaqueObject."""

    def __init__(self, value: float) -> None:
        self.t = torch.full((3, 4), float(value))

    def add(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.t

    def get_value(self) -> float:
        return float(self.t[0, 0])

    def set_value(self, value: float) -> None:
        self.t.fill_(value)


class TestRemoteAutogradFunction(torch.autograd.Function):  # type: ignore[misc]  # torch is Any to the checker
    """Three tensors and a number."""

    __test__ = False  # pytest takes it for a test by its name

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        ctx.save_for_backward(x, y)
        return x + y, x * y, x - y, 4

    @staticmethod
    def backward(ctx: Any, plus: Any, times: Any, minus: Any, _number: Any) -> Any:
        x, y = ctx.saved_tensors
        return plus + times * y + minus, plus + times * x - minus


def create_opaque_ref_worker(value: Any = None) -> OpaqueRef:
    return OpaqueRef(torch.nn.Linear(4, 4) if value is None else value)


def opaque_ref_key_table_length_worker() -> torch.Tensor:
    """Returns how many objects the OpaqueRefs of this worker keep."""
    return torch.tensor(len(table().values))


def setup_state_worker() -> OpaqueRef:
    """A small model with its optimizer, for `iteration_worker`."""
    model = torch.nn.Linear(3, 4)
    return OpaqueRef((model, torch.optim.SGD(model.parameters(), lr=0.01)))


def iteration_worker(state: OpaqueRef) -> torch.Tensor:
    """Runs one step; returns its loss."""
    model, optimizer = state.value
    optimizer.zero_grad()
    loss = model(torch.ones(2, 3)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.detach()


def example_data_loader(batches: int, size: int) -> Any:
    """Yields (inputs, labels)."""
    for batch in range(batches):
        yield torch.full((size,), float(batch)), torch.full((size,), batch)


# --- collectives ------------------------------------------------------------------------------------------------


def barrier(group: Any = None) -> torch.Tensor:
    dist.barrier(group=group)
    return torch.ones(1)


def barrier_prop(group: Any = None) -> torch.Tensor:
    return torch.ones(1)


def all_reduce(tensor: torch.Tensor, group: Any = None) -> torch.Tensor:
    dist.all_reduce(tensor, group=group)
    return tensor


def all_reduce_prop(tensor: torch.Tensor, group: Any = None) -> torch.Tensor:
    return tensor.add_(0)


def all_gather(tensors: list[torch.Tensor], tensor: torch.Tensor, group: Any = None) -> list[torch.Tensor]:
    dist.all_gather(tensors, tensor, group=group)
    return tensors


def all_gather_prop(tensors: list[torch.Tensor], tensor: torch.Tensor, group: Any = None) -> list[torch.Tensor]:
    return [each.zero_() for each in tensors]


def all_gather_into_tensor(output: torch.Tensor, tensor: torch.Tensor, group: Any = None) -> torch.Tensor:
    dist.all_gather_into_tensor(output, tensor, group=group)
    return output


def all_gather_into_tensor_prop(output: torch.Tensor, tensor: torch.Tensor, group: Any = None) -> torch.Tensor:
    return output.zero_()


def isend(tensor: torch.Tensor, to: int, group: Any = None) -> torch.Tensor:
    dist.isend(tensor, group_dst=to, group=group).wait()
    return tensor


def isend_prop(tensor: torch.Tensor, to: int, group: Any = None) -> torch.Tensor:
    return tensor


def irecv(tensor: torch.Tensor, source: int, group: Any = None) -> torch.Tensor:
    dist.irecv(tensor, group_src=source, group=group).wait()
    return tensor


def irecv_prop(tensor: torch.Tensor, source: int, group: Any = None) -> torch.Tensor:
    return tensor.zero_()


def reduce(tensor: torch.Tensor, to: int, group: Any = None) -> torch.Tensor:
    dist.reduce(tensor, group_dst=to, group=group)
    return tensor


def reduce_prop(tensor: torch.Tensor, to: int, group: Any = None) -> torch.Tensor:
    return tensor.zero_()


def reduce_scatter(output: torch.Tensor, tensors: list[torch.Tensor], group: Any = None) -> torch.Tensor:
    dist.reduce_scatter(output, tensors, group=group)
    return output


def reduce_scatter_prop(output: torch.Tensor, tensors: list[torch.Tensor], group: Any = None) -> torch.Tensor:
    return output.zero_()


def reduce_scatter_tensor(output: torch.Tensor, tensor: torch.Tensor, group: Any = None) -> torch.Tensor:
    dist.reduce_scatter_tensor(output, tensor, group=group)
    return output


def reduce_scatter_tensor_prop(output: torch.Tensor, tensor: torch.Tensor, group: Any = None) -> torch.Tensor:
    return output.zero_()


def gather(tensor: torch.Tensor, tensors: list[torch.Tensor], to: int, group: Any = None) -> list[torch.Tensor]:
    here = dist.get_rank(group) == to
    dist.gather(tensor, tensors if here else None, group_dst=to, group=group)
    return tensors


def gather_prop(tensor: torch.Tensor, tensors: list[torch.Tensor], to: int, group: Any = None) -> list[torch.Tensor]:
    return [each.zero_() for each in tensors]


def scatter(tensor: torch.Tensor, tensors: list[torch.Tensor], source: int, group: Any = None) -> torch.Tensor:
    here = dist.get_rank(group) == source
    dist.scatter(tensor, tensors if here else None, group_src=source, group=group)
    return tensor


def scatter_prop(tensor: torch.Tensor, tensors: list[torch.Tensor], source: int, group: Any = None) -> torch.Tensor:
    return tensor.zero_()


def broadcast(tensor: torch.Tensor, source: int, group: Any = None) -> torch.Tensor:
    dist.broadcast(tensor, group_src=source, group=group)
    return tensor


def broadcast_prop(tensor: torch.Tensor, source: int, group: Any = None) -> torch.Tensor:
    return tensor.zero_()


def all_to_all(outputs: list[torch.Tensor], inputs: list[torch.Tensor], group: Any = None) -> list[torch.Tensor]:
    dist.all_to_all(outputs, inputs, group=group)
    return outputs


def all_to_all_prop(outputs: list[torch.Tensor], inputs: list[torch.Tensor], group: Any = None) -> list[torch.Tensor]:
    return [each.zero_() for each in outputs]


def all_to_all_single(output: torch.Tensor, tensor: torch.Tensor, group: Any = None) -> torch.Tensor:
    dist.all_to_all_single(output, tensor, group=group)
    return output


def all_to_all_single_prop(output: torch.Tensor, tensor: torch.Tensor, group: Any = None) -> torch.Tensor:
    return output.zero_()
