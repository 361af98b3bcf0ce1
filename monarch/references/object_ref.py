"""ObjectRef: a value that stays in the process where it was made, by a name that goes anywhere."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from monarch.actor.lowlevel import arithmetic, refuse
from monarch.references.counting import RefId
from monarch.references.errors import ReferenceLost

if TYPE_CHECKING:
    from monarch.actor import ProcMesh
    from monarch.references.store import ReferenceStore

T_co = TypeVar("T_co", covariant=True)


class RefFacts(NamedTuple):
    """The part of a reference that travels: its name, its owner's address, and who makes the value, for people."""

    ref: RefId
    owner: str
    maker: str

    def __str__(self) -> str:
        return f"{self.maker}, whose result is kept"


class ObjectRef(Generic[T_co]):
    """A reference to a value that stays in the process where it was made, or where it will be. It is small and can be sent
    anywhere: as an argument, in what an endpoint returns, through a Port, within values that are put.

        ref = actor.make.keep.call_one(x)   # at once
        other.use.call_one(ref).get()       # there: await ref, or ref.get()

    `get()` and `await` give the value, each time unpickled anew. On the owner's host arrays and tensors view its memory,
    uncopied: numpy arrays and memoryviews are read-only; who writes to a tensor changes it for this process alone. To another
    host the bytes go once for each process. Errors: ActorError with what the endpoint raised, ReferenceLost when the owner
    ended, TimeoutError after `timeout` seconds.

    The value is freed when no process has an ObjectRef of it, or a view of its memory, any more and none is under way in a
    message; a process that ends has none. References that hold each other in a circle are not freed before their owners end.

    Since 0.2.0.
    """

    __slots__ = ("__weakref__", "_copies", "_facts", "_store")

    _copies: tuple[ObjectRef[T_co], ...]  # of a pinned one: references to the same value, in several processes

    _facts: RefFacts
    _store: ReferenceStore

    def __init__(self) -> None:
        raise TypeError("an ObjectRef is made by put(value), endpoint.keep.call_one(...) or submit(...)")

    def get(self, timeout: float | None = None) -> T_co:
        """Returns the value, once it was made; blocks this thread until then. See the class for what it raises."""
        for copy in self._copies[:-1]:
            try:
                return copy.get(timeout)
            except ReferenceLost:  # another process has it
                pass
        one = self._copies[-1] if self._copies else self
        return one._store.reader.fetch(one).get(timeout)

    def __await__(self) -> Generator[Any, None, T_co]:
        return self._store.reader.fetch_later(self).__await__()

    def pin(self, copies: int = 2, on: ProcMesh | None = None, timeout: float | None = None) -> ObjectRef[T_co]:
        """Returns a reference to the same value that is not lost before `copies` processes have ended: its owner, and others
        that keep a copy. It is used and sent as any; the copies are freed with it.

        Blocks until the value was made and copied. The copies are in the first processes of `on` that do not have it, those
        of other hosts before those of the owner's; without `on` in this process. Each counts towards `reference_bytes` of its
        process. ValueError when there are not so many processes, ReferenceLost, what `get` raises, ReferenceLimitError.

        Since 0.2.0.
        """
        return self._store.pin(self, copies, on, timeout)

    @property
    def owner(self) -> str:
        """The address of the process that has the value, or, of a task that may be run again, that knows which has."""
        return self._facts.owner

    def __eq__(self, other: object) -> bool:
        return self._facts.ref == other._facts.ref if isinstance(other, ObjectRef) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._facts.ref)

    def __repr__(self) -> str:
        return f"<ObjectRef of {self._facts.maker}>"

    def __reduce__(self) -> Any:
        raise TypeError(
            "an ObjectRef is counted, and can be pickled in messages to actors only: as an argument, in what an endpoint "
            "returns, in a value that is put. Elsewhere send what ref.get() gives"
        )

    def __copy__(self) -> ObjectRef[T_co]:
        return self

    def __deepcopy__(self, memo: Any) -> ObjectRef[T_co]:
        return self

    def __del__(self) -> None:
        store = getattr(self, "_store", None)
        if store is not None and not self._copies:
            store.dropped.put(self._facts)


def _not_the_value(ref: ObjectRef[Any], mistake: str) -> str:
    return f"{mistake}: it is {ref}, and not the value, which comes with .get(), or with await in async code"


for _name, _member in {
    **arithmetic(_not_the_value),
    "__iter__": refuse(lambda self: "'ObjectRef' object is not iterable", _not_the_value),
    "__getitem__": refuse(lambda self, index: "'ObjectRef' object is not subscriptable", _not_the_value),
}.items():
    setattr(ObjectRef, _name, _member)


def handle(facts: RefFacts, store: ReferenceStore, copies: tuple[ObjectRef[Any], ...] = ()) -> ObjectRef[Any]:
    """Makes a handle that the store has counted; of a pinned reference `copies` are counted, and it is not."""
    ref: ObjectRef[Any] = ObjectRef.__new__(ObjectRef)
    ref._facts = facts
    ref._copies = copies
    ref._store = store
    return ref
