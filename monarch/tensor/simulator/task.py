"""The work of a simulation: a Task is what takes time, a Command what the controller told the workers."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from monarch.tensor.metadata import Meta


class TaskKind(StrEnum):
    """Kinds of commands, as traces and exports name them."""

    CALL = "CallFunction"
    REDUCE = "Reduce"
    SEND = "SendTensor"
    RECEIVE = "RecvTensor"
    BORROW = "BorrowCreate"
    FIRST_USE = "BorrowFirstUse"
    LAST_USE = "BorrowLastUse"
    DROP = "BorrowDrop"
    RECORD = "RecordEvent"
    WAIT = "WaitEvent"
    DELETE = "DeleteRefs"
    FETCH = "SendValue"
    STATUS = "RequestStatus"
    EXIT = "Exit"


@dataclass(frozen=True, slots=True)
class Task:
    """Work of one stream on each of some ranks.

    `inputs`, `outputs`: metadata of its tensors, None where it is not known. `numbers`: those among its arguments.
    `peers`: how many ranks take part together in a collective. `local`: it stays on its rank; `same_node`: within
    eight neighbours. `meta`: what `set_meta` said when it was issued. `collective`: of a reduction what it is,
    whatever traces call it.
    """

    kind: TaskKind
    name: str
    inputs: tuple[Meta | None, ...] = ()
    outputs: tuple[Meta | None, ...] = ()
    numbers: tuple[Any, ...] = ()
    peers: int = 1
    collective: str = ""
    local: bool = False
    same_node: bool = True
    meta: Any = None


@dataclass(slots=True)
class Use:
    """A tensor of a command: its reference, the buffer it lies in, and what is known of it."""

    ref: int
    buffer: int
    meta: Meta | None

    @property
    def shape(self) -> str:
        """Returns `(3x3)`, or `unknown`."""
        return f"({'x'.join(map(str, self.meta.shape))})" if self.meta is not None else "unknown"


@dataclass(slots=True)
class SimulatedCommand:
    """One command of the controller, in the order in which they were issued.

    `ident`: its number among the engine's commands, 0 for those that have none. `ranks`: who carried it out. `start`
    and `duration`: of the first of these, in nanoseconds. `issued`: when the controller did. `writes`: the buffers it
    changed; `freed`: those nobody had any more after it. `facts`: what only its kind has.
    """

    order: int
    ident: int
    kind: TaskKind
    name: str
    stream: str
    ranks: tuple[int, ...]
    inputs: list[Use] = field(default_factory=list)
    outputs: list[Use] = field(default_factory=list)
    writes: tuple[int, ...] = ()
    freed: tuple[int, ...] = ()
    issued: int = 0
    start: int = 0
    duration: int = 0
    meta: Any = None
    stack: Any = None
    facts: dict[str, Any] = field(default_factory=dict)
