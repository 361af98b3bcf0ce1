"""`sample()`: where Python code is, in all processes of a program at once, as a flame graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from monarch._mesh.inspection import sampler, survey
from monarch._mesh.inspection.sampler import Samples, SamplingOptions, check
from monarch._wire.address import CLIENT, name_of
from monarch.trace.flame import Flame

if TYPE_CHECKING:
    from monarch._mesh.inspection.survey_answers import SurveyAnswers
    from monarch.admin.programs import Program

__all__ = ["addresses_of", "check", "flame_of", "names_of", "sample"]

_SPARE = 10.0  # seconds for answers on their way, and for processes that are busy
_NAMED = 3  # actors by which a process is called


def sample(
    seconds: float = 5.0,
    *,
    mesh: Any = None,
    rate: float = 100.0,
    threads: bool = False,
    which: Literal["actors", "all"] = "actors",
    idle: bool = False,
    program: Program | None = None,
) -> Flame:
    """Looks at the Python stacks of every process for `seconds`, `rate` times a second, while the program runs on.

    `mesh`: only its processes (a mesh of actors or of processes, or a slice). `threads`: a tower for each thread instead of
    one for each mesh of actors. `which`: "all" shows threads of the program's own as well. `idle`: also actors that wait for
    a message. `program`: another one on this machine (`monarch.admin.programs.choose`) instead of this.

    Processes that give no answer are in `silent`. ValueError for a time over 300 s or a rate over 1000.
    """
    check(seconds, rate)
    argument = msgspec.msgpack.encode(SamplingOptions(seconds, rate, threads, which, idle))
    only = None if mesh is None else addresses_of(mesh)
    if program is not None:
        answers = program.ask("samples", argument, timeout=seconds + _SPARE, only=only)
    else:
        answers = survey.ask("samples", argument, timeout=seconds + _SPARE, only=only).get()
    return flame_of(answers, seconds)


def addresses_of(mesh: Any) -> Sequence[str]:
    """The processes under a mesh of actors or processes."""
    plan = getattr(mesh, "_plan", None)
    if plan is not None:
        return list(dict.fromkeys(plan.addresses))
    addresses = getattr(mesh, "_addresses", None)
    if addresses is None:
        raise TypeError(f"a mesh of actors or of processes is profiled, got {mesh!r}")
    return list(addresses())


def flame_of(answers: SurveyAnswers, seconds: float) -> Flame:
    """Answers of the question "samples", as one picture."""
    found = answers.decoded(sampler.decode)
    names = names_of(found)
    processes = {names[address]: samples.samples for address, samples in found.items()}
    silent = {_short(address): why for address, why in answers.silent.items()}
    taken = sum(samples.taken for samples in found.values())
    most = max((samples.overhead for samples in found.values()), default=0.0)
    notes = f"{taken} looks in {len(found)} process(es), {seconds:g} s; looking took at most {most:.1%} of a core"
    return Flame(processes, silent=silent, title=f"Where Python code was, {seconds:g} s", notes=notes)


def names_of(found: dict[str, Samples]) -> dict[str, str]:
    """Returns the names of processes: by their actors, or by their address; no two the same."""
    names: dict[str, str] = {}
    for address, samples in found.items():
        actors = samples.who[:_NAMED]
        name = ", ".join(actors) + (", ..." if len(samples.who) > _NAMED else "")
        if name_of(address) == CLIENT:
            name = CLIENT
        if not name or name in names.values():
            name = f"{name} {_short(address)}".strip()
        names[address] = name
    return names


def _short(address: str) -> str:
    return name_of(address)
