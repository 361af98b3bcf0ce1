"""OpaqueObject: an object in every worker whose methods the program calls."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from monarch.actor import Future
from monarch.tensor import functions
from monarch.tensor.remote.opaque_ref import OpaqueRef
from monarch.tensor.remote.remote_function import Remote, call_on_shard_and_fetch

if TYPE_CHECKING:
    from collections.abc import Hashable

    from torch.utils._pytree import PyTree

    from monarch.tensor.signature import Args, Kwargs


def construct(constructor: object, args: Args, kwargs: Kwargs) -> OpaqueRef:
    """Makes a new object, in a worker."""
    return OpaqueRef(functions.resolve(constructor)(*args, **kwargs))


def invoke(ref: OpaqueRef, name: str, args: Args, kwargs: Kwargs) -> PyTree:
    """Returns, in a worker, `object.name(*args, **kwargs)`."""
    return getattr(ref.value, name)(*args, **kwargs)


_construct = Remote(construct, lambda constructor, args, kwargs: OpaqueRef(None))
_fetched = Remote(invoke, "inspect")


class OpaqueObject:
    """`constructor(*args, **kwargs)`, run in every process of the active mesh; the objects stay there.

    `constructor`: a class or another callable, or its dotted path. Subclasses name the methods that programs call with
    `@opaque_method`; attributes that they set here are theirs and do not reach the workers.
    """

    def __init__(self, constructor: object, *args: object, **kwargs: object) -> None:
        self._object: OpaqueRef = _construct(functions.resolvable(constructor), args, kwargs)
        self._methods: dict[Hashable, Remote] = {}

    def call_method(self, name: str, propagation: object, *args: object, **kwargs: object) -> PyTree:
        """Returns what the objects' method `name` gives, as calling a remote function does.

        `propagation`: as `propagate` of `remote`; a callable gets the arguments alone.
        """
        return self._method(propagation)(self._object, name, args, kwargs)

    def call_method_on_shard_and_fetch(self, name: str, *args: Any, **kwargs: Any) -> Future[Any]:
        """A Future of what method `name` of the first rank's object returned. No other rank calls it.

        Keyword `shard` chooses the rank, as in `call_on_shard_and_fetch`.
        """
        shard = kwargs.pop("shard", None)
        return call_on_shard_and_fetch(_fetched, self._object, name, args, kwargs, shard=shard)

    def _method(self, propagation: object) -> Remote:
        key = propagation if callable(propagation) else str(propagation)
        found = self._methods.get(key)
        if found is None:
            propagate = propagation
            if callable(propagation):
                propagate = _Propagation(propagation)
            if len(self._methods) >= 256:  # a program that makes its propagators anew for each call
                self._methods.clear()
            found = self._methods[key] = Remote(invoke, propagate)
        return found


def opaque_method(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of an OpaqueObject: calling it calls the method of that name of the objects in the workers.

    Its body runs here, on fake tensors, and returns tensors like those that the call gives (see `remote`). It may use
    attributes of the OpaqueObject.
    """
    name = method.__name__

    @functools.wraps(method)
    def call(self: OpaqueObject, *args: object, **kwargs: object) -> PyTree:
        return self.call_method(name, types.MethodType(method, self), *args, **kwargs)

    return call


class _Propagation:
    """A propagator of a method's arguments as one of `invoke`'s."""

    def __init__(self, propagate: Callable[..., PyTree]) -> None:
        self._propagate = propagate

    def __call__(self, ref: OpaqueRef, name: str, args: Args, kwargs: Kwargs) -> PyTree:
        return self._propagate(*args, **kwargs)
