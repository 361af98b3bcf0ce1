"""`endpoint.keep`: calls whose results stay where they are made; and `put`, for values of this process."""

from __future__ import annotations

import inspect
from typing import Any, NoReturn, TypeVar

from monarch.actor import Endpoint, ValueMesh, context, current_actor_name
from monarch.references.counting import RefId
from monarch.references.object_ref import ObjectRef, RefFacts
from monarch.references.store import Answered, store

T = TypeVar("T")


def put(value: T) -> ObjectRef[T]:
    """Keeps a copy of `value` in this process; the reference to it goes anywhere.

    It is pickled now, as arguments are; what is large of it lies in shared memory, once. Raises what pickling raises,
    ReferenceLimitError beyond the setting `reference_bytes`, MemoryError when the machine has not that much.

    Since 0.2.0.
    """
    return store().put(value, _here())


def _here() -> str:
    running = context().actor_instance
    return (
        "put() in the client" if running.class_name is None else f"put() in {running.name} (rank {running.rank.rank})"
    )


class KeptEndpoint:
    """An endpoint as `keep` has it: see `Endpoint.keep`."""

    __slots__ = ("_endpoint",)

    def __init__(self, endpoint: Endpoint[Any, Any]) -> None:
        if endpoint._property._user_port:
            raise NotImplementedError(
                f"keep of {endpoint._name!r}, which answers through a port: its result is not known where it runs. Return "
                f"it from an ordinary endpoint"
            )
        if inspect.isgeneratorfunction(endpoint._method) or inspect.isasyncgenfunction(endpoint._method):
            raise NotImplementedError(
                f"keep of {endpoint._name!r}, a generator, which runs where it was made: write an endpoint that returns a "
                f"list of its values"
            )
        self._endpoint = endpoint

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        name = self._endpoint._name
        raise TypeError(
            f"keep says how {name}() is called, and does not call it: {name}.keep.call_one(...) runs it on a mesh of one and "
            f"gives an ObjectRef, {name}.keep.call(...) on every rank and gives a ValueMesh of them"
        )

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        raise AttributeError(
            f"keep has no {name}(): a result is kept by keep.call_one(...), on a mesh of one, or keep.call(...), on every "
            f"rank; slice the mesh for one rank of several"
        )

    def call_one(self, *args: Any, **kwargs: Any) -> ObjectRef[Any]:
        """Runs on the only rank of a mesh of one; at once a reference to its result, which stays there. ValueError for a mesh
        of any other size."""
        count = len(self._endpoint._mesh)
        if count != 1:
            raise ValueError(
                f"keep.call_one requires exactly 1 actor, but mesh has {count}: use keep.call(), or slice the mesh"
            )
        return self._one(0, args, kwargs)

    def call_one_then(self, answered: Answered, maker: str, *args: Any) -> ObjectRef[Any]:
        """Does as `call_one`; calls `answered(True)`, on a thread of its own, once the result, or an error in its place, is
        there, and `answered(False)` when the actor ended before. `maker`: who makes the value, for people."""
        return self._one(0, args, {}, answered, maker)

    def call(self, *args: Any, **kwargs: Any) -> ValueMesh[ObjectRef[Any]]:
        """Runs on every rank; at once a ValueMesh of references, each to that rank's result, which stays there."""
        mesh = self._endpoint._mesh
        return ValueMesh(mesh._shape, [self._one(rank, args, kwargs) for rank in range(len(mesh))])

    def _one(
        self,
        rank: int,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        answered: Answered | None = None,
        maker: str = "",
    ) -> ObjectRef[Any]:
        endpoint, own = self._endpoint, store()
        name, future = endpoint._keep_counted(args, kwargs, rank)
        mesh = endpoint._mesh
        maker = maker or f"{mesh._spec.name}.{endpoint._name}"
        facts = RefFacts(RefId(*name, rank), mesh._plan.addresses[rank], f"{maker} (rank {mesh._plan.ranks[rank]})")
        ref = own.created(facts)
        own.when_answered(facts, future, answered)
        return ref


def keep(name: tuple[str, str, int], rank: int, result: Any, error: BaseException | None) -> None:
    """Keeps the result of an endpoint that was called with `keep`, in its process."""
    store().keep(RefId(*name, rank), result, error, current_actor_name())
