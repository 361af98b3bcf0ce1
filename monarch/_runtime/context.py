"""Who is running: the actor and the message that the current code works for.

Kept in a context variable, so asyncio tasks and `contextvars.copy_context()` inherit it. A plain thread does not.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from monarch._runtime.instance import Instance
    from monarch._runtime.proc import Proc
    from monarch._wire.message import Call


class Current:
    """What `context()` is built from: the running actor and the rank the message was addressed to.

    `rank` and `view` stay as they came off the wire; a Point is made only when asked for. `public` keeps the Context
    object once it was asked for, so that it is one object for one message: `call`, None outside of any.
    """

    __slots__ = ("call", "instance", "public", "rank", "view")

    def __init__(self, instance: Instance, rank: int, view: bytes, call: Call | None = None) -> None:
        self.instance = instance
        self.rank = rank
        self.view = view
        self.call = call
        self.public: Any = None


current: contextvars.ContextVar[Current | None] = contextvars.ContextVar("monarch_context", default=None)

_home: Proc | None = None
_start_client: Callable[[], Proc] | None = None


def set_home(proc: Proc | None) -> None:
    """Says which Proc this operating-system process is."""
    global _home
    _home = proc


def home() -> Proc | None:
    return _home


def start_client_with(start: Callable[[], Proc]) -> None:
    """How a process that is not yet part of anything becomes a client, on first use."""
    global _start_client
    _start_client = start


def here() -> Proc:
    """The Proc that the current code runs in: the running actor's, else this process's; starts a client if need be."""
    running = current.get()
    if running is not None:
        return running.instance.proc
    if _home is not None:
        return _home
    if _start_client is None:
        raise RuntimeError("the runtime is not loaded: import monarch.actor first")
    return _start_client()


_roots: dict[str, Instance] = {}


def set_root(instance: Instance) -> None:
    """Says which instance stands for code of this process that runs in no actor (the client's)."""
    _roots[instance.proc.address] = instance


def root() -> Instance:
    """The sender for code that runs in no actor: the client. RuntimeError in a plain thread of another process."""
    proc = here()
    instance = _roots.get(proc.address)
    if instance is None:
        raise RuntimeError(
            "this thread belongs to no actor: a plain thread started inside an actor's process has no context. Pass the "
            "actor's context on: start the thread with target=monarch.actor.bind_context(fn), or run "
            "contextvars.copy_context().run(fn) made in the actor"
        )
    return instance


def root_of(proc: Proc) -> Instance | None:
    """The root instance of a Proc, if it is a client's."""
    return _roots.get(proc.address)


def forget_root(proc: Proc) -> None:
    _roots.pop(proc.address, None)
