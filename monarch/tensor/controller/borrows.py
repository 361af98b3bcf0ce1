"""Borrows: the memory of a tensor of one stream, used on another one for a while."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from monarch.tensor.controller import misuse
from monarch.tensor.controller.checks import trouble
from monarch.tensor.controller.events import post, wait
from monarch.tensor.controller.handles import is_distributed, make
from monarch.tensor.controller.records import (
    BORROWED,
    KNOWN,
    LENT,
    RETURNED,
    UNSEEN,
    TensorRecord,
    TensorStorage,
    tensors_of,
)
from monarch.tensor.controller.stream import Stream, bind
from monarch.tensor.controller.stream_placement import StreamPlacement
from monarch.tensor.controller.taint import merge
from monarch.tensor.worker.events import AliasTensor
from monarch.tensor.worker.moves import AdoptTensors

if TYPE_CHECKING:
    from monarch.tensor.controller.tensor import Tensor

_orphans: deque[_BorrowLoan] = deque()  # whose Borrow the collector took


def borrow(stream: Stream, tensor: Tensor, mutable: bool = False) -> tuple[Tensor, Borrow]:
    """Returns the memory of `tensor` as a tensor of `stream`, and the Borrow that gives it back.

    On the workers `stream` waits, before its first use, for what the tensor's own stream had been given when it was
    borrowed; that stream waits for `stream` when the Borrow is dropped. In between, what the two do runs side by
    side. The tensor on `stream` has no part in autograd.

    TypeError for a tensor that cannot be used; RuntimeError for a mutable borrow of what is borrowed, or may only be read.
    """
    sweep()
    if not is_distributed(tensor):
        raise misuse.incorrect(
            "borrow", (tensor, mutable), {}, [misuse.OperandProblem(tensor, "LOCAL_TENSOR")], None, stream
        )
    record = tensor._record
    storage = record.storage
    problem = trouble(tensor, record.place, False)
    if problem is not None:
        raise misuse.incorrect("borrow", (tensor, mutable), {}, [problem], record.place.mesh, stream)
    if mutable and storage.flags & BORROWED:
        raise RuntimeError(
            f"a tensor cannot be borrowed mutably while it is borrowed, or if it is an immutable borrow itself: drop the "
            f"other borrow first. It was borrowed at:\n{storage.why}"
        )
    made, loan = _lend(record, stream, mutable)
    return made, Borrow(loan)


def lend_all(tensors: Sequence[Tensor], stream: Stream, mutable: bool) -> tuple[list[Tensor], list[_BorrowLoan]]:
    """Returns what stands for these tensors, which may be used, on `stream`, which follows theirs from here on; and
    the loans, for `take_back`. RuntimeError as by `borrow`: then nothing is lent."""
    sweep()
    seen: set[int] = set()
    for tensor in tensors:
        storage = tensor._record.storage
        if mutable and (storage.flags & BORROWED or id(storage) in seen):
            why = storage.why if storage.flags & BORROWED else "  (two of these tensors share memory)\n"
            raise RuntimeError(
                f"a tensor is changed in place while it is borrowed, or twice at once: wait for the one before first. It was "
                f"borrowed at:\n{why}"
            )
        seen.add(id(storage))
    lent = [_lend(tensor._record, stream, mutable, True) for tensor in tensors]
    for place in dict.fromkeys(tensor._record.place for tensor in tensors):
        wait(place.mesh.place(stream), post(place))
    return [made for made, _ in lent], [loan for _, loan in lent]


def take_back(loans: Sequence[_BorrowLoan], where: str) -> None:
    """Ends these loans. The caller lets the lenders' streams follow."""
    for loan in loans:
        if not loan.returned:
            _give_back(loan, where, False)


def abandon(loans: Sequence[_BorrowLoan], where: str) -> None:
    """Ends these loans with the next use of a borrow. Safe from whatever the collector interrupts."""
    for loan in loans:
        if not loan.returned:
            loan.orphaned = where
            loan.alias.storage.why = where
            loan.alias.storage.flags |= RETURNED
            _orphans.append(loan)


def _lend(record: TensorRecord, stream: Stream, mutable: bool, followed: bool = False) -> tuple[Tensor, _BorrowLoan]:
    """`followed`: the caller lets the stream wait."""
    place, engine = record.place, record.place.engine
    there = place.mesh.place(stream)
    ident = engine.run(place, engine.define("alias", AliasTensor()), (record.ref,), (), 1)
    storage = TensorStorage(record.storage.taint)
    made = make(TensorRecord(ident, record.meta, there, storage))
    loan = _BorrowLoan(record.storage, made._record, place, mutable)
    if there is not place and not followed:
        loan.event = post(place)
        storage.flags |= UNSEEN
    storage.borrows = _Access(loan)
    if record.storage.borrows is None:
        record.storage.borrows = _Access(None)
    record.storage.borrows.live.append(loan)
    if mutable:
        record.storage.known, record.storage.flags = None, record.storage.flags & ~KNOWN
    _refresh(record.storage)
    _refresh(storage)
    return made, loan


