"""The running actor: the actor and the message that the current code works for.

Kept in a context variable, so asyncio tasks and `contextvars.copy_context()` inherit it. A plain thread does not.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from monarch._runtime.future import running

if TYPE_CHECKING:
    from monarch._runtime.instance import Instance
    from monarch._wire.message import Call


class Current:
    """The state that `context()` is built from: the running actor and the rank the message was addressed to.

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


current: ContextVar[Current | None] = running
