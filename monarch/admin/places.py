"""Ranks of a program that runs, by mesh: what one can name when one asks about them."""

from __future__ import annotations

import msgspec

from monarch._mesh.inspection.description import ProcessFacts
from monarch._mesh.output.kept import OutputPage, OutputRequest
from monarch._wire.address import name_of, split_proc_name
from monarch.admin.programs import Program

Places = list[tuple[str, int]]  # mesh, rank

_decode_pages = msgspec.msgpack.Decoder(list[OutputPage]).decode
_decode_process = msgspec.msgpack.Decoder(ProcessFacts).decode


def with_output(program: Program, timeout: float) -> Places:
    """Returns the processes whose output is kept, also of those that have ended; of hosts that answer within `timeout`
    seconds. Raises what `Program.ask` does."""
    answers = program.ask("output", msgspec.msgpack.encode(OutputRequest(lines=0)), timeout=timeout, agents=True)
    return [(page.mesh, page.rank) for pages in answers.decoded(_decode_pages).values() for page in pages]


def with_actors(program: Program, timeout: float) -> Places:
    """Returns the processes that live, and their actors, as far as they answer within `timeout` seconds. Raises what
    `Program.ask` does."""
    found: Places = []
    for process in program.ask("tree", timeout=timeout).decoded(_decode_process).values():
        found += [(actor.name, actor.rank) for actor in process.actors if not actor.system and actor.owner]
        of_mesh = split_proc_name(name_of(process.address))
        if of_mesh is not None:
            found.append((process.mesh, of_mesh[1]))
    return found
