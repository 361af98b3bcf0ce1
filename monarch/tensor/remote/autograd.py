"""A torch.autograd.Function that runs in the workers, as one node of the program's graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from monarch.tensor.remote import graph as remote_graph
from monarch.tensor.remote.remote_function import Remote

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.utils._pytree import PyTree

    from monarch.tensor.signature import Args, Kwargs


def forward(cls: Any, args: Args, kwargs: Kwargs, wanted: Sequence[bool]) -> PyTree:
    """Runs in a worker: `cls.apply(*args)` and its Graph."""
    return remote_graph.forward(cls.apply, args, kwargs, wanted, ())


_forward = Remote(forward)


class RemoteAutogradFunction:
    """An autograd function that runs in the workers; see `remote_autograd_function`."""

    def __init__(self, cls: type) -> None:
        self._cls = cls

    def apply(self, *args: object) -> PyTree:
        """Returns what the workers' `apply` gives. The first call with each pattern of arguments waits for the
        workers (see `remote`)."""

        def run(args: Args, kwargs: Kwargs, wanted: object) -> PyTree:
            return _forward(self._cls, args, kwargs, wanted)

        return remote_graph.apply(run, args, {}, ())

    def __repr__(self) -> str:
        return f"<remote autograd function {self._cls.__qualname__}>"


def remote_autograd_function(cls: type) -> RemoteAutogradFunction:
    """`cls`, a torch.autograd.Function, for distributed tensors: its forward and backward run in the workers, on local ones.

    `result.apply(*args)` as `cls.apply`; derivatives arrive for the inputs that require them.
    """
    return RemoteAutogradFunction(cls)
