"""The stacks of a program, from outside; also of one whose client cannot answer, as far as its processes are on this
machine: they are signalled from here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from monarch._mesh.inspection import agent_stacks, fault_signal, folding, stacks_of_program
from monarch._mesh.inspection.stack_records import StacksByAgent
from monarch._mesh.inspection.stacks_of_program import Stacks, Wanted
from monarch._mesh.inspection.survey import Answers
from monarch._wire.address import CLIENT
from monarch.admin.programs import Program


def stacks_of(program: Program, wanted: Wanted) -> Stacks:
    """Blocks: see `Wanted`. ProgramGone when it has ended."""

    def ask(question: str, argument: bytes, *, timeout: float, only: Sequence[str] | None, agents: bool) -> Answers:
        return program.ask(question, argument, timeout=timeout, only=only, agents=agents)

    try:
        return stacks_of_program.gather(ask, wanted)
    except TimeoutError as exc:
        return _without_client(program, wanted, str(exc))


def _without_client(program: Program, wanted: Wanted, why: str) -> Stacks:
    """Of the processes on this machine; nobody says which there are elsewhere."""
    host = f"unix:{program.folder}"
    names = fault_signal.listening(program.folder) or [CLIENT]
    addresses = [f"{host}/{name}" for name in names]
    if wanted.only is not None:
        addresses = [address for address in addresses if address in wanted.only]
    by_signal = agent_stacks.by_signal(program.folder, StacksByAgent(addresses, wanted.seconds, wanted.all_threads))
    found = [msgspec.structs.replace(process, why=why) for process in by_signal.processes]
    silent = dict(by_signal.silent)
    if wanted.native:
        given = StacksByAgent(addresses, wanted.native_seconds, wanted.all_threads, wanted.pyspy)
        native = agent_stacks.by_pyspy(program.folder, given)
        found = stacks_of_program.with_native(found, native.processes)
        for process in native.processes:
            silent.pop(process.address, None)
        silent |= {address: f"no native frames: {why}" for address, why in native.silent.items()}
    return Stacks(stacks_of_program.ordered(folding.completed(found)), silent)


def as_plain(value: Any) -> Any:
    """Structs as dictionaries, for JSON."""
    if isinstance(value, msgspec.Struct):
        return {name: as_plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, dict):
        return {key: as_plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_plain(each) for each in value]
    return value
