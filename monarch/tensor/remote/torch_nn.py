"""Stand-ins for parts of torch that look at values: they do so in the processes of a mesh, or are left out under one.

What torch.compile is given runs as it is under a mesh: torch compiles no code while modes like a mesh's are active. It would
still look at each function that is called there, our own among them; these it leaves out from here on.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch
import torch.backends.mha
import torch.nn.init

from monarch.tensor.controller.activation import everywhere, mesh_of_operations
from monarch.tensor.controller.handles import is_distributed
from monarch.tensor.remote.remote_function import Remote

_TRUNC_NORMAL = "_no_grad_trunc_normal_"


def install() -> None:
    """Puts them where torch looks for its own; once a process, before the first mesh is active."""
    init: Any = torch.nn.init
    plain = getattr(init, _TRUNC_NORMAL)

    @functools.wraps(plain)
    def trunc_normal(
        tensor: torch.Tensor, mean: float, std: float, a: float, b: float, generator: torch.Generator | None = None
    ) -> torch.Tensor:
        if not is_distributed(tensor):
            return plain(tensor, mean, std, a, b, generator=generator)
        if generator is not None:
            raise NotImplementedError(
                "trunc_normal_ of a distributed tensor draws with the random state of its mesh, and takes no generator: call "
                "torch.manual_seed(...) under the mesh before it"
            )
        with torch.no_grad():
            _truncated_normal(tensor, mean, std, a, b)
        return tensor

    setattr(init, _TRUNC_NORMAL, trunc_normal)
    mha: Any = torch.backends.mha
    enabled = mha.get_fastpath_enabled

    @functools.wraps(enabled)
    def get_fastpath_enabled() -> bool:
        """Says no under a mesh: the short way of attention makes nested tensors of a padding mask, and of its values."""
        return mesh_of_operations() is None and bool(enabled())

    compiled: Any = _hidden(torch.compile)
    told = everywhere.told

    def any_is_active(any_is: bool) -> None:
        """Stands in only then, because torch.compile knows torch's own function."""
        told(any_is)
        _hide_from_compiler()
        compile_ = compiled if any_is else compiled.__wrapped__
        torch.compile = compile_
        mha.get_fastpath_enabled = get_fastpath_enabled if any_is else enabled

    everywhere.told = any_is_active


def _hidden(plain: Any) -> Any:
    """Returns torch.compile as it is while a mesh is active: it may be what loads the compiler."""

    @functools.wraps(plain)
    def compiled(*args: Any, **kwargs: Any) -> Any:
        result = plain(*args, **kwargs)
        _hide_from_compiler()
        return result

    return compiled


def _hide_from_compiler() -> None:
    """Has torch.compile leave this package's functions alone, if it is loaded."""
    rules = sys.modules.get("torch._dynamo.trace_rules")
    if rules is not None and not hasattr(rules, "_leaves_out_meshes"):
        rules.add("monarch.tensor")
        rules._leaves_out_meshes = True  # type: ignore[attr-defined]


def _overwritten(tensor: torch.Tensor, *numbers: float) -> torch.Tensor:
    return tensor.zero_()


def _in_place(tensor: torch.Tensor, mean: float, std: float, a: float, b: float) -> torch.Tensor:
    """Runs in the processes of a mesh, on a local tensor."""
    init: Any = torch.nn.init
    with torch.no_grad():
        init.trunc_normal_(tensor, mean, std, a, b)
    return tensor


_truncated_normal: Remote[Any, Any] = Remote(_in_place, _overwritten)
