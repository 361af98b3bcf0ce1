"""The meshes that actors of this process own: what its spawning, its restarts and its failures all work on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from monarch._linux.locks import Lock
from monarch._mesh.failures.ledger import Ledger
from monarch._mesh.failures.observed import Observed
from monarch._mesh.meshes.owned import OwnedActors, OwnedProcs
from monarch._wire.address import host_of
from monarch._wire.message import Failure


class OwnedMeshes:
    """One a process. `lock` guards the ledger, what was told of, and the restart groups; a caller of a method must not
    hold it."""

    def __init__(self, grace: bool) -> None:
        self.lock = Lock()
        self.observed = Observed(grace)
        self.ledger = Ledger(self.observed.restarted)
        self.procs: dict[str, OwnedProcs] = {}  # by the uid of the mesh
        self.actors: dict[str, OwnedActors] = {}  # by the key of the mesh
        self.changed: Callable[[], None] = _nobody_waits  # something has ended, or was restarted; any thread

    def why_ended(self, key: str, ranks: Sequence[int]) -> Failure | None:
        """Returns why one of these ranks has ended, or the whole mesh is being stopped; None when neither is so."""
        with self.lock:
            return self.ledger.check(key, ranks)

    def ended_ranks(self, key: str) -> set[int]:
        with self.lock:
            return set(self.ledger.ended_ranks(key))

    def is_coming_back(self, key: str, rank: int) -> bool | None:
        """True if that rank lives or another takes its place; None of a mesh that is not owned here."""
        with self.lock:
            return self.ledger.is_coming_back(key, rank)

    def is_stopped(self, owned: OwnedActors) -> bool:
        """True if its owner has stopped the mesh, or is stopping it."""
        with self.lock:
            key = owned.spec.key
            return self.actors.get(key) is not owned or self.ledger.check(key, []) is not None

    def is_any_down(self, owned: OwnedActors, ranks: Iterable[int]) -> bool:
        """True if any of these ranks has ended, in a mesh that is not being stopped."""
        key = owned.spec.key
        with self.lock:
            return self.ledger.check(key, []) is None and not set(ranks).isdisjoint(self.ledger.ended_ranks(key))

    def addresses_on(self, host: str) -> list[str]:
        """The processes of that host with meshes that are owned here."""
        with self.lock:
            meshes = [owned.spec.addresses for owned in self.procs.values()]
            meshes += [list(owned.spec.addresses) for owned in self.actors.values()]
        return [address for addresses in meshes for address in addresses if host_of(address) == host]


def _nobody_waits() -> None:
    return None
