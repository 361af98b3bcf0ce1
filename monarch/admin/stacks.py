"""The stacks of a program and what is wrong with it, from outside. A client that cannot answer is signalled from here."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from monarch._errors import NotFoundError
from monarch._mesh.inspection import agent_stacks, diagnosis, doctor, fault_signal, folding, stacks_of_program
from monarch._mesh.inspection.diagnosis import Diagnosis, Finding
from monarch._mesh.inspection.stack_records import HOW_ITSELF, ProcessStacks, StacksByAgent, ThreadStack
from monarch._mesh.inspection.stacks_of_program import Stacks, StacksQuery
from monarch._mesh.inspection.survey_answers import SurveyAnswers
from monarch._mesh.inspection.wait_graph import section
from monarch._text import one_line
from monarch._wire.address import CLIENT, name_of, split_proc_name
from monarch.admin.programs import Program

__all__ = [
    "Finding",
    "StacksQuery",
    "as_plain",
    "asking",
    "examine",
    "page",
    "selected",
    "stacks_of",
    "summaries",
    "what_is_wrong",
]


def asking(program: Program) -> stacks_of_program.AskProgram:
    """Asks the program, as `survey.ask` does inside of it."""

    def ask(
        question: str, argument: bytes, *, timeout: float, only: Sequence[str] | None, agents: bool
    ) -> SurveyAnswers:
        return program.ask(question, argument, timeout=timeout, only=only, agents=agents)

    return ask


def stacks_of(program: Program, wanted: StacksQuery) -> Stacks:
    """Blocks: see `StacksQuery`. ProgramGone when it has ended."""

    try:
        return stacks_of_program.gather(asking(program), wanted)
    except TimeoutError as exc:
        return _without_client(program, wanted, str(exc))


def _without_client(program: Program, wanted: StacksQuery, why: str) -> Stacks:
    """Only the client can ask the others, who may be well: these are not signalled, and py-spy alone looks at them."""
    host = f"unix:{program.folder}"
    client = f"{host}/{CLIENT}"
    given = StacksByAgent([client], wanted.seconds, wanted.all_threads, wanted.pyspy)
    told = agent_stacks.by_signal(program.folder, given)
    found = [msgspec.structs.replace(process, why=why) for process in told.stacks]
    others = [f"{host}/{name}" for name in fault_signal.listening(program.folder) if name != CLIENT]
    silent = {**dict.fromkeys(others, "only its client could ask it; --native looks at it with py-spy"), **told.silent}
    if wanted.native:
        given = msgspec.structs.replace(given, addresses=[client, *others], seconds=wanted.native_seconds)
        native = agent_stacks.by_pyspy(program.folder, given)
        found = stacks_of_program.with_native(found, native.stacks)
        for process in native.stacks:
            silent.pop(process.address, None)
        silent |= {address: f"{folding.NO_NATIVE} ({why})" for address, why in native.silent.items()}
    return Stacks(stacks_of_program.ordered(folding.completed(found)), silent)


def selected(found: Stacks, ranks: Collection[int], mesh: str | None) -> Stacks:
    """These ranks (none: all) of this mesh, of actors or of processes (None: of all). NotFoundError names the meshes when
    there is none of that name, the ranks when none is there."""
    if not ranks and mesh is None:
        return found
    meshes = {process.mesh for process in found.processes}
    meshes |= {stack.actor for process in found.processes for stack in process.threads}
    if mesh is not None and mesh not in meshes:
        raise NotFoundError(f"there is no mesh {mesh!r} here; there are: {', '.join(sorted(meshes - {''}))}")

    def keep(process: ProcessStacks, stack: ThreadStack) -> bool:
        if mesh is not None and mesh not in (process.mesh, stack.actor):
            return False
        return not ranks or (bool(process.mesh) and (stack.rank if stack.key else process.rank) in ranks)

    def of_ranks(address: str) -> bool:
        place = split_proc_name(name_of(address))
        return place is not None and (not ranks or place[1] in ranks)

    chosen = found.only(keep)
    silent = {address: why for address, why in found.silent.items() if of_ranks(address)}
    if not chosen.processes and not silent:
        raise NotFoundError(f"no process or actor is {folding.called(list(ranks)) if ranks else 'there'}")
    return Stacks(chosen.processes, silent)


def what_is_wrong(program: Program, found: Stacks, seconds: float) -> list[str]:
    """Returns what the doctor finds, a line each, where an endpoint has run for long or a process has told nothing. A client
    that does not answer is named with its stacks."""
    if any(name_of(process.address) == CLIENT and process.how != HOW_ITSELF for process in found.processes):
        return []
    told = all(process.how == HOW_ITSELF for process in found.processes) and not found.silent
    lasting = [stack.seconds for process in found.processes for stack in process.threads]
    return doctor.titles(asking(program), seconds, max(lasting, default=0.0) if told else diagnosis.LONG)


def summaries(found: Stacks) -> list[str]:
    """Returns, for each mesh, one line that says where its ranks are."""
    return [folding.summary(section) for section in folding.fold(found.processes)]


def page(program: Program, wrong: Sequence[str], found: Stacks) -> str:
    """Returns the page for people. Pure."""
    return "\n".join([f"{program.pid}: {one_line(program.command)}", *section("what is wrong", wrong), "", str(found)])


def examine(program: Program, seconds: float, apart: float) -> Diagnosis:
    """Finds what is wrong with it: see `monarch.actor.diagnose`. ProgramGone when it has ended."""
    try:
        return doctor.examine(asking(program), seconds, apart)
    except TimeoutError as exc:
        stacks = stacks_of(program, StacksQuery(None, seconds))
        places = [*summaries(stacks), *stacks.silent.values()]
        advice = "`monarch stacks --native` shows the native frames; until the client goes on, only stacks can be had"
        return Diagnosis([Finding("client", str(exc), places, advice)], [], len(stacks.processes))


def as_plain(value: Any) -> Any:
    """Returns structs as dictionaries, for JSON."""
    if isinstance(value, msgspec.Struct):
        return {name: as_plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, dict):
        return {key: as_plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_plain(each) for each in value]
    return value
