"""`context()`: which actor runs this code, and for which message."""

from __future__ import annotations

import contextvars
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from monarch._mesh.inspection.identities import actor_address, proc_id
from monarch._runtime.context import Current, current, root
from monarch._shape.extent import Extent, Point
from monarch._wire.ids import ActorAddr
from monarch._wire.message import decode_extent

if TYPE_CHECKING:
    from monarch._mesh.meshes.proc_mesh import ProcMesh
    from monarch._runtime.instance import Instance

P = ParamSpec("P")
R = TypeVar("R")


class CreatorInstance:
    """The actor or client that spawned an actor. Picklable; `creator` leads on to the root client (None there)."""

    def __init__(
        self,
        rank: Point,
        proc_mesh: ProcMesh,
        proc: ProcMesh,
        name: str,
        class_name: str | None,
        creator: CreatorInstance | None,
    ) -> None:
        self.rank = rank
        self.proc_mesh = proc_mesh
        self.proc = proc
        self.name = name
        self.class_name = class_name
        self.creator = creator

    def __repr__(self) -> str:
        return _chain(self)


def _chain(who: Any) -> str:
    if who.class_name is None:
        own = f"<{who.name}>"
    else:
        point = repr(who.rank) if len(who.rank) else ""
        own = f"<{who.class_name} {who.name}{point}>"
    return own if who.creator is None else f"{_chain(who.creator)}.{own}"


class ActorInstance:
    """The actor that runs the current code; the client is one too (name "root", no class)."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance

    @property
    def name(self) -> str:
        """The name given to `spawn`; "root" for the client."""
        return self._instance.name

    @property
    def class_name(self) -> str | None:
        cls = getattr(self._instance.behaviour, "cls", None)
        return None if cls is None else f"{cls.__module__}.{cls.__qualname__}"

    @property
    def rank(self) -> Point:
        """Position in the mesh it was spawned on (a slice counts as a mesh of its own)."""
        return _point(self._instance.rank, self._instance.view)

    @property
    def proc_mesh(self) -> ProcMesh:
        """The mesh of processes it was spawned on."""
        mesh = getattr(self._instance.behaviour, "proc_mesh", None)
        return mesh if mesh is not None else self.proc

    @property
    def proc(self) -> ProcMesh:
        """This actor's process, as a mesh of one."""
        return self._instance.proc.mesh.this_proc()  # type: ignore[no-any-return]

    @property
    def proc_id(self) -> str:
        return proc_id(self._instance.proc)

    @property
    def actor_id(self) -> ActorAddr:
        return actor_address(self._instance)

    @property
    def creator(self) -> CreatorInstance | None:
        return getattr(self._instance.behaviour, "creator", None)

    def as_creator(self) -> CreatorInstance:
        return CreatorInstance(self.rank, self.proc_mesh, self.proc, self.name, self.class_name, self.creator)

    def __repr__(self) -> str:
        return _chain(self)

    def abort(self, reason: str | None = None) -> None:
        """Fails this actor once the message it handles now has its answer; the report carries `reason`.

        Any thread that has the actor's context may call it (`bind_context`), at any time; an actor that handles nothing
        ends at once. Of several reasons the first counts, but an abort more than a `stop`. What a concurrent endpoint
        still awaits is cancelled.
        """
        instance = self._instance
        text = reason or "(no reason provided)"
        if instance.behaviour is None:
            raise RuntimeError("the client cannot abort itself: raise an exception, or leave the program")
        from monarch._mesh.actors.behaviour import Aborted  # this process runs actors, so they are loaded
        from monarch._runtime.instance import Leave

        failure = instance.behaviour.describe_failure(Aborted(text))
        instance.leave_soon(Leave.failing(failure, Aborted(text)))

    def kill(self, reason: str | None = None) -> None:
        """Does the same as `abort`."""
        self.abort(reason)

    def stop(self, reason: str | None = None) -> None:
        """Stops this actor in the ordinary way, when `abort` would fail it. Not a failure: its owner is not told."""
        instance = self._instance
        if instance.behaviour is None:
            raise RuntimeError("the client cannot stop itself: use shutdown_context()")
        from monarch._runtime.instance import Leave

        instance.leave_soon(Leave(reason or "stopped by itself"))


