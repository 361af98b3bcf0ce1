"""The running actor: the actor and the message that the current code works for.

Kept in a context variable, so asyncio tasks and `contextvars.copy_context()` inherit it. A plain thread does not.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from monarch._runtime.future import running

if TYPE_CHECKING:
    from monarch._runtime.instance import Instance
    from monarch._wire.message import Call


class Current(Struct, eq=False):  # made in a third of the time of a class of Python, once a message
    """The state that `context()` is built from: the running actor and the rank the message was addressed to.

    `rank` and `view` stay as they came off the wire; a Point is made only when asked for. `public` keeps the Context
    object once it was asked for, so that it is one object for one message: `call`, None outside of any.
    """

    instance: Instance
    rank: int
    view: bytes
    call: Call | None = None
    public: Any = None


current: ContextVar[Current | None] = running
