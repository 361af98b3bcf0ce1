"""Planning a cast: which process gets which message of a view. Pure, and made once a view.

On one host the sender writes to each process itself; below the width of an agent's tree that is the fastest way.
"""

from __future__ import annotations

from collections.abc import Sequence

from monarch._wire.message import encode_extent


class Plan:
    """The receivers of a view, in the order of its ranks.

    `ranks[i]` is the actor's rank in the mesh it was spawned on and `addresses[i]` its process, for rank i of the view;
    `view` is the view's extent as it goes into messages.
    """

    __slots__ = ("addresses", "ranks", "receivers", "view")

    def __init__(
        self, labels: tuple[str, ...], sizes: tuple[int, ...], ranks: Sequence[int], addresses: Sequence[str]
    ) -> None:
        self.view = encode_extent(labels, sizes)
        self.ranks = tuple(ranks)
        self.addresses = tuple(addresses[rank] for rank in self.ranks)
        self.receivers = tuple(zip(range(len(self.ranks)), self.ranks, self.addresses, strict=True))

    def __len__(self) -> int:
        return len(self.ranks)

    def processes(self) -> int:
        return len(set(self.addresses))
