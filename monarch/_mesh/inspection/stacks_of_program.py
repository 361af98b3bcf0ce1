"""Gathers the stacks of many processes: they are asked themselves; of those that do not answer, their host agents.

The same from inside a program (`survey.ask`) and from outside (`programs.Program.ask`): `ask` is either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

import msgspec

from monarch._mesh.inspection import folding
from monarch._mesh.inspection.stack_records import (
    HOW_NATIVE,
    AgentStacks,
    ProcessStacks,
    StacksByAgent,
    ThreadStack,
    decode_process,
)
from monarch._mesh.inspection.survey_answers import SurveyAnswers
from monarch._mesh.inspection.thread_stacks import StacksWanted
from monarch._wire.address import AGENT, agent_of, name_of

_decode_agent = msgspec.msgpack.Decoder(AgentStacks).decode
_GRACE = 1.0  # seconds that an agent's answer may take beyond what the processes get


class AskProgram(Protocol):
    """Asks a question, and waits for the answers."""

    def __call__(
        self, question: str, argument: bytes, *, timeout: float, only: Sequence[str] | None, agents: bool
    ) -> SurveyAnswers: ...


class Stacks(msgspec.Struct, frozen=True):
    """The stacks of processes: see `stacks()` of meshes. Picklable. `str()` is a page for people: stacks that are the
    same are shown once, with their ranks.

    - `processes`: of each `address`, `host`, `pid`, `mesh` and `rank` of its proc mesh, and `threads`: its threads and the
      suspended tasks of its actors. Each of those has `thread`, its name; `frames`, outermost first, with `file`, `line`,
      `function` and `locals`; `actor`, `rank`, `endpoint` and `seconds`, if it is an actor's; `task`; and `idle`.
    - `silent`: address -> why, of those whose stacks could not be had.
    """

    processes: list[ProcessStacks]
    silent: dict[str, str]

    def __str__(self) -> str:
        return folding.page(self.processes, self.silent)

    @property
    def ranks(self) -> dict[int, list[ThreadStack]]:
        """The threads and tasks by rank: of the actor for an actor's, else of the process."""
        found: dict[int, list[ThreadStack]] = {}
        for process in self.processes:
            for stack in process.threads:
                found.setdefault(stack.rank if stack.key else process.rank, []).append(stack)
        return dict(sorted(found.items()))

    def only(self, keep: Callable[[ProcessStacks, ThreadStack], bool]) -> Stacks:
        """Returns the threads for which `keep(process, thread)`, and processes that have any."""
        found = []
        for process in self.processes:
            threads = [stack for stack in process.threads if keep(process, stack)]
            if threads:
                found.append(msgspec.structs.replace(process, threads=threads))
        return Stacks(found, self.silent)


class StacksQuery(msgspec.Struct, frozen=True):
    """The stacks to gather. `only`: these addresses, None: the whole program. `seconds`: how long processes have to
    answer; then their agents have as long. `native_seconds`: how long py-spy has."""

    only: list[str] | None = None
    seconds: float = 2.0
    all_threads: bool = False
    variables: bool = False
    native: bool = False
    native_seconds: float = 30.0
    pyspy: str = ""


def gather(ask: AskProgram, wanted: StacksQuery, known: Mapping[str, str] | None = None) -> Stacks:
    """Blocks, twice `seconds` at most and with `native` `native_seconds` more. `known`: processes beside those of `wanted`
    that have just not answered another question, and why."""
    question = "locals" if wanted.variables else "stacks"
    argument = msgspec.msgpack.encode(StacksWanted(wanted.all_threads))
    answers = ask(question, argument, timeout=wanted.seconds, only=wanted.only, agents=False)
    processes = list(answers.decoded(decode_process).values())
    silent = {**answers.silent, **(known or {})}
    if silent:
        asked = [address for address in silent if name_of(address) != AGENT]
        given = by_agents(ask, "stacks_by_signal", asked, wanted, wanted.seconds)
        for process in given.stacks:
            why = silent.pop(process.address, "")
            processes.append(msgspec.structs.replace(process, why=why))
        for address, why in given.silent.items():
            silent[address] = combined(silent.get(address, ""), why)
    if wanted.native:
        addresses = [process.address for process in processes] + [a for a in silent if name_of(a) != AGENT]
        native = by_agents(ask, "native_stacks", addresses, wanted, wanted.native_seconds)
        processes = with_native(processes, native.stacks)
        for process in native.stacks:
            silent.pop(process.address, None)
        silent |= {address: f"{folding.NO_NATIVE} ({why})" for address, why in native.silent.items()}
    return Stacks(ordered(folding.completed(processes)), silent)


def combined(silence: str, why: str) -> str:
    """Returns why a process did not answer, and why its agent could not make it."""
    if not silence or silence.startswith("stopped by"):
        return why
    return f"{silence}; its host agent says: {why}"


def by_agents(
    ask: AskProgram, question: str, addresses: Sequence[str], wanted: StacksQuery, seconds: float
) -> AgentStacks:
    """Returns what the agents of these processes say of them."""
    if not addresses:
        return AgentStacks([], {})
    agents = sorted({agent_of(address) for address in addresses})
    argument = msgspec.msgpack.encode(StacksByAgent(list(addresses), seconds, wanted.all_threads, wanted.pyspy))
    answers = ask(question, argument, timeout=seconds + _GRACE, only=agents, agents=True)
    found: list[ProcessStacks] = []
    silent: dict[str, str] = {}
    told = answers.decoded(_decode_agent)
    for agent in agents:
        if agent in told:
            found += told[agent].stacks
            silent |= told[agent].silent
        else:
            why = answers.silent.get(agent, "it does not answer")
            silent |= {address: f"its host agent: {why}" for address in addresses if agent_of(address) == agent}
    return AgentStacks(found, silent)


def with_native(processes: Sequence[ProcessStacks], native: Iterable[ProcessStacks]) -> list[ProcessStacks]:
    """Returns what processes told, with the frames that py-spy saw: of the same threads of the same process."""
    by_address = {process.address: process for process in native}
    found = []
    for process in processes:
        seen = by_address.pop(process.address, None)
        if seen is not None:
            frames = {stack.native_id: stack for stack in seen.threads if stack.native_id}
            known = {stack.native_id for stack in process.threads if not stack.task}
            threads = [
                msgspec.structs.replace(stack, frames=frames[stack.native_id].frames, gil=frames[stack.native_id].gil)
                if stack.native_id in frames and not stack.task
                else stack
                for stack in process.threads
                if stack.native_id  # a dump by signal has none, and less to say than py-spy
            ]
            threads += [stack for stack in seen.threads if stack.native_id not in known]
            found.append(msgspec.structs.replace(process, threads=threads, how=HOW_NATIVE))
        else:
            found.append(process)
    return [*found, *by_address.values()]


def ordered(processes: Iterable[ProcessStacks]) -> list[ProcessStacks]:
    """The client first, then mesh by mesh."""
    return sorted(processes, key=lambda process: (bool(process.mesh), process.mesh, process.rank, process.address))
