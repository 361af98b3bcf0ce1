"""The common part of HostMesh, ProcMesh and ActorMesh: they stand for something that is elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from monarch._shape.view import ShapedMesh


class MeshHandle(ShapedMesh):
    """A mesh of things that live elsewhere. A program cannot give it attributes: nobody there would see them."""

    _ended_by = "stop"  # what leaving an `async with` block does

    def __setattr__(self, name: str, value: Any) -> None:
        if name[:1] != "_" and not hasattr(type(self), name) and not self._may_replace(name):
            raise AttributeError(f"{name!r} cannot be set on {self._as_a_handle()}")
        object.__setattr__(self, name, value)

    def _may_replace(self, name: str) -> bool:
        """True if the name is already something here, which a test may replace by a mock."""
        return False

    def _as_a_handle(self) -> str:
        """Returns, for the text of an error, what this is, and where attributes go instead."""
        return (
            f"this {type(self).__name__}, which stands for what is elsewhere: keep the value in a variable of your own"
        )

    if not TYPE_CHECKING:  # type checkers shall find the mistake themselves

        def __enter__(self) -> NoReturn:
            raise TypeError(
                f"'{type(self).__name__}' object does not support the context manager protocol: it does support "
                f"`async with`; elsewhere end it with .{self._ended_by}().get()"
            )

        def __exit__(self, *exc: object) -> None:
            """Never reached; Python looks for both before it enters."""
