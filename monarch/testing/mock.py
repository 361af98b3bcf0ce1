"""Another class in place of an actor's, wherever it is spawned."""

from __future__ import annotations

from monarch._mesh.actors.actor import Actor
from monarch._mesh.meshes.replacements import Replacement


class patch_actor(Replacement):
    """While active, `spawn(name, Real, ...)` creates `Mock(...)`.

        with patch_actor(Database, FakeDatabase):
            service = procs.spawn("service", Service)        # whose actors may spawn a Database themselves

    Also an async context manager, and a decorator for sync and async functions, active during each call. May
    be nested: of several for one class the innermost counts. Holds for what the patching code spawns, and for
    every spawn by actors in processes that were started (`spawn_procs`) while the patch was active, by their
    processes as well and also after the patch has ended. Actors in processes that were there before spawn
    what they say.

    The caller gets a mesh of `Mock`: its endpoints and the arguments of its `__init__` count. Other uses of
    the class than `spawn` and `get_or_spawn_controller` are untouched, and `Mock` itself is not looked up
    again. TypeError unless both are subclasses of Actor.
    """

    def __init__(self, Real: type, Mock: type) -> None:
        for cls in (Real, Mock):
            if not isinstance(cls, type) or not issubclass(cls, Actor):
                raise TypeError(f"patch_actor takes two subclasses of monarch.actor.Actor, got {cls!r}")
        super().__init__((Real, Mock))

    def __repr__(self) -> str:
        real, mock = self._pair
        return f"patch_actor({real.__qualname__}, {mock.__qualname__})"
