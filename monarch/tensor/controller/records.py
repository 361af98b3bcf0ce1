"""The record of a distributed tensor: its reference, its metadata, and the storage it shares with its views."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    import torch

    from monarch.tensor.controller.stream_placement import StreamPlacement
    from monarch.tensor.controller.taint import Taint
    from monarch.tensor.metadata import Meta

# Who notes what a thread issues (see `recording`), by thread: nearly always empty. `holders`: those of them that keep
# commands back, so that nothing those may still name is deleted meanwhile.
recorders: dict[int, Any] = {}
holders: set[int] = set()


def recorder() -> Any:
    """The recorder of this thread, or None. Derivatives are computed in the thread that called backward(): a Watcher sees
    to that."""
    return recorders.get(threading.get_ident())


# Reasons for an operation to look at a storage before using it; most storages have none.
DROPPED = 1
BORROWED = 2  # by another stream that may read: nobody may write
LENT = 4  # to another stream that may write: nobody else may read
RETURNED = 8  # a borrow that was given back: of no use here any more
KNOWN = 16  # the controller has the value as well
UNSEEN = 32  # a borrow that its stream has not used yet


class TensorStorage(msgspec.Struct, eq=False):
    """The memory that a tensor and its views share, in each process.

    `taint`: commands between ranks on which the contents depend. `flags`: reasons to look closer; `why`: what the program
    did, as a traceback, for the error. `records`: of its views; None while there is only one tensor. `known`: values
    that are the same everywhere because this process computes them as well; `origin`: the recorded run of a function in which
    all that they come from was made, or their Derivation where not all was; None: outside of any.
    """

    taint: Taint | None = None
    flags: int = 0
    records: list[weakref.ref[TensorRecord]] | None = None
    known: torch.Tensor | None = None
    origin: Any = None
    why: str = ""
    borrows: Any = None


class TensorRecord(msgspec.Struct, eq=False, weakref=True):
    """One tensor: dies with it, and then tells the workers. A recorder has to hear of a new one: see `handles.make`.

    `shared`: it may be that of copies as well which autograd has made of the tensor for itself.
    """

    ref: int
    meta: Meta
    place: StreamPlacement
    storage: TensorStorage
    shared: bool = False

    def __del__(self) -> None:
        # From whatever the collector interrupts: a list's append is all that may happen here.
        if self.ref >= 0:
            self.place.dead.append(self.ref)


def share(first: TensorRecord, view: TensorRecord) -> None:
    """Notes that `view` lies in the storage of `first`, so that both can be found from it."""
    storage = first.storage
    if storage.records is None:
        storage.records = [weakref.ref(first)]
    elif len(storage.records) > 64 and len(storage.records) & (len(storage.records) - 1) == 0:
        storage.records[:] = [known for known in storage.records if known() is not None]
    storage.records.append(weakref.ref(view))


def tensors_of(storage: TensorStorage, own: TensorRecord) -> list[TensorRecord]:
    """The records of all living tensors of `storage`."""
    if storage.records is None:
        return [own]
    return [record for known in storage.records if (record := known()) is not None]
