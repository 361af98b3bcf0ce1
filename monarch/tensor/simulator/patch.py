"""`patch_tensor_engine`: an actor that works with distributed tensors, tested without the processes of its mesh."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from monarch.actor import Actor, ProcMesh, Replacement
from monarch.tensor.simulator.simulator import Simulator


class patch_tensor_engine(Replacement):
    """While active, actors of class `ActorClass` that are spawned activate simulated meshes.

        with patch_tensor_engine(Trainer):
            trainer = procs.spawn("trainer", Trainer)   # whose endpoints do `with mesh.activate(): ...`

    `factory`: called in the actor's process with the ProcMesh that an actor of the class activates, once for each;
    gives a Simulator or a DeviceMesh of as many ranks. The default makes a Simulator that writes no files. The actor
    sees a mesh with the names and sizes of its ProcMesh either way. The factory travels with the class.

    Also an async context manager, and a decorator for sync and async functions. Holds where
    `monarch.testing.patch_actor` does: for what the patching code spawns, and for spawns in processes that were
    started meanwhile. TypeError unless the class is an Actor's.
    """

    def __init__(self, ActorClass: type, factory: Callable[[ProcMesh], Any] | None = None) -> None:
        if not isinstance(ActorClass, type) or not issubclass(ActorClass, Actor):
            raise TypeError(f"patch_tensor_engine takes a subclass of monarch.actor.Actor, got {ActorClass!r}")
        body = {
            "_tensor_engine_factory": staticmethod(factory if factory is not None else simulated),
            "__module__": ActorClass.__module__,
            "__qualname__": f"{ActorClass.__qualname__}[simulated]",
            "__doc__": ActorClass.__doc__,
        }
        super().__init__((ActorClass, type(f"{ActorClass.__name__}_simulated", (ActorClass,), body)))

    def __repr__(self) -> str:
        return f"patch_tensor_engine({self._pair[0].__qualname__})"


def simulated(procs: ProcMesh) -> Simulator:
    """A Simulator with as many hosts and GPUs as `procs` (its last dimension), which writes no files."""
    sizes = [*procs.extent.sizes, *([1] if not procs.extent.sizes else [])]
    return Simulator(math.prod(sizes[:-1]), sizes[-1], simulate_mode="quiet")
