"""Planning a cast: which process gets which message of a view. Pure, and made once a view.

Receivers on the sender's own host are sent to one by one, which is the fastest way there; those on others, where they are not
few, share one message that goes down a tree of agents (see `relay`).
"""

from __future__ import annotations

from collections.abc import Sequence

from monarch._shape.region import Shape
from monarch._wire.address import host_of, name_of
from monarch._wire.message import PlanHost, encode_extent

Receivers = tuple[tuple[int, int, str], ...]  # (rank in the view, rank in the mesh, process)


SENDER_PLANS = 256  # a process has at most this many views registered with the agent of its host
# Seconds that an agent may hold answers to send them together: of a call; of a stream, to the end of its turn.
CALL_HOLD = 0.01
STREAM_HOLD = 0.0


class ViewReceivers:
    """The receivers of a view, in the order of its ranks.

    `ranks[i]` is the actor's rank in the mesh it was spawned on and `addresses[i]` its process, for rank i of the view;
    `view` is the view's extent as it goes into messages.
    """

    __slots__ = ("_parted", "_parted_for", "addresses", "answers", "ranks", "receivers", "shown", "view")

    def __init__(
        self, labels: tuple[str, ...], sizes: tuple[int, ...], ranks: Sequence[int], addresses: Sequence[str]
    ) -> None:
        self.view = encode_extent(labels, sizes)
        self.ranks = tuple(ranks)
        self.addresses = tuple(addresses[rank] for rank in self.ranks)
        self.receivers: Receivers = tuple(zip(range(len(self.ranks)), self.ranks, self.addresses, strict=True))
        self.shown: tuple[str, str] | None = None  # the view and its shape, for tables
        self.answers: Shape | None = None  # the shape of what a call gives
        self._parted: RemoteReceivers | None = None
        self._parted_for = ""

    def __len__(self) -> int:
        return len(self.ranks)

    def parted(self, host: str) -> RemoteReceivers | None:
        """Its part on other hosts than `host`, the sender's; None when that is one receiver, or none."""
        if self._parted_for != host:
            parted = RemoteReceivers(self.receivers, host)
            self._parted = parted if len(parted.remote) > 1 else None
            self._parted_for = host
        return self._parted


class RemoteReceivers:
    """The receivers of a view as a sender on one host sees them: `local` are on the same, `remote` on others, in the order of
    their positions in a CastPlan with `hosts`; `ranks` are those of `remote` in the mesh, always the same object."""

    __slots__ = ("__weakref__", "addresses", "hosts", "local", "ranks", "remote")

    def __init__(self, receivers: Receivers, host: str) -> None:
        self.local = tuple(receiver for receiver in receivers if host_of(receiver[2]) == host)
        by_host: dict[str, list[tuple[int, int, str]]] = {}
        for receiver in receivers:
            there = host_of(receiver[2])
            if there != host:
                by_host.setdefault(there, []).append(receiver)
        self.hosts = [
            PlanHost(there, [name_of(address) for _, _, address in some], [index for index, _, _ in some])
            for there, some in by_host.items()
        ]
        self.remote: Receivers = tuple(receiver for some in by_host.values() for receiver in some)
        self.ranks = tuple(rank for _, rank, _ in self.remote)
        self.addresses = frozenset(address for _, _, address in self.remote)