class Borrow:
    """One borrow: `drop()`, or the end of `with borrow:`, gives it back. One that is collected before gives a
    warning, and is given back then."""

    def __init__(self, loan: _BorrowLoan) -> None:
        self._loan = loan

    @property
    def dropped(self) -> bool:
        """True if it was given back."""
        return bool(self._loan.returned)

    def drop(self) -> None:
        """Gives it back: the borrowed tensor and its views are dropped, and the tensor's own stream waits for what
        the borrowing one was given so far. Borrows of the borrowed tensor are given back first. Idempotent."""
        if not self._loan.returned:
            _give_back(self._loan, misuse.here(1))

    def __enter__(self) -> Borrow:
        return self

    def __exit__(self, *exc: object) -> None:
        if not self._loan.returned:
            _give_back(self._loan, misuse.here(1))

    def __del__(self) -> None:
        loan = self._loan
        if loan.returned or loan.place.engine.ended:
            return
        # The collector may have come while the engine is at work here: what needs it waits for the next use of the tensor.
        where = misuse.here(1)
        abandon([loan], where)
        warnings.warn(
            f"a Borrow was collected without drop(), which is done now. It was borrowed at:\n{loan.why}"
            f"It was collected at:\n{where}",
            ResourceWarning,
            stacklevel=2,
        )


class _BorrowLoan:
    """The loan behind a Borrow: memory `lent` of a tensor at `place`, as `alias`."""

    __slots__ = ("alias", "event", "lent", "mutable", "orphaned", "place", "returned", "why")

    def __init__(self, lent: TensorStorage, alias: TensorRecord, place: StreamPlacement, mutable: bool) -> None:
        self.lent = lent
        self.alias = alias
        self.place = place
        self.mutable = mutable
        self.event = 0  # that the borrowing stream has to wait for before it uses the memory; 0: none, or it has
        self.returned = ""
        self.orphaned = ""
        self.why = misuse.here(4)


class _Access:
    """The rights to use a storage: `own`, the loan that it is itself, and the `live` loans of it."""

    __slots__ = ("live", "own")

    def __init__(self, own: _BorrowLoan | None) -> None:
        self.own = own
        self.live: list[_BorrowLoan] = []

    def look(self, storage: TensorStorage) -> int:
        """The flags of `storage`, when what the collector took has been given back."""
        sweep()
        return storage.flags

    def first_use(self, storage: TensorStorage) -> None:
        """Before the first command with it on the borrowing stream, which waits for that of the tensor it was
        borrowed from."""
        storage.flags &= ~UNSEEN
        loan = self.own
        if loan is not None and loan.event:
            event, loan.event = loan.event, 0
            there = loan.alias.place
            wait(there, event)
            # Should the lender's tensor go first, its memory is not given out while this stream is still at it.
            there.engine.run(there, there.engine.define("adopt", AdoptTensors()), (loan.alias.ref,), (event,), 0)


def sweep() -> None:
    """Gives back what the collector took."""
    while _orphans:
        loan = _orphans.popleft()
        if not loan.returned:
            _give_back(loan, loan.orphaned)


def _give_back(loan: _BorrowLoan, where: str, follow: bool = True) -> None:
    loan.returned = where or "somewhere"
    alias = loan.alias
    storage = alias.storage
    for inner in list(storage.borrows.live):
        _give_back(inner, where)
    storage.why = where
    storage.flags |= RETURNED
    there, engine = alias.place, loan.place.engine
    # The memory itself is the lender's: no delete here has to wait for anything.
    for record in {id(record): record for record in (alias, *tensors_of(storage, alias))}.values():
        if record.ref >= 0:
            record.place.dead.append(record.ref)
            record.ref = -1
    loan.lent.borrows.live.remove(loan)
    _refresh(loan.lent)
    if loan.mutable:
        loan.lent.taint = merge(storage.taint, loan.lent.taint)
    if engine.ended or there is loan.place or not follow:
        return
    if loan.event:  # never used there
        wait(loan.place, loan.event)
    else:
        wait(loan.place, post(there))


def _refresh(storage: TensorStorage) -> None:
    """The flags that follow from a storage's loans."""
    access = storage.borrows
    storage.flags &= ~(BORROWED | LENT)
    latest = access.live[-1] if access.live else None
    if any(loan.mutable for loan in access.live):
        storage.flags |= LENT
    elif latest is not None or (access.own is not None and not access.own.mutable):
        storage.flags |= BORROWED
    if latest is not None or (access.own is not None and not access.own.returned):
        storage.why = (latest or access.own).why


bind(borrow)
