"""The commands of a simulation as plain data, for a file."""

from __future__ import annotations

from monarch.tensor.simulator.task import SimulatedCommand, Use

LIMIT = 1 << 20  # commands; later ones are only counted


class CommandHistory:
    """`entries`: a dict for each command, of numbers, strings, lists and tuples; `left_out`: how many came after the
    limit."""

    def __init__(self) -> None:
        self.entries: list[dict[str, object]] = []
        self.left_out = 0

    def add(self, command: SimulatedCommand) -> None:
        if len(self.entries) >= LIMIT:
            self.left_out += 1
            return
        self.entries.append(
            {
                "order": command.order,
                "ident": command.ident,
                "command": command.kind.value,
                "name": command.name,
                "stream": command.stream,
                "ranks": command.ranks,
                "inputs": [tensor(use) for use in command.inputs],
                "outputs": [tensor(use) for use in command.outputs],
                "writes": command.writes,
                "meta": None if command.meta is None else str(command.meta),
            }
        )

    def contents(self) -> dict[str, object]:
        """Returns the contents of a history file."""
        return {"commands": self.entries, "left_out": self.left_out}


def tensor(use: Use) -> dict[str, object]:
    """One tensor of a command as plain data."""
    meta = use.meta
    known = {"shape": tuple(meta.shape), "dtype": str(meta.dtype), "nbytes": meta.nbytes} if meta is not None else {}
    return {"ref": use.ref, "buffer": use.buffer, **known}
