"""In which process the current code runs, and as which actor: `here`, `root`, and `current` of the module of that name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from monarch._runtime.current import Current, current

if TYPE_CHECKING:
    from monarch._runtime.instance import Instance
    from monarch._runtime.proc import Proc

__all__ = [
    "Current",
    "current",
    "forget_root",
    "here",
    "home",
    "root",
    "root_of",
    "set_home",
    "set_root",
    "start_client_with",
]

_home: Proc | None = None
_start_client: Callable[[], Proc] | None = None


def set_home(proc: Proc | None) -> None:
    """Says which Proc this operating-system process is."""
    global _home
    _home = proc


def home() -> Proc | None:
    return _home


def start_client_with(start: Callable[[], Proc]) -> None:
    """Sets how a process that is not yet part of anything becomes a client, on first use."""
    global _start_client
    _start_client = start


def here() -> Proc:
    """The Proc that the current code runs in: the running actor's, else this process's; starts a client if need be."""
    running = current.get()
    if running is not None:
        proc = running.instance.proc
        return proc
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
