"""What hangs on a distributed tensor: its reference, its metadata, and the storage it shares with its views."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from monarch.tensor.controller.place import Place
    from monarch.tensor.controller.taint import Taint
    from monarch.tensor.metadata import Meta

# Who notes what a thread issues (see `recording`), by thread: nearly always empty. `holders`: those of them that keep
# commands back, so that nothing those may still name is deleted meanwhile.
recorders: dict[int, Any] = {}
holders: set[int] = set()


def recorder() -> Any:
    """The recorder of this thread, or None. Threads that compute derivatives belong to the only one there is."""
    found = recorders.get(threading.get_ident())
    if found is None and len(recorders) == 1:
        import torch

        if torch._C._current_graph_task_id() != -1:
            return next(iter(recorders.values()), None)
    return found


# Reasons for an operation to look at a storage before using it; most storages have none.
DROPPED = 1
BORROWED = 2  # by another stream that may read: nobody may write
LENT = 4  # to another stream that may write: nobody else may read
RETURNED = 8  # a borrow that was given back: of no use here any more
KNOWN = 16  # the controller has the value as well
UNSEEN = 32  # a borrow that its stream has not used yet


class Storage:
    """The memory that a tensor and its views share, in each process.

    `flags`: reasons to look closer; `why`: what the program did, as a traceback, for the error. `taint`: commands between
    ranks on which the contents depend. `known`: the value of a scalar that is the same everywhere because this process
    computes it as well.
    """

    __slots__ = ("borrows", "flags", "known", "records", "taint", "why")

    def __init__(self, taint: Taint | None = None) -> None:
        self.flags = 0
        self.taint = taint
        self.records: list[weakref.ref[Record]] | None = None  # of its views; None while there is only one tensor
        self.known: torch.Tensor | None = None
        self.why: Any = None
        self.borrows: Any = None


class Record:
    """One tensor: dies with it, and then tells the workers."""

    __slots__ = ("__weakref__", "meta", "place", "ref", "storage")

    def __init__(self, ref: int, meta: Meta, place: Place, storage: Storage) -> None:
        self.ref = ref
        self.meta = meta
        self.place = place
        self.storage = storage
        if recorders and (here := recorder()) is not None:
            here.born(self)

    def __del__(self) -> None:
        # From whatever the collector interrupts: a list's append is all that may happen here.
        if self.ref >= 0:
            self.place.dead.append(self.ref)


def share(first: Record, view: Record) -> None:
    """Notes that `view` lies in the storage of `first`, so that both can be found from it."""
    storage = first.storage
    if storage.records is None:
        storage.records = [weakref.ref(first)]
    elif len(storage.records) > 64 and len(storage.records) & (len(storage.records) - 1) == 0:
        storage.records[:] = [known for known in storage.records if known() is not None]
    storage.records.append(weakref.ref(view))


def tensors_of(storage: Storage, own: Record) -> list[Record]:
    """The records of all living tensors of `storage`."""
    if storage.records is None:
        return [own]
    return [record for known in storage.records if (record := known()) is not None]
