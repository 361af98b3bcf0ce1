"""Objects in the workers whose methods are called for their effects: what they return is not wanted."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from monarch.tensor.remote.opaque_object import OpaqueObject


class WorkerRemoteClass:
    """A base that classes of objects in the workers may derive from. It asks for nothing."""


class ControllerRemoteClass:
    """One object of `constructor(*args, **kwargs)` in each process of the active mesh, as the program sees it.

    `constructor`: a class or its dotted path. Its methods are called with `call_method`, or by methods of the same name
    that a subclass decorates with `ControllerRemoteClass.remote_method`; all return None at once.
    """

    def __init__(self, constructor: object, *args: object, **kwargs: object) -> None:
        self._object = OpaqueObject(constructor, *args, **kwargs)

    def call_method(self, name: str, *args: object, **kwargs: object) -> None:
        """Calls method `name` of the objects; a failure is raised as that of a remote function is."""
        self._object.call_method(name, "inspect", *args, **kwargs)

    @staticmethod
    def remote_method(method: Callable[..., Any]) -> Callable[..., None]:
        """A method that calls the one of its name in the workers. Its own body never runs."""

        @functools.wraps(method)
        def call(self: ControllerRemoteClass, *args: object, **kwargs: object) -> None:
            self.call_method(method.__name__, *args, **kwargs)

        return call
