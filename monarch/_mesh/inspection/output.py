"""Question "output" of a host agent: what its processes have written lately."""

from __future__ import annotations

from typing import Any

import msgspec

from monarch._mesh.output.kept import Wanted


def answer(agent: Any, argument: bytes) -> bytes:
    """A list of Told. On the agent's loop."""
    wanted = msgspec.msgpack.decode(argument, type=Wanted)
    agent.outputs.read_now()  # what stands in the pipes belongs to it
    return msgspec.msgpack.encode(agent.outputs.kept.tell(wanted))
