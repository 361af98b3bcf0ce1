"""The interface that endpoints need of the mesh of actors that they are found on."""

from __future__ import annotations

from typing import Any, Protocol

from monarch._mesh.casts.plan import ViewReceivers
from monarch._mesh.failures.ledger import MeshFacts
from monarch._runtime.replies import Target
from monarch._shape.region import Shape
from monarch._wire.message import Failure, ProcEnded


class ActorMeshSpec(MeshFacts, Protocol):
    """The facts that all views of an actor mesh share, as far as endpoints need it."""

    name: str
    proc_mesh: Any
    cls: type

    def failure_of(self, address: str, ended: ProcEnded) -> Failure:
        """Returns what the end of the process at that address means to the actors."""
        ...


class EndpointMesh(Protocol):
    """The mesh of actors that an endpoint was found on, as far as it needs it."""

    _plan: ViewReceivers
    _shape: Shape

    @property
    def _spec(self) -> ActorMeshSpec: ...
    def __len__(self) -> int: ...
    def _target(self, method: str) -> Target:
        """Returns who answers, for errors to name."""
        ...

    def _gathered(self, values: list[Any]) -> Any:
        """The answers of all ranks as one value."""
        ...
