"""Questions about the first rank of a loopback."""

from __future__ import annotations

from typing import Any

from monarch.tensor.controller.activation import no_modes


def local(mesh: Any, tensor: Any) -> Any:
    """A copy of its local tensor."""
    with no_modes():
        return mesh.client.local(tensor).detach().clone()


def values(mesh: Any, tensor: Any) -> Any:
    """The same as numbers."""
    with no_modes():
        return mesh.client.local(tensor).tolist()


def number(mesh: Any, tensor: Any) -> float:
    """The first element of that."""
    with no_modes():
        return float(local(mesh, tensor).reshape(-1)[0])
