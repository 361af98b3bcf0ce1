"""One cause, told by each rank of a mesh, is reported in full once. Pure."""

from __future__ import annotations

from monarch._mesh.failures.ledger import MeshFailure


class Repeats:
    """Remembers the last failure that was reported, and nothing before it."""

    def __init__(self) -> None:
        self._last: tuple[str, str] | None = None

    def shortened(self, failure: MeshFailure, block: str) -> str:
        """`block`, the report as it is shown; or a line, when the one before said the same of other ranks of the mesh."""
        # The first line names the actor; of a constructor that raises, the rest is the same on each rank.
        cause = (failure.mesh_name, failure.report().partition("\n")[2])
        last, self._last = self._last, cause
        if cause != last or not failure.crashed_ranks or not cause[1]:
            return block
        return f"The same failure on rank(s) {', '.join(map(str, failure.crashed_ranks))} of {failure.mesh_name}\n"
