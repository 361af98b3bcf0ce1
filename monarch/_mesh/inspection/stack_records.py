"""Stacks as they are told: frames, threads, processes. They travel as msgpack."""

from __future__ import annotations

import msgspec

HOW_ITSELF, HOW_SIGNAL, HOW_NATIVE = "itself", "signal", "py-spy"


class StackFrame(msgspec.Struct, frozen=True, array_like=True):
    """One call that has not returned. `function` is its qualified name where that is known. `locals`: its variables as text,
    where they were asked for."""

    file: str
    line: int
    function: str
    locals: dict[str, str] = {}

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


class ThreadStack(msgspec.Struct, frozen=True, array_like=True):
    """The stack of one thread, or of one suspended task of an actor.

    `frames`: outermost first; `left_out` frames outside of them are missing. `thread`: the thread's name, `native_id`
    its number for the system (0: unknown). `actor`: the actor whose thread it is ("": none's), `key` and `rank` its
    mesh and its place there; `endpoint`: what it runs, for `seconds`. `task`: for a suspended task, its name; the
    frames say where it awaits. `idle`: an actor that has nothing to do. `state`: the thread's as the system has it (R
    runs, S sleeps, D waits for a device, T is stopped; "": unknown). `gil`: py-spy saw that it holds the interpreter
    lock.
    """

    thread: str
    native_id: int
    frames: list[StackFrame]
    actor: str = ""
    key: str = ""
    rank: int = 0
    endpoint: str = ""
    seconds: float = 0.0
    task: str = ""
    idle: bool = False
    state: str = ""
    left_out: int = 0
    gil: bool = False


class ProcessStacks(msgspec.Struct, frozen=True, array_like=True):
    """The threads of one process. `mesh` and `rank`: its proc mesh and its place there ("" and 0: it is the client).

    `how`: who told it: the process `itself`; a `signal` (see `fault_signal`), because it did not answer, for which `why` has
    the reason; or `py-spy`. `left_out`: threads and tasks that are missing, because there are too many.
    """

    address: str
    host: str
    pid: int
    mesh: str
    rank: int
    threads: list[ThreadStack]
    how: str = HOW_ITSELF
    why: str = ""
    left_out: int = 0


class StacksByAgent(msgspec.Struct, frozen=True):
    """The stacks that an agent is asked for: stacks of processes by address, and how long they have. `pyspy`: the
    program to use; "" is the setting of this host."""

    addresses: list[str]
    seconds: float = 2.0
    all_threads: bool = False
    pyspy: str = ""


class AgentStacks(msgspec.Struct, frozen=True):
    """The answer of an agent. `silent`: why there is none, by address."""

    stacks: list[ProcessStacks]
    silent: dict[str, str]


decode_process = msgspec.msgpack.Decoder(ProcessStacks).decode
