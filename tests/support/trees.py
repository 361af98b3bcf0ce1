"""Programs that tests look into without one: what their processes and host agents would tell."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from monarch._mesh.inspection.description import (
    ActorFacts,
    FailureFacts,
    HandlerFacts,
    ProcessFacts,
    SettingFacts,
    WaitingFacts,
)
from monarch._mesh.inspection.host_description import EndedProcess, HostFacts, RunningProcess
from monarch._mesh.inspection.status_tables import StatusTable
from monarch._mesh.inspection.survey_answers import SurveyAnswers
from monarch._runtime.flight_recorder import Event
from monarch.admin.program_tree import ProgramTree, assemble
from monarch.admin.programs import ProgramGone

HOST = "unix:/run/one"
NOW = 1_795_372_739.5


def actor(name: str, rank: int = 0, proc: str = "client", host: str = HOST, **changes: Any) -> ActorFacts:
    """An idle one; its key is its name."""
    fields: dict[str, Any] = {
        "key": name,
        "id": f"{name}<{name}{rank}>.{proc}@{host}",
        "name": name,
        "rank": rank,
        "unique": f"{name}.{rank}",
        "cls": f"program.{name.title()}",
        "system": False,
        "owner": "",
        "owner_proc": "",
        "status": "idle",
        "detail": "",
        "created": NOW - 60,
        "processed": 3,
        "busy": 0.25,
        "queue": 0,
        "peak": 2,
        "endpoint": "step",
        "handlers": [],
        "handling": 0,
        "waits": [],
        "failure": None,
        "ordering": None,
        "events": [],
    }
    return ActorFacts(**(fields | changes))


def busy(
    name: str, seconds: float, *, rank: int = 0, proc: str = "client", waits: str = "", **changes: Any
) -> ActorFacts:
    """One that has been in `step` for so long."""
    return actor(
        name,
        rank,
        proc,
        status="processing",
        detail=f"step for {seconds * 1000:.0f}ms",
        handlers=[HandlerFacts("step", 1, NOW - seconds, "/p/t.py", 3)],
        handling=1,
        waits=[WaitingFacts(waits, 1, NOW - seconds)] if waits else [],
        **changes,
    )


def failed(
    name: str, report: str, cause: tuple[str, int, str, str] | None = None, *, proc: str = "client", **changes: Any
) -> ActorFacts:
    """One that has failed, and is gone."""
    failure = FailureFacts(report, NOW - 5, cause)
    return actor(name, 0, proc, status="failed", detail=report, failure=failure, ended=NOW - 5, **changes)


def process(
    name: str, actors: Sequence[ActorFacts] = (), stopped: Sequence[ActorFacts] = (), host: str = HOST, **changes: Any
) -> ProcessFacts:
    """`name`: client, or <mesh uid>.<rank>; its mesh is called "mesh"."""
    fields: dict[str, Any] = {
        "address": f"{host}/{name}",
        "id": name if name == "client" else f"mesh-{name.partition('.')[2]}<{name.partition('.')[0]}>",
        "reached_at": host,
        "mesh": "" if name == "client" else "mesh",
        "pid": 100,
        "hostname": "one",
        "user": "somebody",
        "command": "python program.py" if name == "client" else "",
        "started": NOW - 90,
        "now": NOW,
        "rss": 3 << 20,
        "vm": 9 << 20,
        "poisoned": "",
        "idle": 2.5,
        "actors": list(actors),
        "stopped": list(stopped),
        "left_out": 0,
        "retention": 100,
        "events": [],
    }
    return ProcessFacts(**(fields | changes))


def agent(
    running: Sequence[str] = (),
    ended: Sequence[EndedProcess] = (),
    host: str = HOST,
    state: str = "running",
    why: str = "",
) -> HostFacts:
    """`running`: names of processes."""
    rows = [
        RunningProcess(f"{host}/{name}", "mesh", int(name.partition(".")[2]), 100 + place, 0, state, why)
        for place, name in enumerate(running)
    ]
    return HostFacts(
        f"{host}/agent", host, "one", 99, NOW, 1 << 20, 2 << 20, 2, 0.5, 8 << 30, 6 << 30, rows, list(ended)
    )


def ended(
    name: str, code: int = -9, *, stopped: bool = False, tail: Sequence[str] = (), host: str = HOST
) -> EndedProcess:
    return EndedProcess(
        f"{host}/{name}", "mesh", int(name.partition(".")[2]), 77, 0, code, stopped, "", NOW - 3, list(tail)
    )


def answers(*told: ProcessFacts | HostFacts, silent: dict[str, str] | None = None) -> SurveyAnswers:
    return SurveyAnswers({each.address: msgspec.msgpack.encode(each) for each in told}, silent or {})


def tree(*told: ProcessFacts | HostFacts, silent: dict[str, str] | None = None) -> ProgramTree:
    return assemble(answers(*told, silent=silent), NOW)


def program_with(actors: int, procs: int = 1) -> list[ProcessFacts | HostFacts]:
    """A client and so many processes with so many actors in all."""
    names = [f"uid.{rank}" for rank in range(procs)]
    each = actors // procs
    found: list[ProcessFacts | HostFacts] = [agent(names), process("client", [actor("root", status="client", cls="")])]
    for rank, name in enumerate(names):
        proc = f"mesh-{rank}<uid>"
        found.append(process(name, [actor(f"worker{place}", rank, proc) for place in range(each)]))
    return found


class FakeProgram:
    """Answers as a `Program` does. `told`: what all processes tell; `asked`: what was asked. With `gone` it has ended."""

    def __init__(self, *told: ProcessFacts | HostFacts, silent: dict[str, str] | None = None) -> None:
        self.pid = 100
        self.folder = ""
        self.command = "python program.py"
        self.told = list(told)
        self.silent = silent or {}
        self.gone = False
        self.hung = False
        self.asked: list[tuple[str, list[str] | None]] = []
        self.bodies: dict[str, bytes] = {}  # question -> answer of the process that is asked
        self.before: Callable[[], Any] = lambda: None
        self._lock = threading.Lock()

    def stream(self, name: str, argument: bytes = b"") -> socket.socket:
        raise ValueError(f"it knows no {name}")

    def ask(
        self, question: str, argument: bytes = b"", *, timeout: float = 5.0, only: Any = None, agents: bool = False
    ) -> SurveyAnswers:
        with self._lock:
            self.asked.append((question, only))
        self.before()
        if self.gone:
            raise ProgramGone("the program (pid 100) has ended")
        if self.hung:
            raise TimeoutError("the program (pid 100) did not answer within 5 s")
        if question == "tree":
            everybody = [self._in_full(each, argument) for each in self.told]
            found = answers(*everybody, silent=self.silent)
        else:
            found = SurveyAnswers(
                {each.address: self.bodies[question] for each in self.told if question in self.bodies}, {}
            )
        if only is None:
            return found
        missing = {address: "it has ended" for address in only if address not in found.replies}
        return SurveyAnswers({address: body for address, body in found.replies.items() if address in only}, missing)

    def _in_full(self, each: ProcessFacts | HostFacts, argument: bytes) -> ProcessFacts | HostFacts:
        """With the events of the actor that is asked for."""
        key = msgspec.msgpack.decode(argument)["actor"] if argument else ""
        if isinstance(each, HostFacts) or not key:
            return each
        events = [Event(1, NOW - 60, "INFO", key, "created", "")]
        actors = [msgspec.structs.replace(one, events=events if one.key == key else []) for one in each.actors]
        return msgspec.structs.replace(each, actors=actors)


def tables() -> bytes:
    """An answer to question "tables"."""
    return msgspec.msgpack.encode(
        [StatusTable("service 'x'", ["replica", "state"], [["0", "up"], ["1", "lost"]], {1: "killed"})]
    )


def settings() -> bytes:
    """An answer to question "config"."""
    rows = [
        SettingFacts("cleanup_timeout", "9s", "3s", "runtime", "HYPERACTOR_CLEANUP_TIMEOUT", False),
        SettingFacts("preload", "auto", "auto", "default", "MONARCH_PRELOAD", False),
    ]
    return msgspec.msgpack.encode(rows)


def stacks() -> bytes:
    """An answer to question "stacks": one thread in an endpoint, two frames."""
    frames = [["/p/train.py", 12, "Trainer.step", {}], ["/p/data.py", 31, "load", {"n": "3"}]]
    thread = ["monarch-actor-driver", 4711, frames, "trainer", "key", 3, "step", 1.5, "", False, "R", 0]
    return msgspec.msgpack.encode([f"{HOST}/uid.0", "one", 100, "mesh", 0, [thread], "itself", "", 0])
