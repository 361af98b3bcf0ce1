"""The policy for replacing hosts of a mesh: how often, and how soon."""

from __future__ import annotations

from monarch._mesh.failures.restart_policy import Intensity, checked_count, checked_seconds


class ReplacePolicy:
    """Replaces hosts that have died, without the program: `attach_to_workers(..., spares=[...], replace=ReplacePolicy())`.

    A lost host is replaced as by `HostMesh.replace(failed=True)`: by a host that the job finds, by a spare, by a worker that
    listens at the same address again. Processes and actors come back there when they are restarted: those under a
    RestartPolicy by themselves, which waits for the host, others by `restart(failed=True)`.

    At most `max_replacements` attempts within the time `within` (seconds, or text such as "1h") are made for the mesh; what
    fails then stays lost, and an ERROR on the logger `monarch` says so. The first attempt waits `backoff`, each further one
    within that time twice as long as the one before, up to `max_backoff`. ValueError and TypeError as for RestartPolicy.
    """

    def __init__(
        self,
        max_replacements: int = 10,
        within: float | str = "1h",
        backoff: float | str = 0.0,
        max_backoff: float | str = "1m",
    ) -> None:
        self.max_replacements = checked_count("max_replacements", max_replacements)
        self.within = checked_seconds("within", within)
        self.backoff = checked_seconds("backoff", backoff)
        self.max_backoff = checked_seconds("max_backoff", max_backoff)

    def __repr__(self) -> str:
        return (
            f"ReplacePolicy(max_replacements={self.max_replacements}, within={self.within:g}, backoff={self.backoff:g})"
        )

    def begin(self) -> Intensity:
        """Returns the count of one mesh."""
        return Intensity(self.max_replacements, self.within, self.backoff, self.max_backoff)
