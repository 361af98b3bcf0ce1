"""OpaqueModule: an nn.Module in every worker, with autograd through it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from monarch.tensor.controller.tensor import Tensor
from monarch.tensor.remote import graph as remote_graph
from monarch.tensor.remote.opaque_object import OpaqueObject
from monarch.tensor.remote.opaque_ref import OpaqueRef
from monarch.tensor.remote.remote_function import Remote

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from torch.utils._pytree import PyTree

    from monarch.tensor.signature import Args, Kwargs


def parameters_of(ref: OpaqueRef) -> tuple[list[torch.Tensor], list[bool]]:
    """Returns, in a worker, the module's parameters, and which of them require grad."""
    found = list(ref.value.parameters())
    return found, [parameter.requires_grad for parameter in found]


def forward(ref: OpaqueRef, args: Args, kwargs: Kwargs, wanted: Sequence[bool]) -> PyTree:
    """Returns, in a worker, `module(*args, **kwargs)` and its Graph."""
    module = ref.value
    extra = [parameter for parameter in module.parameters() if parameter.requires_grad]
    return remote_graph.forward(module, args, kwargs, wanted, extra)


_parameters = Remote(parameters_of)


class OpaqueModule:
    """`constructor(*args, **kwargs)`, an nn.Module, in every process of the active mesh.

    `constructor`: the class or its dotted path, such as "torch.nn.Linear".
    """

    def __init__(self, constructor: object, *args: object, **kwargs: object) -> None:
        self._object = OpaqueObject(constructor, *args, **kwargs)
        self._found: list[Tensor] | None = None
        self._remotes: dict[Hashable, Remote] = {}

    def parameters(self) -> list[Tensor]:
        """The parameters as distributed tensors: the workers' own memory, so that changes in place change the modules.

        Waits for the workers the first time. Those that require grad there do so here, and get theirs by `backward()`.
        """
        if self._found is None:
            found, wanted = _parameters(self._object._object)
            self._found = [parameter.requires_grad_(want) for parameter, want in zip(found, wanted, strict=True)]
        return list(self._found)

    def __call__(self, *args: object, propagator: Callable[..., PyTree], **kwargs: object) -> PyTree:
        """Returns what the modules give for these arguments; its derivative runs in the workers as well.

        `propagator(*args, **kwargs)`: as `propagate` of `remote`.
        """
        remote = self._remotes.get(propagator)
        if remote is None:
            if len(self._remotes) >= 256:  # a program that makes its propagators anew for each call
                self._remotes.clear()
            remote = self._remotes[propagator] = Remote(forward, _Forward(propagator))
        issue = remote

        def run(args: Args, kwargs: Kwargs, wanted: object) -> PyTree:
            return issue(self._object._object, args, kwargs, wanted)

        return remote_graph.apply(run, args, kwargs, self.parameters() if torch.is_grad_enabled() else [])

    def call_method(self, name: str, propagation: object, *args: object, **kwargs: object) -> PyTree:
        """Returns what the modules' method `name` gives, without derivatives. `propagation`: as `propagate` of `remote`."""
        return self._object.call_method(name, propagation, *args, **kwargs)


class _Forward:
    """A propagator of a module's arguments as one of `forward`'s."""

    def __init__(self, propagator: Callable[..., PyTree]) -> None:
        self._propagator = propagator

    def __call__(self, ref: OpaqueRef, args: Args, kwargs: Kwargs, wanted: Sequence[bool]) -> PyTree:
        return self._propagator(*args, **kwargs), OpaqueRef(None)
