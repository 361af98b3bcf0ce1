"""Actor: the class users derive from. How a running one handles its messages is in `behaviour`."""

from __future__ import annotations

import functools
import logging
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, NoReturn, Self

from monarch._mesh import plugins
from monarch._mesh.actors.endpoint import EndpointProperty
from monarch._mesh.failures.ledger import MeshFailure
from monarch._mesh.failures.undeliverable import UndeliverableMessageEnvelope
from monarch._runtime.functions import attribute_of, is_async
from monarch._runtime.future import Future
from monarch._shape.view import MeshTrait

if TYPE_CHECKING:
    from monarch._mesh.inspection.stacks_of_program import Stacks


class Actor(MeshTrait):
    """Base of every actor class. An instance lives in one process, on a thread of its own, and handles one message at a time.

        class Counter(Actor):
            def __init__(self, start: int) -> None:
                self.value = start

            @endpoint
            def add(self, n: int) -> int:
                self.value += n
                return self.value

        counters = procs.spawn("counters", Counter, 10)  # one in each process of the mesh

    `__init__` takes the arguments of `spawn` and runs on that thread before any endpoint. An actor with at least one
    `async def` endpoint has an asyncio loop there; its plain endpoints run on the same thread with no loop visible.

    Hooks: `__cleanup__(self, exc)` runs once when the actor stops or fails after construction (`exc` None on an ordinary
    stop), limited by the setting `cleanup_timeout`; `__supervise__(self, failure)` is told of failures of the meshes
    this actor spawned and returns whether it handled them; `_handle_undeliverable_message(self, envelope)` whether it
    handled the loss of a port message of its own; `__restarted__(self, failure)` runs after `__init__`, before any message,
    in an actor that takes the place of one that ended. Each may be `async def` in an actor that has a loop.
    """

    @functools.cached_property
    def logger(self) -> logging.Logger:
        """A logger named after the class, level DEBUG."""
        logger = logging.getLogger(type(self).__name__)
        logger.setLevel(logging.DEBUG)
        return logger

    def __cleanup__(self, exc: Exception | None) -> Any:
        """Called once at the end; see the class."""

    def __supervise__(self, failure: MeshFailure) -> Any:
        """Called for a failure of a mesh this actor spawned; a true result means handled."""
        return False

    def __restarted__(self, failure: MeshFailure) -> Any:
        """Called after `__init__`, before any message, when this actor takes the place of one that ended with `failure` (of
        its own rank or, under a policy that restarts several, of another): the place to load its state again. What it
        raises is a failure of this actor."""

    def _handle_undeliverable_message(self, envelope: UndeliverableMessageEnvelope) -> Any:
        """Called when a port message of this actor could not be delivered; a true result means handled."""
        return False

    def _serve_graph(self, order: str, *args: Any) -> Any:
        """Called by compiled graphs that this actor takes part in (`monarch.graph`)."""
        return plugins.outer("graph.serve")(order, *args)

    @property
    def _ndslice(self) -> NoReturn:
        raise NotImplementedError("actor implementations are not meshes: call this on the mesh that spawn returned")

    @property
    def _labels(self) -> NoReturn:
        raise NotImplementedError("actor implementations are not meshes: call this on the mesh that spawn returned")

    def _new_with_shape(self, shape: Any) -> NoReturn:
        raise NotImplementedError("actor implementations are not meshes: call this on the mesh that spawn returned")

    @property
    def initialized(self) -> Future[None]:
        """NotImplementedError in the actor itself; of the mesh that `spawn` returned it is `ActorMesh.initialized`."""
        raise NotImplementedError("actor implementations are not meshes: call this on the mesh that spawn returned")

    def stop(self, reason: str = "stopped by client") -> Future[None]:
        """NotImplementedError in the actor itself, which ends by `context().actor_instance.stop()`; on the mesh that `spawn`
        returned it is `ActorMesh.stop`.
        """
        raise NotImplementedError(
            "actor implementations are not meshes: use context().actor_instance.stop() to stop this actor"
        )

    if TYPE_CHECKING:
        # `spawn` returns an ActorMesh and says it is the class, the one type on which checkers find its endpoints. So this
        # class has, for them, the methods of ActorMesh as well; a test compares.

        def restart(
            self,
            *,
            failed: bool = False,
            args: tuple[Any, ...] | None = None,
            kwargs: dict[str, Any] | None = None,
            **selection: Any,
        ) -> Future[None]: ...
        def healthy(self, timeout: float | None = None) -> Future[None]: ...
        def stacks(
            self,
            *,
            timeout: float = 2.0,
            locals: bool = False,
            native: bool = False,
            all_threads: bool = False,
        ) -> Future[Stacks]: ...
        async def __aenter__(self) -> Self: ...
        async def __aexit__(self, *exc: object) -> None: ...
        def __await__(self) -> Generator[Any, None, Self]: ...


_HOOKS = ("__cleanup__", "__supervise__", "__restarted__", "_handle_undeliverable_message")


def endpoints_of(cls: type) -> dict[str, EndpointProperty[Any, Any]]:
    """The endpoints of an actor class, inherited ones included, by name."""
    found = {}
    for name in dir(cls):
        attribute = attribute_of(cls, name)
        if isinstance(attribute, EndpointProperty):
            found[name] = attribute
    return found


def needs_loop(cls: type) -> bool:
    """True if an actor of this class has an asyncio loop: an async endpoint or hook, or no endpoint at all."""
    methods = [prop._method for prop in endpoints_of(cls).values()]
    hooks = [getattr(cls, hook) for hook in _HOOKS]
    return not methods or any(map(is_async, [*methods, *hooks]))
