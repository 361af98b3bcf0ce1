"""Collectives that run beside what the program does next: `monarch.reduce(..., async_op=True)`.

They are operations of a stream of their own, to which their inputs are lent. So all that holds for streams holds for
them: the workers start one when what its inputs depend on is done, the program may not change what is lent, and `wait` lets
the tensors' own stream follow.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from monarch.tensor.controller import borrows, misuse
from monarch.tensor.controller.events import post, wait
from monarch.tensor.controller.handles import make
from monarch.tensor.controller.records import TensorRecord, TensorStorage, recorder, recorders
from monarch.tensor.controller.stream import MAIN, Stream
from monarch.tensor.controller.stream_placement import StreamPlacement
from monarch.tensor.worker.moves import AdoptTensors

if TYPE_CHECKING:
    from torch.utils._pytree import PyTree, TreeSpec

    from monarch.tensor.controller.borrows import _BorrowLoan

STREAM = Stream("collectives")  # one for all of them: ranks have to come to collectives in the same order


class PendingReduce:
    """A reduction under way; `wait()` gives what `monarch.reduce` would have given.

    Until then its tensors may be read and not changed; those of `reduce_` may not be used at all. Fetching one, or any
    other operation, does not wait for it. One that is collected before it was waited for gives a ResourceWarning: its
    result is lost.
    """

    def __init__(
        self, spec: TreeSpec, leaves: list[Any], places: Sequence[int], loans: list[_BorrowLoan], inplace: bool
    ) -> None:
        self._spec = spec
        self._leaves = leaves  # with what the reductions gave, on STREAM, at `places`
        self._places = places
        self._loans = loans
        self._inplace = inplace
        self._why = misuse.here(4)
        self._waited = ""
        if recorders and (here := recorder()) is not None:
            here.began(self, inplace)

    @property
    def waited(self) -> bool:
        """True if `wait()` was called."""
        return bool(self._waited)

    def wait(self) -> PyTree:
        """The results, as tensors of the stream that the inputs are of: what that stream is given from here on runs behind
        the reduction. This process does not wait: values come with `inspect`.

        RuntimeError when it was called before, or when it began outside of the recorded function in which it is called.
        """
        if self._waited:
            raise RuntimeError(
                f"this reduction was waited for before, and its tensors were given then: keep what wait() returned. It was "
                f"waited for at:\n{self._waited}"
            )
        if recorders and (here := recorder()) is not None:
            here.waits_for(self)
        self._waited = misuse.here(1)
        homes = {loan.place: loan.alias.place for loan in self._loans}
        if self._inplace:
            storages = [loan.alias.storage for loan in self._loans]
        else:
            storages = [self._leaves[at]._record.storage for at in self._places]
        taints = list({id(storage.taint): storage.taint for storage in storages if storage.taint is not None}.values())
        borrows.take_back(self._loans, self._waited)
        for home, there in homes.items():
            ident = wait(home, post(there))
            if home.stream is MAIN:
                for taint in taints:
                    if taint.place is there:
                        home.engine.taints.follow(taint, ident)
        if self._inplace:
            torch.autograd.graph.increment_version([self._leaves[at] for at in self._places])
        else:
            self._bring_home({there: home for home, there in homes.items()})
        leaves, self._leaves, self._loans = self._leaves, [], []
        return pytree.tree_unflatten(leaves, self._spec)

    def _bring_home(self, homes: dict[StreamPlacement, StreamPlacement]) -> None:
        """The results become tensors of the stream that has just followed."""
        refs: dict[StreamPlacement, list[int]] = {}
        for at in self._places:
            record = self._leaves[at]._record
            home = homes[record.place]
            refs.setdefault(home, []).append(record.ref)
            self._leaves[at] = make(TensorRecord(record.ref, record.meta, home, TensorStorage(record.storage.taint)))
            record.ref = -1  # it is the other's now
        for home, some in refs.items():
            home.engine.run(home, home.engine.define("adopt", AdoptTensors()), some, (), 0)

    def __del__(self) -> None:
        loans = getattr(self, "_loans", None)
        if not loans or self._waited or loans[0].place.engine.ended:
            return
        borrows.abandon(loans, misuse.here(1))
        warnings.warn(
            f"a reduction was begun with async_op=True and never waited for: its result is lost. "
            f"It was begun at:\n{self._why}",
            ResourceWarning,
            stacklevel=2,
        )

    def __repr__(self) -> str:
        return f"<PendingReduce of {len(self._places)} tensors{', waited for' if self._waited else ''}>"


def begin(tree: PyTree, inplace: bool, reduce: Callable[[Any], Any]) -> PendingReduce:
    """Lends the tensors of `tree`, which have been looked at, to STREAM and runs `reduce` there on what stands for them."""
    leaves, spec = pytree.tree_flatten(tree)
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    tensors = [leaves[place] for place in places]
    lent, loans = borrows.lend_all(tensors, STREAM, inplace)
    try:
        with STREAM.activate():
            made = reduce(lent)
    except BaseException:
        borrows.abandon(loans, misuse.here(2))
        borrows.sweep()
        raise
    for at, result in zip(places, made, strict=True):
        if not inplace:
            leaves[at] = result
    return PendingReduce(spec, leaves, places, loans, inplace)