class Context:
    """The actor that runs this code, and the message it runs for: what `context()` gives. Cannot be sent.

    `actor_instance` is the actor, the client included. Of it there are:

    - `name`, the one given to `spawn` ("root" for the client), and `class_name`;
    - `actor_id`, its unique ActorAddr; `proc_id`, the name of its process;
    - `rank`, its Point in the mesh it was spawned on;
    - `proc_mesh`, the processes of that mesh, and `proc`, its own process as a mesh of one;
    - `creator`: who spawned it, with the same attributes; None for the client;
    - `stop(reason)`: ends this actor in order, after the message it handles now. RuntimeError in the client;
    - `abort(reason)`, also called `kill`: the same as a failure, which its owner is told of.
    """

    def __init__(self, running: Current) -> None:
        self._running = running
        self.actor_instance = ActorInstance(running.instance)
        self._rank: Point | None = None

    @property
    def message_rank(self) -> Point:
        """This actor's Point in the mesh that the message was sent to, which may be a slice of the one that was spawned."""
        if self._rank is None:
            self._rank = _point(self._running.rank, self._running.view)
        return self._rank

    def __repr__(self) -> str:
        return f"<Context of {self.actor_instance!r}>"

    def __reduce__(self) -> Any:
        raise TypeError("a Context cannot be sent: it belongs to one message in one process")


_extents: dict[bytes, Extent] = {}


def _point(rank: int, view: bytes) -> Point:
    extent = _extents.get(view)
    if extent is None:
        if len(_extents) > 4096:
            _extents.clear()
        extent = _extents[view] = Extent(*decode_extent(view))
    return Point(rank, extent)


_clients: dict[int, Current] = {}


def running() -> Current:
    """The running actor and message; the client's when the code runs in no actor."""
    now = current.get()
    if now is not None:
        return now
    instance = root()
    known = _clients.get(id(instance))
    if known is None or known.instance is not instance:
        known = _clients[id(instance)] = Current(instance, 0, instance.view)
    return known


def context() -> Context:
    """The context of the running code: of the message that an actor handles, or of the client, which its first use starts.

    RuntimeError in a plain thread of an actor's process: see `bind_context`.
    """
    now = running()
    if now.public is None:
        now.public = Context(now)
    return now.public  # type: ignore[no-any-return]


def current_rank() -> Point:
    """This actor's Point in the mesh that the current message was sent to: `.rank` is its number, `["gpus"]` one coordinate.

    A slice is a mesh of its own: in a slice of one it is rank 0 of no dimensions, as it always is in the client. In
    `__init__` it is the place in the mesh that was spawned. RuntimeError as for `context`.
    """
    now = current.get() or running()
    return _point(now.rank, now.view)


def current_size() -> dict[str, int]:
    """Sizes by label of the mesh that the current message was sent to; {} in the client."""
    return dict(current_rank().extent)


def current_actor_name() -> str:
    """The running actor's unique name as text, `str(context().actor_instance.actor_id)`."""
    return str(context().actor_instance.actor_id)


def bind_context(fn: Callable[P, R]) -> Callable[P, R]:
    """`fn`, to be run in another thread with the context of the code that binds it.

        threading.Thread(target=bind_context(work)).start()

    A plain thread inherits no context; `contextvars.copy_context().run` serves as well.
    """
    copied = contextvars.copy_context()

    @functools.wraps(fn)
    def bound(*args: P.args, **kwargs: P.kwargs) -> R:
        return copied.copy().run(fn, *args, **kwargs)

    return bound
